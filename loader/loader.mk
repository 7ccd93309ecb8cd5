# libfibloader.so: config folder -> snapshot. Also an archive of the same objects, for the CLI and tests.
# libstdc++, PCRE2, libsodium, LZ4 and zstd go in statically; libelf cannot (its archive is not PIC), so a
# private copy with a name of its own lies beside the library: see private_copy.sh.

LOADER_SRC := $(wildcard loader/*/*.cc)
LOADER_OBJ := $(foreach folder,read compile check,$(call folder_objects,loader/$(folder),$(wildcard loader/$(folder)/*.cc)))
LOADER_AR  := $(BUILD)/obj/libloader.a
LOADER_LIB := $(BUILD)/lib/libfibloader.so
PRIVATE_LIBELF := $(BUILD)/lib/libfibshim-elf.so

LOADER_LINK := -Wl,-Bstatic -lpcre2-8 -lsodium -llz4 -lzstd -Wl,-Bdynamic -L$(BUILD)/lib -lfibshim-elf -static-libstdc++ -static-libgcc -Wl,-u,_dl_find_object

# An allocator for the library alone: the CLI and a sanitized build have theirs.
LOADER_MEMORY := $(if $(SANITIZE),,$(BUILD)/obj/loader/memory/memory.o)

$(LOADER_OBJ) $(LOADER_MEMORY): ROOM_FLAGS = -fvisibility=hidden

$(LOADER_AR): $(LOADER_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(PRIVATE_LIBELF): loader/private_copy.sh | $(SETUP)
	$(call say,COPY,$@)
	$(Q)mkdir -p $(@D)
	$(Q)loader/private_copy.sh libelf.so.1 fibshim-elf $(@D)

$(LOADER_LIB): $(LOADER_OBJ) $(LOADER_MEMORY) loader/exports.map $(PRIVATE_LIBELF)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $(LOADER_OBJ) $(LOADER_MEMORY) -Wl,--version-script=loader/exports.map -Wl,-soname,libfibloader.so \
	  -Wl,-rpath,'$$ORIGIN' -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,--no-undefined $(LOADER_LINK)
