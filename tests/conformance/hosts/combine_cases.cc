// What merges the parts of attention and SGLang's quantisation to fp8 by blocks of 128 behind it, in graphs, as one kernel
// (config/sglang). Each has one struct, the first as tests/shim/plan/flash_attention_test.cc fills it.

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr int kQueryRows = 5, kQueryHeads = 32;
constexpr char kSglangsCombine[] =
    "_ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS3_1CILi8EEENS5_ILi128E"
    "EEEEELi5ELi256ELi1ELb0ELb1ENS_10bfloat16_tEfNS_4arch4Sm90EEEEEvNT_6ParamsE";
constexpr char kQuantOfSglang[] =
    "_ZN6sglang33per_token_group_quant_flat_kernelINS_10QuantTraitI13__nv_bfloat1613__nv_fp8_e4m3Lj"
    "128ELb0ELb0ELb1ELb0ELb0EEELb1ELb0EEEvNSt11conditionalIXT1_ENS_23SortedQuantKernelParamsENS_"
    "17QuantKernelParamsEE4typeE";

template <size_t kBytes>
struct ParamBytes {
  char bytes[kBytes] = {};
  template <class T>
  void put(int offset, T value) {
    memcpy(bytes + offset, &value, sizeof value);
  }
};

struct AttentionParts {
  explicit AttentionParts(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {}
  CUdeviceptr at(int megabyte) const { return memory + (CUdeviceptr{1} * megabyte << 20); }

  template <class Params>
  void launch(const char* kernel, unsigned x, unsigned z, Params params) const {
    void* pointers[] = {&params};
    OK(cuda().cuLaunchKernel(gpu.function(module, kernel), x, 1, z, 256, 1, 1, 0, gpu.stream(),
                             pointers, nullptr));
  }
  void combine() const {
    ParamBytes<232> made;
    const std::pair<int, int32_t> words[] = {{8, kQueryRows},   {12, 128},         {16, 32},
                                             {20, kQueryHeads}, {24, 1},           {72, kQueryRows},
                                             {76, 32},          {80, kQueryHeads}, {84, 1},
                                             {168, kQueryRows}, {180, kQueryHeads}};
    for (const auto& [offset, word] : words) made.put(offset, word);
    const std::pair<int, int64_t> strides[] = {{32, 128},
                                               {40, kQueryRows * 4096},
                                               {48, kQueryRows * 128},
                                               {88, kQueryRows * 32},
                                               {96, kQueryRows},
                                               {120, stride},
                                               {128, 128},
                                               {152, kQueryRows}};
    for (const auto& [offset, value] : strides) made.put(offset, value);
    const std::pair<int, CUdeviceptr> pointers[] = {{0, parts},   {64, parts_lse},   {112, output},
                                                    {144, lse},   {192, first_rows}, {208, counts},
                                                    {216, order}, {224, semaphore}};
    for (const auto& [offset, pointer] : pointers) made.put(offset, pointer);
    launch(kSglangsCombine, 4, kQueryRows, made);
  }
  void quantize() const {
    ParamBytes<80> made;
    made.put(0, to_quantize);
    made.put<int64_t>(16, stride_to_quantize);
    made.put(24, quantized);
    made.put<int64_t>(40, quantized_stride);
    made.put(48, scales);
    const std::pair<int, int32_t> words[] = {
        {60, other_stride}, {64, pitch}, {68, groups}, {72, rows}, {76, width}};
    for (const auto& [offset, word] : words) made.put(offset, word);
    launch(kQuantOfSglang, 10, 1, made);
  }

  const Gpu& gpu;
  CUmodule module;
  CUdeviceptr memory = device_memory(size_t{12} << 20);
  CUdeviceptr parts = at(0), parts_lse = at(3), output = at(4), lse = at(5), quantized = at(6);
  CUdeviceptr scales = at(7), first_rows = at(8), counts = at(9), semaphore = at(10);
  CUdeviceptr order = at(11), to_quantize = at(4);
  int64_t stride = 4096, stride_to_quantize = 4096, quantized_stride = 4096;
  int rows = kQueryRows, width = 4096, groups = 32, pitch = 8, other_stride = 1;
};

constexpr char kMergedAndQuantized[] = "decode_combine_then_quant_per_block_sorted_d128_bf16";

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(rewrite_of_sglang_combine_and_quantisation) {
  const AttentionParts layer(gpu);
  run_captured(gpu, [&] {
    layer.combine();
    layer.quantize();
  });
  const SimcudaLaunch made = last_launch(kMergedAndQuantized);
  const CUdeviceptr given[] = {layer.parts,     layer.parts_lse, layer.first_rows, layer.order,
                               layer.counts,    layer.output,    layer.lse,        layer.semaphore,
                               layer.quantized, layer.scales};
  CHECK(memcmp(made.params, given, sizeof given) == 0);
  EXPECT_EQUAL(4096, param_at<int64_t>(made, sizeof given));
  const int32_t sizes[] = {kQueryRows, kQueryRows, kQueryHeads};
  CHECK(memcmp(made.params + sizeof given + 8, sizes, sizeof sizes) == 0);
  CHECK(param_at<float>(made, sizeof given + 20) == 1e-10f);
  const int32_t rest[] = {0, 1, 8};  // hides_nan, and the strides of scales
  CHECK(memcmp(made.params + sizeof given + 24, rest, sizeof rest) == 0);
  EXPECT_EQUAL(sizeof given + 40, made.param_bytes);
  EXPECT_EQUAL(8, made.grid[0]);
  EXPECT_EQUAL(kQueryRows, static_cast<int>(made.grid[1]));
  EXPECT_EQUAL(128, made.block[0]);
  state({}, {.hit = 1, .absorbed = 1});
}

// The quantisation reads another buffer or other rows, or its output is where the parts were: two kernels, of which the first is
// known to another folder.
GPU_CASE(rewrite_of_sglang_combine_and_quantisation_needs_its_ties) {
  const AttentionParts layer(gpu);
  int kept = 0;
  const auto keep = [&](auto change) {
    AttentionParts changed = layer;
    change(changed);
    run_captured(gpu, [&] {
      changed.combine();
      changed.quantize();
    });
    EXPECT_EQUAL(++kept, ran(kSglangsCombine));
  };
  keep([&](AttentionParts& p) { p.to_quantize = layer.parts; });
  keep([](AttentionParts& p) { p.rows = 4; });
  keep([](AttentionParts& p) { p.width = 2048; });
  keep([](AttentionParts& p) { p.groups = 16; });
  keep([](AttentionParts& p) { p.stride = 8192; });
  keep([](AttentionParts& p) { p.stride_to_quantize = 8192; });
  keep([](AttentionParts& p) { p.quantized_stride = 8192; });
  keep([](AttentionParts& p) { p.other_stride = 2; });
  keep([](AttentionParts& p) { p.pitch = 4; });
  // In the last bytes of what it reads.
  const CUdeviceptr end_of_parts =
      layer.parts + CUdeviceptr{4} * 32 * kQueryHeads * kQueryRows * 128;
  keep([&](AttentionParts& p) { p.quantized = end_of_parts - 16; });
  keep([&](AttentionParts& p) { p.scales = end_of_parts - 4; });
  keep([&](AttentionParts& p) { p.scales = p.parts_lse + 4 * 32 * kQueryHeads * kQueryRows - 4; });
  keep([&](AttentionParts& p) { p.scales = p.first_rows + 4 * kQueryRows; });
  keep([&](AttentionParts& p) { p.scales = p.counts + 4 * (kQueryRows - 1); });
  keep([&](AttentionParts& p) { p.scales = p.order + 4 * (kQueryRows - 1); });
  EXPECT_EQUAL(0, ran(kMergedAndQuantized));
  // Behind them.
  AttentionParts behind = layer;
  behind.quantized = end_of_parts;
  run_captured(gpu, [&] {
    behind.combine();
    behind.quantize();
  });
  EXPECT_EQUAL(1, ran(kMergedAndQuantized));
  // By itself the quantisation is ours where the folder takes its size and the rows are dense.
  state({}, {.hit = 10, .where = 6, .untracked = 9, .graph = 6, .absorbed = 1});
}
