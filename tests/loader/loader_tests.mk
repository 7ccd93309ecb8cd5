# Images that the loader's tests read, compiled from tests/loader/data.

# One kernel as a just-in-time compiler may make it again, and another one.
CODE_IMAGES := $(addprefix $(BUILD)/tests/data/loader/code_,first second other plain beside)
$(BUILD)/tests/data/loader/code_first: CODE_FLAGS = -DNAME=triton_add_3
$(BUILD)/tests/data/loader/code_second: CODE_FLAGS = -DNAME=triton_add_17 -lineinfo -DFILE_NAME='"/another/folder/file"'
$(BUILD)/tests/data/loader/code_other: CODE_FLAGS = -DNAME=triton_add_3 -DADDED=2
$(BUILD)/tests/data/loader/code_plain: CODE_FLAGS = -DNAME=add -DPLAIN
$(BUILD)/tests/data/loader/code_beside: CODE_FLAGS = -DNAME=add -DPLAIN -DBESIDE
$(CODE_IMAGES): tests/loader/data/named.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)/$(@F).d && cp $< $(@D)/$(@F).d/
	$(Q)$(NVCC) -cubin -arch=sm_90 $(CODE_FLAGS) -o $@ $(@D)/$(@F).d/$(<F)

READ_SMS   := 75 80 89 90 90a 100 103 120
TABLES_SMS := 75 80 89 90 100 103 120 121
LOADER_TEST_DATA := $(CODE_IMAGES) $(addprefix $(BUILD)/tests/data/loader/,only_sm_90.fatbin ptx plain.fatbin compressed.fatbin \
  $(foreach sm,$(READ_SMS),sm_$(sm).cubin) $(foreach sm,$(TABLES_SMS),tables.sm_$(sm).cubin relocatable.sm_$(sm).cubin))

# Every row below is one nvcc run: image, flags, source.
define loader_test_image
$(BUILD)/tests/data/loader/$(1): tests/loader/data/$(or $(3),kernels).cu | $(SETUP)
	$$(call say,NVCC,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(NVCC) $(2) -o $$@ $$<
endef
SM90_AND_PTX := -gencode arch=compute_90$(comma)code=sm_90 -gencode arch=compute_90$(comma)code=compute_90
# Cubins of many architectures, from one PTX.
# $(1) image, $(2) flags, $(3) the PTX
define loader_test_cubin
$(BUILD)/tests/data/loader/$(1): $(BUILD)/tests/data/loader/$(3).ptx
	$$(call say,NVCC,$$@)
	$(Q)$$(NVCC) -cubin $(2) -o $$@ $$<
endef
$(eval $(call loader_test_image,sm_75.ptx,-ptx -arch=compute_75))
$(eval $(call loader_test_image,sm_90.ptx,-ptx -arch=compute_90))
$(eval $(call loader_test_image,tables.ptx,-ptx -arch=compute_75,tables))
$(eval $(call loader_test_image,relocatable.ptx,-dc -ptx -arch=compute_75,tables))
# The kernels that only Hopper and later have are compiled only for them.
$(foreach sm,$(READ_SMS),$(eval $(call loader_test_cubin,sm_$(sm).cubin,-arch=sm_$(sm),sm_$(if $(filter 75 80 89,$(sm)),75,90))))
$(foreach sm,$(TABLES_SMS),$(eval $(call loader_test_cubin,tables.sm_$(sm).cubin,-arch=sm_$(sm),tables)))
$(foreach sm,$(TABLES_SMS),$(eval $(call loader_test_cubin,relocatable.sm_$(sm).cubin,-dc -arch=sm_$(sm),relocatable)))
$(eval $(call loader_test_image,ptx,-ptx -arch=compute_90))
$(eval $(call loader_test_image,plain.fatbin,-fatbin -no-compress $(SM90_AND_PTX)))
$(eval $(call loader_test_image,only_sm_90.fatbin,-fatbin -compress-mode=size -Xfatbin=-compress-all -gencode arch=compute_90$(comma)code=sm_90))
$(eval $(call loader_test_image,compressed.fatbin,-fatbin -compress-mode=size $(SM90_AND_PTX)))

$(LOADER_TEST_OBJ): ROOM_FLAGS = $(TEST_FLAGS) -DLOADER_TEST_DATA='"$(abspath $(BUILD)/tests/data/loader)"'
$(eval $(call with_test_headers,$(LOADER_TEST_OBJ)))
$(BUILD)/tests/loader_tests: $(LOADER_TEST_DATA)
