# The curated kernels: build/kernels/<family>/<family>.sm_<SM>.cubin. Each family is one .cu file,
# compiled once per SM into one image with all of its sizes and types.

# `make test` alone compiles for Hopper, and keeps those for other GPUs that are there up to date; `make` compiles for all.
ifndef KERNEL_SMS
KERNEL_SMS := $(if $(filter-out test,$(or $(MAKECMDGOALS),all)),80 90 100,90 $(patsubst $(BUILD)/kernels/rope/rope.sm_%.cubin,%,$(wildcard $(BUILD)/kernels/rope/rope.sm_[18]*0.cubin)))
endif
KERNEL_SMS_layernorm    := 80 90 100  # tests run them on a simulated GPU of another kind
KERNEL_SMS_rmsnorm      := 80 90 100
KERNEL_SMS_softmax      := 80 90 100
KERNEL_SMS_gemm         := 90  # measured only there, and needs 227 KB of shared memory
KERNEL_SMS_gemm_wide    := 90
KERNEL_ARCH_gemm_wide   := a  # its warpgroup instructions exist only on Hopper
KERNEL_SMS_gemm_block_scaled := 90
KERNEL_SMS_gemm_scaled  := 90
KERNEL_SMS_gemm_w4a16   := 90  # measured only there
KERNEL_SMS_gemm_w4a16_wide := 90
KERNEL_ARCH_gemm_w4a16_wide := a
KERNEL_ARCH_gemm_block_scaled := a
KERNEL_ARCH_gemm_scaled := a
KERNEL_SMS_moe_gemm     := 90  # measured only there
KERNEL_SMS_moe_gemm_block_scaled := 90
KERNEL_SMS_moe_gemm_mxfp4 := 90  # the layouts of its weights are Hopper's
KERNEL_SMS_paged_decode := 90  # replaces a kernel for Hopper
KERNEL_SMS_decode_combine := 90  # the same
KERNEL_SMS_decode_combine_then_quant := 90
KERNEL_SMS_reduce_sum_rmsnorm := 90  # the same, and clusters
KERNEL_SMS_moe_sum      := 90  # clusters; measured only there
KERNEL_SMS_quant_per_block := 90  # measured only there
KERNEL_SMS_quant_per_token := 90  # clusters; measured only there
KERNEL_SMS_then_quant_per_block := 90  # measured only there
KERNEL_SMS_sampling     := 90  # clusters; measured only there
KERNEL_FLAGS_sampling   := -ftz=true  # as FlashInfer's
KERNEL_FAMILIES         := decode_combine decode_combine_then_quant fused_add_rmsnorm gated_activation gemm gemm_block_scaled gemm_scaled gemm_w4a16 gemm_w4a16_wide gemm_wide layernorm moe_gemm moe_gemm_block_scaled moe_gemm_mxfp4 moe_routing moe_sum paged_decode paged_kv_cache qk_rope_append quant_per_block quant_per_token reduce_sum_rmsnorm rmsnorm rmsnorm_quant rope sampling sandwich_rmsnorm softmax splitk_reduce sum_rmsnorm then_quant_per_block

# Tables of these repeat block and grid; row.cuh compares them with what is compiled.
$(foreach family,fused_add_rmsnorm layernorm rmsnorm rmsnorm_quant sandwich_rmsnorm sum_rmsnorm,\
  $(eval KERNEL_TABLES_$(family) := $(wildcard config/shared/$(family)/*.table config/demo/$(family).table)))
KERNEL_TABLES_quant_per_block := config/shared/quant_per_block/sizes.table  # others have no block
KERNEL_TABLES_then_quant_per_block := $(addprefix config/shared/then_quant_per_block/,sizes.table vllm_sizes.table)
KERNEL_TABLES_quant_per_token := $(addprefix config/shared/quant_per_token/,sizes.table norm.table quant.table)
KERNEL_TABLE_LINES = "-DFIBSHIM_TABLE_LINES=$$$$(awk -f kernels/table_lines.awk $(KERNEL_TABLES_$(1)))"

NVCCFLAGS := -cubin -std=c++20 -O3 --Werror all-warnings -Ikernels/common

# $(1) the family, $(2) the SM
define family_cubin
KERNEL_CUBINS += $(BUILD)/kernels/$(1)/$(1).sm_$(2).cubin
$(BUILD)/kernels/$(1)/$(1).sm_$(2).cubin: kernels/$(1)/$(1).cu $(wildcard kernels/common/*.cuh) kernels/kernels.mk $(KERNEL_TABLES_$(1)) $(if $(KERNEL_TABLES_$(1)),kernels/table_lines.awk) | $(SETUP)
	$$(call say,NVCC,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(NVCC) $(NVCCFLAGS) $(KERNEL_FLAGS_$(1)) $(if $(KERNEL_TABLES_$(1)),$(KERNEL_TABLE_LINES)) -arch=sm_$(2)$(strip $(KERNEL_ARCH_$(1))) $$< -o $$@
endef
$(foreach family,$(KERNEL_FAMILIES),$(foreach sm,$(or $(KERNEL_SMS_$(family)),$(KERNEL_SMS)),$(eval $(call family_cubin,$(family),$(sm)))))
