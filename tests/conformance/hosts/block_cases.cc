// Kernels of vLLM, FlashInfer (config/vllm) and SGLang (config/sglang) that bring rows to fp8 with a scale for each block of 128
// elements: which of ours replaces them, and what it is given. Where the scales lie is told by the kernel's name and one number.

#include <tuple>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

std::string group_quant(bool by_columns, bool is_ue8m0) {
  return "_Z42per_token_group_quant_8bit_register_kernelIN3c108BFloat16ENS0_13Float8_e4m3fnELb" +
         std::to_string(by_columns) + "ELb" + std::to_string(is_ue8m0) + "ELi128EEvPKT_PvPflfffii";
}
std::string silu_quant(bool by_columns) {
  return "_ZN4vllm35silu_and_mul_per_block_quant_kernelIN3c108BFloat16ENS1_13Float8_e4m3fnELb" +
         std::to_string(by_columns) + "ELi128EEEvPT0_PfPKT_PKfi";
}
std::string norm_quant(bool has_residual, bool by_columns) {
  return "_ZN4vllm31rms_norm_per_block_quant_kernelIN3c108BFloat16ENS1_13Float8_e4m3fnELb" +
         std::to_string(has_residual) + "ELb" + std::to_string(by_columns) +
         "ELi128EEEvPT0_PfPKT_S9_PKffiiPS7_l";
}
constexpr char kFlashInfers[] =
    "_ZN12tensorrt_llm7kernels19fp8_blockscale_gemm18scale_1x128_kernelI13__nv_bfloat1613__nv_fp8_"
    "e4m3fEEvPT0_PT1_PKT_ii";

// As 0.5.23, 0.5.22 and 0.5.21 compile it.
std::string group_quant_of_sglang(bool by_rows, const char* rest) {
  return "_ZN6sglang33per_token_group_quant_flat_kernelINS_10QuantTraitI13__nv_bfloat1613__nv_fp8_"
         "e4m3Lj128ELb0ELb" +
         std::to_string(by_rows) + "ELb1ELb0E" + rest;
}
#define FIBSHIM_CONDITIONAL \
  "ELb1ELb0EEEvNSt11conditionalIXT1_ENS_23SortedQuantKernelParamsENS_17QuantKernelParamsEE4typeE"
constexpr const char* kSglangs[] = {"Lb0EE" FIBSHIM_CONDITIONAL, "E" FIBSHIM_CONDITIONAL,
                                    "EELb1EEEvNS_17QuantKernelParamsE"};
struct SglangQuant {
  CUdeviceptr x;
  int64_t x_strides[2];
  CUdeviceptr quantized;
  int64_t quantized_strides[2];
  CUdeviceptr scales;
  uint32_t expert_stride, token_stride, group_stride, num_groups, num_tokens, hidden_size;
};

struct Buffers {
  CUdeviceptr memory = device_memory(size_t{8} << 20);
  CUdeviceptr at(CUdeviceptr megabyte) const { return memory + (megabyte << 20); }
  CUdeviceptr x = at(0), weight = at(1), residual = at(2), quantized = at(3), scales = at(4);
  CUdeviceptr gate_up = at(5), normed = at(6), sum = at(7), second = at(2) + (512 << 10);
  SglangQuant quantization(CUdeviceptr of, bool by_rows, uint32_t rows, uint32_t blocks,
                           uint32_t pitch) const {
    const int64_t width = int64_t{blocks} * 128;
    return {.x = of,
            .x_strides = {0, width},
            .quantized = quantized,
            .quantized_strides = {0, width},
            .scales = scales,
            .expert_stride = 0,
            .token_stride = by_rows ? pitch : 1,
            .group_stride = by_rows ? 1 : pitch,
            .num_groups = blocks,
            .num_tokens = rows,
            .hidden_size = blocks * 128};
  }
};

constexpr float kLeast = 1e-10f;  // the quantisation's epsilon

constexpr char kCuteNorm[] =
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__"
    "tensorptrbf16gmemalign128oi64204820481_tensorptrbf16gmemalign128oi64204820481_"
    "tensorptrbf16gme_0";

// A norm of rows of 2048, or silu·mul of tokens of 3072, and SGLang's quantisation behind it, in a graph.
struct SglangPairs {
  explicit SglangPairs(const Gpu& device) : gpu(device), module(device.load_module(kEngines)) {}
  template <class... Arguments>
  void launch(const std::string& kernel, Arguments... values) const {
    void* pointers[] = {&values...};
    OK(cuda().cuLaunchKernel(gpu.function(module, kernel.c_str()), 3, 1, 1, 128, 1, 1, 0,
                             gpu.stream(), pointers, nullptr));
  }
  void norm() const {
    struct Rows {
      CUdeviceptr rows;
      int64_t count;
    };
    launch(kCuteNorm, Rows{on.x, rows_of_input}, Rows{on.residual, rows_of_residual}, on.weight,
           int64_t{3}, 1e-6f);
  }
  void silu(int version) const {
    struct Params {
      CUdeviceptr input, output;
      uint32_t width, num_tokens;
      uint64_t rest[5];
    };
    launch(std::string("_ZN6sglang18act_and_mul_kernelI13__nv_bfloat16LNS_14ActivationKindE0ELb1ELb"
                       "0ELb0ELb0E") +
               (version < 2 ? "Lb0ELb0E" : "") + "EEvNS_16ActivationParamsE",
           Params{on.gate_up, on.x, 3072, 3, {}});
  }
  void quantize(int version, bool by_rows, const SglangQuant& params) const {
    launch(group_quant_of_sglang(by_rows, kSglangs[version]), params);
  }
  const Gpu& gpu;
  CUmodule module;
  Buffers on;
  int64_t rows_of_input = 3, rows_of_residual = 3;
};
constexpr char kNormThenQuant[] = "fused_add_rmsnorm_then_quant_per_block_h2048_bf16";
constexpr char kSiluThenQuant[] = "silu_and_mul_then_quant_per_block_bf16";

// The same as torch.compile makes them for vLLM, of norms of 4096 and tokens of 12288.
struct VllmPairs : SglangPairs {
  using SglangPairs::SglangPairs;
  void add_norm() const {
    launch("triton_red_fused_fused_add_rms_norm_0", on.x, on.residual, on.weight, on.normed, 3,
           row_size, CUdeviceptr{0}, CUdeviceptr{0});
  }
  void add2_norm() const {
    launch("triton_red_fused_fused_add_rms_norm_2", on.x, on.residual, on.second, on.weight, on.sum,
           on.normed, 3, row_size, CUdeviceptr{0}, CUdeviceptr{0});
  }
  void silu(int elements = 3 * 12288) const {
    launch("triton_poi_fused_mul_silu_slice_1", on.gate_up, on.normed, elements, CUdeviceptr{0},
           CUdeviceptr{0});
  }
  void quantize_as_flashinfer(int width, int rows = 3) const {
    launch(kFlashInfers, on.quantized, on.scales, of, width, rows);
  }
  void quantize_as_vllm(int blocks, int rows = 3) const {
    launch(group_quant(true, true), of, on.quantized, on.scales, int64_t{blocks} * rows, least,
           lowest, largest, blocks, pitch);
  }
  CUdeviceptr of = on.normed;
  float least = kLeast, lowest = -448, largest = 448;
  int pitch = 8, row_size = 4096;  // of scales, and of the norms' rows
};

// What follows the pointers of such a launch, but for next_may_begin.
template <class... Values>
void check_rest(const SimcudaLaunch& launch, size_t offset, Values... values) {
  ((EXPECT_EQUAL(values, param_at<Values>(launch, offset)), offset += sizeof values), ...);
  EXPECT_EQUAL(offset + sizeof(int), launch.param_bytes);
}

class Launches {
 public:
  explicit Launches(const Gpu& gpu) : gpu_(gpu), module_(gpu.load_module(kEngines)) {}

  // Twice: the second is decided on the fast side. `ours`: what must run, or empty for the original.
  template <class... Values>
  void expect(const std::string& ours, const std::string& original, unsigned rows,
              Values... values) {
    const std::string& runs = ours.empty() ? original : ours;
    const CUfunction function = gpu_.function(module_, original.c_str());
    std::tuple<Values...> held(values...);
    const long before = ran(runs.c_str());
    std::apply(
        [&](auto&... each) {
          void* pointers[] = {&each...};
          for (int i = 0; i < 2; ++i) {
            OK(cuda().cuLaunchKernel(function, rows, 1, 1, 256, 1, 1, 0, gpu_.stream(), pointers,
                                     nullptr));
          }
        },
        held);
    check_equal(before + 2, ran(runs.c_str()), runs.c_str(), __FILE__, __LINE__);
    (ours.empty() ? where_ : hits_) += 2;
    last_ = last_launch(runs.c_str());
  }
  // The last one's grid and block, and its arguments from the first to the last but next_may_begin.
  template <class... Values>
  void expect_launch(uint32_t grid, uint32_t block, Values... values) const {
    EXPECT_EQUAL(grid, last_.grid[0]);
    EXPECT_EQUAL(block, last_.block[0]);
    char bytes[256];
    size_t size = 0;
    ((memcpy(bytes + size, &values, sizeof values), size += sizeof values), ...);
    EXPECT_EQUAL(size + sizeof(int), last_.param_bytes);
    CHECK(memcmp(bytes, last_.params, size) == 0);
  }
  void state_counts(long no_solution = 0) const {
    state({}, {.hit = hits_, .no_solution = no_solution, .where = where_ - no_solution});
  }

 private:
  const Gpu& gpu_;
  CUmodule module_;
  SimcudaLaunch last_ = {};
  long hits_ = 0, where_ = 0;
};

}  // namespace

GPU_CASE(block_quantisation_of_vllm) {
  const Buffers on;
  Launches launches(gpu);
  const auto quantize = [&](const std::string& ours, const std::string& original, int rows,
                            int blocks, int pitch, float eps = kLeast, float lowest = -448,
                            float largest = 448, CUdeviceptr shift = 0, int64_t more = 0,
                            CUdeviceptr shift_of_output = 0) {
    launches.expect(ours, original, 1, on.x + shift, on.quantized + shift_of_output, on.scales,
                    int64_t{rows} * blocks + more, eps, lowest, largest, blocks, pitch);
  };
  for (const bool is_ue8m0 : {false, true}) {
    const char* const ours = is_ue8m0 ? "quant_per_block_ue8m0_bf16" : "quant_per_block_bf16";
    const std::string by_rows = group_quant(false, is_ue8m0);
    const std::string by_columns = group_quant(true, is_ue8m0);
    quantize(ours, by_rows, 3, 32, 1);
    launches.expect_launch(6, 128, on.x, on.quantized, on.scales, kLeast, 3, 32, 32, 1);
    quantize(ours, by_columns, 3, 32, 4);
    launches.expect_launch(6, 128, on.x, on.quantized, on.scales, kLeast, 3, 32, 1, 4);
    quantize(ours, by_columns, 513, 56, 516);
    launches.expect_launch(1796, 128, on.x, on.quantized, on.scales, kLeast, 513, 56, 1, 516);
    quantize("", by_columns, 3, 32, 2);  // a pitch of fewer than the rows
    for (const std::string& original : {by_rows, by_columns}) {
      quantize("", original, 3, 32, 4, 0.0f);
      quantize("", original, 3, 32, 4, kLeast, -240);
      quantize("", original, 3, 32, 4, kLeast, -448, 240);
      quantize("", original, 3, 32, 4, kLeast, -448, 448, 8);
      quantize("", original, 3, 32, 4, kLeast, -448, 448, 0, 1);
      quantize("", original, 3, 32, 4, kLeast, -448, 448, 0, 0, 8);
    }
  }
  const auto of_flashinfer = [&](const std::string& ours, int width, int rows) {
    launches.expect(ours, kFlashInfers, 1056, on.quantized, on.scales, on.x, width, rows);
  };
  of_flashinfer("quant_per_block_unbounded_bf16", 4096, 5);
  launches.expect_launch(10, 128, on.x, on.quantized, on.scales, 0.0f, 5, 32, 1, 8);
  of_flashinfer("", 4160, 5);
  launches.state_counts();
}

GPU_CASE(block_quantisation_of_sglang) {
  const Buffers on;
  Launches launches(gpu);
  const auto params = [&](bool by_rows, uint32_t rows, uint32_t blocks, uint32_t pitch) {
    return on.quantization(on.x, by_rows, rows, blocks, pitch);
  };
  for (const char* rest : kSglangs) {
    const std::string by_columns = group_quant_of_sglang(false, rest);
    const std::string by_rows = group_quant_of_sglang(true, rest);
    const std::string ours =
        std::string("quant_per_block_") + (rest == kSglangs[0] ? "floored" : "bounded") + "_bf16";
    launches.expect(ours, by_columns, 3, params(false, 3, 32, 4));
    launches.expect_launch(6, 128, on.x, on.quantized, on.scales, kLeast, 3, 32, 1, 4);
    launches.expect(ours, by_rows, 3, params(true, 3, 32, 36));
    launches.expect_launch(6, 128, on.x, on.quantized, on.scales, kLeast, 3, 32, 36, 1);
    const auto keep = [&](bool is_by_rows, auto change) {
      SglangQuant changed = params(is_by_rows, 3, 32, 32);
      change(changed);
      launches.expect("", is_by_rows ? by_rows : by_columns, 3, changed);
    };
    keep(false, [](SglangQuant& p) { p.x_strides[1] += 8; });
    keep(false, [](SglangQuant& p) { p.quantized_strides[1] += 8; });
    keep(false, [](SglangQuant& p) { p.token_stride = 2; });
    keep(false, [](SglangQuant& p) { p.group_stride = 2; });
    keep(false, [](SglangQuant& p) { p.num_groups = 31; });
    keep(false, [](SglangQuant& p) { p.x += 8; });
    keep(false, [](SglangQuant& p) { p.quantized += 8; });
    keep(false, [](SglangQuant& p) { p.scales += 2; });
    keep(false, [](SglangQuant& p) { p.group_stride = 0x80000004; });
    keep(true, [](SglangQuant& p) { p.token_stride = 31; });
    keep(true, [](SglangQuant& p) { p.group_stride = 2; });
    keep(true, [](SglangQuant& p) { p.token_stride = 0x80000004; });
    launches.expect(ours, by_columns, 32, params(false, 32, 32, 32));
    launches.expect("", by_columns, 33, params(false, 33, 32, 36));  // left to SGLang, as are these
    launches.expect(ours, by_columns, 4, params(false, 4, 112, 4));
    launches.expect("", by_columns, 5, params(false, 5, 112, 8));
    launches.expect("", by_columns, 3, params(false, 3, 16, 4));
  }
  launches.state_counts();
}

GPU_CASE(rewrite_of_sglang_block_quantisation) {
  const SglangPairs layer(gpu);
  const Buffers& on = layer.on;
  int pairs = 0;
  for (int version = 0; version < 3; ++version) {
    for (const bool by_rows : {false, true}) {
      const int pitch = by_rows ? 28 : 4, row_stride = by_rows ? pitch : 1;
      const int block_stride = by_rows ? 1 : pitch;
      const int hides_nan = version == 0 ? 0 : 1;
      run_captured(gpu, [&] {
        layer.norm();
        layer.quantize(version, by_rows, on.quantization(on.x, by_rows, 3, 16, pitch));
        layer.silu(version);
        layer.quantize(version, by_rows, on.quantization(on.x, by_rows, 3, 24, pitch));
      });
      pairs += 2;
      const SimcudaLaunch norm = last_launch(kNormThenQuant);
      const CUdeviceptr of_norm[] = {on.x,        on.residual,  on.weight, on.x,
                                     on.residual, on.quantized, on.scales};
      CHECK(memcmp(norm.params, of_norm, sizeof of_norm) == 0);
      check_rest(norm, sizeof of_norm, 1e-6f, kLeast, hides_nan, row_stride, block_stride, 3);
      EXPECT_EQUAL(3, norm.grid[0]);
      EXPECT_EQUAL(128, norm.block[0]);
      const SimcudaLaunch silu = last_launch(kSiluThenQuant);
      const CUdeviceptr of_silu[] = {on.gate_up, on.x, on.quantized, on.scales};
      CHECK(memcmp(silu.params, of_silu, sizeof of_silu) == 0);
      check_rest(silu, sizeof of_silu, 3072, kLeast, hides_nan, row_stride, block_stride);
      EXPECT_EQUAL(3, silu.grid[0]);
      EXPECT_EQUAL(3, silu.grid[1]);
    }
  }
  EXPECT_EQUAL(pairs / 2, ran(kNormThenQuant));
  EXPECT_EQUAL(pairs / 2, ran(kSiluThenQuant));
  state({}, {.hit = pairs, .absorbed = pairs});
}

// The quantisation reads another buffer or other rows, or its scales lie otherwise: each kernel is by itself, and so small a
// quantisation SGLang's.
GPU_CASE(rewrite_of_sglang_block_quantisation_needs_its_ties) {
  const SglangPairs layer(gpu);
  const Buffers& on = layer.on;
  int pairs = 0;
  const auto keep = [&](bool by_rows, auto change) {
    SglangQuant normed = on.quantization(on.x, by_rows, 3, 16, by_rows ? 24 : 4);
    SglangQuant activated = on.quantization(on.x, by_rows, 3, 24, by_rows ? 24 : 4);
    change(normed);
    change(activated);
    run_captured(gpu, [&] {
      layer.norm();
      layer.quantize(0, by_rows, normed);
      layer.silu(0);
      layer.quantize(0, by_rows, activated);
    });
    pairs += 2;
  };
  keep(false, [&](SglangQuant& p) { p.x = on.gate_up; });
  keep(false, [](SglangQuant& p) { p.num_tokens = 2; });
  keep(false, [](SglangQuant& p) { p.hidden_size = 1024; });
  keep(false, [](SglangQuant& p) { p.num_groups = 8; });
  keep(false, [](SglangQuant& p) { p.x_strides[1] += 8; });
  keep(false, [](SglangQuant& p) { p.quantized_strides[1] += 8; });
  keep(false, [](SglangQuant& p) { p.token_stride = 2; });
  keep(false, [](SglangQuant& p) { p.group_stride = 2; });
  keep(true, [](SglangQuant& p) { p.group_stride = 2; });
  keep(true, [](SglangQuant& p) { p.token_stride = 15; });
  keep(false, [](SglangQuant& p) { p.quantized += 4; });
  keep(false, [](SglangQuant& p) { p.scales += 2; });
  keep(false, [](SglangQuant& p) { p.group_stride = 0x80000004; });
  EXPECT_EQUAL(0, ran(kNormThenQuant) + ran(kSiluThenQuant));
  // Rows of the norm's tensors that are not those that it writes.
  for (const auto& [of_input, of_residual] : {std::pair(2, 3), std::pair(3, 2)}) {
    SglangPairs apart = layer;
    apart.rows_of_input = of_input;
    apart.rows_of_residual = of_residual;
    run_captured(gpu, [&] {
      apart.norm();
      apart.quantize(0, false, on.quantization(on.x, false, 3, 16, 4));
    });
  }
  EXPECT_EQUAL(0, ran(kNormThenQuant));
  EXPECT_EQUAL(pairs / 2, ran("silu_and_mul_bf16"));
  EXPECT_EQUAL(pairs / 2 + 2, ran(kCuteNorm));
  EXPECT_EQUAL(pairs + 2, ran(group_quant_of_sglang(false, kSglangs[0]).c_str()) +
                              ran(group_quant_of_sglang(true, kSglangs[0]).c_str()));
  // The norm alone is known to another folder. Where only the solution's clauses fail, it counts by the rewrite.
  state({}, {.hit = pairs / 2, .where = pairs + 4, .untracked = pairs / 2});
}

GPU_CASE(rewrite_of_vllm_block_quantisation) {
  const VllmPairs layer(gpu);
  const Buffers& on = layer.on;
  for (const bool is_vllms : {false, true}) {
    const std::string kind = is_vllms ? "ue8m0" : "unbounded";
    const auto quantize = [&](int width) {
      if (is_vllms) {
        layer.quantize_as_vllm(width / 128);
      } else {
        layer.quantize_as_flashinfer(width);
      }
    };
    run_captured(gpu, [&] {
      layer.add_norm();
      quantize(4096);
      layer.add2_norm();
      quantize(4096);
      layer.silu();
      quantize(12288);
    });
    const auto expect = [&](const std::string& of, const std::vector<CUdeviceptr>& given,
                            auto... rest) {
      const SimcudaLaunch made = last_launch(
          (of + "_then_quant_per_block_" + kind + (of == "silu_and_mul" ? "_bf16" : "_h4096_bf16"))
              .c_str());
      const size_t bytes = given.size() * sizeof given[0];
      CHECK(memcmp(made.params, given.data(), bytes) == 0);
      check_rest(made, bytes, rest...);
      EXPECT_EQUAL(3, made.grid[0]);
      EXPECT_EQUAL(of == "silu_and_mul" ? 12 : 1, made.grid[1]);
      EXPECT_EQUAL(of == "silu_and_mul" ? 128 : 512, made.block[0]);
    };
    const float least = is_vllms ? kLeast : 0;
    const int pitch = is_vllms ? 8 : 4;
    expect("add_rmsnorm", {on.x, on.residual, on.weight, on.normed, on.quantized, on.scales}, 1e-5f,
           least, 1, pitch, 3);
    expect("add2_rmsnorm_sum",
           {on.x, on.residual, on.second, on.weight, on.normed, on.sum, on.quantized, on.scales},
           1e-5f, least, 1, pitch, 3);
    expect("silu_and_mul", {on.gate_up, on.normed, on.quantized, on.scales}, 12288, least, 1,
           pitch);
  }
  state({}, {.hit = 6, .absorbed = 6});
}

// As above, of vLLM. The norms are ours by themselves, and so is the quantisation where it is known.
GPU_CASE(rewrite_of_vllm_block_quantisation_needs_its_ties) {
  VllmPairs layer(gpu);
  const auto both = [&](const VllmPairs& changed, int elements = 3 * 12288, int width = 4096,
                        int rows = 3) {
    run_captured(gpu, [&] {
      changed.add_norm();
      changed.quantize_as_flashinfer(width, rows);
      changed.add2_norm();
      changed.quantize_as_vllm(width / 128, rows);
      changed.silu(elements);
      changed.quantize_as_flashinfer(3 * width, rows);
      changed.silu(elements);
      changed.quantize_as_vllm(3 * width / 128, rows);
    });
  };
  VllmPairs of_another = layer;
  of_another.of = layer.on.sum;
  both(of_another);
  both(layer, 3 * 12288, 2048);
  both(layer, 3 * 12288, 4096, 2);
  EXPECT_EQUAL(12, ran("quant_per_block_unbounded_bf16") + ran("quant_per_block_ue8m0_bf16"));
  EXPECT_EQUAL(3, ran("add_rmsnorm_h4096_bf16"));
  EXPECT_EQUAL(3, ran("add2_rmsnorm_sum_h4096_bf16"));
  const auto by_vllm = [&](auto change) {
    VllmPairs changed = layer;
    change(changed);
    run_captured(gpu, [&] {
      changed.add_norm();
      changed.quantize_as_vllm(32);
    });
  };
  by_vllm([](VllmPairs& p) { p.pitch = 2; });
  by_vllm([](VllmPairs& p) { p.least = 0; });
  by_vllm([](VllmPairs& p) { p.lowest = -240; });
  by_vllm([](VllmPairs& p) { p.largest = 240; });
  EXPECT_EQUAL(7, ran("add_rmsnorm_h4096_bf16"));
  EXPECT_EQUAL(4, ran(group_quant(true, true).c_str()));
  // Rows of another width than the kernel's code is for.
  VllmPairs narrower = layer;
  narrower.row_size = 2048;
  run_captured(gpu, [&] {
    narrower.add_norm();
    narrower.quantize_as_flashinfer(2048);
    narrower.add2_norm();
    narrower.quantize_as_flashinfer(2048);
  });
  EXPECT_EQUAL(1, ran("add_rmsnorm_h2048_bf16"));
  EXPECT_EQUAL(1, ran("add2_rmsnorm_sum_h2048_bf16"));
  // A part of a token.
  run_captured(gpu, [&] {
    layer.silu(3 * 12288 + 8);
    layer.quantize_as_flashinfer(12288);
  });
  EXPECT_EQUAL(15, ran("quant_per_block_unbounded_bf16") + ran("quant_per_block_ue8m0_bf16"));
  state({}, {.hit = 27, .where = 4, .untracked = 7});
}

GPU_CASE(block_silu_of_vllm) {
  const Buffers on;
  Launches launches(gpu);
  const auto multiply = [&](const std::string& ours, bool by_columns, unsigned tokens, int width,
                            CUdeviceptr largest_scale = 0, CUdeviceptr shift = 0) {
    launches.expect(ours, silu_quant(by_columns), tokens, on.quantized, on.scales, on.x + shift,
                    largest_scale, width);
  };
  multiply("silu_and_mul_quant_per_block1_bf16", true, 3, 14336);
  launches.expect_launch(42, 128, on.x, on.quantized, on.scales, 3, 14336, 1, 3);
  multiply("silu_and_mul_quant_per_block1_bf16", false, 3, 14336);
  launches.expect_launch(42, 128, on.x, on.quantized, on.scales, 3, 14336, 112, 1);
  multiply("silu_and_mul_quant_per_block2_bf16", true, 65, 12288);
  launches.expect_launch(195, 256, on.x, on.quantized, on.scales, 65, 12288, 1, 65);
  multiply("", true, 3, 14336, on.weight);
  multiply("", true, 3, 14336, 0, 8);
  multiply("", true, 3, 128);
  launches.state_counts(2);
}

GPU_CASE(block_norms_of_vllm) {
  const Buffers on;
  Launches launches(gpu);
  constexpr float kEps = 1e-5f;
  const auto norm = [&](const std::string& ours, bool has_residual, bool by_columns, unsigned rows,
                        int width, int64_t scale_stride, CUdeviceptr largest_scale = 0,
                        int stride = 0) {
    launches.expect(ours, norm_quant(has_residual, by_columns), rows, on.quantized, on.scales, on.x,
                    on.weight, largest_scale, kEps, width, stride == 0 ? width : stride,
                    has_residual ? on.residual : 0, scale_stride);
  };
  norm("rmsnorm_quant_per_block_h4096_bf16", false, true, 3, 4096, 4);
  launches.expect_launch(3, 512, on.x, on.weight, on.quantized, on.scales, kEps, 4096, 1, 4, 3);
  norm("rmsnorm_quant_per_block_h5120_bf16", false, false, 3, 5120, 1, 0, 6144);
  launches.expect_launch(3, 320, on.x, on.weight, on.quantized, on.scales, kEps, 6144, 40, 1, 3);
  // The pitch is the stride's next multiple.
  norm("fused_add_rmsnorm_quant_per_block_h7168_bf16", true, true, 5, 7168, 4);
  launches.expect_launch(5, 448, on.x, on.weight, on.residual, on.residual, on.quantized, on.scales,
                         kEps, 7168, 1, 8, 5);
  norm("fused_add_rmsnorm_quant_per_block_h4096_bf16", true, false, 300, 4096, 1);
  launches.expect_launch(300, 512, on.x, on.weight, on.residual, on.residual, on.quantized,
                         on.scales, kEps, 4096, 32, 1, 300);
  norm("", false, true, 3, 4096, 4, on.residual);
  norm("", false, true, 3, 4096, 4, 0, 4100);
  norm("", false, true, 3, 4096, 0);  // no pitch
  norm("", true, true, 3, 1152, 4);
  launches.state_counts(2);
}

}  // namespace conform
