# libfibshim.so, the preloaded library, and libfibrecord.so, which it opens where launches are recorded.
# C++ without a C++ runtime; they link libc and nothing else.

SHIM_SRC := $(filter-out shim/record/%,$(wildcard shim/*/*.cc))
SHIM_OBJ := $(SHIM_SRC:%.cc=$(BUILD)/obj/%.o)
SHIM_LIB := $(BUILD)/lib/libfibshim.so
# Pure: the CLI and tests link it, too.
PLAN_SRC := $(wildcard shim/plan/*.cc)

RECORD_SRC := $(wildcard shim/record/*.cc) shim/base/process_file.cc
RECORD_OBJ := $(RECORD_SRC:%.cc=$(BUILD)/obj/%.o)
RECORD_LIB := $(BUILD)/lib/libfibrecord.so

$(SHIM_OBJ) $(RECORD_OBJ): ROOM_FLAGS = -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics \
  -ftls-model=initial-exec

# The exported names are the hook table's, so the version script is made from it.
$(BUILD)/obj/shim/exports.map: shim/driver/hook_table.h
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -nE 's/^ *(HOOK|EXPORT)\(([A-Za-z0-9_]+).*/\2;/p' $< | \
	  { printf '{\n  global:\n'; sed 's/^/    /'; printf '  local: *;\n};\n'; } > $@

# The recorder comes with the shim: whatever runs the shim may record.
$(SHIM_LIB): $(SHIM_OBJ) $(BUILD)/obj/shim/exports.map | $(RECORD_LIB)
$(RECORD_LIB): $(RECORD_OBJ) shim/record/exports.map
$(SHIM_LIB) $(RECORD_LIB):
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) -Wl,--version-script=$(filter %.map,$^) \
	  -Wl,-soname,$(@F) -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,-z,noseparate-code -Wl,-Bsymbolic -Wl,--no-undefined
