// The routing of tokens to experts (config/vllm, config/sglang), as vLLM and SGLang launch it for a layer of experts, captured.

#include <sched.h>

#include <algorithm>
#include <tuple>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr char kGatingOf128[] =
    "_ZN4vllm3moe10topkGatingILi8ELi128ELi4ELi16ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE0EEEvPKT5_"
    "PKbPfiPT4_PiiiibPKf";
constexpr char kGatingOf8[] =
    "_ZN4vllm3moe10topkGatingILi8ELi8ELi4ELi16ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE0EEEvPKT5_"
    "PKbPfiPT4_PiiiibPKf";
constexpr char kAlign[] =
    "_ZN4vllm3moe27moe_align_block_size_kernelIiEEvPKT_PiS5_S5_S5_iiiimS5_iib";
constexpr char kSort[] = "_ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_PiS5_S5_miiib";
constexpr char kAlignSmall[] =
    "_ZN4vllm3moe46moe_align_block_size_small_batch_expert_kernelIiLi256EEEvPKT_PiS5_S5_S5_iimiib";
// Since vLLM 0.33.
constexpr char kScaledGatingOf128[] =
    "_ZN4vllm3moe10topkGatingILi8ELi128ELi4ELi16ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE0EEEvPKT5_"
    "PKbPfiPT4_PiiiibPKfdS8_";
constexpr char kScaledGatingOf8[] =
    "_ZN4vllm3moe10topkGatingILi8ELi8ELi4ELi16ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE0EEEvPKT5_"
    "PKbPfiPT4_PiiiibPKfdS8_";
constexpr char kScatterSort[] =
    "_ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_PiS5_S5_miiibS5_";
constexpr char kScatterAlignSmall[] =
    "_ZN4vllm3moe46moe_align_block_size_small_batch_expert_kernelIiLi256EEEvPKT_PiS5_S5_S5_"
    "iimiibS5_";

// SGLang's, of 128 experts. Of one token it is in another image.
constexpr char kRouter[] = "_router_triton_kernel";
constexpr char kAlignFew[] = "_moe_align_small_numel_kernel";
constexpr char kAlignBuckets[] = "_Z27moe_align_block_size_kernelIiEvPKT_PiS3_S3_iimS3_bbii";
constexpr char kSortBuckets[] = "_Z35count_and_sort_expert_tokens_kernelIiEvPKT_PiS3_mb";

constexpr char kRoutingByLogit[] = "moe_routing_by_logit_e128_k8_bf16";
constexpr char kTopk[] = "moe_topk_e128_k8_bf16";
constexpr char kRouting[] = "moe_routing_e128_k8_bf16";
constexpr char kSmallRouting[] = "moe_routing_small_e8_k2_bf16";

struct Geometry {
  unsigned grid, block_x, block_y;
};

template <class... Arguments>
void launch_kernel(const Gpu& gpu, CUfunction kernel, const Geometry& geometry,
                   Arguments... values) {
  std::tuple<Arguments...> held(values...);
  std::apply(
      [&](auto&... each) {
        void* pointers[] = {&each...};
        OK(cuda().cuLaunchKernel(kernel, geometry.grid, 1, 1, geometry.block_x, geometry.block_y, 1,
                                 0, gpu.stream(), pointers, nullptr));
      },
      held);
}

struct Layer {
  explicit Layer(const Gpu& on) : gpu(on), module(on.load_module(kEngines)) {
    memory = device_memory(size_t{16} << 20);
    logits = at(0), weights = at(1), ids = at(2), indices = at(3);
    sorted = at(4), expert_ids = at(5), total = at(6), cumsum = at(7);
  }
  CUdeviceptr at(int megabyte) const { return memory + (static_cast<CUdeviceptr>(megabyte) << 20); }
  int choices() const { return tokens * topk; }
  int padded() const { return choices() + std::min(choices(), experts) * (block_size - 1); }

  // With `more` behind the arguments that the kernel had in vLLM 0.25.
  template <class... More>
  void choose_with(const char* name, More... more) const {
    launch_kernel(gpu, gpu.function(module, name), {1, 32, 4}, logits, CUdeviceptr{0}, weights,
                  tokens, ids, indices, topk, 0, experts, true, bias, more...);
  }
  template <class... More>
  void align_few_with(const char* name, CUdeviceptr from, size_t numel, More... more) const {
    launch_kernel(gpu, gpu.function(module, name), {1, threads, 1}, from, sorted, expert_ids, total,
                  has_map ? at(8) : CUdeviceptr{0}, experts, block_size, numel, padded(), topk,
                  has_map, more...);
  }
  template <class... More>
  void sort_with(const char* name, CUdeviceptr to, CUdeviceptr by, More... more) const {
    launch_kernel(gpu, gpu.function(module, name), {1, 256, 1}, ids, to, by,
                  has_map ? at(8) : CUdeviceptr{0}, static_cast<size_t>(choices()), experts,
                  padded(), topk, has_map, more...);
  }

  void choose() const { choose_with(experts == 8 ? kGatingOf8 : kGatingOf128); }
  void align(CUdeviceptr from, int count) const {
    const auto numel = static_cast<size_t>(count);
    if (experts == 8) return align_few_with(kAlignSmall, from, numel);
    launch_kernel(gpu, gpu.function(module, kAlign), {2, 1024, 1}, from, sorted, expert_ids, total,
                  has_map ? at(8) : CUdeviceptr{0}, experts, experts, 32, block_size, numel, cumsum,
                  padded(), topk, has_map);
  }
  void sort(CUdeviceptr to, CUdeviceptr by) const { sort_with(kSort, to, by); }
  void all() const {
    choose();
    align(ids, choices());
    if (experts != 8) sort(sorted, cumsum);
  }
  // As vLLM 0.33 does.
  void all_scaled(double factor, CUdeviceptr is_padding, CUdeviceptr scatter) const {
    choose_with(experts == 8 ? kScaledGatingOf8 : kScaledGatingOf128, factor, is_padding);
    if (experts == 8) {
      return align_few_with(kScatterAlignSmall, ids, static_cast<size_t>(choices()), scatter);
    }
    align(ids, choices());
    sort_with(kScatterSort, sorted, cumsum, scatter);
  }

  const Gpu& gpu;
  CUmodule module;
  int tokens = 8, topk = 8, experts = 128, block_size = 16;
  unsigned threads = 288;
  bool has_map = false;
  CUdeviceptr memory = 0, logits = 0, weights = 0, ids = 0, indices = 0, sorted = 0, expert_ids = 0,
              total = 0, cumsum = 0, bias = 0;
};

Layer mixtral(const Gpu& gpu) {
  Layer layer(gpu);
  layer.experts = 8, layer.topk = 2, layer.block_size = 64;
  return layer;
}

struct SglangExperts {
  explicit SglangExperts(const Gpu& on)
      : gpu(on), module(on.load_module(kEngines)), other_module(on.load_module(kEnginesOther)) {
    memory = device_memory(size_t{16} << 20);
    logits = at(0), weights = at(1), ids = at(2), sorted = at(3);
    expert_ids = at(4), total = at(5), cumsum = at(6);
  }
  CUdeviceptr at(int megabyte) const { return memory + (static_cast<CUdeviceptr>(megabyte) << 20); }
  int choices() const { return 8 * tokens; }
  int padded() const {
    return (choices() + std::min(choices(), 129) * (block_size - 1) + 3) / 4 * 4;
  }

  void choose() const {
    const auto launch = [&](CUmodule from, auto... count) {
      launch_kernel(gpu, gpu.function(from, kRouter), {1, 32, 1}, logits, logits, weights, ids,
                    at(9), count..., 1.0f, 0.0f, 0, 0, 0, logits_stride, 8, 8, 0, 0, CUdeviceptr{0},
                    CUdeviceptr{0});
    };
    tokens == 1 ? launch(other_module) : launch(module, tokens);
  }
  void align(CUdeviceptr from, int count) const {
    if (tokens <= 8) {
      launch_kernel(gpu, gpu.function(module, kAlignFew), {1, 128, 1}, from, sorted, expert_ids,
                    total, buckets, block_size, count, CUdeviceptr{0}, CUdeviceptr{0});
      return;
    }
    launch_kernel(gpu, gpu.function(module, kAlignBuckets), {2, 1024, 1}, from, sorted, expert_ids,
                  total, buckets, block_size, static_cast<size_t>(count), cumsum, pads, leaves_out,
                  256, padded());
  }
  void sort(CUdeviceptr to, CUdeviceptr by) const {
    launch_kernel(gpu, gpu.function(module, kSortBuckets), {1, 256, 1}, ids, to, by,
                  static_cast<size_t>(choices()), leaves_out);
  }
  void all() const {
    choose();
    align(ids, choices());
    if (tokens > 8) sort(sorted, cumsum);
  }

  const Gpu& gpu;
  CUmodule module, other_module;
  int tokens = 24, block_size = 16, buckets = 129, logits_stride = 128;
  bool pads = true, leaves_out = false;
  CUdeviceptr memory = 0, logits = 0, weights = 0, ids = 0, sorted = 0, expert_ids = 0, total = 0,
              cumsum = 0;
};

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(rewrite_of_vllm_routing) {
  Layer layer(gpu);
  run_captured(gpu, [&] { layer.all(); });
  const SimcudaLaunch last = last_launch(kRouting);
  const CUdeviceptr given[] = {layer.logits, layer.weights,    layer.ids,   layer.indices,
                               layer.sorted, layer.expert_ids, layer.total, layer.cumsum};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int32_t sizes[] = {8, 16, 1024, 1, 0};
  CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
  EXPECT_EQUAL(1, last.grid[0]);
  EXPECT_EQUAL(1024, last.block[0]);
  // The most tokens that it is for, blocks of another size, and the fewest.
  layer.tokens = 64, layer.block_size = 64;
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(8576, param_at<int32_t>(last_launch(kRouting), sizeof given + 8));
  layer.tokens = 1;
  run_captured(gpu, [&] { layer.all(); });
  EXPECT_EQUAL(3, ran(kRouting));
  // Of few experts.
  const Layer small = mixtral(gpu);
  run_captured(gpu, [&] { small.all(); });
  const SimcudaLaunch of_few = last_launch(kSmallRouting);
  CHECK(param_at<CUdeviceptr>(of_few, 0) == small.logits);
  CHECK(param_at<CUdeviceptr>(of_few, 48) == small.total);
  const int32_t few[] = {8, 64, 520, 1, 0};
  CHECK(memcmp(of_few.params + 56, few, sizeof few) == 0);
  EXPECT_EQUAL(256, of_few.block[0]);
  EXPECT_EQUAL(0,
               ran(kGatingOf128) + ran(kGatingOf8) + ran(kAlign) + ran(kSort) + ran(kAlignSmall));
  state({}, {.hit = 4, .absorbed = 7});
}

// The weights are multiplied by the reciprocal of their sum, and tokens that are padding are told. With a factor, or where each
// choice stands, they stay several kernels; the first is one of ours if the factor is 1.
GPU_CASE(rewrite_of_vllm_routing_scaled) {
  const auto division_of = [](const char* name, int offset) {
    return param_at<int32_t>(last_launch(name), offset);
  };
  const Layer layer(gpu);
  const Layer small = mixtral(gpu);
  run_captured(gpu, [&] { layer.all_scaled(1, 0, 0); });
  EXPECT_EQUAL(2, division_of(kRouting, 76));
  run_captured(gpu, [&] { small.all_scaled(1, 0, 0); });
  EXPECT_EQUAL(2, division_of(kSmallRouting, 68));
  EXPECT_EQUAL(0, ran(kScaledGatingOf128) + ran(kScaledGatingOf8) + ran(kAlign) +
                      ran(kScatterSort) + ran(kScatterAlignSmall));
  for (const Layer& each : {layer, small}) {
    run_captured(gpu, [&] { each.all_scaled(2.5, 0, 0); });
    run_captured(gpu, [&] { each.all_scaled(1, each.at(9), 0); });
    run_captured(gpu, [&] { each.all_scaled(1, 0, each.at(9)); });
  }
  EXPECT_EQUAL(2, ran(kRouting));
  EXPECT_EQUAL(2, ran(kSmallRouting));
  CHECK(param_at<CUdeviceptr>(last_launch(kRouting), 80) == layer.at(9));
  CHECK(param_at<CUdeviceptr>(last_launch(kSmallRouting), 72) == small.at(9));
  EXPECT_EQUAL(1, ran(kTopk));
  EXPECT_EQUAL(2, ran(kScatterSort));
  EXPECT_EQUAL(2, ran(kScatterAlignSmall));
  // A mask where the sorted choices will be: as one, it could be read when it is overwritten.
  run_captured(gpu, [&] { layer.all_scaled(1, layer.sorted + 4, 0); });
  EXPECT_EQUAL(2, ran(kRouting));
  EXPECT_EQUAL(3, ran(kScatterSort));
  state({}, {.hit = 6, .no_solution = 1, .where = 2, .untracked = 6, .graph = 2, .absorbed = 6});
}

// One of them is of other choices, or does something else, or they are too many: several kernels, of which the first is ours.
GPU_CASE(rewrite_of_vllm_routing_needs_its_ties) {
  const Layer layer(gpu);
  run_captured(gpu, [&] {
    layer.choose();
    layer.align(layer.at(9), layer.choices());
    layer.sort(layer.sorted, layer.cumsum);
  });
  run_captured(gpu, [&] {
    layer.choose();
    layer.align(layer.ids, layer.choices() - 1);
    layer.sort(layer.sorted, layer.cumsum);
  });
  run_captured(gpu, [&] {
    layer.choose();
    layer.align(layer.ids, layer.choices());
    layer.sort(layer.at(9), layer.cumsum);
  });
  run_captured(gpu, [&] {
    layer.choose();
    layer.align(layer.ids, layer.choices());
    layer.sort(layer.sorted, layer.at(9));
  });
  Layer mapped = layer;
  mapped.has_map = true;
  run_captured(gpu, [&] { mapped.all(); });
  Layer biased = layer;
  biased.bias = layer.at(9);
  run_captured(gpu, [&] { biased.all(); });
  // Another kernel has the choices before they are sorted.
  const CUfunction other = gpu.function(gpu.load_module(), kFree);
  run_captured(gpu, [&] {
    layer.choose();
    OK(gpu.launch(other, 1, 1));
    layer.align(layer.ids, layer.choices());
    layer.sort(layer.sorted, layer.cumsum);
  });
  Layer many = layer;
  many.tokens = 65;
  run_captured(gpu, [&] { many.all(); });
  Layer small = mixtral(gpu);
  small.threads = 320;  // which sort in another order
  run_captured(gpu, [&] { small.all(); });
  EXPECT_EQUAL(0, ran(kRouting) + ran(kSmallRouting));
  EXPECT_EQUAL(2, ran(kGatingOf128));
  EXPECT_EQUAL(6, ran(kTopk));
  const SimcudaLaunch last = last_launch(kTopk);
  const CUdeviceptr given[] = {layer.logits, layer.weights, layer.ids, layer.indices};
  CHECK(memcmp(last.params, given, sizeof given) == 0);
  const int32_t sizes[] = {8, 1, 0, 0};
  CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
  EXPECT_EQUAL(2, last.grid[0]);
  EXPECT_EQUAL(8, ran(kSort));
  state({}, {.hit = 6, .no_solution = 1, .where = 4, .untracked = 16});
}

// Nobody keeps token_expert_indices: what the later kernels write may lie there. Elsewhere it may not.
GPU_CASE(rewrite_of_vllm_routing_reuses_memory) {
  const Layer layer(gpu);
  const auto run_with = [&](CUdeviceptr Layer::*buffer, CUdeviceptr address) {
    Layer reused = layer;
    reused.*buffer = address;
    run_captured(gpu, [&] { reused.all(); });
  };
  run_with(&Layer::expert_ids, layer.indices);
  run_with(&Layer::sorted, layer.indices - 512);
  run_with(&Layer::cumsum, layer.indices);
  EXPECT_EQUAL(3, ran(kRouting));
  run_with(&Layer::sorted, layer.logits + 512);
  run_with(&Layer::expert_ids, layer.weights);
  EXPECT_EQUAL(3, ran(kRouting));
  EXPECT_EQUAL(2, ran(kSort));
  state({}, {.hit = 5, .graph = 4, .absorbed = 6});
}

// Each launch is to be checked. Where vLLM's kernels leave an order open, all else that they write is compared.
GPU_CASE(check_rewrite_of_vllm_routing) {
  const Layer layer(gpu);
  Layer small = mixtral(gpu);
  small.expert_ids = small.indices;  // what is written first may be written over in the copies, too
  const Graph graph(gpu.capture([&] {
    layer.all();
    small.all();
  }));
  const Executable executable(graph.get());
  int launches = 0;
  for (; ran(kRouting) < 6 || ran(kSmallRouting) < 6; ++launches) {
    executable.run(gpu);
    sched_yield();
  }
  EXPECT_EQUAL(launches, ran(kGatingOf128));
  EXPECT_EQUAL(launches, ran(kAlignSmall));
  EXPECT_EQUAL(ran(kRouting) + ran(kSmallRouting), ran("fibshim_shadow_compare"));
  state({}, {.hit = 2, .absorbed = 3});
}

GPU_CASE(rewrite_of_sglang_routing) {
  SglangExperts layer(gpu);
  const auto runs_as_one = [&](int tokens, int block_size, int padded, CUdeviceptr cumsum) {
    layer.tokens = tokens, layer.block_size = block_size;
    run_captured(gpu, [&] { layer.all(); });
    const SimcudaLaunch last = last_launch(kRoutingByLogit);
    const CUdeviceptr given[] = {layer.logits,     layer.weights, layer.ids, layer.sorted,
                                 layer.expert_ids, layer.total,   cumsum};
    CHECK(memcmp(last.params, given, sizeof given) == 0);
    const int32_t sizes[] = {tokens, block_size, padded, 1, 0};
    CHECK(memcmp(last.params + sizeof given, sizes, sizeof sizes) == 0);
    EXPECT_EQUAL(1024, last.block[0]);
  };
  runs_as_one(24, 16, 2128, layer.cumsum);
  runs_as_one(64, 64, 8640, layer.cumsum);
  runs_as_one(8, 16, 1024, 0);
  runs_as_one(1, 32, 256, 0);
  EXPECT_EQUAL(0, ran(kRouter) + ran(kAlignFew) + ran(kAlignBuckets) + ran(kSortBuckets));
  state({}, {.hit = 4, .absorbed = 6});
}

GPU_CASE(rewrite_of_sglang_routing_needs_its_ties) {
  const SglangExperts layer(gpu);
  const auto stays = [&](int tokens, auto change) {
    SglangExperts other = layer;
    other.tokens = tokens;
    change(&other);
    run_captured(gpu, [&] { other.all(); });
  };
  for (const int tokens : {1, 8, 24}) {
    stays(tokens, [](SglangExperts* of) { of->buckets = 130; });
    stays(tokens, [](SglangExperts* of) { of->logits_stride = 256; });
    SglangExperts other = layer;
    other.tokens = tokens;
    for (const auto& [from, count] :
         {std::pair(layer.at(9), other.choices()), std::pair(layer.ids, other.choices() - 1)}) {
      run_captured(gpu, [&, from = from, count = count] {
        other.choose();
        other.align(from, count);
        if (tokens > 8) other.sort(other.sorted, other.cumsum);
      });
    }
  }
  stays(24, [](SglangExperts* of) { of->leaves_out = true; });
  stays(24, [](SglangExperts* of) { of->pads = false; });
  stays(65, [](SglangExperts*) {});
  for (const auto& [to, by] :
       {std::pair(layer.at(9), layer.cumsum), std::pair(layer.sorted, layer.at(9))}) {
    run_captured(gpu, [&, to = to, by = by] {
      layer.choose();
      layer.align(layer.ids, layer.choices());
      layer.sort(to, by);
    });
  }
  EXPECT_EQUAL(0, ran(kRoutingByLogit));
  EXPECT_EQUAL(17, ran(kRouter));
  state({}, {.where = 3, .untracked = 40});
}

// What one of SGLang's kernels leaves unwritten, and the order that another leaves open, are not compared.
GPU_CASE(check_rewrite_of_sglang_routing) {
  const SglangExperts many(gpu);
  SglangExperts few(gpu);
  few.tokens = 8;
  const Graph graph(gpu.capture([&] {
    many.all();
    few.all();
  }));
  const Executable executable(graph.get());
  while (ran(kRoutingByLogit) < 12) {
    executable.run(gpu);
    sched_yield();
  }
  EXPECT_EQUAL(ran(kRoutingByLogit), ran("fibshim_shadow_compare"));
  state({}, {.hit = 2, .absorbed = 3});
}
