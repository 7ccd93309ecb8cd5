# libfibloader.so: config folder -> snapshot. Also an archive of the same objects, for the CLI and tests.
# libstdc++, PCRE2 and libsodium go in statically; libelf cannot (its archive is not PIC), so a
# private copy with a name of its own lies beside the library: see private_copy.sh.

LOADER_SRC := $(wildcard loader/*/*.cc)
LOADER_OBJ := $(LOADER_SRC:%.cc=$(BUILD)/obj/%.o) $(BUILD)/obj/loader/identity.o
LOADER_AR  := $(BUILD)/obj/libloader.a
LOADER_LIB := $(BUILD)/lib/libfibloader.so
PRIVATE_LIBELF := $(BUILD)/lib/libfibshim-elf.so

LOADER_LINK := -Wl,-Bstatic -lpcre2-8 -lsodium -Wl,-Bdynamic -L$(BUILD)/lib -lfibshim-elf -static-libstdc++ -static-libgcc -Wl,-u,_dl_find_object

$(LOADER_OBJ): ROOM_FLAGS = -fvisibility=hidden

# A prebuilt index is good for the very loader that wrote it: see identity.h.
LOADER_TEXTS := $(sort $(LOADER_SRC) $(wildcard loader/*/*.h) $(wildcard shim/abi/*.h) loader/loader.mk)
$(BUILD)/obj/loader/identity.cc: $(LOADER_TEXTS)
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)printf '#include "loader/check/identity.h"\nconst uint64_t fibshim::kLoaderIdentity = 0x%.16s;\n' \
	  "$$(cat $^ | sha256sum)" >$@
$(BUILD)/obj/loader/identity.o: $(BUILD)/obj/loader/identity.cc
	$(call say,CXX,$@)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(SANITIZE_FLAGS) $(ROOM_FLAGS) -c $< -o $@

$(LOADER_AR): $(LOADER_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(PRIVATE_LIBELF): loader/private_copy.sh | $(SETUP)
	$(call say,COPY,$@)
	$(Q)mkdir -p $(@D)
	$(Q)loader/private_copy.sh libelf.so.1 fibshim-elf $(@D)

$(LOADER_LIB): $(LOADER_OBJ) loader/exports.map $(PRIVATE_LIBELF)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $(LOADER_OBJ) -Wl,--version-script=loader/exports.map -Wl,-soname,libfibloader.so \
	  -Wl,-rpath,'$$ORIGIN' -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined $(LOADER_LINK)
