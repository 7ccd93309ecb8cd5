// vLLM's kernels (config/vllm): captured rewrites of its launches for an fp8 model, and for a model
// that norms the heads of query and key; and the less usual forms of its norms and activations.

#include <tuple>
#include <vector>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kFusedAdd[] =
    "_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb1EEENSt9enable_ifIXaagtT0_"
    "Li0Esr4vllm12_"
    "typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fii";
constexpr char kFusedAddStrided[] =  // since 0.33
    "_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb1EEENSt9enable_ifIXaagtT0_"
    "Li0Esr4vllm12_"
    "typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fiil";
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

constexpr char kFusedAddNoWeight[] =
    "_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb0EEENSt9enable_ifIXaagtT0_"
    "Li0Esr4vllm12_"
    "typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fiil";
constexpr char kRmsNormNoWeight[] =
    "_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi4ELb0EEEvPT_PKS3_lllllS6_lfii";
constexpr char kSiluClamp[] =
    "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_"
    "RKS5_"
    "fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb1ELb0EEEvPS5_PS6_ifff";
constexpr char kMulAndSilu[] =
    "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_"
    "RKS5_"
    "EEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_EELb0ELb1ELb0EEEvPS5_PS6_i";

constexpr char kRmsNorm[] =
    "_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8ELi3ELb1EEEvPT_PKS3_lllllS6_lfii";
constexpr char kRotary[] =
    "_ZN4vllm23rotary_embedding_kernelIN3c108BFloat16ES2_Lb1EEEvPKlPT_S6_PKT0_illliiilb";
constexpr char kReshapeAndCache[] =
    "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_"
    "18Fp8KVCacheDataTypeE0EEEvPKT_S5_PT0_S7_PKlllllliiiPKfSB_i";

constexpr int kHidden = 4096;
constexpr int kWidth = 14336;

template <class... Arguments>
void launch_kernel(const Gpu& gpu, CUfunction kernel, unsigned grid, Arguments... values) {
  std::tuple<Arguments...> held(values...);
  std::apply(
      [&](auto&... each) {
        void* pointers[] = {&each...};
        OK(cuda().cuLaunchKernel(kernel, grid, 1, 1, 256, 1, 1, 0, gpu.stream(), pointers,
                                 nullptr));
      },
      held);
}

// Buffers of a layer, and launches as vLLM makes them.
struct VllmLayer {
  explicit VllmLayer(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {}
  CUdeviceptr at(int megabyte) const { return memory + (static_cast<CUdeviceptr>(megabyte) << 20); }

  template <class... Arguments>
  void launch(const char* name, Arguments... values) const {
    launch_kernel(gpu, gpu.function(module, name), rows, values...);
  }

  void fused_add(int64_t stride = kHidden) const {
    launch(kFusedAdd, hidden, stride, residual, weight, 1e-5f, static_cast<int>(rows), kHidden);
  }
  void fused_add_strided(int64_t residual_stride) const {
    launch(kFusedAddStrided, hidden, int64_t{kHidden}, residual, weight, 1e-5f,
           static_cast<int>(rows), kHidden, residual_stride);
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
  CUdeviceptr memory = device_memory(size_t{32} << 20);
  unsigned rows = 3;
  CUdeviceptr hidden = 0, residual = 0, weight = 0, gate_up = 0, active = 0, quantized = 0,
              scale = 0, scales = 0;
};

VllmLayer make_layer(const Gpu& gpu) {
  VllmLayer layer(gpu);
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

// The launches of an attention layer with norms of its heads, before attention.
struct Attention {
  explicit Attention(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {
    qkv = device_memory(size_t{32} << 20);
    query = qkv + (8 << 20);
    key = qkv + (16 << 20);
    weights = qkv + (24 << 20);
    positions = slots = weights + 1024;
    angles = device_memory(1 << 20);
    cache = device_memory(size_t{2} << 20);
  }

  // For a single row PyTorch states the view's own stride.
  int64_t stride_of(int64_t heads) const {
    return (tokens == 1 ? heads : q_heads + 2 * kv_heads) * head_size;
  }
  CUdeviceptr row_of(int64_t head) const {
    return qkv + static_cast<CUdeviceptr>(2 * head * head_size);
  }

  void norm(CUdeviceptr to, CUdeviceptr from, int64_t heads, float eps = 1e-6f) const {
    launch_kernel(gpu, gpu.function(module, kRmsNorm), tokens * static_cast<unsigned>(heads), to,
                  from, head_size, stride_of(heads), int64_t{0}, heads, int64_t{0}, weights,
                  int64_t{0}, eps, static_cast<int>(tokens * heads), static_cast<int>(head_size));
  }
  void rotate(CUdeviceptr rotated_query, bool is_inverse = false) const {
    launch_kernel(gpu, gpu.function(module, kRotary), tokens, positions, rotated_query, key, angles,
                  static_cast<int>(head_size), q_heads * head_size, kv_heads * head_size, head_size,
                  static_cast<int>(q_heads), static_cast<int>(kv_heads),
                  static_cast<int>(head_size), int64_t{0}, is_inverse);
  }
  void append(CUdeviceptr from, unsigned count) const {
    const int64_t apart = is_paired ? 2 : 1;
    launch_kernel(gpu, gpu.function(module, kReshapeAndCache), count, from,
                  row_of(q_heads + kv_heads), cache,
                  cache + 2 * (is_paired ? head_size : 16 * kv_heads * head_size), slots,
                  2 * 16 * kv_heads * head_size, apart * kv_heads * head_size, apart * head_size,
                  kv_heads * head_size, stride_of(kv_heads), static_cast<int>(kv_heads),
                  static_cast<int>(head_size), 16, CUdeviceptr{0}, CUdeviceptr{0}, 1);
  }
  void all() const {
    norm(query, row_of(0), q_heads);
    norm(key, row_of(q_heads), kv_heads);
    rotate(query);
    append(key, tokens);
  }

  const Gpu& gpu;
  CUmodule module;
  unsigned tokens = 3;
  int64_t q_heads = 16, kv_heads = 8, head_size = 128;
  bool is_paired = false;  // key and value of a head lie together in the cache, as in 0.32 and 0.33
  CUdeviceptr qkv = 0, query = 0, key = 0, weights = 0, positions = 0, slots = 0, angles = 0,
              cache = 0;
};

// The same without norms, in the default mode: torch.compile's kernels, each in an image of its
// own, read the heads from the rows of qkv.
struct CompiledAttention : Attention {
  explicit CompiledAttention(const Gpu& on)
      : Attention(on), other_module(on.load_module(kEnginesOther)) {
    q_heads = 32;
    // Memory that nothing writes.
    positions = angles + (512 << 10);
    slots = positions + 8192;
    key_source = qkv;
    key_positions = positions;
    key_angles = angles;
  }

  void rotate_query() const {
    rotate(gpu.function(module, "triton_poi_fused_1"), qkv, positions, angles, query, q_heads);
  }
  void rotate_key() const {
    rotate(gpu.function(other_module, "triton_poi_fused_2"), key_source, key_positions, key_angles,
           key, kv_heads);
  }
  void all() const {
    rotate_query();
    rotate_key();
    append(key, tokens);
  }
  // By one kernel, as with batches of up to 8,192 tokens.
  void rotate_both() const {
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_3"),
                  tokens * static_cast<unsigned>(q_heads + kv_heads) / 4, qkv, positions, angles,
                  query, key, static_cast<int>(tokens * q_heads * head_size),
                  static_cast<int>(tokens * kv_heads * head_size), CUdeviceptr{0}, CUdeviceptr{0});
  }

  CUmodule other_module;
  CUdeviceptr key_source = 0, key_positions = 0, key_angles = 0;

 private:
  void rotate(CUfunction kernel, CUdeviceptr from, CUdeviceptr of, CUdeviceptr by, CUdeviceptr to,
              int64_t heads) const {
    launch_kernel(gpu, kernel, tokens * static_cast<unsigned>(heads) / 4, from, of, by, to,
                  static_cast<int>(tokens * heads * head_size), CUdeviceptr{0}, CUdeviceptr{0});
  }
};

// Of rows that lack the bias, of 64 and 8 heads. A test changes a field to break a tie.
struct BiasedAttention : CompiledAttention {
  explicit BiasedAttention(const Gpu& on) : CompiledAttention(on) {
    q_heads = 64;
    bias = added_bias = weights;
    summed = query_source = qkv;
    query_positions = positions;
    query_angles = angles;
    set_tokens(3);
  }
  void set_tokens(unsigned count) {
    tokens = written_tokens = count;
    query_elements = static_cast<int>(tokens * q_heads * head_size);
    key_elements = static_cast<int>(tokens * kv_heads * head_size);
    elements = query_elements + 2 * key_elements;
  }

  void all() const {
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_7"), tokens, qkv, bias, positions,
                  angles, key, key_elements, kNone, kNone);
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_8"), tokens, summed, added_bias,
                  elements, kNone, kNone);
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_1"), tokens, query_source,
                  query_positions, query_angles, query, query_elements, kNone, kNone);
    BiasedAttention written = *this;
    written.qkv = value_source == 0 ? qkv : value_source;
    if (are_values_dense) written.tokens = 1;
    written.append(key + written_key, written_tokens);
  }

  CUdeviceptr bias = 0, added_bias = 0, summed = 0, query_source = 0, query_positions = 0,
              query_angles = 0, value_source = 0, written_key = 0;
  unsigned written_tokens = 0;
  bool are_values_dense = false;
  int query_elements = 0, key_elements = 0, elements = 0;

 private:
  static constexpr CUdeviceptr kNone = 0;  // Triton's scratch memory
};

// With norms of the heads before their rotation: by PyTorch 2.11 in two kernels, or three of many
// heads, without sums by 2.13 in one and by 2.14 in two. A test changes a field to break a tie.
struct NormedAttention : CompiledAttention {
  explicit NormedAttention(const Gpu& on, int64_t heads = 32) : CompiledAttention(on) {
    q_heads = heads;
    query_sums = read_query_sums = device_memory(1 << 20);
    key_sums = read_key_sums = query_sums + (512 << 10);
    query_weight = weights;
    key_weight = weights + 256;
    query_positions = positions;
    query_angles = angles;
    set_tokens(3);
  }
  void set_tokens(unsigned count) {
    tokens = count;
    query_rows = static_cast<int>(count * q_heads);
    key_rows = static_cast<int>(count * kv_heads);
    query_pairs = 64 * query_rows;
    key_pairs = 64 * key_rows;
    written_tokens = count;
  }

  void sums() const {
    launch_kernel(gpu, gpu.function(module, "triton_red_fused_3"), tokens, qkv, query_sums,
                  key_sums, query_rows, key_rows, kNone, kNone);
  }
  void rotate_both() const {
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_4"), tokens, key_source,
                  read_key_sums, key_weight, positions, angles, read_query_sums, query_weight, key,
                  key + key_half, query, query + query_half, key_pairs, query_pairs, kNone, kNone);
  }
  void rotate_key_apart() const {
    launch_kernel(gpu, gpu.function(other_module, "triton_poi_fused_6"), tokens, key_source,
                  read_key_sums, key_weight, key_positions, key_angles, key, key + key_half,
                  key_pairs, kNone, kNone);
  }
  void rotate_query_apart() const {
    launch_kernel(gpu, gpu.function(module, "triton_poi_fused_5"), tokens, query_source,
                  read_query_sums, query_weight, query_positions, query_angles, query,
                  query + query_half, query_pairs, kNone, kNone);
  }
  void query_whole() const {
    launch_kernel(gpu, gpu.function(module, "triton_per_fused_cat_3"), tokens, qkv, query_weight,
                  positions, angles, query, query_rows, query_row, kNone, kNone);
  }
  void key_whole() const {
    launch_kernel(gpu, gpu.function(other_module, "triton_per_fused_cat_4"), tokens, key_source,
                  key_weight, key_positions, key_angles, key, key_rows, key_row, kNone, kNone);
  }
  void both_whole() const {
    launch_kernel(gpu, gpu.function(module, "triton_red_fused_5"), tokens, qkv, query_weight,
                  positions, angles, key_weight, query, key, query_rows, key_rows, kNone, kNone);
  }
  void write() const {
    const int64_t slot = kv_heads * head_size;
    launch_kernel(gpu, gpu.function(module, kReshapeAndCache), written_tokens, key + written,
                  row_of(q_heads + kv_heads), cache, cache + 2 * 16 * slot, slots, 2 * 16 * slot,
                  slot, head_stride, key_stride, stride_of(kv_heads), written_heads, written_head,
                  16, kNone, kNone, 1);
  }
  void all() const {
    sums();
    rotate_both();
    write();
  }
  void all_apart() const {
    sums();
    rotate_query_apart();
    rotate_key_apart();
    write();
  }
  void all_whole() const {
    query_whole();
    key_whole();
    write();
  }
  void all_at_once() const {
    both_whole();
    write();
  }

  static constexpr CUdeviceptr kNone = 0;
  CUdeviceptr query_sums = 0, key_sums = 0, read_query_sums = 0, read_key_sums = 0;
  CUdeviceptr query_weight = 0, key_weight = 0, query_source = qkv;
  CUdeviceptr query_positions = 0, query_angles = 0;
  CUdeviceptr query_half = 128, key_half = 128, written = 0;  // bytes
  int query_rows = 0, key_rows = 0, query_pairs = 0, key_pairs = 0, query_row = 128, key_row = 128;
  unsigned written_tokens = 0;
  int written_heads = 8, written_head = 128;
  int64_t head_stride = 128, key_stride = 8 * 128;
};

// Graphs in each of which one field of a layer is another: one of `changes`, or of the write into
// the cache.
template <class Launch>
void run_changed(const Gpu& gpu, const NormedAttention& layer,
                 std::vector<void (*)(NormedAttention*)> changes, const Launch& launch) {
  changes.insert(changes.end(),
                 {[](auto* it) { it->written = 1 << 20; }, [](auto* it) { --it->written_tokens; },
                  [](auto* it) { it->written_heads = 4; }, [](auto* it) { it->written_head = 64; },
                  [](auto* it) { it->key_stride = 4096; }});
  for (const auto change : changes) {
    NormedAttention changed = layer;
    change(&changed);
    run_captured(gpu, [&] { launch(changed); });
  }
}

// What all forms pass on to the replacement.
void check_normed(const NormedAttention& layer, const SimcudaLaunch& last, bool has_sums) {
  std::vector<CUdeviceptr> given = {
      layer.qkv,          layer.row_of(layer.q_heads + layer.kv_heads),
      layer.query_weight, layer.key_weight,
      layer.angles,       layer.positions,
      layer.slots,        layer.query,
      layer.key,          layer.cache,
      layer.cache + 32768};
  if (has_sums) given.insert(given.end(), {layer.query_sums, layer.key_sums});
  const size_t pointers = given.size() * sizeof given[0];
  CHECK(memcmp(last.params, given.data(), pointers) == 0);
  const int64_t row = (layer.q_heads + 2 * layer.kv_heads) * 128;
  const int64_t sizes[] = {row, layer.tokens == 1 ? 8 * 128 : row, 2 * 16 * 8 * 128, 8 * 128,
                           layer.head_stride};
  CHECK(memcmp(last.params + pointers, sizes, sizeof sizes) == 0);
  const size_t scalars = pointers + sizeof sizes;
  CHECK(param_at<float>(last, scalars) == 1e-6f);
  EXPECT_EQUAL(16, param_at<int32_t>(last, scalars + 4));
  EXPECT_EQUAL(layer.q_heads, param_at<int32_t>(last, scalars + 8));
  EXPECT_EQUAL(8, param_at<int32_t>(last, scalars + 12));
  EXPECT_EQUAL(layer.tokens, last.grid[0]);
  EXPECT_EQUAL((layer.q_heads + 16) / 8, last.grid[1]);
}

}  // namespace
}  // namespace conform

using namespace conform;

// The heads of all tokens are rows with one stride per token, unless the sequences are not
// contiguous.
GPU_CASE(norms_of_vllm_without_a_weight) {
  const VllmLayer layer = make_layer(gpu);
  constexpr int64_t kHead = 128, kHeads = 5, kTokens = 3, kRow = 7 * kHead;
  const auto norm = [&](int64_t sequences, int64_t sequence_stride) {
    launch_kernel(gpu, gpu.function(layer.module, kRmsNormNoWeight),
                  static_cast<unsigned>(sequences * kTokens * kHeads), layer.active, layer.hidden,
                  kHead, kRow, sequence_stride, kHeads, kTokens, CUdeviceptr{0}, int64_t{0}, 1e-5f,
                  static_cast<int>(sequences * kTokens * kHeads), static_cast<int>(kHead));
  };
  norm(2, kTokens * kRow);
  const SimcudaLaunch heads = last_launch("rmsnorm_no_weight_h128_bf16");
  EXPECT_EQUAL(layer.hidden, param_at<CUdeviceptr>(heads, 0));
  EXPECT_EQUAL(layer.active, param_at<CUdeviceptr>(heads, 8));
  CHECK(param_at<float>(heads, 16) == 1e-5f);
  const int32_t given[] = {2 * kTokens * kHeads, kHeads, kRow, kHead, kHeads * kHead, kHead};
  CHECK(memcmp(heads.params + 20, given, sizeof given) == 0);
  norm(1, 0);
  norm(2, 4 * kTokens * kRow);
  EXPECT_EQUAL(2, ran("rmsnorm_no_weight_h128_bf16"));
  EXPECT_EQUAL(1, ran(kRmsNormNoWeight));

  const auto fused_add = [&](CUdeviceptr weight, int64_t residual_stride) {
    layer.launch(kFusedAddNoWeight, layer.hidden, int64_t{2 * kHidden}, layer.residual, weight,
                 1e-5f, static_cast<int>(layer.rows), kHidden, residual_stride);
  };
  fused_add(0, kHidden);
  const SimcudaLaunch sum = last_launch("fused_add_rmsnorm_no_weight_h4096_bf16");
  const CUdeviceptr buffers[] = {layer.hidden, layer.residual, layer.hidden, layer.residual};
  CHECK(memcmp(sum.params, buffers, sizeof buffers) == 0);
  CHECK(param_at<float>(sum, 32) == 1e-5f);
  EXPECT_EQUAL(3, param_at<int32_t>(sum, 36));
  EXPECT_EQUAL(2 * kHidden, param_at<int32_t>(sum, 40));
  fused_add(0, 2 * kHidden);
  fused_add(layer.weight, kHidden);
  EXPECT_EQUAL(2, ran(kFusedAddNoWeight));
  state({}, {.hit = 3, .where = 3});
}

GPU_CASE(activations_of_vllm) {
  const VllmLayer layer = make_layer(gpu);
  layer.launch(kMulAndSilu, layer.active, layer.gate_up, kWidth);
  EXPECT_EQUAL(1, ran("mul_and_silu_vllm_bf16"));
  layer.launch(kSiluClamp, layer.active, layer.gate_up, kWidth, 7.0f, 1.702f, 1.0f);
  const SimcudaLaunch clamp = last_launch("silu_and_mul_clamp_vllm_bf16");
  EXPECT_EQUAL(layer.gate_up, param_at<CUdeviceptr>(clamp, 0));
  EXPECT_EQUAL(layer.active, param_at<CUdeviceptr>(clamp, 8));
  EXPECT_EQUAL(kWidth, param_at<int32_t>(clamp, 16));
  const float given[] = {7.0f, 1.702f, 1.0f};
  CHECK(memcmp(clamp.params + 20, given, sizeof given) == 0);
  EXPECT_EQUAL(0, param_at<int32_t>(clamp, 32));
  EXPECT_EQUAL(0, ran("silu_and_mul_vllm_bf16"));
  state({}, {.hit = 2});
}

// Between its ranges vLLM's own kernel is faster.
GPU_CASE(fused_add_of_vllm_has_a_range) {
  VllmLayer layer = make_layer(gpu);
  layer.rows = 366;
  layer.fused_add();
  EXPECT_EQUAL(1, ran("fused_add_rmsnorm_vllm_h4096_bf16"));
  for (const unsigned rows : {367u, 2047u}) {
    layer.rows = rows;
    layer.fused_add();
  }
  EXPECT_EQUAL(2, ran(kFusedAdd));
  layer.rows = 2048;
  layer.fused_add();
  EXPECT_EQUAL(2, ran("fused_add_rmsnorm_vllm_h4096_bf16"));
  state({}, {.hit = 2, .where = 2});
}

GPU_CASE(rewrite_of_vllm_fp8) {
  const VllmLayer layer = make_layer(gpu);
  run_captured(gpu, [&] {
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
  CHECK(param_at<float>(norm, sizeof given) == 1e-5f);
  EXPECT_EQUAL(3, param_at<int32_t>(norm, sizeof given + 4));
  const SimcudaLaunch silu = last_launch("silu_and_mul_then_quant_per_token2_bf16");
  const CUdeviceptr of_silu[] = {layer.gate_up, layer.active, layer.quantized, layer.scales};
  CHECK(memcmp(silu.params, of_silu, sizeof of_silu) == 0);
  EXPECT_EQUAL(kWidth, param_at<int32_t>(silu, sizeof of_silu));
  EXPECT_EQUAL(1, ran("fused_add_rmsnorm_then_quant_per_token_h4096_bf16"));
  EXPECT_EQUAL(1, ran("silu_and_mul_then_quant_bf16"));
  EXPECT_EQUAL(0, ran(kStaticQuant) + ran(kDynamicQuant));
  state({}, {.hit = 4, .absorbed = 4});
}

// If the residual's rows are not contiguous, the kernels are not merged, and the norm runs unchanged.
GPU_CASE(rewrite_of_vllm_fp8_strided) {
  const VllmLayer layer = make_layer(gpu);
  run_captured(gpu, [&] {
    layer.fused_add_strided(kHidden);
    layer.quantize(layer.hidden, kHidden);
    layer.fused_add_strided(kHidden);
    layer.quantize_per_token(layer.hidden, kHidden);
  });
  EXPECT_EQUAL(1, ran("fused_add_rmsnorm_then_quant_h4096_bf16"));
  EXPECT_EQUAL(1, ran("fused_add_rmsnorm_then_quant_per_token_h4096_bf16"));
  EXPECT_EQUAL(0, ran(kFusedAddStrided) + ran(kStaticQuant) + ran(kDynamicQuant));
  run_captured(gpu, [&] {
    layer.fused_add_strided(2 * kHidden);
    layer.quantize(layer.hidden, kHidden);
    layer.fused_add_strided(2 * kHidden);
    layer.quantize_per_token(layer.hidden, kHidden);
  });
  EXPECT_EQUAL(2, ran(kFusedAddStrided));
  state({}, {.hit = 2, .where = 2, .untracked = 2, .absorbed = 2});
}

// The second kernel does not read the first one's output, or does more, or the rows are not
// contiguous: each kernel is replaced by itself.
GPU_CASE(rewrite_of_vllm_fp8_needs_its_ties) {
  const VllmLayer layer = make_layer(gpu);
  run_captured(gpu, [&] {
    layer.fused_add();
    layer.quantize(layer.residual, kHidden);
  });
  run_captured(gpu, [&] {
    layer.fused_add(2 * kHidden);
    layer.quantize(layer.hidden, kHidden);
  });
  run_captured(gpu, [&] {
    layer.silu();
    layer.quantize_per_token(layer.active, kWidth, layer.scale);
  });
  run_captured(gpu, [&] {
    layer.silu();
    VllmLayer fewer = layer;
    fewer.rows = 2;
    fewer.quantize(layer.active, kWidth);
  });
  run_captured(gpu, [&] {
    layer.silu(2);
    layer.quantize(layer.active, kWidth);
  });
  // The output overlaps the input of the activation, which other blocks have yet to read.
  VllmLayer reused = layer;
  reused.quantized = layer.gate_up + 4096;
  run_captured(gpu, [&] {
    reused.silu();
    reused.quantize(layer.active, kWidth);
  });
  EXPECT_EQUAL(5, ran(kStaticQuant));
  EXPECT_EQUAL(1, ran(kDynamicQuant));
  EXPECT_EQUAL(1, ran(kSilu));
  state({}, {.hit = 5, .where = 1, .untracked = 5, .graph = 1});
}

GPU_CASE(rewrite_of_vllm_qk_norm) {
  const Attention layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  const SimcudaLaunch last = last_launch("qk_rope_append_d128_bf16");
  const CUdeviceptr given[] = {layer.row_of(0), layer.row_of(16), layer.row_of(24),
                               layer.weights,   layer.weights,    layer.angles,
                               layer.positions, layer.slots,      layer.query,
                               layer.key,       layer.cache,      layer.cache + 32768};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int64_t strides[] = {32 * 128, 32 * 128, 32 * 128, 2 * 16 * 8 * 128, 8 * 128, 128};
  CHECK(memcmp(last.params + sizeof given, strides, sizeof strides) == 0);
  const size_t scalars = sizeof given + sizeof strides;
  CHECK(param_at<float>(last, scalars) == 1e-6f);
  EXPECT_EQUAL(16, param_at<int32_t>(last, scalars + 4));
  EXPECT_EQUAL(16, param_at<int32_t>(last, scalars + 8));
  EXPECT_EQUAL(8, param_at<int32_t>(last, scalars + 12));
  EXPECT_EQUAL(3, last.grid[0]);
  EXPECT_EQUAL(4, last.grid[1]);
  // Another model size, and the largest number of tokens that the solution serves.
  Attention large = layer;
  large.q_heads = 32;
  large.tokens = 512;
  run_captured(gpu, [&] { large.all(); });
  large.tokens = 1;
  run_captured(gpu, [&] { large.all(); });
  EXPECT_EQUAL(3, ran("qk_rope_append_d128_bf16"));
  state({}, {.hit = 3, .absorbed = 9});
}

// One of the four kernels uses another buffer, more or less of it, or does something else: each is
// replaced by itself.
GPU_CASE(rewrite_of_vllm_qk_norm_needs_its_ties) {
  const Attention layer(gpu);
  const auto norms = [&] {
    layer.norm(layer.query, layer.row_of(0), layer.q_heads);
    layer.norm(layer.key, layer.row_of(16), layer.kv_heads);
  };
  run_captured(gpu, [&] {
    norms();
    layer.rotate(layer.query + (1 << 20));
    layer.append(layer.key, layer.tokens);
  });
  run_captured(gpu, [&] {
    norms();
    layer.rotate(layer.query);
    layer.append(layer.key + (1 << 20), layer.tokens);
  });
  run_captured(gpu, [&] {
    norms();
    layer.rotate(layer.query);
    layer.append(layer.key, layer.tokens - 1);
  });
  run_captured(gpu, [&] {
    layer.norm(layer.query, layer.row_of(0), layer.q_heads);
    layer.norm(layer.key, layer.row_of(16), layer.kv_heads, 1e-5f);
    layer.rotate(layer.query);
    layer.append(layer.key, layer.tokens);
  });
  run_captured(gpu, [&] {
    norms();
    layer.rotate(layer.query, true);
    layer.append(layer.key, layer.tokens);
  });
  Attention many = layer;
  many.tokens = 513;
  run_captured(gpu, [&] { many.all(); });
  EXPECT_EQUAL(0, ran("qk_rope_append_d128_bf16"));
  EXPECT_EQUAL(1, ran(kRotary));
  state({}, {.hit = 23, .where = 1});
}

// The sizes of the caches are unknown: they may reach to the end of their allocations, and no
// further.
GPU_CASE(rewrite_of_vllm_qk_norm_needs_room) {
  const Attention layer(gpu);
  Attention shared = layer;
  shared.cache = layer.weights + (1 << 20);  // after everything else in the allocation
  run_captured(gpu, [&] { shared.all(); });
  EXPECT_EQUAL(1, ran("qk_rope_append_d128_bf16"));
  shared.cache = layer.key - (1 << 20);  // may reach the keys
  run_captured(gpu, [&] { shared.all(); });
  Attention cached = layer;
  cached.angles = layer.query - (1 << 20);  // may reach the normed query
  run_captured(gpu, [&] { cached.all(); });
  cached.angles = CUdeviceptr{33} << 32 | 4096;  // in no known allocation
  run_captured(gpu, [&] { cached.all(); });
  EXPECT_EQUAL(1, ran("qk_rope_append_d128_bf16"));
  EXPECT_EQUAL(3, ran("append_paged_kv_cache_slots_16bit"));
  state({}, {.hit = 13, .absorbed = 3});
}

GPU_CASE(rewrite_of_vllm_rope) {
  const CompiledAttention layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  const SimcudaLaunch last = last_launch("rope_append_d128_bf16");
  const CUdeviceptr given[] = {layer.qkv,       layer.row_of(40), layer.angles,
                               layer.positions, layer.slots,      layer.query,
                               layer.key,       layer.cache,      layer.cache + 32768};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int64_t sizes[] = {48 * 128, 48 * 128, 2 * 16 * 8 * 128, 8 * 128, 128};
  CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
  const size_t scalars = sizeof given + sizeof sizes;
  EXPECT_EQUAL(16, param_at<int32_t>(last, scalars));
  EXPECT_EQUAL(32, param_at<int32_t>(last, scalars + 4));
  EXPECT_EQUAL(8, param_at<int32_t>(last, scalars + 8));
  EXPECT_EQUAL(0, param_at<int32_t>(last, scalars + 12));
  EXPECT_EQUAL(3, last.grid[0]);
  EXPECT_EQUAL(6, last.grid[1]);
  // The key's heads first; the largest number of tokens that the solution serves, and the smallest.
  run_captured(gpu, [&] {
    layer.rotate_key();
    layer.rotate_query();
    layer.append(layer.key, layer.tokens);
  });
  CHECK(memcmp(last_launch("rope_append_d128_bf16").params, given, sizeof given) == 0);
  CompiledAttention other = layer;
  other.tokens = 512;
  run_captured(gpu, [&] { other.all(); });
  other.tokens = 1;
  run_captured(gpu, [&] { other.all(); });
  // Another replacement follows, which may begin before this one waits.
  run_captured(gpu, [&] {
    layer.all();
    layer.append(layer.key, layer.tokens);
  });
  EXPECT_EQUAL(1, param_at<int32_t>(last_launch("rope_append_d128_bf16"), scalars + 12));
  EXPECT_EQUAL(5, ran("rope_append_d128_bf16"));
  state({}, {.hit = 6, .absorbed = 10});
}

// One of the three kernels uses another buffer, or more or less of it: each is replaced by itself.
GPU_CASE(rewrite_of_vllm_rope_needs_its_ties) {
  const CompiledAttention layer(gpu);
  CompiledAttention elsewhere = layer;
  elsewhere.key_source = layer.qkv + (1 << 20);
  run_captured(gpu, [&] { elsewhere.all(); });
  CompiledAttention later = layer;
  later.key_positions = layer.positions + 8;
  run_captured(gpu, [&] { later.all(); });
  CompiledAttention turned = layer;
  turned.key_angles = layer.angles + 4096;
  run_captured(gpu, [&] { turned.all(); });
  const auto rotations = [&] {
    layer.rotate_query();
    layer.rotate_key();
  };
  run_captured(gpu, [&] {
    rotations();
    layer.append(layer.key + (1 << 20), layer.tokens);
  });
  run_captured(gpu, [&] {
    rotations();
    layer.append(layer.key, layer.tokens - 1);
  });
  CompiledAttention fewer = layer;
  fewer.tokens = 2;
  run_captured(gpu, [&] {
    fewer.rotate_query();
    layer.rotate_key();
    layer.append(layer.key, layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.rotate_query();
    fewer.rotate_key();
    layer.append(layer.key, layer.tokens);
  });
  EXPECT_EQUAL(14, ran("rope_slice_d128_bf16"));
  EXPECT_EQUAL(7, ran("append_paged_kv_cache_slots_16bit"));
  CompiledAttention many = layer;
  many.tokens = 513;  // for which the key's rotation is not replaced
  run_captured(gpu, [&] { many.all(); });
  EXPECT_EQUAL(0, ran("rope_append_d128_bf16"));
  EXPECT_EQUAL(1, ran("triton_poi_fused_2"));
  state({}, {.hit = 23, .where = 1});
}

// 32 and 8 heads of 64, with one kernel for query and key, or with two.
GPU_CASE(rewrite_of_vllm_rope_of_64) {
  CompiledAttention layer(gpu);
  layer.head_size = 64;
  const auto both = [&](const CompiledAttention& one) {
    one.rotate_both();
    one.append(one.key, one.tokens);
  };
  run_captured(gpu, [&] { layer.all(); });
  run_captured(gpu, [&] { both(layer); });
  EXPECT_EQUAL(2, ran("rope_append_d64_bf16"));
  const SimcudaLaunch last = last_launch("rope_append_d64_bf16");
  const CUdeviceptr given[] = {layer.qkv,       layer.row_of(40), layer.angles,
                               layer.positions, layer.slots,      layer.query,
                               layer.key,       layer.cache,      layer.cache + 16384};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int64_t sizes[] = {48 * 64, 48 * 64, 2 * 16 * 8 * 64, 8 * 64, 64};
  CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
  EXPECT_EQUAL(3, last.grid[0]);
  EXPECT_EQUAL(3, last.grid[1]);  // of 16 heads each
  // Heads of 128 in the cache: those of the query and of the key are replaced by themselves.
  CompiledAttention larger = layer;
  run_captured(gpu, [&] {
    layer.rotate_query();
    layer.rotate_key();
    larger.head_size = 128;
    larger.append(larger.key, larger.tokens);
  });
  EXPECT_EQUAL(2, ran("rope_slice_d64_bf16"));
  EXPECT_EQUAL(2, ran("rope_append_d64_bf16"));
  state({}, {.hit = 5, .absorbed = 3});
}

// Alone, after a rotation, and after norms and a rotation.
GPU_CASE(paired_cache_of_vllm) {
  CompiledAttention rotated(gpu);
  Attention normed(gpu);
  rotated.is_paired = normed.is_paired = true;
  const int64_t strides[] = {2 * 16 * 8 * 128, 2 * 8 * 128, 2 * 128};
  const auto expect = [&](const Attention& layer, const char* kernel, size_t cache, size_t at) {
    const CUdeviceptr caches[] = {layer.cache, layer.cache + 2 * 128};
    const SimcudaLaunch last = last_launch(kernel);
    CHECK(memcmp(last.params + cache, caches, sizeof caches) == 0);
    CHECK(memcmp(last.params + at, strides, sizeof strides) == 0);
  };
  normed.append(normed.key, normed.tokens);
  expect(normed, "append_paged_kv_cache_slots_16bit", 16, 40);
  run_captured(gpu, [&] { rotated.all(); });
  expect(rotated, "rope_append_d128_bf16", 56, 88);
  run_captured(gpu, [&] { normed.all(); });
  expect(normed, "qk_rope_append_d128_bf16", 80, 120);
  state({}, {.hit = 3, .absorbed = 5});
}

// Alone, as in prefill: what Gemma has, and Llama 2, as large as the heads of Gemma 7B.
GPU_CASE(kv_writes_of_vllm) {
  struct Row {
    int64_t heads, size;
    unsigned tokens, blocks;  // none: vLLM's own
  };
  constexpr Row kRows[] = {{1, 256, 2049, 513},   {2, 256, 2049, 1025}, {4, 256, 2049, 2049},
                           {8, 256, 2049, 2049},  {8, 256, 600, 600},   {16, 128, 600, 600},
                           {16, 256, 512, 512},   {16, 256, 513, 0},    {16, 256, 1023, 0},
                           {16, 256, 1024, 1024}, {32, 128, 513, 0}};
  for (const Row& row : kRows) {
    Attention layer(gpu);
    layer.kv_heads = row.heads;
    layer.head_size = row.size;
    for (const bool is_paired : {false, true}) {
      layer.is_paired = is_paired;
      layer.append(layer.key, row.tokens);
      if (row.blocks == 0) continue;
      const SimcudaLaunch last = last_launch();
      EXPECT_EQUAL(row.blocks, last.grid[0]);
      EXPECT_EQUAL(2, last.grid[1]);
      const int sizes[] = {16, static_cast<int>(row.size), static_cast<int>(row.heads * row.size),
                           static_cast<int>(row.tokens)};
      CHECK(memcmp(last.params + 80, sizes, sizeof sizes) == 0);
    }
  }
  EXPECT_EQUAL(16, ran("append_paged_kv_cache_slots_16bit"));
  EXPECT_EQUAL(6, ran(kReshapeAndCache));
  state({}, {.hit = 16, .where = 6});
}

GPU_CASE(rewrite_of_vllm_rope_both) {
  const CompiledAttention layer(gpu);
  run_captured(gpu, [&] {
    layer.rotate_both();
    layer.append(layer.key, layer.tokens);
  });
  const SimcudaLaunch last = last_launch("rope_append_d128_bf16");
  const CUdeviceptr given[] = {layer.qkv,       layer.row_of(40), layer.angles,
                               layer.positions, layer.slots,      layer.query,
                               layer.key,       layer.cache,      layer.cache + 32768};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  EXPECT_EQUAL(3, last.grid[0]);
  EXPECT_EQUAL(6, last.grid[1]);
  // Other keys, or fewer: nothing replaces the rotation by itself.
  run_captured(gpu, [&] {
    layer.rotate_both();
    layer.append(layer.key + (1 << 20), layer.tokens);
  });
  run_captured(gpu, [&] {
    layer.rotate_both();
    layer.append(layer.key, layer.tokens - 1);
  });
  EXPECT_EQUAL(1, ran("rope_append_d128_bf16"));
  EXPECT_EQUAL(2, ran("triton_poi_fused_3"));
  EXPECT_EQUAL(2, ran("append_paged_kv_cache_slots_16bit"));
  state({}, {.hit = 3, .untracked = 2, .absorbed = 1});
}

constexpr char kBiasedRope[] = "bias_rope_append_d128_bf16";

GPU_CASE(rewrite_of_vllm_biased_rope) {
  BiasedAttention layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  const SimcudaLaunch last = last_launch(kBiasedRope);
  const CUdeviceptr given[] = {layer.qkv,       layer.bias,  layer.angles,
                               layer.positions, layer.slots, layer.query,
                               layer.key,       layer.cache, layer.cache + 32768};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int64_t sizes[] = {2 * 16 * 8 * 128, 8 * 128, 128};
  CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
  const int counts[] = {16, 64, 8, 0};
  CHECK(memcmp(last.params + sizeof given + sizeof sizes, counts, sizeof counts) == 0);
  EXPECT_EQUAL(3, last.grid[0]);
  EXPECT_EQUAL(10, last.grid[1]);
  layer.set_tokens(1);  // whose values have a stride of their own
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(2, ran(kBiasedRope));
  state({}, {.hit = 2, .absorbed = 6});
}

// One of the four kernels uses another buffer, or more or less of it.
GPU_CASE(rewrite_of_vllm_biased_rope_needs_its_ties) {
  const BiasedAttention layer(gpu);
  using Change = void (*)(BiasedAttention*);
  const Change changes[] = {[](auto* it) { it->added_bias += 16; },
                            [](auto* it) { it->summed += 16; },
                            [](auto* it) { it->query_source += 16; },
                            [](auto* it) { it->query_positions += 8; },
                            [](auto* it) { it->query_angles += 256; },
                            [](auto* it) { it->value_source = it->qkv + 256; },
                            [](auto* it) { it->written_key = 1 << 20; },
                            [](auto* it) { --it->written_tokens; },
                            [](auto* it) { it->query_elements -= 8192; },
                            [](auto* it) { it->key_elements -= 1024; },
                            [](auto* it) { it->elements -= 10240; },
                            [](auto* it) { it->are_values_dense = true; }};
  int count = 0;
  for (const Change change : changes) {
    BiasedAttention changed = layer;
    change(&changed);
    run_captured(gpu, [&] { changed.all(); });
    ++count;
  }
  EXPECT_EQUAL(0, ran(kBiasedRope));
  EXPECT_EQUAL(count, ran("triton_poi_fused_8"));
  state({}, {.hit = 12, .untracked = 36});
}

constexpr char kNormedRope[] = "qk_rope_once_append_sums_d128_bf16";
constexpr char kNormedRopeWhole[] = "qk_rope_once_append_d128_bf16";

// Graphs of few tokens, of many, and of one.
void run_normed(const Gpu& gpu, NormedAttention* layer, void (NormedAttention::*launch)() const,
                const char* kernel, unsigned many = 512) {
  for (const unsigned tokens : {3u, many, 1u}) {
    layer->set_tokens(tokens);
    run_captured(gpu, [&] { (layer->*launch)(); });
    check_normed(*layer, last_launch(kernel), kernel == kNormedRope);
  }
}

GPU_CASE(rewrite_of_vllm_normed_rope) {
  NormedAttention layer(gpu);
  run_normed(gpu, &layer, &NormedAttention::all, kNormedRope);
  // Others may use the memory of the sums.
  run_captured(gpu, [&] {
    layer.all();
    layer.append(layer.query_sums, layer.tokens);
  });
  EXPECT_EQUAL(4, ran(kNormedRope));
  EXPECT_EQUAL(1, ran("append_paged_kv_cache_slots_16bit"));
  state({}, {.hit = 5, .absorbed = 8});
}

GPU_CASE(rewrite_of_vllm_normed_rope_needs_its_ties) {
  NormedAttention layer(gpu);
  run_changed(
      gpu, layer,
      {[](auto* it) { it->key_source += 1 << 20; }, [](auto* it) { it->read_query_sums += 4096; },
       [](auto* it) { it->read_key_sums += 4096; }, [](auto* it) { it->query_half = 256; },
       [](auto* it) { it->key_half = 0; }, [](auto* it) { it->query_rows -= 32; },
       [](auto* it) { it->key_rows -= 8; }, [](auto* it) { it->query_pairs -= 64 * 32; },
       [](auto* it) { it->key_pairs -= 64 * 8; }},
      [](const auto& it) { it.all(); });
  EXPECT_EQUAL(14, ran("triton_red_fused_3"));
  EXPECT_EQUAL(14, ran("triton_poi_fused_4"));
  // So many tokens have no solution.
  layer.set_tokens(513);
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(0, ran(kNormedRope));
  state({}, {.hit = 15, .where = 2, .untracked = 28});
}

GPU_CASE(rewrite_of_vllm_normed_rope_apart) {
  NormedAttention layer(gpu, 64);
  run_normed(gpu, &layer, &NormedAttention::all_apart, kNormedRope, 256);
  run_captured(gpu, [&] {  // the key's heads first
    layer.sums();
    layer.rotate_key_apart();
    layer.rotate_query_apart();
    layer.write();
  });
  check_normed(layer, last_launch(kNormedRope), true);
  EXPECT_EQUAL(4, ran(kNormedRope));
  state({}, {.hit = 4, .absorbed = 12});
}

GPU_CASE(rewrite_of_vllm_normed_rope_apart_needs_its_ties) {
  NormedAttention layer(gpu, 64);
  run_changed(
      gpu, layer,
      {[](auto* it) { it->key_source += 1 << 20; }, [](auto* it) { it->query_source += 1 << 20; },
       [](auto* it) { it->key_positions += 8; }, [](auto* it) { it->query_angles += 256; },
       [](auto* it) { it->read_query_sums += 4096; }, [](auto* it) { it->read_key_sums += 4096; },
       [](auto* it) { it->query_half = 256; }, [](auto* it) { it->key_half = 0; },
       [](auto* it) { it->query_rows -= 64; }, [](auto* it) { it->key_rows -= 8; },
       [](auto* it) { it->query_pairs -= 64 * 64; }, [](auto* it) { it->key_pairs -= 64 * 8; }},
      [](const auto& it) { it.all_apart(); });
  EXPECT_EQUAL(0, ran(kNormedRope));
  state({}, {.hit = 17, .untracked = 51});
}

GPU_CASE(rewrite_of_vllm_normed_rope_whole) {
  NormedAttention layer(gpu);
  run_normed(gpu, &layer, &NormedAttention::all_whole, kNormedRopeWhole);
  run_captured(gpu, [&] {  // the key's heads first
    layer.key_whole();
    layer.query_whole();
    layer.write();
  });
  check_normed(layer, last_launch(kNormedRopeWhole), false);
  EXPECT_EQUAL(4, ran(kNormedRopeWhole));
  state({}, {.hit = 4, .absorbed = 8});
}

// 16 and 8 heads of 256, whose weights are less by 1.
GPU_CASE(rewrite_of_vllm_normed_rope_of_gemma) {
  constexpr char kGemma[] = "gemma_qk_rope_once_append_d256_bf16";
  NormedAttention layer(gpu, 16);
  layer.head_size = layer.query_row = layer.key_row = layer.written_head = 256;
  layer.head_stride = 256;
  layer.key_stride = 8 * 256;
  for (const unsigned tokens : {3u, 256u, 1u}) {
    layer.set_tokens(tokens);
    run_captured(gpu, [&] { layer.all_whole(); });
    EXPECT_EQUAL(tokens, last_launch(kGemma).grid[0]);
    EXPECT_EQUAL(8, last_launch(kGemma).grid[1]);
  }
  EXPECT_EQUAL(3, ran(kGemma));
  state({}, {.hit = 3, .absorbed = 6});
}

GPU_CASE(rewrite_of_vllm_normed_rope_whole_needs_its_ties) {
  NormedAttention layer(gpu);
  run_changed(gpu, layer,
              {[](auto* it) { it->key_source += 1 << 20; },
               [](auto* it) { it->key_positions += 8; }, [](auto* it) { it->key_angles += 256; },
               [](auto* it) { it->query_rows -= 32; }, [](auto* it) { it->key_rows -= 8; },
               [](auto* it) { it->query_row = 64; }, [](auto* it) { it->key_row = 64; }},
              [](const auto& it) { it.all_whole(); });
  EXPECT_EQUAL(0, ran(kNormedRopeWhole));
  state({}, {.hit = 12, .untracked = 24});
}

GPU_CASE(rewrite_of_vllm_normed_rope_at_once) {
  NormedAttention layer(gpu);
  run_normed(gpu, &layer, &NormedAttention::all_at_once, kNormedRopeWhole);
  EXPECT_EQUAL(3, ran(kNormedRopeWhole));
  state({}, {.hit = 3, .absorbed = 3});
}

GPU_CASE(rewrite_of_vllm_normed_rope_at_once_needs_its_ties) {
  NormedAttention layer(gpu);
  run_changed(gpu, layer,
              {[](auto* it) { it->query_rows -= 32; }, [](auto* it) { it->key_rows -= 8; }},
              [](const auto& it) { it.all_at_once(); });
  EXPECT_EQUAL(0, ran(kNormedRopeWhole));
  state({}, {.hit = 7, .untracked = 7});
}
