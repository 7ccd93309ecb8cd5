# The curated kernels: build/kernels/<family>/<kernel>.sm_<SM>.cubin. Each family is one .cu file, compiled once
# per shape and SM, so that every length of loop is known to the compiler.

KERNEL_SMS   := 80 90 100
RMSNORM_ROWS := 128 2048 4096 5120 7168 8192

NVCCFLAGS := -cubin -std=c++20 -O3 --Werror all-warnings

# $(1) the length of a row, $(2) the SM
define rmsnorm_cubin
KERNEL_CUBINS += $(BUILD)/kernels/rmsnorm/rmsnorm_h$(1).sm_$(2).cubin
$(BUILD)/kernels/rmsnorm/rmsnorm_h$(1).sm_$(2).cubin: kernels/rmsnorm/rmsnorm.cu kernels/kernels.mk | $(SETUP)
	$$(call say,NVCC,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(NVCC) $(NVCCFLAGS) -arch=sm_$(2) -DHIDDEN=$(1) $$< -o $$@
endef
$(foreach rows,$(RMSNORM_ROWS),$(foreach sm,$(KERNEL_SMS),$(eval $(call rmsnorm_cubin,$(rows),$(sm)))))
