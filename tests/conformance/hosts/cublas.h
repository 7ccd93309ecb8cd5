// cuBLAS's kernels of a product, captured: their names, and what it passes to them (config/cublas).
#pragma once

#include "tests/conformance/hosts/graphs.h"

namespace conform {

inline constexpr char kNvjet[] = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT";
inline constexpr char kWholeNvjet[] = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT";
inline constexpr char kNvjetWithBias[] = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT";
inline constexpr char kSplitNvjetWithBias[] = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT";
inline constexpr char kNvjetWithAddend[] = "nvjet_sm90_tst_64x8_64x16_4x1_v_badd_TNT";
inline constexpr char kNvjetInFp16[] = "nvjet_sm90_hsh_64x8_64x16_4x1_v_bz_TNT";
inline constexpr char kNvjetInFp8[] = "nvjet_sm90_qqtst_64x16_128x16_4x1_v_bz_algo2_TNT";
inline constexpr char kReduce[] =
    "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16fS1_Lb0EfS1_S1_"
    "Lb1ELb0ELb0ELb0EEEvNS_"
    "18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_SG_"
    "SG_";
inline constexpr char kReduceWithBias[] =
    "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Eif13__nv_bfloat16fS1_Lb0EfS1_S1_"
    "Lb1ELb1ELb0ELb0EEEvNS_"
    "18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_SG_"
    "SG_";

// The struct of a version: what stands behind its first 1,272 bytes moves with its size (config/cublas/parts).
struct NvjetLayout {
  size_t bytes, sums, bias, b_again, a_again;
  const char* whole;  // kernels that take it
  const char* split;
};
inline constexpr NvjetLayout kNvjetLayouts[] = {
    {1720, 1608, 1632, 1704, 1712, kWholeNvjet, kNvjet},
    {1464, 1352, 1376, 1448, 1456, "nvjet_sm90_tst_64x8_64x16_4x2_v_bz_TNT",
     "nvjet_sm90_tst_64x8_64x16_4x2_v_bz_splitK_TNT"},
    {1808, 1688, 1712, 1784, 1792, "nvjet_sm90_tst_64x8_64x16_4x3_v_bz_TNT",
     "nvjet_sm90_tst_64x8_64x16_4x3_v_bz_splitK_TNT"},
};

// What cuBLAS passes to both (config/cublas).
struct Product {
  CUdeviceptr a, b, c, workspace;
  int32_t m, n, k, splits;
  uint32_t epilogue = 1;  // nothing; 4: a bias
  CUdeviceptr bias = 0, addend = 0, scale_a = 0, scale_b = 0;
  int32_t last_product = 0;  // of several in one launch

  void fill(char* nvjet, uint32_t (&words)[15],
            const NvjetLayout& layout = kNvjetLayouts[0]) const {
    memset(nvjet, 0, layout.bytes);
    const auto put = [&](size_t at, const auto& value) {
      memcpy(nvjet + at, &value, sizeof value);
    };
    const float one = 1;
    for (const size_t at : {size_t{176}, size_t{432}, size_t{816}, layout.b_again}) put(at, b);
    for (const size_t at : {size_t{240}, size_t{496}, size_t{880}, layout.a_again}) put(at, a);
    for (const size_t at : {size_t{688}, size_t{752}, layout.sums}) put(at, workspace);
    for (const size_t at : {208, 272}) put(at, k - 1);
    for (const size_t at : {212, 416}) put(at, n - 1);
    for (const size_t at : {276, 420}) put(at, m - 1);
    const int32_t pitch = k / (scale_a != 0 ? 16 : 8);  // in 16 bytes
    for (const size_t at : {188, 252, 444, 508}) put(at, pitch);
    put(320, k / splits);
    put(328, c);
    put(336, addend);
    put(344, one);
    if (addend != 0) put(348, one);
    put(352, static_cast<int64_t>(n));
    put(384, scale_b);
    put(392, scale_a);
    put(424, last_product);
    put(layout.bias, bias);
    const auto columns = static_cast<uint32_t>(n);
    const uint32_t given[15] = {0x3f800000,
                                0,
                                columns,
                                static_cast<uint32_t>(m),
                                columns,
                                columns,
                                columns,
                                columns,
                                1,
                                static_cast<uint32_t>(n * m),
                                static_cast<uint32_t>(splits),
                                0,
                                0,
                                0,
                                epilogue};
    memcpy(words, given, sizeof given);
  }
};

// As cuBLAS launches them: packed, the first in clusters, the second to begin early.
inline void launch_packed(const Gpu& gpu, CUfunction function, const CUlaunchAttribute& attribute,
                          unsigned grid, void* bytes, size_t size) {
  CUlaunchConfig config = launch_config(gpu.stream());
  CUlaunchAttribute given = attribute;
  config.gridDimX = grid;
  config.attrs = &given;
  config.numAttrs = 1;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  OK(cuda().cuLaunchKernelEx(&config, function, nullptr, extra));
}

inline CUlaunchAttribute cluster_of_four() {
  CUlaunchAttribute attribute = attribute_of(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  attribute.value.clusterDim = {4, 1, 1};
  return attribute;
}

// A product in one kernel, which writes C itself. `third`: stands where the workspace would.
inline void launch_whole(const Gpu& gpu, CUfunction nvjet, const Product& product,
                         CUdeviceptr third) {
  char bytes[1720];
  uint32_t words[15];
  product.fill(bytes, words);
  for (const size_t at : {688, 752}) memcpy(bytes + at, &product.c, sizeof product.c);
  memcpy(bytes + 1608, &third, sizeof third);
  launch_packed(gpu, nvjet, cluster_of_four(), 128, bytes, sizeof bytes);
}

// What is passed to the sum of the parts.
struct ReduceParams {
  uint32_t words[15];
  uint32_t padding = 0;
  uint64_t values[20] = {};

  explicit ReduceParams(const Product& product) {
    char unused[1720];
    product.fill(unused, words);
    values[0] = values[2] = product.workspace;
    values[1] = values[3] = product.c;
    values[6] = product.bias;
  }
};

inline void launch_reduce(const Gpu& gpu, CUfunction reduce, const Product& product) {
  ReduceParams params(product);
  launch_packed(gpu, reduce, programmatic(), 64, &params, sizeof params);
}

inline void launch_product(const Gpu& gpu, CUfunction nvjet, CUfunction reduce,
                           const Product& product) {
  char bytes[1720];
  uint32_t words[15];
  product.fill(bytes, words);
  launch_packed(gpu, nvjet, cluster_of_four(), 128, bytes, sizeof bytes);
  launch_reduce(gpu, reduce, product);
}

}  // namespace conform
