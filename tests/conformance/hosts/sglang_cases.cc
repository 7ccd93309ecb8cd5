// SGLang's kernels of an attention layer with and without norms of its heads (config/sglang), captured with the attribute by which each may
// begin before the one before it has ended.
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kNorm[] =
    "_ZN6sglang22fused_qknorm_half_warpILb1E13__nv_bfloat16EEvNS_12QKNormParamsE";
constexpr char kOlderNorm[] =
    "_ZN6sglang17fused_qknorm_warpILl128ELb1E13__nv_bfloat16EEvNS_12QKNormParamsE";
constexpr char kRotate[] =
    "_ZN6sglang17fused_rope_kernelILb1ELl128ELb1E13__nv_bfloat16S1_lLj16EEEvNS_15FusedRopeParamsE";
constexpr char kStore[] =
    "_ZN6sglang20store_kvcache_kernelILl2048ELl2048ELj128ELb1ElEEvNS_18StoreKVCacheParamsE";
constexpr char kRotate64[] =
    "_ZN6sglang17fused_rope_kernelILb1ELl64ELb1E13__nv_bfloat16S1_lLj8EEEvNS_15FusedRopeParamsE";
constexpr char kStore256[] =
    "_ZN6sglang20store_kvcache_kernelILl256ELl256ELj32ELb1ElEEvNS_18StoreKVCacheParamsE";
constexpr char kRotateAndStore[] =
    "_ZN6sglang23fused_rope_store_kernelILb1ELl128ELb1E13__nv_bfloat16S1_lLj16EEEvNS_"
    "20FusedRopeStoreParamsE";
constexpr char kRotateAndStore64[] =
    "_ZN6sglang23fused_rope_store_kernelILb1ELl64ELb1E13__nv_bfloat16S1_lLj8EEEvNS_"
    "20FusedRopeStoreParamsE";
constexpr char kOne[] = "qk_rope_store_d128_bf16";
constexpr char kWithoutNorms[] = "rope_store_d128_bf16";
constexpr char kWithoutNorms64[] = "rope_store_d64_bf16";

struct Norm {
  CUdeviceptr query, key_base;
  int64_t query_stride, key_stride;
  uint32_t q_heads, kv_heads;
  float eps;
  CUdeviceptr query_weight, key_weight;
  uint32_t tokens;
};
struct Rotation {
  CUdeviceptr query, key_base, angles, positions;
  int64_t query_stride, key_stride, head_stride;
  uint32_t q_heads, kv_heads, tokens;
};
struct Store {
  CUdeviceptr key, value, key_cache, value_cache, slots;
  int64_t key_stride, value_stride, key_slot_stride, value_slot_stride, slots_stride;
  uint32_t tokens;
  int64_t slot_count, reserved_slot;
};
struct RotationAndStore {
  Rotation rotation;
  CUdeviceptr value, key_cache, value_cache, slots;
  int64_t value_stride, slot_stride;
};
static_assert(sizeof(Norm) == 72 && sizeof(Rotation) == 72 && sizeof(Store) == 104 &&
              sizeof(RotationAndStore) == 120);

struct SglangModel {
  uint32_t heads = 32, kv_heads = 8;
  int64_t head_size = 128;
};

// The parameters of a layer's launches, as SGLang fills them in.
struct SglangLayer {
  explicit SglangLayer(const Gpu& on, uint32_t token_count = 3, const SglangModel& model = {})
      : gpu(on), module(on.load_module(kEngines)) {
    const CUdeviceptr qkv = device_memory(size_t{16} << 20) + (4 << 20);
    const CUdeviceptr weights = device_memory(1 << 20);
    const CUdeviceptr positions = weights + 4096;
    const CUdeviceptr slots = weights + 16384;
    const CUdeviceptr caches = device_memory(size_t{8} << 20);
    const auto [heads, kv_heads, head_size] = model;
    const int64_t head_bytes = 2 * head_size, slot_bytes = head_bytes * kv_heads;
    // For a single row PyTorch states the view's own stride.
    const int64_t row = head_bytes * (heads + 2 * kv_heads);
    const auto stride_of = [&](int64_t count) {
      return token_count == 1 ? head_bytes * count : row;
    };
    norm = {qkv,
            qkv,
            stride_of(heads) / 2,
            stride_of(kv_heads) / 2,
            heads,
            kv_heads,
            1e-6f,
            weights,
            weights + 256,
            token_count};
    rotation = {qkv,
                qkv,
                device_memory(1 << 20),
                positions,
                stride_of(heads),
                stride_of(kv_heads),
                head_bytes,
                heads,
                kv_heads,
                token_count};
    store = {qkv + head_bytes * heads,
             qkv + head_bytes * (heads + kv_heads),
             caches,
             caches + (4 << 20),
             slots,
             stride_of(kv_heads),
             stride_of(kv_heads),
             slot_bytes,
             slot_bytes,
             1,
             token_count,
             1024,
             0};
  }

  void launch(const char* name, void* params) const {
    CUlaunchAttribute early = programmatic();
    CUlaunchConfig config = {};
    config.gridDimX = norm.tokens;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = gpu.stream();
    config.attrs = &early;
    config.numAttrs = 1;
    void* pointers[] = {params};
    OK(cuda().cuLaunchKernelEx(&config, gpu.function(module, name), pointers, nullptr));
  }
  void all(const char* norm_name = kNorm) {
    launch(norm_name, &norm);
    without_norms();
  }
  void without_norms(const char* rotate_name = kRotate, const char* store_name = kStore) {
    launch(rotate_name, &rotation);
    launch(store_name, &store);
  }

  // The last two as one kernel, which takes the key's cache where the query's heads begin before it.
  RotationAndStore as_one() const {
    const auto before = static_cast<CUdeviceptr>(rotation.head_stride) * rotation.q_heads;
    return {rotation,    store.value,        store.key_cache - before, store.value_cache,
            store.slots, store.value_stride, store.key_slot_stride};
  }

  const Gpu& gpu;
  CUmodule module;
  Norm norm;
  Rotation rotation;
  Store store;
};

void run_all(const Gpu& gpu, SglangLayer layer) {
  run_captured(gpu, [&] { layer.all(); });
}

// The kernel's first arguments must be these pointers, then two strides and the reserved slot; its grid that of three tokens
// and as many blocks for their heads. Returns where its other arguments begin.
template <size_t kCount>
size_t check_arguments(const SimcudaLaunch& launch, const CUdeviceptr (&pointers)[kCount],
                       int64_t slot_bytes = 2048, uint32_t blocks = 6, int64_t reserved_slot = 0) {
  CHECK(memcmp(launch.params, pointers, sizeof pointers) == 0);
  const int64_t strides_and_slot[] = {slot_bytes, slot_bytes, reserved_slot};
  CHECK(memcmp(launch.params + sizeof pointers, strides_and_slot, sizeof strides_and_slot) == 0);
  EXPECT_EQUAL(3, launch.grid[0]);
  EXPECT_EQUAL(blocks, launch.grid[1]);
  return sizeof pointers + sizeof strides_and_slot;
}

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(rewrite_of_sglang_qk_norm) {
  SglangLayer layer(gpu);
  layer.all();  // outside graphs they stay
  EXPECT_EQUAL(1, ran(kStore));
  run_all(gpu, layer);
  const SimcudaLaunch last = last_launch(kOne);
  const CUdeviceptr given[] = {layer.norm.query,         layer.norm.query_weight,
                               layer.norm.key_weight,    layer.rotation.angles,
                               layer.rotation.positions, layer.store.slots,
                               layer.store.key_cache,    layer.store.value_cache};
  const size_t scalars = check_arguments(last, given);
  CHECK(param_at<float>(last, scalars) == 1e-6f);
  EXPECT_EQUAL(32, param_at<int32_t>(last, scalars + 4));
  EXPECT_EQUAL(8, param_at<int32_t>(last, scalars + 8));
  // The norm of 0.5.22, and one token, whose strides say nothing.
  run_captured(gpu, [&] { layer.all(kOlderNorm); });
  run_all(gpu, SglangLayer(gpu, 1));
  EXPECT_EQUAL(3, ran(kOne));
  EXPECT_EQUAL(1, ran(kStore));
  state({}, {.hit = 3, .untracked = 3, .absorbed = 6});
}

GPU_CASE(rewrite_of_sglang_rope_and_store) {
  SglangLayer layer(gpu);
  layer.without_norms();  // outside graphs they stay
  run_captured(gpu, [&] { layer.without_norms(); });
  const SimcudaLaunch last = last_launch(kWithoutNorms);
  const CUdeviceptr given[] = {layer.rotation.query,     layer.rotation.angles,
                               layer.rotation.positions, layer.store.slots,
                               layer.store.key_cache,    layer.store.value_cache};
  const size_t scalars = check_arguments(last, given);
  EXPECT_EQUAL(32, param_at<int32_t>(last, scalars));
  EXPECT_EQUAL(8, param_at<int32_t>(last, scalars + 4));
  SglangLayer one_token(gpu, 1);
  run_captured(gpu, [&] { one_token.without_norms(); });
  EXPECT_EQUAL(2, ran(kWithoutNorms));
  EXPECT_EQUAL(1, ran(kStore));
  state({}, {.hit = 2, .untracked = 2, .absorbed = 2});
}

// One kernel for both, as Qwen3's models of experts have it: eagerly, again by the plan that is remembered, in a graph, and
// with other parameters set in its node.
GPU_CASE(sglang_rope_and_store_as_one) {
  const auto is_hit = [&](const SglangLayer& layer, int64_t slot_bytes, uint32_t blocks,
                          const char* kernel) {
    const SimcudaLaunch last = last_launch(kernel);
    const CUdeviceptr given[] = {layer.rotation.query,     layer.rotation.angles,
                                 layer.rotation.positions, layer.store.slots,
                                 layer.store.key_cache,    layer.store.value_cache};
    const size_t scalars = check_arguments(last, given, slot_bytes, blocks, -1);
    EXPECT_EQUAL(layer.norm.q_heads, param_at<uint32_t>(last, scalars));
    EXPECT_EQUAL(layer.norm.kv_heads, param_at<uint32_t>(last, scalars + 4));
  };
  SglangLayer layer(gpu, 3, {32, 4, 128}), other(gpu, 3, {32, 4, 128});
  RotationAndStore params = layer.as_one(), of_other = other.as_one();
  for (int i = 0; i < 3; ++i) {
    layer.launch(kRotateAndStore, &params);
    is_hit(layer, 1024, 5, kWithoutNorms);
  }
  of_other.key_cache += 1024;
  other.store.key_cache += 1024;
  other.launch(kRotateAndStore, &of_other);
  is_hit(other, 1024, 5, kWithoutNorms);
  const Graph graph(gpu.capture([&] { layer.launch(kRotateAndStore, &params); }));
  const Executable executable(graph.get());
  executable.run(gpu);
  is_hit(layer, 1024, 5, kWithoutNorms);
  NodeParams2 set = params_of(only_node(graph.get()));
  void* pointers[] = {&of_other};
  set.kernelParams = pointers;
  executable.set(only_node(graph.get()), set);
  executable.run(gpu);
  is_hit(other, 1024, 5, kWithoutNorms);
  SglangLayer small(gpu, 3, {14, 2, 64});
  RotationAndStore of_small = small.as_one();
  for (int i = 0; i < 2; ++i) small.launch(kRotateAndStore64, &of_small);
  is_hit(small, 256, 2, kWithoutNorms64);
  run_captured(gpu, [&] { small.launch(kRotateAndStore64, &of_small); });
  is_hit(small, 256, 2, kWithoutNorms64);
  SglangLayer one_token(gpu, 1, {32, 4, 128});
  RotationAndStore of_one = one_token.as_one();
  one_token.launch(kRotateAndStore, &of_one);
  EXPECT_EQUAL(7, ran(kWithoutNorms));
  EXPECT_EQUAL(3, ran(kWithoutNorms64));
  EXPECT_EQUAL(0, ran(kRotateAndStore) + ran(kRotateAndStore64));
  state({}, {.hit = 9});
}

// Parts of one row they must be, as many as the solution is for; the caches must be aligned.
GPU_CASE(sglang_rope_and_store_as_one_needs_its_ties) {
  const SglangLayer layer(gpu, 3, {32, 4, 128});
  using Change = void (*)(RotationAndStore*);
  const Change changes[] = {
      [](RotationAndStore* one) { one->rotation.key_base += 256; },
      [](RotationAndStore* one) { one->value += 256; },
      [](RotationAndStore* one) { one->rotation.query_stride += 256; },
      [](RotationAndStore* one) { one->rotation.key_stride += 256; },
      [](RotationAndStore* one) { one->value_stride += 256; },
      [](RotationAndStore* one) { one->rotation.head_stride = 512; },
      [](RotationAndStore* one) { one->key_cache += 8; },
      [](RotationAndStore* one) { one->value_cache += 8; },
      [](RotationAndStore* one) { one->slot_stride += 8; },
      [](RotationAndStore* one) { one->rotation.tokens = 513; },
  };
  for (const Change change : changes) {
    RotationAndStore other = layer.as_one();
    change(&other);
    layer.launch(kRotateAndStore, &other);
    run_captured(gpu, [&] { layer.launch(kRotateAndStore, &other); });
  }
  constexpr int kChanges = sizeof changes / sizeof changes[0];
  EXPECT_EQUAL(2 * kChanges, ran(kRotateAndStore));
  EXPECT_EQUAL(0, ran(kWithoutNorms));
  state({}, {.where = 2 * kChanges});
}

// With the norms before it, all of it is one launch in a graph.
GPU_CASE(rewrite_of_sglang_qk_norm_and_rope_store) {
  const auto run = [&](const SglangLayer& layer, RotationAndStore params) {
    Norm norm = layer.norm;
    run_captured(gpu, [&] {
      layer.launch(kNorm, &norm);
      layer.launch(kRotateAndStore, &params);
    });
  };
  SglangLayer layer(gpu, 3, {32, 4, 128});
  run(layer, layer.as_one());
  const SimcudaLaunch last = last_launch(kOne);
  const CUdeviceptr given[] = {layer.norm.query,         layer.norm.query_weight,
                               layer.norm.key_weight,    layer.rotation.angles,
                               layer.rotation.positions, layer.store.slots,
                               layer.store.key_cache,    layer.store.value_cache};
  const size_t scalars = check_arguments(last, given, 1024, 5, -1);
  CHECK(param_at<float>(last, scalars) == 1e-6f);
  EXPECT_EQUAL(32, param_at<int32_t>(last, scalars + 4));
  EXPECT_EQUAL(4, param_at<int32_t>(last, scalars + 8));
  const SglangLayer one_token(gpu, 1, {32, 4, 128});
  run(one_token, one_token.as_one());
  EXPECT_EQUAL(2, ran(kOne));
  // One of them uses other memory, more of it, or other sizes: only the second is replaced, or neither.
  using Change = void (*)(SglangLayer*);
  const Change changes_of_norm[] = {
      [](SglangLayer* one) { one->norm.query += 1 << 20; },
      [](SglangLayer* one) { one->norm.key_base += 256; },
      [](SglangLayer* one) { one->norm.query_stride += 128; },
      [](SglangLayer* one) { one->norm.key_stride += 128; },
      [](SglangLayer* one) { one->norm.q_heads = 16; },
      [](SglangLayer* one) { one->norm.kv_heads = 2; },
      [](SglangLayer* one) { one->norm.tokens = 2; },
  };
  for (const Change change : changes_of_norm) {
    SglangLayer other = layer;
    change(&other);
    run(other, other.as_one());
  }
  constexpr int kChangesOfNorm = sizeof changes_of_norm / sizeof changes_of_norm[0];
  EXPECT_EQUAL(kChangesOfNorm, ran(kWithoutNorms));
  const Change changes[] = {
      [](SglangLayer* one) { one->rotation.key_base += 256; },
      [](SglangLayer* one) { one->store.value += 256; },
      [](SglangLayer* one) { one->rotation.query_stride += 256; },
      [](SglangLayer* one) { one->rotation.key_stride += 256; },
      [](SglangLayer* one) { one->store.value_stride += 256; },
      [](SglangLayer* one) { one->rotation.head_stride = 512; },
  };
  for (const Change change : changes) {
    SglangLayer other = layer;
    change(&other);
    run(other, other.as_one());
  }
  constexpr int kChanges = sizeof changes / sizeof changes[0];
  EXPECT_EQUAL(2, ran(kOne));
  EXPECT_EQUAL(kChanges, ran(kRotateAndStore));
  state({}, {.hit = 2 + kChangesOfNorm,
             .where = kChanges,
             .untracked = kChangesOfNorm + kChanges,
             .absorbed = 2});
}

// The key's cache reaches to the end of its allocation, from where it is, not from where its pointer is: there the rows
// may lie.
GPU_CASE(rewrite_of_sglang_qk_norm_and_rope_store_needs_room) {
  const auto run = [&](const SglangLayer& layer) {
    Norm norm = layer.norm;
    RotationAndStore params = layer.as_one();
    run_captured(gpu, [&] {
      layer.launch(kNorm, &norm);
      layer.launch(kRotateAndStore, &params);
    });
  };
  SglangLayer layer(gpu, 3, {32, 4, 128});
  const CUdeviceptr rows = layer.norm.query, row_bytes = 10240;
  layer.store.key_cache = rows + 3 * row_bytes;  // its pointer is within the last row
  run(layer);
  EXPECT_EQUAL(1, ran(kOne));
  layer.store.key_cache -= 16;
  run(layer);
  layer.store.key_cache = rows - (1 << 20);
  run(layer);
  EXPECT_EQUAL(1, ran(kOne));
  EXPECT_EQUAL(2, ran(kWithoutNorms));
  state({}, {.hit = 3, .graph = 2, .absorbed = 1});
}

// Of 14 and 2 heads of 64: two blocks, each with room for 16.
GPU_CASE(rewrite_of_sglang_rope_and_store_of_64) {
  SglangLayer layer(gpu, 3, {14, 2, 64});
  run_captured(gpu, [&] { layer.without_norms(kRotate64, kStore256); });
  const SimcudaLaunch last = last_launch(kWithoutNorms64);
  const CUdeviceptr given[] = {layer.rotation.query,     layer.rotation.angles,
                               layer.rotation.positions, layer.store.slots,
                               layer.store.key_cache,    layer.store.value_cache};
  const size_t scalars = check_arguments(last, given, 256, 2);
  EXPECT_EQUAL(14, param_at<int32_t>(last, scalars));
  EXPECT_EQUAL(2, param_at<int32_t>(last, scalars + 4));
  SglangLayer key_elsewhere = layer, wider = layer;
  key_elsewhere.store.key += 128;
  wider.rotation.head_stride = 256;
  for (SglangLayer* const other : {&key_elsewhere, &wider}) {
    run_captured(gpu, [&] { other->without_norms(kRotate64, kStore256); });
  }
  run_captured(gpu, [&] { layer.without_norms(kRotate64, kStore); });  // another row in the cache
  EXPECT_EQUAL(1, ran(kWithoutNorms64));
  EXPECT_EQUAL(2, ran(kStore256));
  state({}, {.hit = 1, .untracked = 6, .absorbed = 1});
}

// One of the three uses other memory, more or less of it, or other sizes: all stay, or the norm alone.
GPU_CASE(rewrite_of_sglang_qk_norm_needs_its_ties) {
  const SglangLayer layer(gpu);
  using Change = void (*)(SglangLayer*);
  const Change changes_of_norm[] = {
      [](SglangLayer* one) { one->norm.key_base += 256; },
      [](SglangLayer* one) { one->norm.query_stride += 128; },
      [](SglangLayer* one) { one->norm.key_stride += 128; },
      [](SglangLayer* one) { one->norm.q_heads = 16; },
      [](SglangLayer* one) { one->norm.tokens = 2; },
  };
  for (const Change change : changes_of_norm) {
    SglangLayer other = layer;
    change(&other);
    run_all(gpu, other);
  }
  constexpr int kChangesOfNorm = sizeof changes_of_norm / sizeof changes_of_norm[0];
  EXPECT_EQUAL(0, ran(kOne));
  EXPECT_EQUAL(kChangesOfNorm, ran(kWithoutNorms));
  const Change changes[] = {
      [](SglangLayer* one) { one->rotation.query += 1 << 20; },
      [](SglangLayer* one) { one->rotation.key_base += 1 << 20; },
      [](SglangLayer* one) { one->rotation.query_stride += 256; },
      [](SglangLayer* one) { one->rotation.key_stride += 256; },
      [](SglangLayer* one) { one->rotation.head_stride = 512; },
      [](SglangLayer* one) { one->rotation.q_heads = 16; },
      [](SglangLayer* one) { one->rotation.kv_heads = 4; },
      [](SglangLayer* one) { one->rotation.tokens = 2; },
      [](SglangLayer* one) { one->store.key += 256; },
      [](SglangLayer* one) { one->store.value += 256; },
      [](SglangLayer* one) { one->store.key_stride += 256; },
      [](SglangLayer* one) { one->store.value_stride += 256; },
      [](SglangLayer* one) { one->store.slots_stride = 2; },
      [](SglangLayer* one) { one->store.tokens = 2; },
      [](SglangLayer* one) { one->norm.kv_heads = one->rotation.kv_heads = 4; },
  };
  for (const Change change : changes) {
    SglangLayer other = layer;
    change(&other);
    run_all(gpu, other);
    run_captured(gpu, [&] { other.without_norms(); });
  }
  constexpr int kChanges = sizeof changes / sizeof changes[0];
  EXPECT_EQUAL(0, ran(kOne));
  EXPECT_EQUAL(kChangesOfNorm, ran(kWithoutNorms));
  EXPECT_EQUAL(2 * kChanges, ran(kStore));
  state({}, {.hit = kChangesOfNorm,
             .untracked = kChangesOfNorm + 5 * kChanges,
             .absorbed = kChangesOfNorm});
}

// The caches must end before what else the kernels use, and the solution serves so many tokens.
GPU_CASE(rewrite_of_sglang_qk_norm_needs_room) {
  SglangLayer behind(gpu);
  behind.store.key_cache = behind.norm.query - (2 << 20);
  behind.store.slot_count = 1024;
  run_all(gpu, behind);
  EXPECT_EQUAL(1, ran(kOne));
  behind.store.slot_count = 1025;  // the last slot is the first row
  run_all(gpu, behind);
  EXPECT_EQUAL(1, ran(kOne));
  run_all(gpu, SglangLayer(gpu, 513));
  EXPECT_EQUAL(1, ran(kOne));
  state({}, {.hit = 1, .where = 3, .graph = 3, .absorbed = 2});
}
