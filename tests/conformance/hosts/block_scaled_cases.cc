// Products in fp8 with scales of blocks, by DeepGEMM and by the one in FlashInfer (config/shared/gemm_block_scaled), whose matrices are known by
// TMA descriptors. Each is launched with cuLaunchKernel and cuLaunchKernelEx.

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kDeepGemm[] =
    "_ZN9deep_gemm23sm90_fp8_gemm_1d2d_implILN4cute4UMMA5MajorE0ELj0ELj4096ELj4096ELj1ELj64ELj32E"
    "Lj128ELj128ELj128ELj64ELj16ELj128ELj128ELj1ELb0ELj132ELNS_8GemmTypeE0EN7cutlass10bfloat16_tE"
    "EEvPfPijjj14CUtensorMap_stS9_S9_S9_";
constexpr char kOfFlashInfer[] =
    "_ZN9deep_gemm22fp8_gemm_kernel_swapABILj4096ELj4096ELj128ELj16ELj128ELj1ELj8ELj128ELj128ELj1E"
    "NS_21NormalSchedulerSwapABILj4096ELj128ELj16ELj1ELj1ELj32ELj16EEENS_26NormalSchedulerInputSwap"
    "ABEEEvP13__nv_bfloat16PfT10_14CUtensorMap_stS8_S8_S8_";

// What a pattern reads of a descriptor of TMA: the address, the bytes from row to row in units of 16, and the last column and row.
struct alignas(64) Descriptor {
  CUdeviceptr memory;
  int32_t kind, pitch;
  int64_t none[2];
  int32_t last_column, last_row;
  char rest[88];
};
static_assert(sizeof(Descriptor) == 128);

Descriptor describe(CUdeviceptr memory, int32_t rows, int32_t columns, int32_t element_bytes) {
  Descriptor made = {};
  made.memory = memory;
  made.pitch = columns * element_bytes / 16;
  made.last_column = columns - 1;
  made.last_row = rows - 1;
  return made;
}

struct BlockScaledProduct {
  int32_t m, n, k;
  CUdeviceptr memory;
  Descriptor a = describe(memory, m, k, 1);
  Descriptor b = describe(memory + (1 << 20), n, k, 1);
  Descriptor scale_a = describe(memory + (2 << 20), k / 128, (m + 3) / 4 * 4, 4);
  Descriptor c = describe(memory + (3 << 20), m, n, 2);
  CUdeviceptr scale_b = memory + (4 << 20);
  CUdeviceptr c_again = c.memory, no_groups = 0;
  struct {
    int32_t m, unset;
    CUdeviceptr groups;
  } input = {m, -1, 0};

  std::vector<void*> params(bool is_flashinfer) {
    if (is_flashinfer) return {&c_again, &scale_b, &input, &b, &a, &scale_a, &c};
    return {&scale_b, &no_groups, &m, &n, &k, &a, &b, &c, &scale_a};
  }
};

class BlockScaledMm {
 public:
  BlockScaledMm(const Gpu& gpu, bool is_flashinfer)
      : gpu_(gpu),
        is_flashinfer_(is_flashinfer),
        function_(gpu.function(gpu.load_module(kEngines), name())),
        memory_(device_memory(size_t{5} << 20)) {}

  const char* name() const { return is_flashinfer_ ? kOfFlashInfer : kDeepGemm; }
  BlockScaledProduct product(int32_t m, int32_t n, int32_t k) const { return {m, n, k, memory_}; }
  // Twice: with each function.
  void launch(BlockScaledProduct& product) const {
    std::vector<void*> params = product.params(is_flashinfer_);
    OK(cuda().cuLaunchKernel(function_, 132, 1, 1, 384, 1, 1, 0, gpu_.stream(), params.data(),
                             nullptr));
    const CUlaunchConfig config = launch_config(gpu_.stream());
    OK(cuda().cuLaunchKernelEx(&config, function_, params.data(), nullptr));
  }

 private:
  const Gpu& gpu_;
  bool is_flashinfer_;
  CUfunction function_;
  CUdeviceptr memory_;
};

void expect_arguments(const char* kernel, const BlockScaledProduct& product) {
  const SimcudaLaunch last = last_launch(kernel);
  const CUdeviceptr pointers[] = {product.a.memory, product.b.memory, product.scale_a.memory,
                                  product.scale_b, product.c.memory};
  const int32_t sizes[] = {product.m, product.n, product.k, product.scale_a.last_column + 1};
  EXPECT_EQUAL(sizeof pointers + sizeof sizes, last.param_bytes);
  CHECK(memcmp(last.params, pointers, sizeof pointers) == 0);
  CHECK(memcmp(last.params + sizeof pointers, sizes, sizeof sizes) == 0);
}

}  // namespace

GPU_CASE(block_scaled_products) {
  Counts counts;
  const struct {
    int32_t m, n, k;
    const char* kernel;  // null: the original
    long* counter;
    int32_t scaled_rows = 0;  // if not all
  } launches[] = {
      {1, 4096, 4096, "gemm_block_scaled_pair_m16", &counts.hit},
      {5, 4096, 12288, "gemm_block_scaled_pair_m16", &counts.hit},
      {16, 24576, 4096, "gemm_block_scaled_m16", &counts.hit},
      {31, 24576, 4096, "gemm_block_scaled_m32", &counts.hit},
      // More rows than any solution is for; a size without solutions.
      {33, 24576, 4096, nullptr, &counts.where},
      {8, 24576, 4096, nullptr, &counts.where, 4},
      {4, 4224, 4096, nullptr, &counts.no_solution},
  };
  for (const bool is_flashinfer : {false, true}) {
    const BlockScaledMm mm(gpu, is_flashinfer);
    for (const auto& launch : launches) {
      BlockScaledProduct product = mm.product(launch.m, launch.n, launch.k);
      if (launch.scaled_rows != 0) {
        product.scale_a.pitch = launch.scaled_rows / 4;
        product.scale_a.last_column = launch.scaled_rows - 1;
      }
      const char* const kernel = launch.kernel ? launch.kernel : mm.name();
      const long before = ran(kernel);
      // Again: on the fast side.
      for (int i = 0; i < 2; ++i) mm.launch(product);
      *launch.counter += 4;
      EXPECT_EQUAL(before + 4, ran(kernel));
      if (launch.kernel) expect_arguments(kernel, product);
    }
  }
  state({}, counts);
}

// Matrices of another layout, or with other sizes than stated: the original runs.
GPU_CASE(fields_of_block_scaled_products) {
  long hits = 0, runs = 0;
  for (const bool is_flashinfer : {false, true}) {
    const BlockScaledMm mm(gpu, is_flashinfer);
    BlockScaledProduct product = mm.product(4, 24576, 4096);
    mm.launch(product);
    hits += 2;
    EXPECT_EQUAL(hits, ran("gemm_block_scaled_m16"));
    const auto expect_original = [&](auto& field, int first_bit, int end_bit) {
      for (int bit = first_bit; bit < end_bit; ++bit) {
        const auto before = field;
        field = static_cast<std::remove_reference_t<decltype(field)>>(field ^ int64_t{1} << bit);
        const long ran_before = ran(mm.name());
        mm.launch(product);
        field = before;
        runs += 2;
        check_equal(ran_before + 2, ran(mm.name()), "with another bit", __FILE__, __LINE__);
      }
    };
    for (Descriptor* const matrix : {&product.a, &product.b, &product.c, &product.scale_a}) {
      expect_original(matrix->pitch, 0, 32);
      expect_original(matrix->last_column, 0, 32);
      expect_original(matrix->last_row, 0, 32);
    }
    expect_original(product.a.memory, 0, 4);
    expect_original(product.b.memory, 0, 4);
    expect_original(product.c.memory, 0, 2);
    expect_original(product.scale_a.memory, 0, 2);
    expect_original(product.scale_b, 0, 4);
    expect_original(is_flashinfer ? product.input.m : product.m, 0, 32);
  }
  state({}, {.hit = hits, .where = runs});
}

}  // namespace conform
