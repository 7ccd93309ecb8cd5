// Products of tokens with the weights of their experts (config/vllm), as vLLM launches them: captured with silu·mul behind
// them, sorted or not, and alone. In the first image they are of sorted choices, in the second of others.

#include <tuple>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kProduct[] = "fused_moe_kernel";
constexpr char kSilu[] =
    "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_"
    "RKS5_"
    "fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb0ELb0EEEvPS5_PS6_ifff";
constexpr char kAsOne[] = "moe_gemm_silu_vllm_k2048_bf16";
constexpr char kEachAsOne[] = "moe_gemm_each_silu_vllm_k2048_bf16";
constexpr char kEach[] = "moe_gemm_each_k2048_bf16";

struct Experts {
  explicit Experts(const Gpu& on)
      : gpu(on), module(on.load_module()), other_module(on.load_module(kOther)) {
    const CUdeviceptr memory = device_memory(size_t{16} << 20);
    const auto at = [&](int megabyte) { return memory + (CUdeviceptr{1} * megabyte << 20); };
    a = at(0), c = at(1), sorted = at(2), ids = at(3), used = at(4), out = at(5);
    b = at(6);  // the weights, which take more than there is here
    to_activate = c;
  }

  template <class... Arguments>
  void launch(CUfunction kernel, unsigned grid, Arguments... values) const {
    std::tuple<Arguments...> held(values...);
    std::apply(
        [&](auto&... each) {
          void* pointers[] = {&each...};
          OK(cuda().cuLaunchKernel(kernel, grid, 1, 1, 128, 1, 1, 0, gpu.stream(), pointers,
                                   nullptr));
        },
        held);
  }
  void multiply() const {
    const int length = 16 * choices;
    const auto with = [&](CUmodule from, auto... routing) {
      launch(gpu.function(from, kProduct), 1, a, b, c, routing..., used, n, 2048, length, choices,
             stride_am, stride_be, stride_bn, stride_cm, 0, 0, 0, 0, 0, 0, 0, CUdeviceptr{0},
             CUdeviceptr{0});
    };
    is_sorted ? with(module, sorted, ids) : with(other_module, ids);
  }
  void both() const {
    multiply();
    launch(gpu.function(module, kSilu), rows == 0 ? static_cast<unsigned>(choices) : rows, out,
           to_activate, width, 0.0f, alpha, beta);
  }

  const Gpu& gpu;
  CUmodule module, other_module;
  CUdeviceptr a = 0, b = 0, c = 0, sorted = 0, ids = 0, used = 0, out = 0, to_activate = 0;
  bool is_sorted = true;
  int choices = 64, n = 1536, width = 768;
  int stride_am = 2048, stride_be = 1536 * 2048, stride_bn = 2048, stride_cm = 1536;
  unsigned rows = 0;  // of silu·mul; 0: as many as choices
  float alpha = 1, beta = 0;
};

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(products_of_vllm_experts) {
  Experts layer(gpu);
  run_captured(gpu, [&] { layer.both(); });
  const SimcudaLaunch sorted = last_launch(kAsOne);
  const CUdeviceptr given[] = {layer.a,      layer.b,   layer.c,   layer.out,
                               layer.sorted, layer.ids, layer.used};
  CHECK(memcmp(sorted.params, given, sizeof given) == 0);
  const int32_t sizes[] = {64, 1024, 16, 8, 1536};
  CHECK(memcmp(sorted.params + sizeof given, sizes, sizeof sizes) == 0);
  EXPECT_EQUAL(264, sorted.grid[0]);
  layer.is_sorted = false;
  layer.choices = 8;
  run_captured(gpu, [&] { layer.both(); });
  const SimcudaLaunch each = last_launch(kEachAsOne);
  const CUdeviceptr of_each[] = {layer.a, layer.b, layer.c, layer.out, layer.ids};
  CHECK(memcmp(each.params, of_each, sizeof of_each) == 0);
  const int32_t few[] = {8, 8, 1536};
  CHECK(memcmp(each.params + sizeof of_each, few, sizeof few) == 0);
  layer.multiply();
  const SimcudaLaunch alone = last_launch(kEach);
  const CUdeviceptr of_product[] = {layer.a, layer.b, layer.c, layer.ids};
  CHECK(memcmp(alone.params, of_product, sizeof of_product) == 0);
  CHECK(memcmp(alone.params + sizeof of_product, few, sizeof few) == 0);
  EXPECT_EQUAL(0, ran(kProduct) + ran(kSilu));
  state({}, {.hit = 3, .absorbed = 2});
}

// Of other rows, columns or memory, of too many choices, or what is activated in another way: two kernels.
GPU_CASE(products_of_vllm_experts_need_their_ties) {
  const Experts layer(gpu);
  long changed = 0;
  const auto stay = [&](const auto& change) {
    for (const bool is_sorted : {true, false}) {
      Experts other = layer;
      other.is_sorted = is_sorted;
      if (!is_sorted) other.choices = 8;
      change(other);
      run_captured(gpu, [&] { other.both(); });
      ++changed;
    }
  };
  stay([](Experts& of) { of.stride_am = 2056; });
  stay([](Experts& of) { of.stride_be = 1536 * 2048 + 8; });
  stay([](Experts& of) { of.stride_bn = 2056; });
  stay([](Experts& of) { of.stride_cm = 1544; });
  stay([](Experts& of) { of.choices = 12; });
  stay([](Experts& of) { of.choices = 520; });
  stay([](Experts& of) { of.to_activate = of.a; });
  stay([](Experts& of) { of.width = 512; });
  stay([](Experts& of) { of.rows = 5; });
  stay([](Experts& of) { of.alpha = 2; });
  stay([](Experts& of) { of.beta = 1; });
  EXPECT_EQUAL(0, ran(kAsOne) + ran(kEachAsOne));
  // A product whose own ties hold is one of ours alone, if it is not sorted: of the others the code is asked for.
  EXPECT_EQUAL(changed - 5, ran(kProduct));
  EXPECT_EQUAL(5, ran(kEach));
  state({}, {.hit = 21, .no_solution = 2, .where = 11, .untracked = 10});
}
