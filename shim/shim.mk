# libfibshim.so: the preloaded library. C++ without a C++ runtime; links libc and nothing else.

SHIM_SRC := $(wildcard shim/*/*.cc)
SHIM_OBJ := $(SHIM_SRC:%.cc=$(BUILD)/obj/%.o)
SHIM_LIB := $(BUILD)/lib/libfibshim.so

$(SHIM_OBJ): ROOM_FLAGS = -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics \
  -ftls-model=initial-exec

# The exported names are the hook table's, so the version script is made from it.
$(BUILD)/obj/shim/exports.map: shim/driver/hook_table.h
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -nE 's/^ *(HOOK|EXPORT)\(([A-Za-z0-9_]+).*/\2;/p' $< | \
	  { printf '{\n  global:\n'; sed 's/^/    /'; printf '  local: *;\n};\n'; } > $@

$(SHIM_LIB): $(SHIM_OBJ) $(BUILD)/obj/shim/exports.map
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ $(SHIM_OBJ) -Wl,--version-script=$(BUILD)/obj/shim/exports.map \
	  -Wl,-soname,libfibshim.so -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,-z,noseparate-code -Wl,-Bsymbolic -Wl,--no-undefined
