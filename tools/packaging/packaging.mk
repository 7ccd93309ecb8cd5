# A Debian package, and a tarball that works wherever it is unpacked. Both contain what `install`
# installs, stripped, with the licences of the libraries inside; see tools/packaging/*.sh.
# If they are built on Debian 12 or Ubuntu 22.04, they need glibc 2.34 and nothing else.

VERSION := $(shell sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' tools/base/terminal.h)
PACKAGE := $(BUILD)/package
TARBALL := $(PACKAGE)/fibshim-$(VERSION)-linux-$(shell uname -m).tar.gz
DEB     := $(PACKAGE)/fibshim_$(VERSION)-1_$(shell dpkg --print-architecture 2>/dev/null || echo all).deb
PACKAGED = $(SHIM_LIB) $(RECORD_LIB) $(SHADOW_LIB) $(LOADER_LIB) $(CLI) $(CONFIG_FOLDERS) README.md CHANGELOG.md LICENSE \
  $(SIM_LIB) $(wildcard tools/schema/* tools/man/* tools/completion/* tools/packaging/* tools/packaging/examples/* tools/packaging/monitoring/*)

.PHONY: tarball deb test-package
tarball: $(TARBALL) ## a tarball that runs wherever it is unpacked, in containers without libelf too
$(TARBALL): $(PACKAGED)
	$(call say,PACKAGE,$@)
	$(Q)mkdir -p $(@D)
	$(Q)MAKE='$(MAKE)' BUILD=$(BUILD) tools/packaging/tarball.sh $(VERSION) $@

deb: $(DEB) ## a package for Debian 12, Ubuntu 22.04 and later
$(DEB): $(PACKAGED)
	$(call say,PACKAGE,$@)
	$(Q)mkdir -p $(@D)
	$(Q)MAKE='$(MAKE)' BUILD=$(BUILD) tools/packaging/deb.sh $(VERSION)-1 $@

test-package: $(TARBALL) $(DEB) $(SIM_LIB) $(HOSTS) ## try both in a bare Debian (needs root, network and debootstrap)
	$(Q)BUILD=$(BUILD) tools/packaging/test_package.sh $(TARBALL) $(DEB)
