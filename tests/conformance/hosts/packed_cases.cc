// Launches whose parameters are packed and come with attributes, made again and again: the first is decided on the slow side,
// those behind it are the fast side's.
#include <algorithm>

#include "tests/conformance/hosts/cublas.h"

namespace conform {
namespace {

constexpr int kTimes = 3;

// A launch of one product, as cuBLAS makes it, and with whatever else stands here.
struct PackedLaunch {
  CUfunction function;
  Product product;
  std::vector<CUlaunchAttribute> attributes = {cluster_of_four()};
  bool is_packed = true;

  void make(const Gpu& gpu) const {
    char bytes[1720];
    uint32_t words[15];
    product.fill(bytes, words);
    size_t size = sizeof bytes;
    void* params[] = {bytes};
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    auto given = attributes;
    CUlaunchConfig config = launch_config(gpu.stream());
    config.gridDimX = 128;
    config.attrs = given.data();
    config.numAttrs = static_cast<unsigned>(given.size());
    for (int i = 0; i < kTimes; ++i) {
      OK(cuda().cuLaunchKernelEx(&config, function, is_packed ? nullptr : params,
                                 is_packed ? extra : nullptr));
    }
  }
};

void expect_attributes(const char* kernel, const std::vector<CUlaunchAttributeID>& expected) {
  const SimcudaLaunch last = last_launch(kernel);
  EXPECT_EQUAL(expected.size(), last.attribute_count);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQUAL(expected[i], last.attribute_ids[i]);
}

CUlaunchAttribute priority() {
  CUlaunchAttribute attribute = attribute_of(CU_LAUNCH_ATTRIBUTE_PRIORITY);
  attribute.value.priority = 0;
  return attribute;
}

}  // namespace

GPU_CASE(packed_launches_again) {
  const CUmodule module = gpu.load_module(kEngines);
  const CUdeviceptr b = device_memory(size_t{1} << 27);
  const CUdeviceptr a = b + (size_t{1} << 26), c = a + (size_t{1} << 20);
  const CUfunction whole = gpu.function(module, kWholeNvjet);
  const PackedLaunch qkv = {whole, {a, b, c, 0, 4, 6144, 4096, 1}};
  constexpr char kOurs[] = "gemm_k4096_m8_bf16";
  qkv.make(gpu);
  EXPECT_EQUAL(kTimes, ran(kOurs));
  expect_attributes(kOurs, {});
  CUdeviceptr pointers[3];
  int32_t rows;
  const SimcudaLaunch last = last_launch(kOurs);
  memcpy(pointers, last.params, sizeof pointers);
  memcpy(&rows, last.params + sizeof pointers, sizeof rows);
  CHECK(pointers[0] == a && pointers[1] == b && pointers[2] == c);
  EXPECT_EQUAL(4, rows);

  PackedLaunch plain = qkv;
  plain.is_packed = false;
  plain.make(gpu);
  // What says how the launch goes along with others goes on to ours; that it may begin early does not: ours reads weights
  // before it waits.
  PackedLaunch early = qkv;
  early.attributes = {cluster_of_four(), programmatic()};
  early.make(gpu);
  expect_attributes(kOurs, {});
  PackedLaunch urgent = qkv;
  urgent.attributes = {priority(), cluster_of_four()};
  urgent.make(gpu);
  expect_attributes(kOurs, {CU_LAUNCH_ATTRIBUTE_PRIORITY});
  EXPECT_EQUAL(4 * kTimes, ran(kOurs));

  // Ours waits before it reads anything.
  const Product o = {a, b, c, c + (size_t{1} << 20), 4, 4096, 4096, 2};
  const CUfunction reduce = gpu.function(module, kReduce);
  for (int i = 0; i < kTimes; ++i) launch_reduce(gpu, reduce, o);
  EXPECT_EQUAL(kTimes, ran("splitk_reduce2_bf16"));
  expect_attributes("splitk_reduce2_bf16", {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION});

  // A replacement with a cluster of its own.
  PackedLaunch scaled = {gpu.function(module, kNvjetInFp8), {a, b, c, 0, 16, 8192, 4096, 1}};
  scaled.product.scale_a = c + (size_t{1} << 20);
  scaled.product.scale_b = scaled.product.scale_a + 4;
  scaled.make(gpu);
  EXPECT_EQUAL(kTimes, ran("gemm_wide_pair_m16_fp8"));
  expect_attributes("gemm_wide_pair_m16_fp8", {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION});
  EXPECT_EQUAL(2, last_launch("gemm_wide_pair_m16_fp8").cluster[0]);

  // Of the same size, but several products; another size; more rows than any solution is for; operands that are not aligned.
  PackedLaunch several = qkv, unknown = qkv, many = qkv, crooked = qkv;
  several.product.last_product = 1;
  unknown.product.n = 6152;
  many.product.m = 65;
  crooked.product.a = a + 8;
  for (const PackedLaunch* const other : {&several, &unknown, &many, &crooked}) other->make(gpu);
  // Of a size that no solution is for, and several products.
  unknown.product.last_product = 1;
  unknown.make(gpu);
  EXPECT_EQUAL(5 * kTimes, ran(kWholeNvjet));
  EXPECT_EQUAL(4, last_launch(kWholeNvjet).cluster[0]);
  state({}, {.hit = 6 * kTimes, .no_solution = kTimes, .where = 4 * kTimes});
}

// Another cuBLAS may keep something else where a pattern reads: whatever of a launch is not as the pattern expects it, the
// original runs, and the launch is counted.
GPU_CASE(fields_of_cublas) {
  const CUmodule module = gpu.load_module(kEngines);
  const CUdeviceptr b = device_memory(size_t{1} << 27);
  const CUdeviceptr a = b + (size_t{1} << 26), c = a + (size_t{1} << 20);
  const CUdeviceptr workspace = c + (size_t{1} << 20);
  const Product qkv = {a, b, c, 0, 4, 6144, 4096, 1};
  const Product o = {a, b, c, workspace, 4, 4096, 4096, 2};
  const CUfunction reduce = gpu.function(module, kReduce);
  int hits = 0, others = 0, whole_runs = 0, part_runs = 0, reduce_runs = 0, sum_runs = 0;

  for (const NvjetLayout& layout : kNvjetLayouts) {
    // Every field that a "where" reads, with its size.
    const std::vector<std::pair<size_t, size_t>> fields = {{188, 4},
                                                           {208, 4},
                                                           {212, 4},
                                                           {216, 4},
                                                           {252, 4},
                                                           {272, 4},
                                                           {276, 4},
                                                           {280, 4},
                                                           {320, 4},
                                                           {336, 8},
                                                           {344, 4},
                                                           {348, 4},
                                                           {352, 8},
                                                           {416, 4},
                                                           {420, 4},
                                                           {424, 4},
                                                           {layout.a_again, 8},
                                                           {layout.b_again, 8}};
    // Sets a bit of the field: of a pointer one that no alignment asks about, of a number a low one.
    const auto flip = [](char* bytes, const std::pair<size_t, size_t>& field) {
      bytes[field.first + (field.second == 8)] ^= 4;
    };
    char bytes[1808];
    uint32_t words[15];
    const auto launch = [&](CUfunction function) {
      launch_packed(gpu, function, cluster_of_four(), 128, bytes, layout.bytes);
    };

    const CUfunction whole = gpu.function(module, layout.whole);
    auto of_whole = fields;
    of_whole.emplace_back(layout.bias, 8);
    qkv.fill(bytes, words, layout);
    launch(whole);
    EXPECT_EQUAL(++whole_runs, ran("gemm_k4096_m8_bf16"));
    ++hits;
    int runs = 0;
    for (const auto& field : of_whole) {
      qkv.fill(bytes, words, layout);
      flip(bytes, field);
      launch(whole);
      EXPECT_EQUAL(++runs, ran(layout.whole));
    }

    // The pitch of a single row does not matter.
    Product one_row = qkv;
    one_row.m = 1;
    one_row.fill(bytes, words, layout);
    flip(bytes, {252, 4});
    launch(whole);
    EXPECT_EQUAL(++whole_runs, ran("gemm_k4096_m8_bf16"));
    ++hits;

    const CUfunction split = gpu.function(module, layout.split);
    auto of_split = fields;
    for (const size_t at : {688, 752}) of_split.emplace_back(at, 8);
    o.fill(bytes, words, layout);
    launch(split);
    EXPECT_EQUAL(++part_runs, ran("gemm_part2048_m8_bf16"));
    ++hits;
    int split_runs = 0;
    for (const auto& field : of_split) {
      o.fill(bytes, words, layout);
      flip(bytes, field);
      launch(split);
      EXPECT_EQUAL(++split_runs, ran(layout.split));
      // Before a sum in a graph: neither both as one, nor the first. To both as one it is all the same how K is cut.
      if (field.first == 320) continue;
      Graph(gpu.capture([&] {
        launch(split);
        launch_reduce(gpu, reduce, o);
      })).run(gpu);
      EXPECT_EQUAL(++split_runs, ran(layout.split));
      EXPECT_EQUAL(++sum_runs, ran("splitk_reduce2_bf16"));
      ++hits;
    }
    others += runs + split_runs;
    EXPECT_EQUAL(whole_runs, ran("gemm_k4096_m8_bf16"));
    EXPECT_EQUAL(part_runs, ran("gemm_part2048_m8_bf16"));
  }

  // The sum: of its words all but the number of parts, which nothing repeats, and of its pointers all but C and the parts.
  char bytes[1720];
  uint32_t words[15];
  o.fill(bytes, words);
  const CUfunction split = gpu.function(module, kNvjet);
  const std::vector<size_t> of_rewrite = {0,  4,  8,  12, 16,
                                          28, 36, 44, 56, offsetof(ReduceParams, values)};
  std::vector<size_t> fields;
  for (size_t i = 0; i < 15; ++i) {
    if (i != 10) fields.push_back(4 * i);
  }
  for (size_t i = 0; i < 20; ++i) {
    if (i < 3 || i > 5) fields.push_back(offsetof(ReduceParams, values) + 8 * i);
  }
  for (const size_t at : fields) {
    ReduceParams params(o);
    reinterpret_cast<char*>(&params)[at] ^= 4;
    launch_packed(gpu, reduce, programmatic(), 64, &params, sizeof params);
    EXPECT_EQUAL(++reduce_runs, ran(kReduce));
    // What the kernel does not read then, the rewrite does not ask about.
    if (std::find(of_rewrite.begin(), of_rewrite.end(), at) == of_rewrite.end()) continue;
    Graph(gpu.capture([&] {
      launch_packed(gpu, split, cluster_of_four(), 128, bytes, sizeof bytes);
      launch_packed(gpu, reduce, programmatic(), 64, &params, sizeof params);
    })).run(gpu);
    EXPECT_EQUAL(++reduce_runs, ran(kReduce));
    EXPECT_EQUAL(++part_runs, ran("gemm_part2048_m8_bf16"));
    ++hits;
  }
  EXPECT_EQUAL(whole_runs, ran("gemm_k4096_m8_bf16"));
  state({}, {.hit = hits, .where = others + reduce_runs});
}

}  // namespace conform
