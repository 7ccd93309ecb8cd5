# libfibshim.so, the preloaded library; libfibrecord.so, which it opens if launches are recorded; libfibshadow.so, which it
# opens if launches are checked. C++ without a C++ runtime; they link libc and nothing else.

SHIM_SRC := $(filter-out shim/record/% shim/shadow/%,$(wildcard shim/*/*.cc))
SHIM_OBJ := $(SHIM_SRC:%.cc=$(BUILD)/obj/%.o)
SHIM_LIB := $(BUILD)/lib/libfibshim.so
# Pure; the CLI and tests link it, too.
PLAN_SRC := $(wildcard shim/plan/*.cc)

RECORD_SRC := $(wildcard shim/record/*.cc) shim/base/process_file.cc
RECORD_OBJ := $(RECORD_SRC:%.cc=$(BUILD)/obj/%.o)
RECORD_LIB := $(BUILD)/lib/libfibrecord.so

SHADOW_SRC := $(wildcard shim/shadow/*.cc)
SHADOW_OBJ := $(SHADOW_SRC:%.cc=$(BUILD)/obj/%.o) $(BUILD)/obj/shim/shadow/compare_image.o
SHADOW_LIB := $(BUILD)/lib/libfibshadow.so

# The comparing kernel of shadow checks, for the GPUs for which curated kernels are built; PTX for later ones.
$(BUILD)/obj/shim/shadow/compare.fatbin: shim/shadow/compare.cu shim/shadow/compare.h shim/abi/shadow_api.h shim/shim.mk | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -fatbin -std=c++20 -O3 --Werror all-warnings -I. \
	  $(foreach sm,80 90 100,-gencode arch=compute_$(sm)$(comma)code=sm_$(sm)) -gencode arch=compute_80$(comma)code=compute_80 $< -o $@
$(BUILD)/obj/shim/shadow/compare_image.o: $(BUILD)/obj/shim/shadow/compare.fatbin
	$(Q)printf '.section .rodata\n.balign 64\n.global fibshim_compare_image\n.hidden fibshim_compare_image\nfibshim_compare_image:\n.incbin "%s"\n.section .note.GNU-stack,"",%%progbits\n' $< | \
	  $(CC) -c -x assembler - -o $@

SHIM_FLAGS := -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics -ftls-model=initial-exec
SHIM_CC_OBJ := $(SHIM_OBJ) $(RECORD_OBJ) $(SHADOW_SRC:%.cc=$(BUILD)/obj/%.o)
$(SHIM_CC_OBJ): ROOM_FLAGS = $(SHIM_FLAGS)
# Functions begin on a cache line: a launch whose code is cold reads fewer lines.
$(BUILD)/obj/shim/launch/fast.o: ROOM_FLAGS += -falign-functions=64
$(eval $(call precompiled,shim/base/precompiled.h,$(sort $(SHIM_CC_OBJ)),$(SHIM_FLAGS)))

# The exported names come from the hook table, so the version script is made from it.
$(BUILD)/obj/shim/exports.map: shim/driver/hook_table.h
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -nE 's/^ *(HOOK|EXPORT)\(([A-Za-z0-9_]+).*/\2;/p' $< | \
	  { printf '{\n  global:\n'; sed 's/^/    /'; printf '  local: *;\n};\n'; } > $@

# The other two are built with the shim, so that whatever runs it can record and check.
$(SHIM_LIB): $(SHIM_OBJ) $(BUILD)/obj/shim/exports.map | $(RECORD_LIB) $(SHADOW_LIB)
$(RECORD_LIB): $(RECORD_OBJ) shim/record/exports.map
$(SHADOW_LIB): $(SHADOW_OBJ) shim/shadow/exports.map
$(SHIM_LIB) $(RECORD_LIB) $(SHADOW_LIB):
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ $(filter %.o,$^) -Wl,--version-script=$(filter %.map,$^) \
	  -Wl,-soname,$(@F) -Wl,--gc-sections -Wl,-z,now -Wl,-z,relro -Wl,-z,noseparate-code -Wl,-Bsymbolic -Wl,--no-undefined
