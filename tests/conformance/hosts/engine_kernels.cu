// Kernels of engines, of which the shipped folders' patterns know the names: only their names and
// parameters.
//
// Compiled twice: plain; and with CONFORM_OTHER, a second image of kernels that have the first one's
// names and other parameters, or stand beside them.
#include <stdint.h>

#if defined(CONFORM_OTHER)

// Rotation of the key heads in vLLM's default mode; that of the query heads is in the first image.
extern "C" __global__ void triton_poi_fused_2(const void*, const int64_t*, const void*, void*, int,
                                              void*, void*) {}
// With their norms before: of PyTorch 2.11, and of 2.14.
extern "C" __global__ void triton_poi_fused_6(const void*, const void*, const void*, const void*,
                                              const void*, void*, void*, int, void*, void*) {}
extern "C" __global__ void triton_per_fused_cat_4(const void*, const void*, const void*,
                                                  const void*, void*, int, int, void*, void*) {}
// vLLM's products of choices that are not sorted; those of sorted ones are in the first image.
extern "C" __global__ void fused_moe_kernel(const void*, const void*, void*, const int*, const int*,
                                            int, int, int, int, int, int, int, int, int, int, int,
                                            int, int, int, int, void*, void*) {}
// SGLang's routing of one token; that of several is in the first image.
extern "C" __global__ void _router_triton_kernel(const void*, const void*, float*, int*, int*,
                                                 float, float, int, int, int, int, int, int, int,
                                                 int, void*, void*) {}

#else

// cuBLAS's two kernels of a split-K product.
struct NvjetParams {
  char bytes[1720];
};
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT(NvjetParams) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT(NvjetParams) {}
// As cuBLAS 12.8 and 13.4 pass it.
struct NvjetParamsOf12_8 {
  char bytes[1464];
};
struct NvjetParamsOf13_4 {
  char bytes[1808];
};
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x2_v_bz_TNT(NvjetParamsOf12_8) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x3_v_bz_TNT(NvjetParamsOf13_4) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x2_v_bz_splitK_TNT(NvjetParamsOf12_8) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x3_v_bz_splitK_TNT(NvjetParamsOf13_4) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT(NvjetParams) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT(NvjetParams) {}
extern "C" __global__ void nvjet_sm90_tst_64x8_64x16_4x1_v_badd_TNT(NvjetParams) {}
extern "C" __global__ void nvjet_sm90_hsh_64x8_64x16_4x1_v_bz_TNT(NvjetParams) {}
extern "C" __global__ void nvjet_sm90_qqtst_64x16_128x16_4x1_v_bz_algo2_TNT(NvjetParams) {}
struct SplitKParams {
  uint32_t words[15];
};
#define SPLIT_K_REDUCE(has_bias) \
  _ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16fS1_Lb0EfS1_S1_Lb1ELb##has_bias##ELb0ELb0EEEvNS_18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_SG_SG_
#define SPLIT_K_PARAMS                                                                             \
  SplitKParams, const float*, const void*, float*, void*, const float*, const float*, const void*, \
      const float*, void*, void*, long, float*, int*, float*, float*, const float*, const float*,  \
      const float*, const float*, const float*
extern "C" __global__ void SPLIT_K_REDUCE(0)(SPLIT_K_PARAMS) {}
extern "C" __global__ void SPLIT_K_REDUCE(1)(SPLIT_K_PARAMS) {}

// vLLM 0.25's kernels for models in fp8, likewise.
#define FUSED_ADD_RMS_NORM \
  _ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb1EEENSt9enable_ifIXaagtT0_Li0Esr4vllm12_typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fii
#define SILU_AND_MUL \
  _ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb0ELb0EEEvPS5_PS6_ifff
#define STATIC_QUANT \
  _ZN4vllm43scaled_fp8_quant_kernel_strided_group_shapeIN3c108BFloat16ENS1_13Float8_e4m3fnELb1ELb1EEEvPT0_PKT_PKfilliill
#define DYNAMIC_QUANT \
  _ZN4vllm49dynamic_per_token_scaled_fp8_quant_kernel_stridedIN3c108BFloat16ENS1_13Float8_e4m3fnEEEvPT0_PfPKT_PKfill
extern "C" __global__ void FUSED_ADD_RMS_NORM(void*, int64_t, void*, const void*, float, int, int) {
}
extern "C" __global__ void SILU_AND_MUL(void*, const void*, int, float, float, float) {}
extern "C" __global__ void STATIC_QUANT(void*, const void*, const float*, int, int64_t, int64_t,
                                        int, int, int64_t, int64_t) {}
extern "C" __global__ void DYNAMIC_QUANT(void*, float*, const void*, const float*, int, int64_t,
                                         int64_t) {}

// vLLM's and FlashInfer's kernels for models in fp8 with blocks.
#define GROUP_QUANT(by_columns, is_ue8m0) \
  _Z42per_token_group_quant_8bit_register_kernelIN3c108BFloat16ENS0_13Float8_e4m3fnELb##by_columns##ELb##is_ue8m0##ELi128EEvPKT_PvPflfffii
#define SILU_BLOCK_QUANT(by_columns) \
  _ZN4vllm35silu_and_mul_per_block_quant_kernelIN3c108BFloat16ENS1_13Float8_e4m3fnELb##by_columns##ELi128EEEvPT0_PfPKT_PKfi
#define NORM_BLOCK_QUANT(has_residual, by_columns) \
  _ZN4vllm31rms_norm_per_block_quant_kernelIN3c108BFloat16ENS1_13Float8_e4m3fnELb##has_residual##ELb##by_columns##ELi128EEEvPT0_PfPKT_S9_PKffiiPS7_l
#define BLOCK_QUANT_KERNELS(by_columns)                                                          \
  extern "C" __global__ void GROUP_QUANT(by_columns, 0)(const void*, void*, float*, int64_t,     \
                                                        float, float, float, int, int) {}        \
  extern "C" __global__ void GROUP_QUANT(by_columns, 1)(const void*, void*, float*, int64_t,     \
                                                        float, float, float, int, int) {}        \
  extern "C" __global__ void SILU_BLOCK_QUANT(by_columns)(void*, float*, const void*,            \
                                                          const float*, int) {}                  \
  extern "C" __global__ void NORM_BLOCK_QUANT(0, by_columns)(                                    \
      void*, float*, const void*, const void*, const float*, float, int, int, void*, int64_t) {} \
  extern "C" __global__ void NORM_BLOCK_QUANT(1, by_columns)(                                    \
      void*, float*, const void*, const void*, const float*, float, int, int, void*, int64_t) {}
BLOCK_QUANT_KERNELS(0)
BLOCK_QUANT_KERNELS(1)
// SGLang's.
struct GroupQuantParams {
  const void* x;
  int64_t x_strides[2];
  void* quantized;
  int64_t quantized_strides[2];
  float* scales;
  uint32_t scales_strides[3], num_groups, num_tokens, hidden_size;
};
#define GROUP_QUANT_OF_SGLANG(by_rows, rest) \
  _ZN6sglang33per_token_group_quant_flat_kernelINS_10QuantTraitI13__nv_bfloat1613__nv_fp8_e4m3Lj128ELb0ELb##by_rows##ELb1ELb0E##rest
#define GROUP_QUANT_OF_SGLANG_KERNELS(rest)                                            \
  extern "C" __global__ void GROUP_QUANT_OF_SGLANG(0, rest)(const GroupQuantParams) {} \
  extern "C" __global__ void GROUP_QUANT_OF_SGLANG(1, rest)(const GroupQuantParams) {}
GROUP_QUANT_OF_SGLANG_KERNELS(
    Lb0EEELb1ELb0EEEvNSt11conditionalIXT1_ENS_23SortedQuantKernelParamsENS_17QuantKernelParamsEE4typeE)
GROUP_QUANT_OF_SGLANG_KERNELS(
    EELb1ELb0EEEvNSt11conditionalIXT1_ENS_23SortedQuantKernelParamsENS_17QuantKernelParamsEE4typeE)
GROUP_QUANT_OF_SGLANG_KERNELS(EELb1EEEvNS_17QuantKernelParamsE)
// FlashAttention's combine kernel, as sglang-kernel builds it.
struct SortedCombineParams {
  uint64_t words[29];
};
#define FLASH_COMBINE \
  _ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS3_1CILi8EEENS5_ILi128EEEEEELi5ELi256ELi1ELb0ELb1ENS_10bfloat16_tEfNS_4arch4Sm90EEEEEvNT_6ParamsE
extern "C" __global__ void FLASH_COMBINE(const SortedCombineParams) {}
// torch.compile's for vLLM.
extern "C" __global__ void triton_poi_fused_mul_silu_slice_1(const void*, void*, int, void*,
                                                             void*) {}
// SGLang's.
struct ActivationParams {
  const void* input;
  void* output;
  uint32_t width, num_tokens;
  uint64_t rest[5];
};
struct ActivationParamsOfOld {
  const void* input;
  void* output;
  uint32_t width, num_tokens;
  uint64_t rest[2];
};
extern "C" __global__ void
_ZN6sglang18act_and_mul_kernelI13__nv_bfloat16LNS_14ActivationKindE0ELb1ELb0ELb0ELb0ELb0ELb0EEEvNS_16ActivationParamsE(
    const ActivationParams) {}
extern "C" __global__ void
_ZN6sglang18act_and_mul_kernelI13__nv_bfloat16LNS_14ActivationKindE0ELb1ELb0ELb0ELb0EEEvNS_16ActivationParamsE(
    const ActivationParamsOfOld) {}
#define SCALE_1X128 \
  _ZN12tensorrt_llm7kernels19fp8_blockscale_gemm18scale_1x128_kernelI13__nv_bfloat1613__nv_fp8_e4m3fEEvPT0_PT1_PKT_ii
extern "C" __global__ void SCALE_1X128(void*, float*, const void*, int, int) {}

// Since 0.33 the norm has the stride of the residual.
#define FUSED_ADD_RMS_NORM_STRIDED \
  _ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb1EEENSt9enable_ifIXaagtT0_Li0Esr4vllm12_typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fiil
extern "C" __global__ void FUSED_ADD_RMS_NORM_STRIDED(void*, int64_t, void*, const void*, float,
                                                      int, int, int64_t) {}

// vLLM's kernels without a weight, with a limit, and with the activation of the second half.
#define RMS_NORM_NO_WEIGHT \
  _ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi4ELb0EEEvPT_PKS3_lllllS6_lfii
#define FUSED_ADD_RMS_NORM_NO_WEIGHT \
  _ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb0EEENSt9enable_ifIXaagtT0_Li0Esr4vllm12_typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fiil
#define SILU_AND_MUL_CLAMP \
  _ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb1ELb0EEEvPS5_PS6_ifff
#define MUL_AND_SILU \
  _ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_EEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_EELb0ELb1ELb0EEEvPS5_PS6_i
extern "C" __global__ void RMS_NORM_NO_WEIGHT(void*, const void*, int64_t, int64_t, int64_t,
                                              int64_t, int64_t, const void*, int64_t, float, int,
                                              int) {}
extern "C" __global__ void FUSED_ADD_RMS_NORM_NO_WEIGHT(void*, int64_t, void*, const void*, float,
                                                        int, int, int64_t) {}
extern "C" __global__ void SILU_AND_MUL_CLAMP(void*, const void*, int, float, float, float) {}
extern "C" __global__ void MUL_AND_SILU(void*, const void*, int) {}

// vLLM's kernels of an attention layer with norms of the heads.
#define RMS_NORM _ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi3ELb1EEEvPT_PKS3_lllllS6_lfii
#define ROTARY_EMBEDDING \
  _ZN4vllm23rotary_embedding_kernelIN3c108BFloat16ES2_Lb1EEEvPKlPT_S6_PKT0_illliiilb
#define RESHAPE_AND_CACHE \
  _ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDataTypeE0EEEvPKT_S5_PT0_S7_PKlllllliiiPKfSB_i
extern "C" __global__ void RMS_NORM(void*, const void*, int64_t, int64_t, int64_t, int64_t, int64_t,
                                    const void*, int64_t, float, int, int) {}
extern "C" __global__ void ROTARY_EMBEDDING(const int64_t*, void*, void*, const void*, int, int64_t,
                                            int64_t, int64_t, int, int, int, int64_t, bool) {}
extern "C" __global__ void RESHAPE_AND_CACHE(const void*, const void*, void*, void*, const int64_t*,
                                             int64_t, int64_t, int64_t, int64_t, int64_t, int, int,
                                             int, const float*, const float*, int) {}
extern "C" __global__ void triton_poi_fused_1(const void*, const int64_t*, const void*, void*, int,
                                              void*, void*) {}
// Both rotations as one kernel.
extern "C" __global__ void triton_poi_fused_3(const void*, const int64_t*, const void*, void*,
                                              void*, int, int, void*, void*) {}
// The rotation of rows to which it adds a bias, and the sum of these rows and the bias.
extern "C" __global__ void triton_poi_fused_7(const void*, const void*, const int64_t*, const void*,
                                              void*, int, void*, void*) {}
extern "C" __global__ void triton_poi_fused_8(void*, const void*, int, void*, void*) {}
// The same of heads with norms: sums of squares, what is made of both heads, of the query's alone,
// and of the query's and of both without sums.
extern "C" __global__ void triton_red_fused_3(const void*, void*, void*, int, int, void*, void*) {}
extern "C" __global__ void triton_poi_fused_4(const void*, const void*, const void*, const void*,
                                              const void*, const void*, const void*, void*, void*,
                                              void*, void*, int, int, void*, void*) {}
extern "C" __global__ void triton_poi_fused_5(const void*, const void*, const void*, const void*,
                                              const void*, void*, void*, int, void*, void*) {}
extern "C" __global__ void triton_per_fused_cat_3(const void*, const void*, const void*,
                                                  const void*, void*, int, int, void*, void*) {}
extern "C" __global__ void triton_red_fused_5(const void*, const void*, const void*, const void*,
                                              const void*, void*, void*, int, int, void*, void*) {}

// SGLang's kernels of such a layer.
struct QkNormParams {
  char bytes[72];
};
struct FusedRopeParams {
  char bytes[72];
};
struct StoreCacheParams {
  char bytes[104];
};
extern "C" __global__ void
_ZN6sglang22fused_qknorm_half_warpILb1E13__nv_bfloat16EEvNS_12QKNormParamsE(QkNormParams) {}
extern "C" __global__ void
_ZN6sglang17fused_qknorm_warpILl128ELb1E13__nv_bfloat16EEvNS_12QKNormParamsE(QkNormParams) {}
extern "C" __global__ void
_ZN6sglang17fused_rope_kernelILb1ELl128ELb1E13__nv_bfloat16S1_lLj16EEEvNS_15FusedRopeParamsE(
    FusedRopeParams) {}
extern "C" __global__ void
_ZN6sglang20store_kvcache_kernelILl2048ELl2048ELj128ELb1ElEEvNS_18StoreKVCacheParamsE(
    StoreCacheParams) {}
// Of heads of 64.
extern "C" __global__ void
_ZN6sglang17fused_rope_kernelILb1ELl64ELb1E13__nv_bfloat16S1_lLj8EEEvNS_15FusedRopeParamsE(
    FusedRopeParams) {}
extern "C" __global__ void
_ZN6sglang20store_kvcache_kernelILl256ELl256ELj32ELb1ElEEvNS_18StoreKVCacheParamsE(
    StoreCacheParams) {}

// Rotation and KV write as one, of heads of 128 and 64.
struct FusedRopeStoreParams {
  char bytes[120];
};
extern "C" __global__ void
_ZN6sglang23fused_rope_store_kernelILb1ELl128ELb1E13__nv_bfloat16S1_lLj16EEEvNS_20FusedRopeStoreParamsE(
    FusedRopeStoreParams) {}
extern "C" __global__ void
_ZN6sglang23fused_rope_store_kernelILb1ELl64ELb1E13__nv_bfloat16S1_lLj8EEEvNS_20FusedRopeStoreParamsE(
    FusedRopeStoreParams) {}

// vLLM's kernels that route tokens to 128 and to 8 experts.
#define TOP_K_GATING(experts, type) \
  _ZN4vllm3moe10topkGatingILi8ELi##experts##ELi4ELi16ELi32Ei##type##LNS0_11ScoringFuncE0EEEvPKT5_PKbPfiPT4_PiiiibPKf
#define ALIGN_BLOCK_SIZE _ZN4vllm3moe27moe_align_block_size_kernelIiEEvPKT_PiS5_S5_S5_iiiimS5_iib
#define COUNT_AND_SORT _ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_PiS5_S5_miiib
#define ALIGN_SMALL_BATCH \
  _ZN4vllm3moe46moe_align_block_size_small_batch_expert_kernelIiLi256EEEvPKT_PiS5_S5_S5_iimiib
extern "C" __global__ void TOP_K_GATING(128, 13__nv_bfloat16)(const void*, const bool*, float*, int,
                                                              int*, int*, int, int, int, bool,
                                                              const float*) {}
extern "C" __global__ void TOP_K_GATING(8, 13__nv_bfloat16)(const void*, const bool*, float*, int,
                                                            int*, int*, int, int, int, bool,
                                                            const float*) {}
extern "C" __global__ void ALIGN_BLOCK_SIZE(const int*, int*, int*, int*, int*, int, int, int, int,
                                            size_t, int*, int, int, bool) {}
extern "C" __global__ void COUNT_AND_SORT(const int*, int*, int*, int*, size_t, int, int, int,
                                          bool) {}
extern "C" __global__ void ALIGN_SMALL_BATCH(const int*, int*, int*, int*, int*, int, int, size_t,
                                             int, int, bool) {}

// As they are since vLLM 0.33: with a factor of the weights, a mask of padding, and where each choice stands.
#define TOP_K_GATING_SCALED(experts, type) \
  _ZN4vllm3moe10topkGatingILi8ELi##experts##ELi4ELi16ELi32Ei##type##LNS0_11ScoringFuncE0EEEvPKT5_PKbPfiPT4_PiiiibPKfdS8_
#define COUNT_AND_SORT_SCATTER \
  _ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_PiS5_S5_miiibS5_
#define ALIGN_SMALL_BATCH_SCATTER \
  _ZN4vllm3moe46moe_align_block_size_small_batch_expert_kernelIiLi256EEEvPKT_PiS5_S5_S5_iimiibS5_
extern "C" __global__ void TOP_K_GATING_SCALED(128, 13__nv_bfloat16)(const void*, const bool*,
                                                                     float*, int, int*, int*, int,
                                                                     int, int, bool, const float*,
                                                                     double, const bool*) {}
extern "C" __global__ void TOP_K_GATING_SCALED(8, 13__nv_bfloat16)(const void*, const bool*, float*,
                                                                   int, int*, int*, int, int, int,
                                                                   bool, const float*, double,
                                                                   const bool*) {}
extern "C" __global__ void COUNT_AND_SORT_SCATTER(const int*, int*, int*, int*, size_t, int, int,
                                                  int, bool, int*) {}
extern "C" __global__ void ALIGN_SMALL_BATCH_SCATTER(const int*, int*, int*, int*, int*, int, int,
                                                     size_t, int, int, bool, int*) {}

extern "C" __global__ void fused_moe_kernel(const void*, const void*, void*, const int*, const int*,
                                            const int*, int, int, int, int, int, int, int, int, int,
                                            int, int, int, int, int, int, void*, void*) {}
// In fp8, under names that tell them apart: vLLM's, and SGLang's of blocks of 16 and of 64.
#define SCALED_PRODUCT(name, ...)                                                              \
  extern "C" __global__ void fused_moe_kernel_##name(                                          \
      const void*, const void*, void*, const float*, const float*, __VA_ARGS__, int, int, int, \
      int, int, int, int, int, int, int, int, int, int, void*, void*) {}
SCALED_PRODUCT(sorted, const int*, const int*, const int*)
SCALED_PRODUCT(sorted_weighted, const float*, const int*, const int*, const int*)
SCALED_PRODUCT(each, const int*, const int*)
SCALED_PRODUCT(each_weighted, const float*, const int*, const int*)
SCALED_PRODUCT(of_16, const float*, const int*, const int*, const int*)
SCALED_PRODUCT(of_16_weighted, const float*, const int*, const int*, const int*)
SCALED_PRODUCT(of_64, const float*, const int*, const int*, const int*)
SCALED_PRODUCT(of_64_weighted, const float*, const int*, const int*, const int*)

// SGLang's, of 128 experts, and what sorts few choices or many.
extern "C" __global__ void _router_triton_kernel(const void*, const void*, float*, int*, int*, int,
                                                 float, float, int, int, int, int, int, int, int,
                                                 int, void*, void*) {}
extern "C" __global__ void _moe_align_small_numel_kernel(const int*, int*, int*, int*, int, int,
                                                         int, void*, void*) {}
extern "C" __global__ void _Z27moe_align_block_size_kernelIiEvPKT_PiS3_S3_iimS3_bbii(
    const int*, int*, int*, int*, int, int, size_t, int*, bool, bool, int, int) {}
extern "C" __global__ void _Z35count_and_sort_expert_tokens_kernelIiEvPKT_PiS3_mb(const int*, int*,
                                                                                  int*, size_t,
                                                                                  bool) {}

// vLLM's product in fp8 by CUTLASS, with A and B exchanged.
struct ScaledProductParams {
  char bytes[1536];
};
extern "C" __global__ void
_ZN7cutlass13device_kernelIN4vllm24cutlass_3x_gemm_sm90_fp8INS_12float_e4m3_tENS_10bfloat16_tENS1_3c3x14ScaledEpilogueEN4cute5tupleIJNS7_1CILi64EEENS9_ILi16EEENS9_ILi256EEEEEENS8_IJNS9_ILi1EEESE_SE_EEENS_4gemm36KernelTmaWarpSpecializedFP8FastAccumENS_8epilogue18TmaWarpSpecializedELb1EE10GemmKernelEEEvNT_6ParamsE(
    ScaledProductParams) {}

// DeepGEMM's product in fp8, and that of the one in FlashInfer.
struct alignas(64) TensorMap {
  char bytes[128];
};
struct InputOfProduct {
  int shape;
  int* groups;
};
extern "C" __global__ void
_ZN9deep_gemm23sm90_fp8_gemm_1d2d_implILN4cute4UMMA5MajorE0ELj0ELj4096ELj4096ELj1ELj64ELj32ELj128ELj128ELj128ELj64ELj16ELj128ELj128ELj1ELb0ELj132ELNS_8GemmTypeE0EN7cutlass10bfloat16_tEEEvPfPijjj14CUtensorMap_stS9_S9_S9_(
    float*, int*, unsigned, unsigned, unsigned, TensorMap, TensorMap, TensorMap, TensorMap) {}
extern "C" __global__ void
_ZN9deep_gemm22fp8_gemm_kernel_swapABILj4096ELj4096ELj128ELj16ELj128ELj1ELj8ELj128ELj128ELj1ENS_21NormalSchedulerSwapABILj4096ELj128ELj16ELj1ELj1ELj32ELj16EEENS_26NormalSchedulerInputSwapABEEEvP13__nv_bfloat16PfT10_14CUtensorMap_stS8_S8_S8_(
    void*, float*, InputOfProduct, TensorMap, TensorMap, TensorMap, TensorMap) {}

// vLLM's product with weights in 4 bits by Machete, for few rows: without offsets, in bfloat16 and fp16, and with them.
struct MacheteParams {
  char bytes[2432];
};
extern "C" __global__ void
_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEN7machete20MacheteCollectiveMmaINS5_IJNS_27vllm_biased_integer_subbyteILi4ELi8ELb0EEENS_10bfloat16_tEEEENS7_24PrepackedLayoutBTemplateISB_SA_SB_fNS_6layout11ColumnMajorENS1_35KernelTmaWarpSpecializedCooperativeENS7_16IlvBlkLayoutAutoEEELi32ESB_SF_Li8EfNS5_IJNS4_1CILi128EEENSJ_ILi16EEENSJ_ILi64EEEEEENS5_IJNSJ_ILi1EEESO_SO_EEENS1_10collective22StageCountAutoCarveoutILi6144EEESG_EENS_8epilogue10collective18CollectiveEpilogueINSU_22Sm90TmaWarpSpecializedILi1ELi1ELi8ELb0ELb1EEEJSN_NS5_IJSK_SL_EEEvNS5_IJSO_llEEESB_S10_NSU_6fusion15Sm90TreeVisitorINS11_12Sm90AccFetchEJEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7SwizzleILi3ELi4ELi3EEENS4_18smem_ptr_flag_bitsILi16EEENS4_6LayoutINS5_IJSM_NSJ_ILi8EEEEEENS5_IJSO_SM_EEEEEEENS4_17SM75_U16x8_LDSM_TENS4_14SM90_TMA_STOREES1G_NS4_17SM90_U16x8_STSM_TENS4_9Copy_AtomIJNS4_17SM90_U32x4_STSM_NENS_6half_tEEEEvEEENS1_16StreamKSchedulerEvEEEEvNT_6ParamsE(
    MacheteParams) {}
extern "C" __global__ void
_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEN7machete20MacheteCollectiveMmaINS5_IJNS_27vllm_biased_integer_subbyteILi4ELi8ELb0EEENS_6half_tEEEENS7_24PrepackedLayoutBTemplateISB_SA_SB_fNS_6layout11ColumnMajorENS1_35KernelTmaWarpSpecializedCooperativeENS7_16IlvBlkLayoutAutoEEELi32ESB_SF_Li8EfNS5_IJNS4_1CILi128EEENSJ_ILi16EEENSJ_ILi64EEEEEENS5_IJNSJ_ILi1EEESO_SO_EEENS1_10collective22StageCountAutoCarveoutILi6144EEESG_EENS_8epilogue10collective18CollectiveEpilogueINSU_22Sm90TmaWarpSpecializedILi1ELi1ELi8ELb0ELb1EEEJSN_NS5_IJSK_SL_EEEvNS5_IJSO_llEEESB_S10_NSU_6fusion15Sm90TreeVisitorINS11_12Sm90AccFetchEJEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7SwizzleILi3ELi4ELi3EEENS4_18smem_ptr_flag_bitsILi16EEENS4_6LayoutINS5_IJSM_NSJ_ILi8EEEEEENS5_IJSO_SM_EEEEEEENS4_17SM75_U16x8_LDSM_TENS4_14SM90_TMA_STOREES1G_NS4_17SM90_U16x8_STSM_TENS4_9Copy_AtomIJNS4_17SM90_U32x4_STSM_NESB_EEEvEEENS1_16StreamKSchedulerEvEEEEvNT_6ParamsE(
    MacheteParams) {}
extern "C" __global__ void
_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEN7machete20MacheteCollectiveMmaINS5_IJNS_15integer_subbyteILi4ELb0EEENS_10bfloat16_tESB_EEENS7_24PrepackedLayoutBTemplateISB_SA_SB_fNS_6layout11ColumnMajorENS1_35KernelTmaWarpSpecializedCooperativeENS7_16IlvBlkLayoutAutoEEELi32ESB_SF_Li8EfNS5_IJNS4_1CILi128EEENSJ_ILi16EEENSJ_ILi64EEEEEENS5_IJNSJ_ILi1EEESO_SO_EEENS1_10collective22StageCountAutoCarveoutILi6144EEESG_EENS_8epilogue10collective18CollectiveEpilogueINSU_22Sm90TmaWarpSpecializedILi1ELi1ELi8ELb0ELb1EEEJSN_NS5_IJSK_SL_EEEvNS5_IJSO_llEEESB_S10_NSU_6fusion15Sm90TreeVisitorINS11_12Sm90AccFetchEJEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7SwizzleILi3ELi4ELi3EEENS4_18smem_ptr_flag_bitsILi16EEENS4_6LayoutINS5_IJSM_NSJ_ILi8EEEEEENS5_IJSO_SM_EEEEEEENS4_17SM75_U16x8_LDSM_TENS4_14SM90_TMA_STOREES1G_NS4_17SM90_U16x8_STSM_TENS4_9Copy_AtomIJNS4_17SM90_U32x4_STSM_NENS_6half_tEEEEvEEENS1_16StreamKSchedulerEvEEEEvNT_6ParamsE(
    MacheteParams) {}
extern "C" __global__ void
_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEN7machete20MacheteCollectiveMmaINS5_IJNS_15integer_subbyteILi4ELb0EEENS_6half_tESB_EEENS7_24PrepackedLayoutBTemplateISB_SA_SB_fNS_6layout11ColumnMajorENS1_35KernelTmaWarpSpecializedCooperativeENS7_16IlvBlkLayoutAutoEEELi32ESB_SF_Li8EfNS5_IJNS4_1CILi128EEENSJ_ILi16EEENSJ_ILi64EEEEEENS5_IJNSJ_ILi1EEESO_SO_EEENS1_10collective22StageCountAutoCarveoutILi6144EEESG_EENS_8epilogue10collective18CollectiveEpilogueINSU_22Sm90TmaWarpSpecializedILi1ELi1ELi8ELb0ELb1EEEJSN_NS5_IJSK_SL_EEEvNS5_IJSO_llEEESB_S10_NSU_6fusion15Sm90TreeVisitorINS11_12Sm90AccFetchEJEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7SwizzleILi3ELi4ELi3EEENS4_18smem_ptr_flag_bitsILi16EEENS4_6LayoutINS5_IJSM_NSJ_ILi8EEEEEENS5_IJSO_SM_EEEEEEENS4_17SM75_U16x8_LDSM_TENS4_14SM90_TMA_STOREES1G_NS4_17SM90_U16x8_STSM_TENS4_9Copy_AtomIJNS4_17SM90_U32x4_STSM_NESB_EEEvEEENS1_16StreamKSchedulerEvEEEEvNT_6ParamsE(
    MacheteParams) {}

// torch.compile's norms of a sum in vLLM's default mode: a sum of two, of three in place, and of
// three which is kept.
extern "C" __global__ void triton_red_fused_fused_add_rms_norm_0(const void*, const void*,
                                                                 const void*, void*, int, int,
                                                                 void*, void*) {}
extern "C" __global__ void triton_red_fused_fused_add_rms_norm_1(void*, const void*, const void*,
                                                                 const void*, int, int, void*,
                                                                 void*) {}
extern "C" __global__ void triton_red_fused_fused_add_rms_norm_2(const void*, const void*,
                                                                 const void*, const void*, void*,
                                                                 void*, int, int, void*, void*) {}

// The sum of a token's rows of its experts, as vLLM launches it, now and in 0.25, and with a map of experts.
extern "C" __global__ void
_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi2ELb0EEEvPT_PKS4_lillPKT0_PKill(
    void*, const void*, int64_t, int, int64_t, int64_t, const int*, const int*, int64_t, int64_t) {}
extern "C" __global__ void
_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi2ELb1EEEvPT_PKS4_lillPKT0_PKill(
    void*, const void*, int64_t, int, int64_t, int64_t, const int*, const int*, int64_t, int64_t) {}
extern "C" __global__ void _ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16ELi2EEEvPT_PKS4_lill(
    void*, const void*, int64_t, int, int64_t, int64_t) {}

// And as SGLang does, up to 32 tokens and of more, with the norm behind it.
extern "C" __global__ void _moe_sum_reduce_kernel(const void*, int, int, void*, int, int, int, int,
                                                  void*, void*) {}
extern "C" __global__ void
_Z21moe_sum_reduce_kernelIN3c108BFloat16ELi8EEvPKT_PS2_lllllN2at10OpMathTypeIS2_E4typeE(
    const void*, void*, int64_t, int64_t, int64_t, int64_t, int64_t, float) {}
struct CuteRows {
  void* rows;
  int64_t count;
};
extern "C" __global__ void
kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16gmemalign128oi64204820481_tensorptrbf16gmemalign128oi64204820481_tensorptrbf16gme_0(
    CuteRows, CuteRows, const void*, int64_t, float) {}

#endif
