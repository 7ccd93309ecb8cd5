# Ready config folders: config/<name> -> build/config/<name>, with the files that its `parts` lists and the
# cubins beside them. The folder itself is the target: expand.sh puts it in place as a whole.

CONFIG_NAMES   := cublas demo flash_attention machete pytorch flashinfer sglang vllm
CONFIG_FOLDERS := $(CONFIG_NAMES:%=$(BUILD)/config/%)
CONFIG_INPUTS  := $(shell find config -mindepth 2 -type f)

# Written again when other images are to be in the folders. A missing image alone would not make them again: all files are .SECONDARY.
IMAGE_LIST := $(BUILD)/kernels/images
$(IMAGE_LIST): FORCE
	$(Q)mkdir -p $(@D)
	$(Q)printf '%s\n' $(KERNEL_CUBINS) | cmp -s - $@ || printf '%s\n' $(KERNEL_CUBINS) >$@

define config_folder
$(BUILD)/config/$(1): config/expand.sh config/config.mk $(CONFIG_INPUTS) $(wildcard kernels/*/*.cu kernels/*/*.cuh) $(KERNEL_CUBINS) $(IMAGE_LIST)
	$$(call say,CONFIG,$$@)
	$(Q)config/expand.sh config/$(1) kernels $(BUILD)/kernels $$@
endef
$(foreach name,$(CONFIG_NAMES),$(eval $(call config_folder,$(name))))
