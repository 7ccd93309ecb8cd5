// Products of tokens with the weights of their experts in fp8, with a scale for each block of 128 x 128 (config/vllm, config/sglang), as
// engines launch them: captured with the quantisation before them and silu·mul behind them, and alone. Triton calls all of them
// fused_moe_kernel, and their codes tell them apart; here their names do (conformance.mk).

#include <tuple>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// What the engines have in common. Those with weights are the second products: of choices instead of tokens.
struct ScaledExperts {
  ScaledExperts(const Gpu& on, bool has_weights)
      : gpu(on), module(on.load_module(kEngines)), is_weighted(has_weights) {
    const CUdeviceptr memory = device_memory(size_t{16} << 20);
    const auto at = [&](int megabyte) { return memory + (CUdeviceptr{1} * megabyte << 20); };
    x = at(0), quantized = at(1), scales = at(2), weight_scales = at(3), weights = at(4);
    sorted = at(5), ids = at(6), used = at(7), c = at(8), out = at(11);
    b = at(12);  // which takes more than there is here
    a = quantized, scales_of_a = scales, to_activate = c;
  }

  template <class... Arguments>
  void launch(const std::string& kernel, int grid, Arguments... values) const {
    std::tuple<Arguments...> held(values...);
    std::apply(
        [&](auto&... each) {
          void* pointers[] = {&each...};
          OK(cuda().cuLaunchKernel(gpu.function(module, kernel.c_str()),
                                   static_cast<unsigned>(grid), 1, 1, 128, 1, 1, 0, gpu.stream(),
                                   pointers, nullptr));
        },
        held);
  }
  int tokens() const { return choices / topk; }

  const Gpu& gpu;
  CUmodule module;
  CUdeviceptr x = 0, quantized = 0, scales = 0, b = 0, weight_scales = 0, weights = 0, sorted = 0;
  CUdeviceptr ids = 0, used = 0, c = 0, out = 0;
  CUdeviceptr a = 0, scales_of_a = 0;  // of the product: what is quantised
  CUdeviceptr to_activate = 0;
  bool is_weighted;
  int topk = is_weighted ? 1 : 8, n = is_weighted ? 2048 : 1536, k = is_weighted ? 768 : 2048;
  int blocks = k / 128, choices = 64, length = 1024, width = 768;
  int stride_am = k, stride_be = n * k, stride_bn = k, stride_cm = n;
  int stride_asm = blocks, stride_bse = n / 128 * blocks, stride_bsn = blocks;
};

// Calls `stay(change)` for each of what a product of ours needs: rows that are not apart, and aligned buffers.
template <class Stay>
void change_products(const Stay& stay) {
  for (int ScaledExperts::*stride :
       {&ScaledExperts::stride_am, &ScaledExperts::stride_be, &ScaledExperts::stride_bn,
        &ScaledExperts::stride_cm, &ScaledExperts::stride_asm, &ScaledExperts::stride_bse,
        &ScaledExperts::stride_bsn}) {
    stay([stride](auto& of) { of.*stride += 8; });
  }
  stay([](auto& of) { of.a = of.quantized += 8; });
  stay([](auto& of) { of.scales_of_a = of.scales += 2; });
  stay([](auto& of) { of.b += 8; });
  stay([](auto& of) { of.weight_scales += 2; });
  stay([](auto& of) { of.to_activate = of.c += 2; });
}

template <class... Values>
void expect_parameters(const SimcudaLaunch& launch, Values... values) {
  char bytes[256];
  size_t size = 0;
  ((memcpy(bytes + size, &values, sizeof values), size += sizeof values), ...);
  EXPECT_EQUAL(size, launch.param_bytes);
  CHECK(memcmp(bytes, launch.params, size) == 0);
}

constexpr float kLeastOfRow = 1e-10f;

// ---- vLLM's

constexpr char kUe8m0Quant[] =
    "_Z42per_token_group_quant_8bit_register_kernelIN3c108BFloat16ENS0_13Float8_e4m3fnELb0ELb1ELi12"
    "8EEvPKT_PvPflfffii";
constexpr char kSiluBehindExperts[] =
    "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_"
    "RKS5_fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb0ELb0EEEvPS5_PS6_ifff";

struct VllmScaledExperts : ScaledExperts {
  VllmScaledExperts(const Gpu& on, bool in_blocks, bool has_weights)
      : ScaledExperts(on, has_weights), is_sorted(in_blocks) {
    if (!is_sorted) choices = 8;
  }

  std::string original() const {
    return std::string("fused_moe_kernel_") + (is_sorted ? "sorted" : "each") +
           (is_weighted ? "_weighted" : "");
  }
  std::string alone() const { return name("moe_gemm_block_scaled", ""); }
  std::string as_one() const {
    return is_weighted ? name("quant_then_moe_gemm_block_scaled_ue8m0", "")
                       : name("moe_gemm_block_scaled", "_silu_vllm");
  }
  void quantize() const {
    launch(kUe8m0Quant, 1, x, quantized, scales, int64_t{tokens()} * blocks + more_groups, least,
           lowest, largest, groups_of_row, 1);
  }
  void multiply() const {
    const auto with = [&](auto... routing) {
      launch(original(), 1, a, b, c, scales_of_a, weight_scales, routing..., used, n, k, length,
             choices, stride_am, stride_be, stride_bn, stride_cm, stride_asm, stride_bse,
             stride_bsn, 0, 0, CUdeviceptr{0}, CUdeviceptr{0});
    };
    if (is_weighted) {
      is_sorted ? with(weights, sorted, ids) : with(weights, ids);
    } else {
      is_sorted ? with(sorted, ids) : with(ids);
    }
  }
  void both() const {
    if (is_weighted) quantize();
    multiply();
    if (!is_weighted) {
      launch(kSiluBehindExperts, choices + more_rows, out, to_activate, width, 0.0f, alpha, beta);
    }
  }

  bool is_sorted;
  int more_groups = 0, groups_of_row = blocks, more_rows = 0;
  float least = kLeastOfRow, lowest = -448, largest = 448, alpha = 1, beta = 0;

 private:
  std::string name(const std::string& begin, const char* end) const {
    return begin + (is_sorted ? "" : "_each") + (is_weighted ? "_weighted" : "") + end +
           (is_weighted ? "_k768" : "_k2048");
  }
};

// ---- SGLang's

// The versions 0.5.23, 0.5.22 and 0.5.21.
constexpr int kSglangVersions = 3;
std::string quant_of_version(int version) {
  constexpr char kConditional[] =
      "ELb1ELb0EEEvNSt11conditionalIXT1_ENS_23SortedQuantKernelParamsENS_"
      "17QuantKernelParamsEE4typeE";
  const std::string rest[] = {std::string("Lb0EE") + kConditional, std::string("E") + kConditional,
                              "EELb1EEEvNS_17QuantKernelParamsE"};
  return "_ZN6sglang33per_token_group_quant_flat_kernelINS_10QuantTraitI13__nv_bfloat1613__nv_fp8_"
         "e4m3Lj128ELb0ELb1ELb1ELb0E" +
         rest[version];
}

struct SglangScaledExperts : ScaledExperts {
  SglangScaledExperts(const Gpu& on, int size, bool has_weights)
      : ScaledExperts(on, has_weights), block_size(size) {
    if (block_size == 64) choices = 16, length = 1024;
  }

  std::string original() const {
    return "fused_moe_kernel_of_" + std::to_string(block_size) + (is_weighted ? "_weighted" : "");
  }
  std::string alone() const {
    return is_weighted ? "moe_gemm_block_scaled_weighted_k768" : "moe_gemm_block_scaled_k2048";
  }
  std::string as_one() const {
    return std::string("quant_then_moe_gemm_block_scaled_") +
           (is_weighted ? "weighted_k768" : "silu_k2048");
  }
  void quantize(int version) const {
    struct Params {
      CUdeviceptr x;
      int64_t x_strides[2];
      CUdeviceptr quantized;
      int64_t quantized_strides[2];
      CUdeviceptr scales;
      int expert_stride, token_stride, group_stride, num_groups, num_tokens, hidden_size;
    };
    launch(quant_of_version(version), 1,
           Params{.x = x,
                  .x_strides = {0, x_stride},
                  .quantized = quantized,
                  .quantized_strides = {0, quantized_stride},
                  .scales = scales,
                  .expert_stride = 0,
                  .token_stride = token_stride,
                  .group_stride = group_stride,
                  .num_groups = groups,
                  .num_tokens = tokens() + more_tokens,
                  .hidden_size = hidden_size});
  }
  void multiply() const {
    launch(original(), 1, a, b, c, scales_of_a, weight_scales, weights, sorted, ids, used, n, k,
           length, choices, stride_am, stride_be, stride_bn, 0, 0, stride_cm, stride_asm,
           stride_bse, stride_bsn, CUdeviceptr{0}, CUdeviceptr{0});
  }
  void activate(int version) const {
    struct Old {
      CUdeviceptr input, output;
      int width, num_tokens;
      uint64_t rest[2];
    };
    struct New : Old {
      uint64_t more[3];
    };
    const Old params = {to_activate, out, width, choices + more_rows, {}};
    const std::string begin =
        "_ZN6sglang18act_and_mul_kernelI13__nv_bfloat16LNS_14ActivationKindE0ELb1ELb0ELb0ELb0E";
    if (version == 2) {
      launch(begin + "EEvNS_16ActivationParamsE", 1, params);
    } else {
      launch(begin + "Lb0ELb0EEEvNS_16ActivationParamsE", 1, New{params, {}});
    }
  }
  void all(int version = 0) const {
    quantize(version);
    multiply();
    if (!is_weighted) activate(version);
  }

  int block_size;
  int64_t x_stride = k, quantized_stride = k;
  int token_stride = blocks, group_stride = 1, groups = blocks, hidden_size = k;
  int more_tokens = 0, more_rows = 0;
};

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(products_of_scaled_vllm_experts) {
  for (const bool is_weighted : {false, true}) {
    const VllmScaledExperts sorted(gpu, true, is_weighted);
    const VllmScaledExperts each(gpu, false, is_weighted);
    for (const VllmScaledExperts* layer : {&sorted, &each}) {
      run_captured(gpu, [&] { layer->both(); });
      EXPECT_EQUAL(1, ran(layer->as_one().c_str()));
      layer->multiply();
      EXPECT_EQUAL(1, ran(layer->alone().c_str()));
      for (const std::string& name : {layer->as_one(), layer->alone()}) {
        EXPECT_EQUAL(is_weighted ? 528 : 264, last_launch(name.c_str()).grid[0]);
      }
    }
    const auto check = [&](const VllmScaledExperts& of, auto... rest) {
      const SimcudaLaunch one = last_launch(of.as_one().c_str());
      const SimcudaLaunch alone = last_launch(of.alone().c_str());
      if (is_weighted) {
        expect_parameters(one, of.x, of.quantized, of.scales, kLeastOfRow, 0, 6, 1, of.b,
                          of.weight_scales, of.c, of.weights, rest...);
        expect_parameters(alone, of.quantized, of.scales, 6, 1, of.b, of.weight_scales, of.c,
                          of.weights, rest...);
      } else {
        expect_parameters(one, of.quantized, of.scales, 16, 1, of.b, of.weight_scales, of.c, of.out,
                          rest...);
        expect_parameters(alone, of.quantized, of.scales, 16, 1, of.b, of.weight_scales, of.c,
                          rest...);
      }
    };
    const int topk = is_weighted ? 1 : 8, n = is_weighted ? 2048 : 1536;
    check(sorted, sorted.sorted, sorted.ids, sorted.used, 64, 1024, 16, topk, n);
    check(each, each.ids, 8, topk, n);
  }
  state({}, {.hit = 8, .absorbed = 4});
}

// The kernels beside the product are ours alone where they fit, and so is the product.
GPU_CASE(products_of_scaled_vllm_experts_need_their_ties) {
  for (const bool is_weighted : {false, true}) {
    for (const bool is_sorted : {true, false}) {
      const VllmScaledExperts layer(gpu, is_sorted, is_weighted);
      const auto stay = [&](const auto& change) {
        VllmScaledExperts other = layer;
        change(other);
        run_captured(gpu, [&] { other.both(); });
      };
      change_products(stay);
      stay([&](auto& of) { of.choices = is_sorted ? 520 : 40; });
      if (is_sorted) stay([](auto& of) { of.length = 2576; });
      if (!is_weighted) stay([&](auto& of) { of.choices = is_sorted ? 60 : 12; });
      const int products = 13 + is_sorted + !is_weighted;
      EXPECT_EQUAL(products, ran(layer.original().c_str()));
      if (is_weighted) {
        stay([](auto& of) { of.a = of.x; });
        stay([](auto& of) { of.scales_of_a = of.x; });
        stay([](auto& of) { of.more_groups = 1; });
        stay([](auto& of) { of.groups_of_row = 5; });
        stay([](auto& of) { of.least = 0; });
        stay([](auto& of) { of.lowest = -240; });
        stay([](auto& of) { of.largest = 240; });
        stay([](auto& of) { of.x += 8; });
        stay([](auto& of) { of.c = of.x + 2 * of.tokens() * of.k - 4; });
        stay([](auto& of) { of.c = of.quantized + of.tokens() * of.k - 4; });
        stay([](auto& of) { of.c = of.scales + 4 * of.tokens() * of.blocks - 4; });
      } else {
        stay([](auto& of) { of.out = of.a + of.tokens() * of.k - 4; });
        stay([](auto& of) { of.out = of.scales_of_a + 4 * of.tokens() * of.blocks - 4; });
        stay([](auto& of) { of.to_activate = of.x; });
        stay([](auto& of) { of.width = 512; });
        stay([](auto& of) { of.more_rows = 1; });
        stay([](auto& of) { of.alpha = 2; });
        stay([](auto& of) { of.beta = 1; });
        stay([](auto& of) { of.out += 2; });
      }
      EXPECT_EQUAL(products, ran(layer.original().c_str()));
      EXPECT_EQUAL(is_weighted ? 11 : 8, ran(layer.alone().c_str()));
      EXPECT_EQUAL(0, ran(layer.as_one().c_str()));
    }
  }
  state({}, {.hit = 102, .no_solution = 2, .where = 84});
}

GPU_CASE(products_of_scaled_sglang_experts) {
  for (const bool is_weighted : {false, true}) {
    for (const int block_size : {16, 64}) {
      const SglangScaledExperts layer(gpu, block_size, is_weighted);
      const auto check = [&](const SimcudaLaunch& ours, auto... first) {
        const auto with = [&](auto... more) {
          expect_parameters(ours, first..., layer.blocks, 1, layer.b, layer.weight_scales, layer.c,
                            more..., layer.sorted, layer.ids, layer.used, layer.choices,
                            layer.length, block_size, layer.topk, layer.n);
        };
        if (is_weighted) return with(layer.weights);
        sizeof...(first) == 2 ? with()
                              : with(layer.out);  // the product alone, or with what is behind it
      };
      for (int version = 0; version < kSglangVersions; ++version) {
        run_captured(gpu, [&] { layer.all(version); });
        const SimcudaLaunch one = last_launch(layer.as_one().c_str());
        check(one, layer.x, layer.quantized, layer.scales, kLeastOfRow, version == 0 ? 0 : 1);
        EXPECT_EQUAL(is_weighted ? 528 : 264, one.grid[0]);
      }
      layer.multiply();
      check(last_launch(layer.alone().c_str()), layer.quantized, layer.scales);
      EXPECT_EQUAL(0, ran(layer.original().c_str()));
    }
  }
  state({}, {.hit = 16, .absorbed = 18});
}

// As above. The quantisation of so few rows is left to SGLang.
GPU_CASE(products_of_scaled_sglang_experts_need_their_ties) {
  for (int kind = 0; kind < 4 * kSglangVersions; ++kind) {
    const bool is_weighted = kind % 2 == 1;
    const int block_size = kind / 2 % 2 == 0 ? 16 : 64;
    const SglangScaledExperts layer(gpu, block_size, is_weighted);
    const long originals = ran(layer.original().c_str());
    const long alone = ran(layer.alone().c_str());
    long changed = 0;
    const auto stay = [&](const auto& change) {
      SglangScaledExperts other = layer;
      change(other);
      run_captured(gpu, [&] { other.all(kind / 4); });
      ++changed;
    };
    change_products(stay);
    stay([](auto& of) { of.choices = 520, of.length = 2560; });
    stay([](auto& of) { of.length = 2576; });
    if (!is_weighted) stay([&](auto& of) { of.choices = block_size == 16 ? 60 : 20; });
    if (block_size == 64) {
      stay([](auto& of) { of.choices = 32, of.length = 2048; });
      if (is_weighted) stay([](auto& of) { of.choices = 8, of.length = 512; });
    }
    const long products = changed;
    EXPECT_EQUAL(originals + products, ran(layer.original().c_str()));
    stay([](auto& of) { of.a = of.x; });
    stay([](auto& of) { of.scales_of_a = of.x; });
    stay([](auto& of) { of.more_tokens = 1; });
    stay([](auto& of) { of.hidden_size += 128; });
    stay([](auto& of) { of.groups += 1; });
    stay([](auto& of) { of.x_stride += 8; });
    stay([](auto& of) { of.quantized_stride += 16; });
    stay([](auto& of) { of.group_stride = 2; });
    stay([](auto& of) { of.token_stride += 1; });
    stay([](auto& of) { of.x += 8; });
    if (is_weighted) {
      stay([](auto& of) { of.c = of.x + 2 * of.tokens() * of.k - 4; });
      stay([](auto& of) { of.c = of.quantized + of.tokens() * of.k - 4; });
      stay([](auto& of) { of.c = of.scales + 4 * of.tokens() * of.blocks - 4; });
    } else {
      stay([](auto& of) { of.to_activate = of.x; });
      stay([](auto& of) { of.width = 512; });
      stay([](auto& of) { of.more_rows = 1; });
      stay([](auto& of) { of.out += 2; });
      // PyTorch gives the output the memory of what was quantised.
      stay([](auto& of) { of.out = of.quantized; });
      stay([](auto& of) { of.out = of.quantized + of.tokens() * of.k - 4; });
      stay([](auto& of) { of.out = of.scales + 4 * of.tokens() * of.blocks - 4; });
      stay([](auto& of) { of.out = of.x + 2 * of.tokens() * of.k - 4; });
    }
    EXPECT_EQUAL(originals + products, ran(layer.original().c_str()));
    EXPECT_EQUAL(alone + changed - products, ran(layer.alone().c_str()));
    EXPECT_EQUAL(0, ran(layer.as_one().c_str()));
  }
  state({}, {.hit = 351, .no_solution = 6, .where = 582});
}
