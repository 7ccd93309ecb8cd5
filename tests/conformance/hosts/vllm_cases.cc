// Rewrites of vLLM's kernels (config/vllm): what it launches for a model in fp8, captured.

#include <tuple>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kFusedAdd[] =
    "_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb1EEENSt9enable_ifIXaagtT0_"
    "Li0Esr4vllm12_"
    "typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fii";
constexpr char kSilu[] =
    "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_"
    "RKS5_"
    "fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb0ELb0EEEvPS5_PS6_ifff";
constexpr char kStaticQuant[] =
    "_ZN4vllm43scaled_fp8_quant_kernel_strided_group_shapeIN3c108BFloat16ENS1_13Float8_"
    "e4m3fnELb1ELb1EE"
    "EvPT0_PKT_PKfilliill";
constexpr char kDynamicQuant[] =
    "_ZN4vllm49dynamic_per_token_scaled_fp8_quant_kernel_stridedIN3c108BFloat16ENS1_13Float8_"
    "e4m3fnEEEv"
    "PT0_PfPKT_PKfill";

constexpr int kHidden = 4096;
constexpr int kWidth = 14336;

// Buffers of a layer, and its launches as vLLM makes them.
struct Layer {
  explicit Layer(const Gpu& on) : gpu(on), module(on.load_module()) {}
  CUdeviceptr at(int megabyte) const { return memory + (static_cast<CUdeviceptr>(megabyte) << 20); }

  template <class... Arguments>
  void launch(const char* name, Arguments... values) const {
    std::tuple<Arguments...> held(values...);
    std::apply(
        [&](auto&... each) {
          void* pointers[] = {&each...};
          OK(cuda().cuLaunchKernel(gpu.function(module, name), rows, 1, 1, 256, 1, 1, 0,
                                   gpu.stream(), pointers, nullptr));
        },
        held);
  }

  void fused_add(int64_t stride = kHidden) const {
    launch(kFusedAdd, hidden, stride, residual, weight, 1e-5f, static_cast<int>(rows), kHidden);
  }
  void silu(float alpha = 1) const { launch(kSilu, active, gate_up, kWidth, 0.0f, alpha, 0.0f); }
  void quantize(CUdeviceptr from, int width) const {
    launch(kStaticQuant, quantized, from, scale, width, int64_t{width}, int64_t{width},
           static_cast<int>(rows), width, int64_t{0}, int64_t{0});
  }
  void quantize_per_token(CUdeviceptr from, int width, CUdeviceptr largest_scale = 0) const {
    launch(kDynamicQuant, quantized, scales, from, largest_scale, width, int64_t{width},
           int64_t{width});
  }

  const Gpu& gpu;
  CUmodule module;
  CUdeviceptr memory = device_memory(size_t{16} << 20);
  unsigned rows = 3;
  CUdeviceptr hidden = 0, residual = 0, weight = 0, gate_up = 0, active = 0, quantized = 0,
              scale = 0, scales = 0;
};

Layer make_layer(const Gpu& gpu) {
  Layer layer(gpu);
  layer.hidden = layer.at(0);
  layer.residual = layer.at(1);
  layer.weight = layer.at(2);
  layer.gate_up = layer.at(3);
  layer.active = layer.at(4);
  layer.quantized = layer.at(5);
  layer.scale = layer.at(6);
  layer.scales = layer.at(7);
  return layer;
}

template <class Function>
void run(const Gpu& gpu, Function record) {
  Graph(gpu.capture(record)).run(gpu);
}

template <class T>
T param(const SimcudaLaunch& launch, size_t offset) {
  T value;
  memcpy(&value, launch.params + offset, sizeof value);
  return value;
}

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(rewrite_of_vllm_fp8) {
  const Layer layer = make_layer(gpu);
  run(gpu, [&] {
    layer.fused_add();
    layer.quantize(layer.hidden, kHidden);
    layer.silu();
    layer.quantize(layer.active, kWidth);
    layer.fused_add();
    layer.quantize_per_token(layer.hidden, kHidden);
    layer.silu();
    layer.quantize_per_token(layer.active, kWidth);
  });
  const SimcudaLaunch norm = last_launch("fused_add_rmsnorm_then_quant_h4096_bf16");
  const CUdeviceptr given[] = {layer.hidden, layer.residual, layer.weight,   layer.scale,
                               layer.hidden, layer.residual, layer.quantized};
  CHECK(memcmp(norm.params, given, sizeof given) == 0);
  CHECK(param<float>(norm, sizeof given) == 1e-5f);
  EXPECT_EQUAL(3, param<int32_t>(norm, sizeof given + 4));
  const SimcudaLaunch silu = last_launch("silu_and_mul_then_quant_per_token2_bf16");
  const CUdeviceptr of_silu[] = {layer.gate_up, layer.active, layer.quantized, layer.scales};
  CHECK(memcmp(silu.params, of_silu, sizeof of_silu) == 0);
  EXPECT_EQUAL(kWidth, param<int32_t>(silu, sizeof of_silu));
  EXPECT_EQUAL(1, ran("fused_add_rmsnorm_then_quant_per_token_h4096_bf16"));
  EXPECT_EQUAL(1, ran("silu_and_mul_then_quant_bf16"));
  EXPECT_EQUAL(0, ran(kStaticQuant) + ran(kDynamicQuant));
  state({}, {.hit = 4, .absorbed = 4});
}

// The second kernel is not of the first one's output, or does more, or the rows lie apart: one for one.
GPU_CASE(rewrite_of_vllm_fp8_needs_its_ties) {
  const Layer layer = make_layer(gpu);
  run(gpu, [&] {
    layer.fused_add();
    layer.quantize(layer.residual, kHidden);
  });
  run(gpu, [&] {
    layer.fused_add(2 * kHidden);
    layer.quantize(layer.hidden, kHidden);
  });
  run(gpu, [&] {
    layer.silu();
    layer.quantize_per_token(layer.active, kWidth, layer.scale);
  });
  run(gpu, [&] {
    layer.silu();
    Layer fewer = layer;
    fewer.rows = 2;
    fewer.quantize(layer.active, kWidth);
  });
  run(gpu, [&] {
    layer.silu(2);
    layer.quantize(layer.active, kWidth);
  });
  // The output lies where the input of the activation is, which other blocks have yet to read.
  Layer reused = layer;
  reused.quantized = layer.gate_up + 4096;
  run(gpu, [&] {
    reused.silu();
    reused.quantize(layer.active, kWidth);
  });
  EXPECT_EQUAL(5, ran(kStaticQuant));
  EXPECT_EQUAL(1, ran(kDynamicQuant));
  EXPECT_EQUAL(1, ran(kSilu));
  state({}, {.hit = 5, .where = 1, .untracked = 5, .graph = 1});
}
