// vLLM's products with weights in 4 bits by Machete (config/machete/machete.json.in), whose one parameter is a struct. Each is launched with
// cuLaunchKernel and cuLaunchKernelEx.

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// The name of Machete's kernel for few rows, with the types of B, its scales and, where it has them, offsets.
#define MACHETE(types, half)                                                                       \
  "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEN7machete20"     \
  "MacheteCollectiveMmaINS5_IJNS_" types                                                           \
  "EEENS7_24PrepackedLayoutBTemplateISB_SA_SB_fNS_6layout11ColumnMajorENS1_35"                     \
  "KernelTmaWarpSpecializedCooperativeENS7_16IlvBlkLayoutAutoEEELi32ESB_SF_Li8EfNS5_IJNS4_1CILi"   \
  "128EEENSJ_ILi16EEENSJ_ILi64EEEEEENS5_IJNSJ_ILi1EEESO_SO_EEENS1_10collective22"                  \
  "StageCountAutoCarveoutILi6144EEESG_EENS_8epilogue10collective18CollectiveEpilogueINSU_22"       \
  "Sm90TmaWarpSpecializedILi1ELi1ELi8ELb0ELb1EEEJSN_NS5_IJSK_SL_EEEvNS5_IJSO_llEEESB_S10_NSU_6"    \
  "fusion15Sm90TreeVisitorINS11_12Sm90AccFetchEJEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7" \
  "SwizzleILi3ELi4ELi3EEENS4_18smem_ptr_flag_bitsILi16EEENS4_6LayoutINS5_IJSM_NSJ_ILi8EEEEEENS5_"  \
  "IJSO_SM_EEEEEEENS4_17SM75_U16x8_LDSM_TENS4_14SM90_TMA_STOREES1G_NS4_17SM90_U16x8_STSM_TENS4_9"  \
  "Copy_AtomIJNS4_17SM90_U32x4_STSM_NE" half "EEEvEEENS1_16StreamKSchedulerEvEEEEvNT_6ParamsE"

constexpr struct MacheteForm {
  const char* original;
  const char* name;  // what the names of ours end in
  bool has_offsets;
} kMacheteForms[] = {
    {MACHETE("27vllm_biased_integer_subbyteILi4ELi8ELb0EEENS_10bfloat16_tE", "NS_6half_tE"), "bf16",
     false},
    {MACHETE("27vllm_biased_integer_subbyteILi4ELi8ELb0EEENS_6half_tE", "SB_"), "fp16", false},
    {MACHETE("15integer_subbyteILi4ELb0EEENS_10bfloat16_tESB_", "NS_6half_tE"), "offsets_bf16",
     true},
    {MACHETE("15integer_subbyteILi4ELb0EEENS_6half_tESB_", "SB_"), "offsets_fp16", true},
};
#undef MACHETE

struct MacheteProduct {
  int32_t m, n, k;
  bool has_offsets;
  CUdeviceptr a, b, scales, offsets, c;

  void fill(char (&bytes)[2432]) const {
    memset(bytes, 0, sizeof bytes);
    const auto put = [&](size_t at, const auto& value) {
      memcpy(bytes + at, &value, sizeof value);
    };
    // A descriptor of TMA: the address, the bytes from row to row in units of 16, and the last column and row. All have values of 2 bytes.
    const auto describe = [&](size_t at, CUdeviceptr memory, int32_t rows, int32_t columns) {
      put(at, memory);
      put(at + 12, rows > 1 ? columns / 8 : 0);
      put(at + 32, columns - 1);
      put(at + 36, rows - 1);
    };
    put(4, n);
    put(8, m);
    put(12, k);
    put(16, 1);   // products
    put(128, b);  // the rest of B's descriptor depends on Machete's tiles
    describe(384, a, m, k);
    describe(640, scales, k / 128, n);
    if (has_offsets) describe(896, offsets, k / 128, n);
    put(1160, 128);  // columns of a scale
    describe(1664, c, m, n);
  }
};

class MacheteMm {
 public:
  MacheteMm(const Gpu& gpu, const MacheteForm& form)
      : gpu_(gpu),
        form_(form),
        function_(gpu.function(gpu.load_module(kEngines), form.original)),
        memory_(device_memory(size_t{5} << 20)) {}

  MacheteProduct product(int32_t m, int32_t n, int32_t k) const {
    const auto at = [&](CUdeviceptr megabyte) { return memory_ + (megabyte << 20); };
    return {m, n, k, form_.has_offsets, at(0), at(1), at(2), at(3), at(4)};
  }
  // The whole name of ours.
  std::string kernel(const char* name) const {
    return std::string("gemm_w4a16_") + name + "_" + form_.name;
  }
  // Twice: with each function.
  void launch(char (&bytes)[2432]) const {
    void* params[] = {bytes};
    OK(cuda().cuLaunchKernel(function_, 132, 1, 1, 384, 1, 1, 0, gpu_.stream(), params, nullptr));
    const CUlaunchConfig config = launch_config(gpu_.stream());
    OK(cuda().cuLaunchKernelEx(&config, function_, params, nullptr));
  }

 private:
  const Gpu& gpu_;
  const MacheteForm& form_;
  CUfunction function_;
  CUdeviceptr memory_;
};

void expect_arguments(const SimcudaLaunch& last, const MacheteProduct& product) {
  std::vector<CUdeviceptr> pointers = {product.a, product.b, product.scales, product.c};
  if (product.has_offsets) pointers.insert(pointers.end() - 1, product.offsets);
  const int32_t sizes[] = {product.m, product.n, product.k};
  const size_t pointer_bytes = pointers.size() * sizeof(CUdeviceptr);
  EXPECT_EQUAL(pointer_bytes + sizeof sizes, last.param_bytes);
  CHECK(memcmp(last.params, pointers.data(), pointer_bytes) == 0);
  CHECK(memcmp(last.params + pointer_bytes, sizes, sizeof sizes) == 0);
}

}  // namespace

GPU_CASE(machete_products) {
  Counts counts;
  const struct {
    int32_t m, n, k;
    const char* kernel;  // null: the original
    long* counter;
    uint32_t cluster = 1;
  } launches[] = {
      {1, 6144, 4096, "m8", &counts.hit},
      {8, 6144, 4096, "m8", &counts.hit},
      {9, 6144, 4096, "pair_m16", &counts.hit, 2},
      {16, 6144, 4096, "pair_m16", &counts.hit, 2},
      {1, 4096, 14336, "pair_m8", &counts.hit, 2},
      {8, 4096, 14336, "pair_m8", &counts.hit, 2},
      {9, 4096, 14336, "wide_quad_m16", &counts.hit, 4},
      {16, 4096, 14336, "wide_quad_m16", &counts.hit, 4},
      {8, 34816, 5120, "six_m8", &counts.hit},
      {9, 34816, 5120, "wide_five_m16", &counts.hit},
      {8, 5120, 17408, "quad_m8", &counts.hit, 4},
      {9, 2560, 9728, "quad_m16", &counts.hit, 4},
      {9, 10240, 5120, "wide_pair_m16", &counts.hit, 2},
      {9, 8192, 28672, "wide_five_quad_m16", &counts.hit, 4},
      {9, 24576, 4096, "wide_m16", &counts.hit},
      {9, 28672, 4096, "wide_four_m16", &counts.hit},
      {9, 7168, 5120, "wide_four_quad_m16", &counts.hit, 4},
      {17, 6144, 4096, "wide_four_quad_m32", &counts.hit, 4},
      {32, 6144, 4096, "wide_four_quad_m32", &counts.hit, 4},
      {33, 6144, 4096, "wide_four_quad_m64", &counts.hit, 4},
      {64, 6144, 4096, "wide_four_quad_m64", &counts.hit, 4},
      {32, 28672, 4096, "wide_four_m32", &counts.hit},
      {32, 24576, 4096, "wide_m32", &counts.hit},
      {33, 24576, 4096, "wide_m64", &counts.hit},
      {17, 4096, 4096, "wide_quad_m32", &counts.hit, 4},
      {17, 10240, 5120, "wide_pair_m32", &counts.hit, 2},
      {17, 8192, 8192, "wide_five_quad_m32", &counts.hit, 4},
      {32, 34816, 5120, "wide_five_m32", &counts.hit},
      {64, 10240, 8192, "wide_pair_m64", &counts.hit, 2},
      {64, 4096, 4096, "wide_quad_m64", &counts.hit, 4},
      // More rows than any solution is for; a size without solutions.
      {65, 6144, 4096, nullptr, &counts.where},
      {33, 4096, 14336, nullptr, &counts.where},
      {17, 8192, 28672, nullptr, &counts.where},
      {300, 6144, 4096, nullptr, &counts.where},
      {300, 4096, 14336, nullptr, &counts.where},
      {8, 4224, 4096, nullptr, &counts.no_solution},
  };
  for (const MacheteForm& form : kMacheteForms) {
    const MacheteMm mm(gpu, form);
    for (const auto& launch : launches) {
      const MacheteProduct product = mm.product(launch.m, launch.n, launch.k);
      char bytes[2432];
      product.fill(bytes);
      const std::string kernel = launch.kernel ? mm.kernel(launch.kernel) : form.original;
      const long before = ran(kernel.c_str());
      // Again: on the fast side.
      for (int i = 0; i < 2; ++i) mm.launch(bytes);
      *launch.counter += 4;
      check_equal(before + 4, ran(kernel.c_str()), kernel.c_str(), __FILE__, __LINE__);
      if (!launch.kernel) continue;
      const SimcudaLaunch last = last_launch(kernel.c_str());
      EXPECT_EQUAL(launch.cluster, last.cluster[0]);
      expect_arguments(last, product);
    }
  }
  state({}, counts);
}

// Another Machete may keep something else where the pattern reads: the original runs.
GPU_CASE(fields_of_machete_products) {
  struct Bits {
    size_t at;
    int first_bit, end_bit;
  };
  const std::vector<Bits> bits = {
      {0, 0, 32},                                   // mode
      {4, 0, 32},    {8, 0, 32},    {12, 0, 32},    // N, M, K
      {16, 0, 32},                                  // products
      {396, 0, 32},  {416, 0, 32},  {420, 0, 32},   // of A: pitch, last column and row
      {652, 0, 32},  {672, 0, 32},  {676, 0, 32},   // of the scales
      {1160, 0, 32},                                // columns of a scale
      {1676, 0, 32}, {1696, 0, 32}, {1700, 0, 32},  // of C
      {128, 0, 4},   {384, 0, 4},   {640, 0, 4},    // addresses that are not aligned
      {1664, 0, 2},
  };
  const std::vector<Bits> bits_of_offsets = {{908, 0, 32}, {928, 0, 32}, {932, 0, 32}, {896, 0, 4}};
  long hits = 0, runs = 0;
  for (const MacheteForm& form : kMacheteForms) {
    const MacheteMm mm(gpu, form);
    char bytes[2432];
    mm.product(4, 6144, 4096).fill(bytes);
    mm.launch(bytes);
    hits += 2;
    EXPECT_EQUAL(2, ran(mm.kernel("m8").c_str()));
    std::vector<Bits> checked = bits;
    if (form.has_offsets) {
      checked.insert(checked.end(), bits_of_offsets.begin(), bits_of_offsets.end());
    }
    long runs_of_form = 0;
    for (const Bits& field : checked) {
      for (int bit = field.first_bit; bit < field.end_bit; ++bit) {
        char& changed = bytes[field.at + static_cast<size_t>(bit / 8)];
        changed = static_cast<char>(changed ^ 1 << bit % 8);
        mm.launch(bytes);
        changed = static_cast<char>(changed ^ 1 << bit % 8);
        runs_of_form += 2;
        const std::string what = std::string(form.name) + " with another bit " +
                                 std::to_string(bit) + " at " + std::to_string(field.at);
        check_equal(runs_of_form, ran(form.original), what.c_str(), __FILE__, __LINE__);
      }
    }
    runs += runs_of_form;
  }
  state({}, {.hit = hits, .where = runs});
}

}  // namespace conform
