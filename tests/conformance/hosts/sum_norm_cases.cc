// The sum of a product's parts and the norm after it (config/vllm), captured, as torch.compile and
// cuBLAS launch them for a layer of Llama in vLLM's default mode.

#include "tests/conformance/hosts/cublas.h"

namespace conform {
namespace {

// torch.compile's norms of a sum: of two, of three in place, and of three which is kept.
constexpr char kAddNorm[] = "triton_red_fused_fused_add_rms_norm_0";
constexpr char kAdd2Norm[] = "triton_red_fused_fused_add_rms_norm_1";
constexpr char kAdd2NormSum[] = "triton_red_fused_fused_add_rms_norm_2";

constexpr char kBoth[] = "splitk_reduce2_add_rmsnorm_h4096_bf16";
constexpr char kBothOfThree[] = "splitk_reduce4_add2_rmsnorm_h4096_bf16";
constexpr char kBothKept[] = "splitk_reduce4_add2_rmsnorm_sum_h4096_bf16";

struct SumNormLayer {
  explicit SumNormLayer(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {
    const CUdeviceptr activations = device_memory(size_t{16} << 20);
    const auto at = [&](int megabyte) {
      return activations + (static_cast<CUdeviceptr>(megabyte) << 20);
    };
    const CUdeviceptr weights = device_memory(size_t{256} << 20);
    const CUdeviceptr workspace = device_memory(size_t{8} << 20);
    weight = weights;
    residual = at(0), attended = at(1), normed = at(2), active = at(3), summed = at(10);
    o = {attended, weights + 8192, at(8), workspace, 4, 4096, 4096, 2};
    down = {active, weights + 8192, at(9), workspace, 4, 4096, 14336, 4};
  }

  void set_rows(int rows) { o.m = down.m = rows; }

  void multiply(const Product& product) const {
    launch_product(gpu, gpu.function(module, kNvjet), gpu.function(module, kReduce), product);
  }
  void reduce(const Product& product) const {
    launch_reduce(gpu, gpu.function(module, kReduce), product);
  }
  template <class... Values>
  void norm(const char* name, int rows, Values... pointers) const {
    CUdeviceptr held[] = {pointers...};
    int sizes[] = {rows, 4096};
    CUdeviceptr scratch = 0;
    void* arguments[sizeof...(pointers) + 4];
    size_t count = 0;
    for (CUdeviceptr& pointer : held) arguments[count++] = &pointer;
    for (int& size : sizes) arguments[count++] = &size;
    arguments[count++] = &scratch;
    arguments[count++] = &scratch;
    OK(cuda().cuLaunchKernel(gpu.function(module, name), static_cast<unsigned>(rows), 1, 1, 512, 1,
                             1, 0, gpu.stream(), arguments, nullptr));
  }
  void norm_of_o(CUdeviceptr of) const { norm(kAddNorm, o.m, of, residual, weight, normed); }
  void norm_of_down(CUdeviceptr of, int rows) const {
    norm(kAdd2NormSum, rows, of, o.c, residual, weight, summed, normed);
  }
  void last_norm() const { norm(kAdd2Norm, down.m, down.c, o.c, residual, weight); }
  void all() const {
    multiply(o);
    norm_of_o(o.c);
    multiply(down);
    norm_of_down(down.c, down.m);
  }

  const Gpu& gpu;
  CUmodule module;
  CUdeviceptr residual = 0, attended = 0, normed = 0, active = 0, summed = 0, weight = 0;
  Product o, down;
};

}  // namespace
}  // namespace conform

using namespace conform;

// If a product and the sum of its parts are one launch, they stay one.
GPU_CASE(rewrite_of_vllm_sum_norm) {
  SumNormLayer layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(1, ran("gemm_k4096_m8_bf16"));
  EXPECT_EQUAL(1, ran("add_rmsnorm_h4096_bf16"));
  EXPECT_EQUAL(1, ran("gemm_part3584_m8_bf16"));
  const SimcudaLaunch last = last_launch(kBothKept);
  const CUdeviceptr given[] = {layer.down.workspace, layer.o.c,    layer.residual, layer.weight,
                               layer.down.c,         layer.normed, layer.summed};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  CHECK(param_at<float>(last, sizeof given) == 1e-5f);
  EXPECT_EQUAL(4, param_at<int32_t>(last, sizeof given + 4));
  EXPECT_EQUAL(4 * last.cluster[0], last.grid[0]);
  EXPECT_EQUAL(512, last.block[0] * last.cluster[0]);
  // The last norm, in place.
  run_captured(gpu, [&] {
    layer.multiply(layer.down);
    layer.last_norm();
  });
  const SimcudaLaunch in_place = last_launch(kBothOfThree);
  const CUdeviceptr of_three[] = {layer.down.workspace, layer.o.c, layer.residual, layer.weight,
                                  layer.down.c};
  CHECK(memcmp(in_place.params, of_three, sizeof of_three) == 0);
  // Between products it begins early, and lets the next begin.
  Product qkv = layer.o;
  qkv.a = layer.normed, qkv.n = 6144, qkv.splits = 1;
  run_captured(gpu, [&] {
    layer.multiply(layer.down);
    layer.norm_of_down(layer.down.c, 4);
    launch_whole(gpu, gpu.function(layer.module, kWholeNvjet), qkv, 0);
  });
  const SimcudaLaunch told = last_launch(kBothKept);
  EXPECT_EQUAL(1, param_at<int32_t>(told, sizeof given + 8));
  EXPECT_EQUAL(0, param_at<int32_t>(last, sizeof given + 8));
  // Of more than 32 rows either product and its sum are one launch.
  layer.set_rows(48);
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(2, ran("gemm_wide_flat_pair_m64_bf16"));
  EXPECT_EQUAL(2, ran("add_rmsnorm_h4096_bf16"));
  EXPECT_EQUAL(1, ran("add2_rmsnorm_sum_h4096_bf16"));
  EXPECT_EQUAL(2, ran(kBothKept));
  // And more rows than our products and our sum serve.
  layer.set_rows(65);
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(2, ran(kNvjet));
  EXPECT_EQUAL(2, ran(kReduce));
  EXPECT_EQUAL(3, ran("add_rmsnorm_h4096_bf16"));
  EXPECT_EQUAL(2, ran("add2_rmsnorm_sum_h4096_bf16"));
  // Launched without a capture.
  layer.set_rows(1);
  layer.all();
  OK(cuda().cuStreamSynchronize(gpu.stream()));
  EXPECT_EQUAL(1, ran("splitk_reduce4_bf16"));
  EXPECT_EQUAL(2, ran(kBothKept));
  state({}, {.hit = 21, .where = 4, .absorbed = 6});
}

// Without a config folder for cuBLAS, the products stay cuBLAS's.
GPU_CASE(rewrite_of_vllm_sum_norm_alone) {
  const SumNormLayer layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(2, ran(kNvjet));
  EXPECT_EQUAL(1, ran(kBoth));
  EXPECT_EQUAL(1, ran(kBothKept));
  state({}, {.hit = 2, .untracked = 2, .absorbed = 2});
}

// The norm reads another buffer or fewer rows, the sum does more than add up, or one of them writes
// where the other reads: each kernel is replaced by itself.
GPU_CASE(rewrite_of_vllm_sum_norm_needs_its_ties) {
  const SumNormLayer layer(gpu);
  run_captured(gpu, [&] {
    layer.reduce(layer.down);
    layer.norm_of_down(layer.active, 4);
  });
  run_captured(gpu, [&] {
    layer.reduce(layer.down);
    layer.norm_of_down(layer.down.c, 3);
  });
  run_captured(gpu, [&] {
    layer.reduce(layer.o);
    layer.norm(kAddNorm, 4, layer.residual, layer.o.c, layer.weight, layer.normed);
  });
  Product more = layer.down;
  more.epilogue = 0;
  run_captured(gpu, [&] {
    layer.reduce(more);
    layer.norm_of_down(more.c, 4);
  });
  Product other_sums = layer.down;
  other_sums.workspace = layer.summed;  // which the norm writes
  run_captured(gpu, [&] {
    layer.reduce(other_sums);
    layer.norm_of_down(other_sums.c, 4);
  });
  run_captured(gpu, [&] {
    layer.reduce(layer.down);
    layer.norm(kAdd2NormSum, 4, layer.down.c, layer.o.c, layer.residual, layer.weight, layer.summed,
               layer.down.c);
  });
  EXPECT_EQUAL(0, ran(kBoth) + ran(kBothKept));
  EXPECT_EQUAL(1, ran(kReduce));
  EXPECT_EQUAL(4, ran("splitk_reduce4_bf16"));
  EXPECT_EQUAL(1, ran("splitk_reduce2_bf16"));
  EXPECT_EQUAL(5, ran("add2_rmsnorm_sum_h4096_bf16"));
  state({}, {.hit = 11, .where = 1});
}
