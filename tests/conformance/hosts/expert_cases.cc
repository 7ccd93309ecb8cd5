// Products of tokens with the weights of their experts (config/vllm), as vLLM launches them: captured with silu·mul behind
// them, sorted or not, and alone. In the first image they are of sorted choices, in the second of others. And the sum of a token's
// rows of its experts with the norm behind it (config/vllm, config/sglang), as vLLM's default mode and SGLang launch them: captured, and the sum alone.

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
      : gpu(on), module(on.load_module(kEngines)), other_module(on.load_module(kEnginesOther)) {
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

// ---- the sum of a token's rows of its experts

// vLLM's, of two experts and rows of 4096, as Mixtral has them: of 0.33, of 0.25, and with a map of experts.
constexpr char kExpertSum[] =
    "_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi2ELb0EEEvPT_PKS4_lillPKT0_PKill";
constexpr char kOldExpertSum[] =
    "_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16ELi2EEEvPT_PKS4_lill";
constexpr char kMappedExpertSum[] =
    "_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi2ELb1EEEvPT_PKS4_lillPKT0_PKill";
// torch.compile's norms of three: in place, and with the sum kept.
constexpr char kNormOfThree[] = "triton_red_fused_fused_add_rms_norm_1";
constexpr char kNormOfThreeKept[] = "triton_red_fused_fused_add_rms_norm_2";

constexpr char kSumAlone[] = "moe_sum2_h4096_bf16";
constexpr char kSumAndNorm[] = "moe_sum2_add2_rmsnorm_h4096_bf16";
constexpr char kSumAndNormKept[] = "moe_sum2_add2_rmsnorm_sum_h4096_bf16";

// SGLang's, of eight experts and rows of 2048, as Qwen3 30B-A3B has them: up to 32 tokens, and of more.
constexpr char kTritonSum[] = "_moe_sum_reduce_kernel";
constexpr char kReduceMany[] =
    "_Z21moe_sum_reduce_kernelIN3c108BFloat16ELi8EEvPKT_PS2_lllllN2at10OpMathTypeIS2_E4typeE";
constexpr char kFusedAdd[] =
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__"
    "tensorptrbf16gmemalign128oi64204820481_tensorptrbf16gmemalign128oi64204820481_"
    "tensorptrbf16gme_0";
constexpr char kSglangSumAlone[] = "moe_sum8_h2048_bf16";
constexpr char kSglangSumAndNorm[] = "moe_sum8_fused_add_rmsnorm_h2048_bf16";

struct SumLayer {
  explicit SumLayer(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {
    const CUdeviceptr memory = device_memory(size_t{16} << 20);
    const auto at = [&](int megabyte) { return memory + (CUdeviceptr{1} * megabyte << 20); };
    experts = at(0), c = at(4), first = at(6), second = at(8), weight = at(10), normed = at(12);
    summed = at(14);
  }

  template <class... Arguments>
  void launch(const char* kernel, Arguments... values) const {
    launch_of(module, kernel, values...);
  }
  template <class... Arguments>
  void launch_of(CUmodule of, const char* kernel, Arguments... values) const {
    std::tuple<Arguments...> held(values...);
    std::apply(
        [&](auto&... each) {
          void* pointers[] = {&each...};
          OK(cuda().cuLaunchKernel(gpu.function(of, kernel), static_cast<unsigned>(tokens), 1, 1,
                                   128, 1, 1, 0, gpu.stream(), pointers, nullptr));
        },
        held);
  }
  const Gpu& gpu;
  CUmodule module;
  CUdeviceptr experts = 0, c = 0, first = 0, second = 0, weight = 0, normed = 0, summed = 0;
  int tokens = 4;
};

struct VllmSumLayer : SumLayer {
  using SumLayer::SumLayer;
  void sum_by(const char* kernel) const {
    const CUdeviceptr none = 0;
    launch(kernel, c, experts, int64_t{tokens}, 4096, token_stride, int64_t{4096}, none, none,
           int64_t{0}, int64_t{0});
  }
  void sum() const { sum_by(kExpertSum); }
  void norm_and_sum(CUdeviceptr of, int rows) const {
    const CUdeviceptr none = 0;
    launch(kNormOfThreeKept, of, first, second, weight, summed, normed, rows, 4096, none, none);
  }
  void norm() const {
    const CUdeviceptr none = 0;
    launch(kNormOfThree, c, first, second, weight, tokens, 4096, none, none);
  }
  int64_t token_stride = 8192;
};

struct SglangSumLayer : SumLayer {
  using SumLayer::SumLayer;
  void sum() const {
    const CUdeviceptr none = 0;
    launch(kTritonSum, experts, 16384, topk_stride, c, 2048, tokens, topk, 2048, none, none);
  }
  void sum_of_many(float scale) const {
    launch(kReduceMany, experts, c, int64_t{tokens}, int64_t{2048}, int64_t{16384}, int64_t{2048},
           int64_t{2048}, scale);
  }
  void norm(CUdeviceptr of, int64_t rows) const {
    struct Rows {
      CUdeviceptr rows;
      int64_t count;
    };
    launch(kFusedAdd, Rows{of, rows}, Rows{first, rows}, weight, rows, 1e-6f);
  }
  int topk_stride = 2048, topk = 8;
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

// ---- the sum of a token's rows of its experts, and the norm behind it

GPU_CASE(sum_of_vllm_experts) {
  VllmSumLayer layer(gpu);
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm_and_sum(layer.c, layer.tokens);
  });
  const SimcudaLaunch kept = last_launch(kSumAndNormKept);
  const CUdeviceptr given[] = {layer.experts, layer.first,  layer.second, layer.weight,
                               layer.c,       layer.normed, layer.summed};
  CHECK(memcmp(kept.params, given, sizeof given) == 0);
  CHECK(param_at<float>(kept, sizeof given) == 1e-5f);
  EXPECT_EQUAL(0, param_at<int32_t>(kept, sizeof given + 4));
  EXPECT_EQUAL(4 * kept.cluster[0], kept.grid[0]);
  EXPECT_EQUAL(512, kept.block[0] * kept.cluster[0]);
  // The last norm, in place, behind vLLM 0.25's sum.
  run_captured(gpu, [&] {
    layer.sum_by(kOldExpertSum);
    layer.norm();
  });
  const SimcudaLaunch in_place = last_launch(kSumAndNorm);
  const CUdeviceptr of_three[] = {layer.experts, layer.first, layer.second, layer.weight, layer.c};
  CHECK(memcmp(in_place.params, of_three, sizeof of_three) == 0);
  // Launched without a capture.
  layer.sum();
  layer.norm_and_sum(layer.c, layer.tokens);
  OK(cuda().cuStreamSynchronize(gpu.stream()));
  const SimcudaLaunch alone = last_launch(kSumAlone);
  const CUdeviceptr of_sum[] = {layer.experts, layer.c};
  CHECK(memcmp(alone.params, of_sum, sizeof of_sum) == 0);
  EXPECT_EQUAL(4 * 4096 / 8, alone.grid[0] * alone.block[0]);
  EXPECT_EQUAL(1, ran("add2_rmsnorm_sum_h4096_bf16"));
  // More tokens than ours serves.
  layer.tokens = 65;
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm_and_sum(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(1, ran(kExpertSum));
  EXPECT_EQUAL(2, ran("add2_rmsnorm_sum_h4096_bf16"));
  state({}, {.hit = 5, .where = 1, .absorbed = 2});
}

// The norm reads another buffer or fewer rows, the rows of experts are further apart or not all of them are here, the norm
// writes into them, or something else is between: each kernel is replaced by itself.
GPU_CASE(sum_of_vllm_experts_needs_its_ties) {
  VllmSumLayer layer(gpu);
  const CUmodule suite = gpu.load_module();
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm_and_sum(layer.experts, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm_and_sum(layer.c, 3);
  });
  run_captured(gpu, [&] {
    layer.norm_and_sum(layer.c, layer.tokens);
    layer.sum();
  });
  VllmSumLayer overwriting = layer;
  overwriting.summed = layer.experts + 4096;
  run_captured(gpu, [&] {
    overwriting.sum();
    overwriting.norm_and_sum(layer.c, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.sum();
    layer.launch_of(suite, "conform_join", layer.c, layer.summed, CUdeviceptr{0}, 0, 0);
    layer.norm_and_sum(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(5, ran(kSumAlone));
  VllmSumLayer apart = layer;
  apart.token_stride = 16384;
  run_captured(gpu, [&] {
    apart.sum();
    apart.norm_and_sum(layer.c, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.sum_by(kMappedExpertSum);
    layer.norm_and_sum(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(5, ran(kSumAlone));
  EXPECT_EQUAL(1, ran(kExpertSum));
  EXPECT_EQUAL(1, ran(kMappedExpertSum));
  EXPECT_EQUAL(7, ran("add2_rmsnorm_sum_h4096_bf16"));
  EXPECT_EQUAL(0, ran(kSumAndNormKept));
  state({}, {.hit = 12, .where = 1, .untracked = 2});
}

GPU_CASE(sum_of_sglang_experts) {
  SglangSumLayer layer(gpu);
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm(layer.c, layer.tokens);
  });
  const SimcudaLaunch few = last_launch(kSglangSumAndNorm);
  const CUdeviceptr given[] = {layer.experts, layer.first, layer.weight, layer.c, layer.first};
  CHECK(memcmp(few.params, given, sizeof given) == 0);
  CHECK(param_at<float>(few, sizeof given) == 1e-6f);
  CHECK(param_at<float>(few, sizeof given + 4) == 0);
  EXPECT_EQUAL(4 * few.cluster[0], few.grid[0]);
  EXPECT_EQUAL(128, few.block[0] * few.cluster[0]);
  layer.tokens = 48;
  run_captured(gpu, [&] {
    layer.sum_of_many(1);
    layer.norm(layer.c, layer.tokens);
  });
  const SimcudaLaunch many = last_launch(kSglangSumAndNorm);
  CHECK(memcmp(many.params, given, sizeof given) == 0);
  EXPECT_EQUAL(48 * many.cluster[0], many.grid[0]);
  EXPECT_EQUAL(2, ran(kSglangSumAndNorm));
  layer.sum_of_many(1);
  layer.sum();
  OK(cuda().cuStreamSynchronize(gpu.stream()));
  EXPECT_EQUAL(2, ran(kSglangSumAlone));
  // More tokens than ours serves.
  layer.tokens = 65;
  run_captured(gpu, [&] {
    layer.sum_of_many(1);
    layer.norm(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(1, ran(kReduceMany));
  EXPECT_EQUAL(1, ran(kFusedAdd));
  state({}, {.hit = 4, .where = 2, .absorbed = 2});
}

// Here no pattern knows the norm by itself.
GPU_CASE(sum_of_sglang_experts_needs_its_ties) {
  SglangSumLayer layer(gpu);
  const CUmodule suite = gpu.load_module();
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm(layer.summed, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.sum();
    layer.norm(layer.c, 3);
  });
  run_captured(gpu, [&] {
    layer.norm(layer.c, layer.tokens);
    layer.sum();
  });
  run_captured(gpu, [&] {
    layer.sum();
    layer.launch_of(suite, "conform_join", layer.c, layer.summed, CUdeviceptr{0}, 0, 0);
    layer.norm(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(4, ran(kSglangSumAlone));
  SglangSumLayer apart = layer;
  apart.topk_stride = 4096;
  run_captured(gpu, [&] {
    apart.sum();
    apart.norm(layer.c, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.sum_of_many(2.5f);
    layer.norm(layer.c, layer.tokens);
  });
  EXPECT_EQUAL(1, ran(kTritonSum));
  EXPECT_EQUAL(1, ran(kReduceMany));
  EXPECT_EQUAL(6, ran(kFusedAdd));
  EXPECT_EQUAL(0, ran(kSglangSumAndNorm));
  state({}, {.hit = 4, .where = 2, .untracked = 7});
}
