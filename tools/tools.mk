# build/bin/fibshim: the command line. Links the loader's archive, so that `check` and the shim
# cannot disagree about a folder.

# The build whose judge the CLI links: the AddressSanitizer build uses the plain build's, since no test runs
# the judge's commands in it.
JUDGE_BUILD ?= $(BUILD)
# Code that reads libraries of a hundred thousand kernels.
IMAGE_SRC := $(patsubst %,tools/%.cc,images/image_contents images/image_report base/json_writer)
# By themselves: those, what has settings of its own, and what tests link without the rest.
ALONE_SRC := $(IMAGE_SRC) $(wildcard tools/*.cc) $(patsubst %,tools/%.cc,processes/installation base/fmt_library base/json_input judge/element_types lint/schema)
CLI_BATCHES := $(foreach folder,$(sort $(dir $(wildcard tools/*/*.cc))),$(call folder_objects,$(folder:%/=%),$(filter-out $(ALONE_SRC),$(wildcard $(folder)*.cc))))
CLI_OBJ := $(ALONE_SRC:%.cc=$(BUILD)/obj/%.o) $(CLI_BATCHES)
LINT_OBJ := $(filter $(BUILD)/obj/tools/lint/%,$(CLI_OBJ))
CLI_OBJ := $(filter-out $(BUILD)/obj/tools/judge/%,$(CLI_OBJ)) $(patsubst $(BUILD)/%,$(JUDGE_BUILD)/%,$(filter $(BUILD)/obj/tools/judge/%,$(CLI_OBJ)))
# The shim's plan, which is pure: verify, bench and record use it to find out what the shim would do.
PLAN_OBJ := $(PLAN_SRC:%.cc=$(BUILD)/obj/%.o)
CLI     := $(BUILD)/bin/fibshim
MULTIARCH := $(shell $(CC) -print-multiarch)

# The CLI is less optimised than the libraries: little of it is hot, and its libraries' headers are large.
# For the same reason AddressSanitizer comes without UBSan here, except for code that fuzz targets run:
# `make ubsan` has both.
# fmt_library.cc compiles the code of {fmt} for the versions that it knows.
FMT_FLAGS := $(if $(shell grep -sE 'define FMT_VERSION [89][0-9]{4}$$' /usr/include/fmt/core.h),,-DFMT_HEADER_ONLY)
# tests/layers reads from the debug information which file a symbol of a batch is of; the program itself has none.
CLI_FLAGS := $(FMT_FLAGS) -fvisibility=hidden -Og -g1
$(CLI_OBJ): ROOM_FLAGS = $(if $(SANITIZE),$(FMT_FLAGS) -O0 $(if $(findstring address,$(SANITIZE)),-fno-sanitize=undefined),$(CLI_FLAGS))
# The elements of a tensor are read and written one by one.
HOT_OBJ := $(IMAGE_SRC:%.cc=$(BUILD)/obj/%.o) $(JUDGE_BUILD)/obj/tools/judge/element_types.o
$(HOT_OBJ): ROOM_FLAGS += $(if $(SANITIZE),,-O2)
# A precompiled header works only for objects that are compiled with the same flags.
WITH_JSON := $(CLI_BATCHES) $(patsubst %.cc,$(BUILD)/obj/%.o,$(shell grep -lF '<nlohmann/json.hpp>' $(ALONE_SRC)))
$(eval $(call precompiled,tools/base/precompiled_json.h,$(filter-out $(HOT_OBJ),$(WITH_JSON)),$(CLI_FLAGS)))
$(eval $(call precompiled,tools/base/precompiled.h,$(filter-out $(HOT_OBJ) $(WITH_JSON),$(CLI_OBJ)),$(CLI_FLAGS)))
$(BUILD)/obj/tools/processes/installation.o: private CPPFLAGS += -DFIBSHIM_MULTIARCH='"$(MULTIARCH)"'

# schema.o contains the schemas.
$(BUILD)/obj/tools/lint/schema.o: $(wildcard tools/schema/*.json)

$(CLI): $(CLI_OBJ) $(PLAN_OBJ) $(LOADER_AR) $(PRIVATE_LIBELF)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(SANITIZE_LINK) -o $@ $(CLI_OBJ) $(PLAN_OBJ) $(LOADER_AR) $(LOADER_LINK) \
	  -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../lib64:$$ORIGIN/../lib/$(MULTIARCH)' -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro $(if $(SANITIZE),,-Wl$(comma)--strip-debug) -ldl

# ---- install: PREFIX/lib, bin and share may be moved as a whole; nothing in them names its place

# Man pages: the program fills in the parts that come from its own tables.
MAN_PAGES := $(patsubst tools/man/%.in,$(BUILD)/man/%,$(wildcard tools/man/*.in))
$(BUILD)/man/fibshim-%.1: tools/man/fibshim-%.1.in $(CLI)
	$(call say,MAN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLI) $* --manual $< > $@
$(BUILD)/man/%: tools/man/%.in $(CLI)
	$(call say,MAN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLI) --manual $< > $@

# LIBDIR=/usr/lib64 or /usr/lib/x86_64-linux-gnu: where this system's linker searches. STRIP=: keep symbols.
LIBDIR ?= $(PREFIX)/lib
STRIP  ?= strip --strip-unneeded
DEST = $(DESTDIR)$(PREFIX)
LIBDEST = $(DESTDIR)$(LIBDIR)
LIBS = $(SHIM_LIB) $(RECORD_LIB) $(SHADOW_LIB) $(LOADER_LIB)
# The files for `fibshim run --simulate`, and a program to try it with.
SIM_DEST = $(LIBDEST)/fibshim-sim
SIM_PROGRAM = $(BUILD)/tests/hosts/engine
COMPLETIONS = fibshim.bash:bash-completion/completions/fibshim _fibshim:zsh/site-functions/_fibshim \
  fibshim.fish:fish/vendor_completions.d/fibshim.fish
install: all $(MAN_PAGES) $(SIM_LIB) $(SIM_PROGRAM) $(BUILD)/tests/data/engine_kernels.fatbin ## install into $(DESTDIR)$(PREFIX)
	$(call say,INSTALL,$(DEST))
	$(Q)install -d '$(DEST)/bin' '$(SIM_DEST)/hosts' '$(SIM_DEST)/data' '$(DEST)/share/fibshim/config' '$(DEST)/share/doc/fibshim'
	$(Q)install -m 755 $(CLI) '$(DEST)/bin/'
	$(Q)install -m 644 $(LIBS) $(BUILD)/lib/libfibshim-*.so '$(LIBDEST)/'
	$(Q)install -m 644 $(SIM_LIB) '$(SIM_DEST)/'
	$(Q)install -m 755 $(SIM_PROGRAM) '$(SIM_DEST)/hosts/'
	$(Q)install -m 644 $(BUILD)/tests/data/engine_kernels.fatbin '$(SIM_DEST)/data/'
	$(Q)$(if $(STRIP),$(STRIP) '$(DEST)/bin/fibshim' '$(LIBDEST)'/libfib*.so '$(SIM_DEST)/libcuda.so.1' '$(SIM_DEST)/hosts/engine')
	$(Q)tar -C $(BUILD)/config --mode=u=rwX,go=rX -cf - . | tar -C '$(DEST)/share/fibshim/config' --no-same-owner -xf -
	$(Q)for page in $(MAN_PAGES); do \
	  install -D -m 644 $$page '$(DEST)'/share/man/man$${page##*.}/$${page##*/} || exit; done
	$(Q)for pair in $(COMPLETIONS); do \
	  install -D -m 644 tools/completion/$${pair%%:*} '$(DEST)'/share/$${pair#*:} || exit; done
	$(Q)install -d '$(DEST)/share/fibshim/schema'
	$(Q)install -m 644 tools/schema/*.json '$(DEST)/share/fibshim/schema/'
	$(Q)install -m 644 README.md LICENSE CHANGELOG.md '$(DEST)/share/doc/fibshim/'
	$(Q)install -d '$(DEST)/share/fibshim/monitoring'
	$(Q)install -m 644 tools/packaging/monitoring/* '$(DEST)/share/fibshim/monitoring/'
	$(Q)install -d '$(DEST)/share/doc/fibshim/examples'
	$(Q)install -m 644 tools/packaging/examples/* '$(DEST)/share/doc/fibshim/examples/'
	@# With ldconfig, LD_PRELOAD=libfibshim.so works with the bare name.
	$(Q)[ -n '$(DESTDIR)' ] || [ "$$(id -u)" != 0 ] || ldconfig

.PHONY: uninstall
uninstall: ## remove what install has put into $(DESTDIR)$(PREFIX)
	$(call say,REMOVE,$(DEST))
	$(Q)rm -rf '$(DEST)/share/fibshim' '$(DEST)/share/doc/fibshim' '$(SIM_DEST)'
	$(Q)rm -f '$(DEST)/bin/fibshim' $(patsubst %,'$(LIBDEST)/%',$(notdir $(LIBS)) $(notdir $(wildcard $(BUILD)/lib/libfibshim-*.so))) \
	  $(foreach page,$(notdir $(MAN_PAGES)),'$(DEST)/share/man/man$(subst .,,$(suffix $(page)))/$(page)') \
	  $(foreach pair,$(COMPLETIONS),'$(DEST)/share/$(lastword $(subst :, ,$(pair)))')
	$(Q)[ -n '$(DESTDIR)' ] || [ "$$(id -u)" != 0 ] || ldconfig
