// vLLM's products in fp8 by CUTLASS (config/vllm/cutlass_scaled_mm.json.in), whose one parameter is a struct. Each is launched with
// cuLaunchKernel and cuLaunchKernelEx.

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kScaledMm[] =
    "_ZN7cutlass13device_kernelIN4vllm24cutlass_3x_gemm_sm90_fp8INS_12float_e4m3_tENS_10bfloat16_"
    "tENS1_3c3x14ScaledEpilogueEN4cute5tupleIJNS7_1CILi64EEENS9_ILi16EEENS9_ILi256EEEEEENS8_"
    "IJNS9_ILi1EEESE_SE_EEENS_4gemm36KernelTmaWarpSpecializedFP8FastAccumENS_"
    "8epilogue18TmaWarpSpecializedELb1EE10GemmKernelEEEvNT_6ParamsE";

struct ScaledProduct {
  int32_t m, n, k;
  bool scales_each_row_of_a, scales_each_row_of_b;
  CUdeviceptr a, b, scale_a, scale_b, c;

  void fill(char (&bytes)[1536]) const {
    memset(bytes, 0, sizeof bytes);
    const auto put = [&](size_t at, const auto& value) {
      memcpy(bytes + at, &value, sizeof value);
    };
    // A descriptor of TMA: the address, the bytes from row to row in units of 16, and the last column and row.
    const auto describe = [&](size_t at, CUdeviceptr memory, int32_t rows, int32_t columns,
                              int32_t element_bytes) {
      put(at, memory);
      put(at + 12, columns * element_bytes / 16);
      put(at + 32, columns - 1);
      put(at + 36, rows - 1);
    };
    put(0, n);
    put(4, m);
    put(8, k);
    put(12, 1);  // products
    describe(128, b, n, k, 1);
    describe(384, a, m, k, 1);
    describe(896, c, m, n, 2);
    put(768, scale_b);
    put(776, scales_each_row_of_b);
    put(784, scale_a);
    put(792, scales_each_row_of_a);
  }
};

class ScaledMm {
 public:
  explicit ScaledMm(const Gpu& gpu)
      : gpu_(gpu),
        function_(gpu.function(gpu.load_module(kEngines), kScaledMm)),
        memory_(device_memory(size_t{5} << 20)) {}

  ScaledProduct product(int32_t m, int32_t n, int32_t k, bool scales_each_row_of_a,
                        bool scales_each_row_of_b) const {
    const auto at = [&](CUdeviceptr megabyte) { return memory_ + (megabyte << 20); };
    return {m, n, k, scales_each_row_of_a, scales_each_row_of_b, at(0), at(1), at(2), at(3), at(4)};
  }
  // Twice: with each function.
  void launch(char (&bytes)[1536]) const {
    void* params[] = {bytes};
    OK(cuda().cuLaunchKernel(function_, 132, 1, 1, 384, 1, 1, 0, gpu_.stream(), params, nullptr));
    const CUlaunchConfig config = launch_config(gpu_.stream());
    OK(cuda().cuLaunchKernelEx(&config, function_, params, nullptr));
  }

 private:
  const Gpu& gpu_;
  CUfunction function_;
  CUdeviceptr memory_;
};

void expect_arguments(const char* kernel, const ScaledProduct& product) {
  const SimcudaLaunch last = last_launch(kernel);
  const CUdeviceptr pointers[] = {product.a, product.b, product.scale_a, product.scale_b,
                                  product.c};
  const int32_t sizes[] = {product.m, product.n, product.k};
  EXPECT_EQUAL(sizeof pointers + sizeof sizes, last.param_bytes);
  CHECK(memcmp(last.params, pointers, sizeof pointers) == 0);
  CHECK(memcmp(last.params + sizeof pointers, sizes, sizeof sizes) == 0);
}

}  // namespace

GPU_CASE(scaled_products_of_vllm) {
  const ScaledMm scaled_mm(gpu);
  Counts counts;
  const struct {
    int32_t m, n, k;
    bool scales_each_row_of_a, scales_each_row_of_b;
    const char* kernel;
    long* counter;
    uint32_t cluster = 1;
  } launches[] = {
      {4, 28672, 4096, true, true, "gemm_scaled_m16_channel", &counts.hit},
      {20, 4096, 14336, true, true, "gemm_scaled_pair_m32_channel", &counts.hit, 2},
      {4, 28672, 4096, true, false, "gemm_scaled_m16_token", &counts.hit},
      {4, 28672, 4096, false, false, "gemm_scaled_m16_tensor", &counts.hit},
      // The scale of a single row is told as one of all rows.
      {1, 28672, 4096, false, true, "gemm_scaled_m16_channel", &counts.hit},
      {1, 28672, 4096, false, false, "gemm_scaled_m16_token", &counts.hit},
      {1, 28672, 4096, true, true, kScaledMm, &counts.where},
      {1, 28672, 4096, true, false, kScaledMm, &counts.where},
      {4, 28672, 4096, false, true, kScaledMm, &counts.where},
      // Up to 64 rows; more or fewer than any solution is for; a size without solutions.
      {64, 28672, 4096, true, true, "gemm_scaled_m64_channel", &counts.hit},
      {65, 28672, 4096, true, true, kScaledMm, &counts.where},
      {16, 5120, 3072, true, true, kScaledMm, &counts.where},
      {4, 28680, 4096, true, true, kScaledMm, &counts.no_solution},
  };
  for (const auto& launch : launches) {
    const ScaledProduct product = scaled_mm.product(
        launch.m, launch.n, launch.k, launch.scales_each_row_of_a, launch.scales_each_row_of_b);
    char bytes[1536];
    product.fill(bytes);
    const long before = ran(launch.kernel);
    // Again: on the fast side.
    for (int i = 0; i < 2; ++i) scaled_mm.launch(bytes);
    *launch.counter += 4;
    EXPECT_EQUAL(before + 4, ran(launch.kernel));
    EXPECT_EQUAL(launch.cluster, last_launch(launch.kernel).cluster[0]);
    if (launch.kernel != kScaledMm) expect_arguments(launch.kernel, product);
  }
  state({}, counts);
}

// Another CUTLASS may keep something else where a pattern reads: the original runs.
GPU_CASE(fields_of_scaled_products) {
  const ScaledMm scaled_mm(gpu);
  constexpr struct {
    size_t at;
    int first_bit, end_bit;
  } kBits[] = {
      {0, 0, 32},   {4, 0, 32},   {8, 0, 32},    // N, M, K
      {12, 0, 32},                               // products
      {140, 0, 32}, {160, 0, 32}, {164, 0, 32},  // of B: pitch, last column and row
      {396, 0, 32}, {416, 0, 32}, {420, 0, 32},  // of A
      {908, 0, 32}, {928, 0, 32}, {932, 0, 32},  // of C
      {776, 1, 8},  {792, 1, 8},                 // flags that are neither 0 nor 1
      {128, 0, 4},  {384, 0, 4},  {896, 0, 2},   // addresses that are not aligned
  };
  constexpr struct {
    bool scales_each_row_of_a, scales_each_row_of_b;
    const char* kernel;
  } kKinds[] = {{false, false, "gemm_scaled_m16_tensor"},
                {true, false, "gemm_scaled_m16_token"},
                {true, true, "gemm_scaled_m16_channel"}};
  long hits = 0, runs = 0;
  for (const auto& kind : kKinds) {
    const ScaledProduct product =
        scaled_mm.product(4, 28672, 4096, kind.scales_each_row_of_a, kind.scales_each_row_of_b);
    char bytes[1536];
    product.fill(bytes);
    scaled_mm.launch(bytes);
    hits += 2;
    EXPECT_EQUAL(2, ran(kind.kernel));
    for (const auto& field : kBits) {
      for (int bit = field.first_bit; bit < field.end_bit; ++bit) {
        char& changed = bytes[field.at + static_cast<size_t>(bit / 8)];
        changed = static_cast<char>(changed ^ 1 << bit % 8);
        scaled_mm.launch(bytes);
        changed = static_cast<char>(changed ^ 1 << bit % 8);
        runs += 2;
        const std::string what = std::string(kind.kernel) + " with another bit " +
                                 std::to_string(bit) + " at " + std::to_string(field.at);
        check_equal(runs, ran(kScaledMm), what.c_str(), __FILE__, __LINE__);
      }
    }
  }
  state({}, {.hit = hits, .where = runs});
}

}  // namespace conform
