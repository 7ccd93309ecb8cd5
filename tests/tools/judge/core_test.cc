// The judge's core, without a driver: numbers, comparison, references, inputs, cases, records, table
// and page.
#include <math.h>

#include <filesystem>
#include <limits>

#include "tests/support/text.h"
#include "tests/tools/fibshim_program.h"
#include "tools/judge/inputs.h"
#include "tools/judge/judge.h"
#include "tools/judge/report_page.h"
#include "tools/judge/sampling.h"
#include "tools/judge/usual_values.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using test::TemporaryFolder;

const ElementType& type(const char* name) { return *find_element_type(name); }

Tensor tensor_of(const char* dtype, std::vector<int64_t> shape, const std::vector<double>& values) {
  Tensor tensor{find_element_type(dtype), std::move(shape), {}};
  tensor.allocate();
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

Definition definition_of(const std::string& name, std::vector<DefinitionAxis> axes,
                         std::vector<DefinitionArgument> arguments) {
  Definition definition;
  definition.name.name = name;
  definition.axes = std::move(axes);
  definition.arguments = std::move(arguments);
  return definition;
}

uint8_t dtype_index(const char* name) {
  for (uint8_t i = 0; i < std::size(kDtypes); ++i) {
    if (std::string_view(kDtypes[i].name) == name) return i;
  }
  return 0;
}

// ---- elements

TEST(ElementType, RoundsToNearestEven) {
  EXPECT_EQ(rounded_to(type("bfloat16"), 1 + 1.0 / 256), 1);             // a tie, down to even
  EXPECT_EQ(rounded_to(type("bfloat16"), 1 + 3.0 / 256), 1 + 1.0 / 64);  // a tie, up to even
  EXPECT_EQ(rounded_to(type("float16"), 1 + 1.0 / 2048), 1);
  EXPECT_EQ(rounded_to(type("float16"), 65519), 65504);
  EXPECT_EQ(rounded_to(type("float16"), 65520), std::numeric_limits<double>::infinity());
  EXPECT_EQ(rounded_to(type("float16"), ldexp(3, -25)), ldexp(1, -23));  // between subnormals
  EXPECT_EQ(rounded_to(type("float8_e4m3fn"), 17), 16);
  EXPECT_EQ(rounded_to(type("float8_e4m3fn"), 1000), 448);
  EXPECT_EQ(rounded_to(type("float8_e4m3fn"), -1e9), -448);
  EXPECT_EQ(rounded_to(type("float8_e4m3fn"), ldexp(1, -9)), ldexp(1, -9));  // the smallest
  EXPECT_EQ(rounded_to(type("float8_e5m2"), 1e6), 57344);
  EXPECT_TRUE(std::isnan(rounded_to(type("float8_e4m3fn"), NAN)));
  EXPECT_EQ(rounded_to(type("int8"), -7), -7);
}

TEST(ElementType, EveryValueComesBackAsItWas) {
  for (const char* const name : {"float16", "bfloat16"}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      uint8_t bytes[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
      const double value = type(name).load(bytes);
      if (std::isnan(value)) continue;
      uint8_t back[2];
      type(name).store(value, back);
      ASSERT_EQ(back[0] | back[1] << 8, static_cast<int>(bits)) << name;
    }
  }
  for (const char* const name : {"float8_e4m3fn", "float8_e5m2"}) {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      const auto byte = static_cast<uint8_t>(bits);
      const double value = type(name).load(&byte);
      if (!std::isfinite(value)) continue;
      uint8_t back;
      type(name).store(value, &back);
      ASSERT_EQ(back, byte) << name;
    }
  }
}

// ---- comparison

std::string fault_of(const std::vector<double>& found, const std::vector<double>& expected,
                     Tolerance tolerance) {
  Comparison comparison;
  comparison.add(found.data(), expected.data(), static_cast<int64_t>(found.size()), 0, tolerance);
  return comparison.fault(tolerance);
}

TEST(Compare, AnElementIsBadOnlyWhenBothErrorsAreTooLarge) {
  const Tolerance tolerance{1e-2, 1e-2};
  EXPECT_EQ(fault_of({100.5, 0.009}, {100, 0.001}, tolerance), "");
  EXPECT_NE(fault_of({102, 0.009}, {100, 0.001}, tolerance), "");
}

TEST(Compare, TheShareOfGoodElementsDecides) {
  std::vector<double> found(100, 1), expected(100, 1);
  found[7] = 2;
  EXPECT_EQ(fault_of(found, expected, {1e-2, 1e-2, 0.99, 0}), "");
  EXPECT_EQ(fault_of(found, expected, {1e-2, 1e-2, 0.995, 0}),
            "1 of 100 values are wrong: element 7 is 2, not 1");
}

TEST(Compare, WhatIsNotFiniteFailsWhateverTheRatio) {
  EXPECT_NE(fault_of({NAN, 1}, {1, 1}, {1, 1, 0, 0}), "");
  EXPECT_NE(fault_of({1, 1}, {INFINITY, 1}, {1, 1, 0, 0}), "");
  EXPECT_EQ(fault_of({INFINITY, NAN, 1}, {INFINITY, NAN, 1}, {0, 0, 1, 0}), "");
}

TEST(Compare, SmallValuesDoNotPassAsZeros) {
  EXPECT_EQ(fault_of({0, 0}, {8e-6, 7e-6}, default_tolerance(type("float32"))),
            "the output differs too much in direction: cosine 0.000000");
}

TEST(Compare, MergingIsAsGoodAsAddingAtOnce) {
  const std::vector<double> found = {1, 5, 3, 9}, expected = {1, 2, 3, 4};
  const Tolerance tolerance{0.1, 0.1};
  Comparison whole, first, second;
  whole.add(found.data(), expected.data(), 4, 0, tolerance);
  second.add(found.data() + 2, expected.data() + 2, 2, 2, tolerance);
  first.add(found.data(), expected.data(), 2, 0, tolerance);
  second.merge(first);
  EXPECT_EQ(second.fault(tolerance), whole.fault(tolerance));
  EXPECT_EQ(second.first_bad, 1);
  EXPECT_EQ(second.max_absolute_error, 5);
}

TEST(Compare, TotalVariation) {
  EXPECT_DOUBLE_EQ(total_variation_distance({50, 50}, {0.5, 0.5}), 0);
  EXPECT_DOUBLE_EQ(total_variation_distance({100, 0}, {0.5, 0.5}), 0.5);
}

// ---- references

std::vector<std::vector<double>> evaluate_reference(const std::string& op, const CaseData& data,
                                                    const std::vector<OutputSpec>& outputs,
                                                    const Definition& definition) {
  const auto reference = make_reference({op, definition, data, outputs});
  EXPECT_TRUE(reference) << (reference ? "" : reference.error().message);
  std::vector<std::vector<double>> values;
  if (!reference) return values;
  for (const OutputSpec& output : outputs) {
    int64_t count = 1;
    for (const int64_t extent : output.shape) count *= extent;
    values.emplace_back(static_cast<size_t>(count));
  }
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < outputs[0].shape[0]; ++row) rows.push_back(row);
  for_each_row(*reference, outputs, rows, [&](size_t row, double* const* computed) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const size_t width = values[i].size() / rows.size();
      std::copy(computed[i], computed[i] + width,
                values[i].begin() + static_cast<long>(row * width));
    }
  });
  return values;
}

TEST(References, RmsNorm) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("bfloat16", {2, 2}, {3, 4, 0, 0});
  data.tensors["weight"] = tensor_of("bfloat16", {2}, {1, 2});
  data.scalars["eps"] = 12.5;
  const Definition definition = definition_of("rmsnorm_h2", {}, {});
  const auto values = evaluate_reference(
      "rmsnorm", data, {{"output", &type("bfloat16"), {2, 2}}, {"rstd", &type("float32"), {2}}},
      definition);
  EXPECT_DOUBLE_EQ(values[0][0], 0.6);  // mean of squares 12.5
  EXPECT_DOUBLE_EQ(values[0][1], 1.6);
  EXPECT_EQ(values[0][2], 0);
  EXPECT_DOUBLE_EQ(values[1][0], 0.2);
  const auto gemma = evaluate_reference("gemma_rmsnorm", data,
                                        {{"output", &type("bfloat16"), {2, 2}}}, definition);
  EXPECT_DOUBLE_EQ(gemma[0][1], 2.4);
}

TEST(References, LayerNorm) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("float32", {1, 2}, {1, 3});
  data.tensors["weight"] = tensor_of("float32", {2}, {2, 2});
  data.tensors["bias"] = tensor_of("float32", {2}, {0, 5});
  data.scalars["eps"] = 3;
  const auto values = evaluate_reference("layernorm", data,
                                         {{"output", &type("float32"), {1, 2}},
                                          {"mean", &type("float32"), {1}},
                                          {"rstd", &type("float32"), {1}}},
                                         definition_of("layernorm_h2", {}, {}));
  EXPECT_EQ(values[0], (std::vector<double>{-1, 6}));
  EXPECT_EQ(values[1][0], 2);
  EXPECT_EQ(values[2][0], 0.5);
}

TEST(References, FusedAddRoundsTheSumWhereVllmDoes) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("bfloat16", {1, 1}, {1});
  data.tensors["residual"] = tensor_of("bfloat16", {1, 1}, {1.0 / 256});
  data.tensors["weight"] = tensor_of("bfloat16", {1}, {1});
  data.scalars["eps"] = 0;
  const std::vector<OutputSpec> outputs = {{"output", &type("bfloat16"), {1, 1}},
                                           {"residual_output", &type("bfloat16"), {1, 1}}};
  const Definition definition = definition_of("fused_add_rmsnorm_h1", {}, {});
  EXPECT_EQ(evaluate_reference("fused_add_rmsnorm", data, outputs, definition)[1][0],
            1 + 1.0 / 256);
  EXPECT_EQ(evaluate_reference("fused_add_rmsnorm_vllm", data, outputs, definition)[1][0], 1);
  // It says itself whether it rounds once more, before the weight.
  data.tensors["hidden_states"] = tensor_of("bfloat16", {1, 2}, {1, 3});
  data.tensors["residual"] = tensor_of("bfloat16", {1, 2}, {0, 0});
  data.tensors["weight"] = tensor_of("bfloat16", {2}, {1, 1});
  const std::vector<OutputSpec> output = {{"output", &type("bfloat16"), {1, 2}}};
  const double normed = 1 / sqrt(5.0);
  for (const double rounds : {0, 1}) {
    data.scalars["rounds_before_weight"] = rounds;
    EXPECT_EQ(evaluate_reference("fused_add_rmsnorm_vllm", data, output, definition)[0][0],
              rounds != 0 ? rounded_to(type("bfloat16"), normed) : normed);
  }
}

TEST(References, QuantDividesByTheScaleAndSaturates) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("bfloat16", {1, 2}, {1, 1});
  data.tensors["weight"] = tensor_of("bfloat16", {2}, {1, 100});
  data.tensors["scale"] = tensor_of("float32", {}, {0.125});
  data.scalars["eps"] = 0;
  EXPECT_EQ(evaluate_reference("rmsnorm_quant", data, {{"out", &type("float8_e4m3fn"), {1, 2}}},
                               definition_of("rmsnorm_quant_h2", {}, {}))[0],
            (std::vector<double>{8, 448}));
}

TEST(References, WhatIsQuantisedNextIsTheRoundedOutput) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("bfloat16", {1, 2}, {1, 1});
  data.tensors["residual"] = tensor_of("bfloat16", {1, 2}, {1.0 / 256, 1.0 / 256});
  data.tensors["weight"] = tensor_of("bfloat16", {2}, {1, 7});
  data.tensors["scale"] = tensor_of("float32", {}, {1.0 / 128});
  data.scalars["eps"] = 0;
  std::vector<OutputSpec> outputs = {{"output", &type("bfloat16"), {1, 2}},
                                     {"residual_output", &type("bfloat16"), {1, 2}},
                                     {"quantized", &type("float8_e4m3fn"), {1, 2}}};
  const Definition definition = definition_of("x", {}, {});
  const std::string op = "fused_add_rmsnorm_then_quant";
  auto values = evaluate_reference(op, data, outputs, definition);
  EXPECT_EQ(values[1], (std::vector<double>{1, 1}));
  EXPECT_EQ(values[2], (std::vector<double>{128, 448}));
  outputs.push_back({"scales", &type("float32"), {1}});
  values = evaluate_reference(op, data, outputs, definition);
  EXPECT_EQ(values[2], (std::vector<double>{64, 448}));
  EXPECT_EQ(values[3][0], 1.0 / 64);
  data.tensors["input"] = tensor_of("bfloat16", {1, 2}, {0, 3});
  data.tensors.erase("hidden_states");
  outputs.erase(outputs.begin() + 1);
  for (OutputSpec& output : outputs) output.shape.back() = 1;
  values = evaluate_reference("silu_and_mul_then_quant", data, outputs, definition);
  EXPECT_EQ(values[1][0], 0);
  EXPECT_EQ(values[2][0], 1.0 / (448 * 512));
  // silu(2) is also rounded before it is multiplied.
  data.tensors["input"] = tensor_of("bfloat16", {1, 2}, {2, 1.125});
  values = evaluate_reference("silu_and_mul_then_quant", data, outputs, definition);
  EXPECT_FLOAT_EQ(static_cast<float>(values[2][0]), 253.0f / 128 / 448);
}

TEST(References, OfBlocksAfterNormsAndActivations) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("bfloat16", {1, 4}, {1, 1, 1, -1});
  data.tensors["residual"] = tensor_of("bfloat16", {1, 4}, {0, 0, 0, 0});
  data.tensors["weight"] = tensor_of("bfloat16", {4}, {1, 7, 0, 0});
  data.scalars["eps"] = 0;
  std::vector<OutputSpec> outputs = {{"output", &type("bfloat16"), {1, 4}},
                                     {"residual_output", &type("bfloat16"), {1, 4}},
                                     {"quantized", &type("float8_e4m3fn"), {1, 4}},
                                     {"scales", &type("float32"), {1, 2}}};
  const Definition definition = definition_of("x", {}, {});
  auto values =
      evaluate_reference("fused_add_rmsnorm_then_quant_per_block", data, outputs, definition);
  EXPECT_EQ(values[2], (std::vector<double>{64, 448, 0, 0}));
  EXPECT_EQ(values[3], (std::vector<double>{1.0 / 64, 1e-10 / 448}));
  data.tensors["input"] = tensor_of("bfloat16", {1, 8}, {2, 0, 0, 0, 1.125, 1, 1, 1});
  data.tensors.erase("hidden_states");
  data.scalars["least"] = 448;
  outputs.erase(outputs.begin() + 1);
  values = evaluate_reference("silu_and_mul_then_quant_per_block", data, outputs, definition);
  // Unlike vLLM's, silu(2) is not rounded before it is multiplied.
  EXPECT_FLOAT_EQ(static_cast<float>(values[1][0]), 127.0f / 64);
  EXPECT_EQ(values[2], (std::vector<double>{1, 1}));
  // Without a dimension for the blocks a row has one scale.
  outputs.back().shape = {1};
  values = evaluate_reference("silu_and_mul_then_quant_per_block", data, outputs, definition);
  EXPECT_EQ(values[2].size(), 1u);
  EXPECT_FLOAT_EQ(static_cast<float>(values[1][0]), 448);
}

TEST(References, Activations) {
  CaseData data;
  data.tensors["input"] = tensor_of("float32", {1, 2}, {2, 3});
  const Definition definition = definition_of("x", {}, {});
  const std::vector<OutputSpec> outputs = {{"output", &type("float32"), {1, 1}}};
  EXPECT_NEAR(evaluate_reference("silu_and_mul", data, outputs, definition)[0][0],
              3 * 1.7615941559557649, 1e-12);
  EXPECT_NEAR(evaluate_reference("gelu_and_mul", data, outputs, definition)[0][0],
              3 * 1.9544997361036416, 1e-12);
  EXPECT_NEAR(evaluate_reference("gelu_tanh_and_mul", data, outputs, definition)[0][0],
              3 * 1.954597694087775, 1e-12);
  EXPECT_NEAR(evaluate_reference("mul_and_silu", data, outputs, definition)[0][0],
              2 * 2.8577223804673, 1e-12);
  data.scalars = {{"limit", 1}, {"alpha", 2}, {"beta", 0.5}};
  EXPECT_NEAR(evaluate_reference("silu_and_mul_clamp", data, outputs, definition)[0][0],
              1.5 * 0.8807970779778823, 1e-12);
  data.tensors["input"] = tensor_of("float32", {1, 2}, {-2, -3});
  EXPECT_NEAR(evaluate_reference("silu_and_mul_clamp", data, outputs, definition)[0][0],
              -0.5 * -2 * 0.017986209962091559, 1e-12);
}

TEST(References, ANormMayHaveNoWeight) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("float32", {1, 2}, {1, 7});
  data.scalars["eps"] = 0;
  const auto values =
      evaluate_reference(find_op(definition_of("rmsnorm_no_weight_h2", {}, {}), ""), data,
                         {{"output", &type("float32"), {1, 2}}}, definition_of("x", {}, {}));
  EXPECT_DOUBLE_EQ(values[0][0], 0.2);
  EXPECT_DOUBLE_EQ(values[0][1], 1.4);
}

TEST(References, SoftmaxOfLargeLogits) {
  CaseData data;
  data.tensors["logits"] = tensor_of("float32", {1, 2}, {1000, 1000});
  EXPECT_EQ(evaluate_reference("softmax", data, {{"probs", &type("float32"), {1, 2}}},
                               definition_of("softmax_v2", {}, {}))[0],
            (std::vector<double>{0.5, 0.5}));
}

TEST(References, RopeRotatesHalves) {
  CaseData data;
  data.axes["head_size"] = 2;
  data.tensors["query"] = tensor_of("float32", {1, 4}, {1, 0, 0, 1});
  data.tensors["key"] = tensor_of("float32", {1, 2}, {2, 0});
  data.tensors["cos_sin_cache"] = tensor_of("float32", {2, 2}, {1, 0, 0, 1});  // row 1: 90 degrees
  data.tensors["positions"] = tensor_of("int32", {1}, {1});
  const auto values = evaluate_reference(
      "rope_cos_sin_cache", data,
      {{"query_out", &type("float32"), {1, 4}}, {"key_out", &type("float32"), {1, 2}}},
      definition_of("rope_cos_sin_cache_d2", {}, {}));
  EXPECT_EQ(values[0], (std::vector<double>{0, 1, -1, 0}));
  EXPECT_EQ(values[1], (std::vector<double>{0, 2}));
}

TEST(References, RefuseOutputsThatTheyDoNotKnow) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("float32", {1, 1}, {1});
  const std::vector<OutputSpec> outputs = {{"norms", &type("float32"), {1}}};
  const Definition definition = definition_of("rmsnorm_h1", {}, {});
  const auto reference = make_reference({"rmsnorm", definition, data, outputs});
  ASSERT_FALSE(reference);
  EXPECT_CONTAINS(reference.error().message, "\"norms\"");
}

TEST(References, RefuseInputsThatTheyDoNotRead) {
  CaseData data;
  data.tensors["hidden_states"] = tensor_of("float32", {1, 2}, {1, 2});
  data.tensors["second"] = tensor_of("float32", {1, 2}, {1, 2});
  const std::vector<OutputSpec> outputs = {{"output", &type("float32"), {1, 2}}};
  Definition definition = definition_of("rmsnorm_h2", {}, {});
  EXPECT_TRUE(make_reference({"rmsnorm", definition, data, outputs}));
  DefinitionArgument second;
  second.name = "second";
  definition.arguments.push_back(second);
  const auto reference = make_reference({"rmsnorm", definition, data, outputs});
  ASSERT_FALSE(reference);
  EXPECT_CONTAINS(reference.error().message, "does not read the input \"second\"");
}

TEST(References, AreFoundByNameThenOpType) {
  const auto op = [](const char* name, const char* op_type) {
    Definition definition = definition_of(name, {}, {});
    definition.op_type = op_type;
    return find_op(definition, "");
  };
  EXPECT_EQ(op("fused_add_rmsnorm_quant_h4096", "rmsnorm"), "fused_add_rmsnorm_quant");
  EXPECT_EQ(op("silu_and_mul_then_quant_per_token_h64", ""), "silu_and_mul_then_quant");
  EXPECT_EQ(op("silu_and_mul_then_quant_per_block_h64", ""), "silu_and_mul_then_quant_per_block");
  EXPECT_EQ(op("silu_and_mul_clamp_h64", ""), "silu_and_mul_clamp");
  EXPECT_EQ(op("mul_and_silu_h64", ""), "mul_and_silu");
  EXPECT_EQ(op("fused_add_rmsnorm_no_weight_h64", "rmsnorm"), "fused_add_rmsnorm");
  EXPECT_EQ(op("rmsnorm_h4096_fp16", "x"), "rmsnorm");
  EXPECT_EQ(op("norm_of_ours", "softmax"), "softmax");
  EXPECT_EQ(op("rmsnormal_h1", "x"), "");
  EXPECT_EQ(find_op(definition_of("a", {}, {}), "rmsnorm"), "rmsnorm");
  EXPECT_EQ(find_op(definition_of("rmsnorm_h1", {}, {}), "nonsense"), "");
}

// ---- sampling

TEST(Sampling, FiltersInFlashInfersOrder) {
  CaseData data;
  data.tensors["probs"] = tensor_of("float64", {1, 4}, {0.5, 0.25, 0.15, 0.1});
  data.tensors["top_k"] = tensor_of("int32", {1}, {3});
  data.tensors["top_p"] = tensor_of("float32", {1}, {0.6});
  data.scalars["min_p"] = 0.4;
  EXPECT_EQ(sample_law("top_k_sampling", data, 0).probabilities,
            (std::vector<double>{0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0}));
  // top_k leaves .556 .278 .167; the first two reach 0.6.
  const SampleLaw both = sample_law("top_k_top_p_sampling", data, 0);
  EXPECT_NEAR(both.probabilities[0], 2.0 / 3, 1e-12);
  EXPECT_EQ(both.is_allowed, (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(sample_law("min_p_sampling", data, 0).is_allowed,
            (std::vector<bool>{true, true, false, false}));
}

// ---- inputs

TEST(Inputs, DifferByRunAndRepeatExactly) {
  const Definition definition =
      definition_of("rmsnorm_h64", {{"b", false, 0}, {"h", true, 64}},
                    {{"hidden_states", false, dtype_index("bfloat16"), false, {"b", "h"}, ""},
                     {"output", false, dtype_index("bfloat16"), true, {"b", "h"}, ""}});
  const AxisValues axes = {{"b", 3}, {"h", 64}};
  const auto bytes = [&](int run) {
    CaseData data;
    EXPECT_TRUE(make_inputs({definition, "rmsnorm", axes, run, {}}, &data));
    EXPECT_EQ(data.tensors.size(), 1u);
    return data.tensors.at("hidden_states").bytes;
  };
  EXPECT_EQ(bytes(0), bytes(0));
  EXPECT_NE(bytes(0), bytes(1));
  CaseData data;
  ASSERT_TRUE(make_inputs({definition, "rmsnorm", axes, 1, {}}, &data));
  const Tensor& tensor = data.tensors.at("hidden_states");
  EXPECT_EQ(tensor.at(64), 0);  // the row of zeros
  EXPECT_LT(fabs(tensor.at(0)), 0.01);
}

TEST(Inputs, OfFp8FillItsRangeAndHavePositiveScales) {
  DefinitionArgument a;
  a.name = "A";
  a.is_scalar = false;
  a.dtype = dtype_index("float8_e4m3fn");
  a.shape = {"m", "k"};
  DefinitionArgument scale = a;
  scale.name = "scale_a";
  scale.dtype = dtype_index("float32");
  scale.shape = {"m"};
  const Definition definition =
      definition_of("gemm_k999", {{"m", false, 0}, {"k", true, 999}}, {a, scale});
  for (int run = 0; run < kInputProfiles; ++run) {
    CaseData data;
    ASSERT_TRUE(make_inputs({definition, "", {{"m", 3}, {"k", 999}}, run, {}}, &data));
    const Tensor& elements = data.tensors.at("A");
    double largest = 0;
    int subnormal = 0;
    for (int64_t i = 2 * 999; i < elements.count(); ++i) {
      largest = std::max(largest, fabs(elements.at(i)));
      subnormal += fabs(elements.at(i)) < 1.0 / 64 ? 1 : 0;
    }
    EXPECT_GE(largest, 64) << run;
    EXPECT_LE(subnormal, 20) << run;
    for (int64_t i = 0; i < 3; ++i) EXPECT_GT(data.tensors.at("scale_a").at(i), 0);
  }
}

TEST(Inputs, AskForTheRangeOfAnIntegerThatIsNotKnown) {
  const Definition definition = definition_of(
      "x", {{"b", false, 0}}, {{"pages", false, dtype_index("int32"), false, {"b"}, ""}});
  CaseData data;
  const auto made = make_inputs({definition, "", {{"b", 2}}, 0, {}}, &data);
  ASSERT_FALSE(made);
  EXPECT_CONTAINS(made.error().message, "\"pages\": {\"low\"");
  const auto range = [](std::string_view) -> Result<IntegerRange> { return IntegerRange{5, 6}; };
  ASSERT_TRUE(make_inputs({definition, "", {{"b", 2}}, 0, range}, &data));
  EXPECT_EQ(data.tensors.at("pages").at(1), 5);
}

TEST(Inputs, EachFifthSequenceHasNoRows) {
  const Definition definition =
      definition_of("combine", {{"n", false, 0}},
                    {{"first_rows", false, dtype_index("int32"), false, {"n"}, ""}});
  CaseData data;
  ASSERT_TRUE(make_inputs({definition, "", {{"n", 8}}, 0, {}}, &data));
  const int rows[] = {0, 1, 2, 3, 4, 4, 5, 6};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(data.tensors.at("first_rows").at(i), rows[i]) << i;
}

TEST(Inputs, ChoicesAreSortedByTheirExperts) {
  const auto definition_with = [](std::vector<std::string> places) {
    return definition_of(
        "experts", {},
        {{"sorted_token_ids", false, dtype_index("int32"), false, std::move(places), ""},
         {"expert_ids", false, dtype_index("int32"), false, {"blocks"}, ""},
         {"num_tokens_post_pad", false, dtype_index("int32"), false, {"one"}, ""}});
  };
  AxisValues axes = {{"num_choices", 40}, {"num_experts", 8}, {"block_size", 4},
                     {"places", 64},      {"blocks", 16},     {"one", 1}};
  CaseData data;
  ASSERT_TRUE(make_inputs({definition_with({"places"}), "", axes, 1, {}}, &data));
  const Tensor& sorted = data.tensors.at("sorted_token_ids");
  const Tensor& experts = data.tensors.at("expert_ids");
  const auto used = static_cast<int64_t>(data.tensors.at("num_tokens_post_pad").at(0));
  ASSERT_EQ(used % 4, 0);
  std::set<int> seen;
  std::set<double> popular;  // the expert of every third choice
  for (int64_t i = 0; i < 64; ++i) {
    const int choice = static_cast<int>(sorted.at(i));
    if (choice == 40) continue;  // padding
    EXPECT_TRUE(seen.insert(choice).second) << i;
    EXPECT_LT(i, used);
    if (choice % 3 == 0) popular.insert(experts.at(i / 4));
  }
  popular.erase(-1);  // the last block, if it is that expert's
  EXPECT_EQ(popular.size(), 1u);
  EXPECT_EQ(seen.size(), 40u);
  for (int64_t i = 1; i < 16; ++i) {
    const bool is_last = i + 1 >= used / 4;
    if (is_last) {
      EXPECT_EQ(experts.at(i), -1) << i;
    } else {
      EXPECT_GE(experts.at(i), experts.at(i - 1)) << i;
    }
  }
  CaseData none;
  axes["places"] = 36;
  const auto few = make_inputs({definition_with({"places"}), "", axes, 1, {}}, &none);
  ASSERT_FALSE(few);
  EXPECT_CONTAINS(few.error().message, "too few for the choices in blocks");
  axes.erase("num_experts");
  const auto lost = make_inputs({definition_with({"places"}), "", axes, 1, {}}, &none);
  ASSERT_FALSE(lost);
  EXPECT_CONTAINS(lost.error().message, "needs the axis \"num_experts\"");
}

TEST(Inputs, NoTwoTokensShareASlot) {
  const auto definition_with = [](const char* cache, const char* name = "slot_mapping") {
    return definition_of("append", {{"n", false, 0}, {"pages", false, 0}, {"size", true, 4}},
                         {{name, false, dtype_index("int64"), false, {"n"}, ""},
                          {cache, false, dtype_index("bfloat16"), false, {"pages", "size"}, ""}});
  };
  const Definition definition = definition_with("key_cache");
  CaseData data;
  ASSERT_TRUE(make_inputs({definition, "", {{"n", 16}, {"pages", 4}, {"size", 4}}, 0, {}}, &data));
  const Tensor& slots = data.tensors.at("slot_mapping");
  std::set<double> seen;
  for (int64_t i = 0; i < 16; ++i) {
    if (i % 7 == 3) {
      EXPECT_EQ(slots.at(i), -1);
    } else {
      EXPECT_TRUE(seen.insert(slots.at(i)).second) << i;
      EXPECT_GE(slots.at(i), 0);
      EXPECT_LT(slots.at(i), 16);
    }
  }
  CaseData none;
  const auto few =
      make_inputs({definition, "", {{"n", 17}, {"pages", 4}, {"size", 4}}, 0, {}}, &none);
  ASSERT_FALSE(few);
  EXPECT_CONTAINS(few.error().message, "fewer slots than there are tokens");
  const Definition without = definition_with("cache");
  const auto lost = make_inputs({without, "", {{"n", 1}, {"pages", 4}, {"size", 4}}, 0, {}}, &none);
  ASSERT_FALSE(lost);
  EXPECT_CONTAINS(lost.error().message, "which the definition lacks");
  // Slots without pages: the cache's first dimension counts them.
  ASSERT_TRUE(make_inputs(
      {definition_with("key_cache", "slots"), "", {{"n", 4}, {"pages", 4}, {"size", 4}}, 0, {}},
      &data));
  const Tensor& pageless = data.tensors.at("slots");
  EXPECT_EQ(pageless.at(1), 0);
  EXPECT_EQ(pageless.at(3), -1);
  EXPECT_EQ(std::set<double>({pageless.at(0), pageless.at(2)}).count(0), 0);
  EXPECT_LT(std::max(pageless.at(0), pageless.at(2)), 4);
  const auto unled = make_inputs(
      {definition_with("cache", "slots"), "", {{"n", 1}, {"pages", 4}, {"size", 4}}, 0, {}}, &none);
  ASSERT_FALSE(unled);
  EXPECT_CONTAINS(unled.error().message, "\"slots\" leads into \"key_cache\"");
}

TEST(Inputs, EpsComesFromTheReference) {
  Definition definition;
  EXPECT_EQ(eps_of(definition), 1e-6);
  definition.reference = "def run(x):\n    EPS = 1e-5\n";
  EXPECT_EQ(eps_of(definition), 1e-5);
  definition.reference = "def run(x, eps: float = 0.25):\n";
  EXPECT_EQ(eps_of(definition), 0.25);
}

TEST(Inputs, TheReferenceTakesAnotherEps) {
  Definition definition;
  definition.reference = "def run(x):\n    return x + 1e-5\n";
  EXPECT_EQ(reference_with_eps(definition, 1e-5), std::nullopt);
  definition.reference = "def run(x, eps: float = 1e-5):\n    EPS = 0.00001\n    q_eps = 3\n";
  EXPECT_EQ(reference_with_eps(definition, 1e-5f), definition.reference);
  EXPECT_EQ(reference_with_eps(definition, 1e-6),
            "def run(x, eps: float = 1e-06):\n    EPS = 1e-06\n    q_eps = 3\n");
  definition.reference = "def run(x):\n    eps = 1e-5\n    EPS = 1e-6\n";
  EXPECT_EQ(reference_with_eps(definition, 1e-5), std::nullopt);
}

TEST(Inputs, AnEpsThatTheDefinitionTakesIsTheReferences) {
  DefinitionArgument eps;
  eps.name = "eps";
  eps.dtype = dtype_index("float32");
  eps.is_scalar = true;
  Definition definition = definition_of("norm_h8", {{"n", false, 0}}, {eps});
  definition.reference = "def run(x):\n    EPS = 1e-5\n";
  CaseData data;
  ASSERT_TRUE(make_inputs({definition, "", {{"n", 1}}, 2, {}}, &data));
  EXPECT_EQ(data.scalars.at("eps"), 1e-5f);
}

TEST(Inputs, StridesAreThoseOfContiguousTensors) {
  const Definition definition =
      definition_of("rmsnorm_h8", {{"n", false, 0}, {"h", true, 8}},
                    {{"hidden_states", false, dtype_index("bfloat16"), false, {"n", "h"}, ""},
                     {"weight", false, dtype_index("bfloat16"), false, {"h"}, ""},
                     {"output", false, dtype_index("bfloat16"), true, {"n", "h"}, ""},
                     {"rstd", false, dtype_index("float32"), true, {"n"}, ""}});
  const SolutionSpec solution;
  const VerifyBlock verify;
  const Subject subject{&definition, &solution, &verify, "rmsnorm"};
  const auto usual = [&](const char* name) {
    return usual_value(name, subject, {{"n", 3}, {"h", 8}}, 0);
  };
  EXPECT_EQ(usual("input_stride"), 8);
  EXPECT_EQ(usual("output_token_stride"), 8);
  EXPECT_EQ(usual("rstd_row_stride"), 1);
  EXPECT_EQ(usual("weight_row_stride"), 0);  // all rows share it
  EXPECT_EQ(usual("other_stride"), std::nullopt);
}

// ---- cases

TEST(Cases, StatedAxesCombineAndOthersGoSideBySide) {
  Definition definition = definition_of(
      "rope_cos_sin_cache_d4",
      {{"nnz", false, 0}, {"num_q_heads_x_head_size", false, 0}, {"head_size", true, 4}}, {});
  definition.constraints = {"nnz != 17", "nnz is odd"};  // the second cannot be parsed
  SolutionSpec solution;
  const VerifyBlock verify;
  const Subject subject{&definition, &solution, &verify, "rope_cos_sin_cache"};
  JudgeOptions options;
  const auto made = make_cases(subject, options, {});
  ASSERT_EQ(made.size(), 4u);
  for (const Workload& one : made) {
    EXPECT_EQ(one.axes.at("num_q_heads_x_head_size") % 4, 0);
    EXPECT_NE(one.axes.at("nnz"), 17);
  }
  options.axes = {{"nnz", {1, 2}}, {"num_q_heads_x_head_size", {4, 8, 12}}};
  EXPECT_EQ(make_cases(subject, options, {}).size(), 6u);
  // The same axes give the same workload every time.
  EXPECT_EQ(make_cases(subject, options, {})[0].uuid, make_cases(subject, options, {})[0].uuid);
}

TEST(Cases, SayWhyThereAreNone) {
  Definition definition =
      definition_of("x", {{"n", false, 0}, {"m", false, 0}, {"k", true, 1 << 28}},
                    {{"w", false, dtype_index("int32"), false, {"k"}, ""}});
  const SolutionSpec solution;
  const VerifyBlock verify;
  const Subject subject{&definition, &solution, &verify, ""};
  JudgeOptions options;
  std::string why;
  EXPECT_TRUE(make_cases(subject, options, {}, &why).empty());
  EXPECT_EQ(why.find("its tensors take 1024 MiB or more, of at most 512 that are made unasked"), 0u)
      << why;
  definition.constraints = {"m > n + 1000000"};
  EXPECT_TRUE(make_cases(subject, options, {}, &why).empty());
  EXPECT_CONTAINS(why, "meet the definition's constraints");
  definition.constraints = {"m == n + 1"};
  options.axes = {{"n", {1}}, {"m", {2}}};
  EXPECT_EQ(make_cases(subject, options, {}, &why).size(), 1u);
}

TEST(Cases, FollowTheConstraintsThatStateAnAxis) {
  Definition definition =
      definition_of("x", {{"k", true, 500}, {"n", false, 0}, {"blocks", false, 0}}, {});
  definition.constraints = {"blocks == ceil_div(k, 128) * n"};
  const SolutionSpec solution;
  const VerifyBlock verify;
  const Subject subject{&definition, &solution, &verify, ""};
  const auto made = make_cases(subject, {}, {});
  ASSERT_GE(made.size(), 4u);
  for (const Workload& one : made) EXPECT_EQ(one.axes.at("blocks"), 4 * one.axes.at("n"));
}

TEST(Cases, BenchPrefersWhatWasRecorded) {
  const Definition definition = definition_of("softmax_v2", {{"b", false, 0}}, {});
  SolutionSpec solution;
  JudgeOptions options;
  options.trial.is_bench = true;
  const std::vector<Workload> recorded = {
      {{{"b", 77}}, std::make_shared<Json>(Json::object()), "id"}};
  const VerifyBlock verify;
  const Subject subject{&definition, &solution, &verify, "softmax"};
  ASSERT_EQ(make_cases(subject, options, recorded).size(), 1u);
  EXPECT_EQ(make_cases(subject, options, {}).size(), 7u);
  options.trial.is_bench = false;
  EXPECT_EQ(make_cases(subject, options, recorded).back().uuid, "id");
}

// ---- records

Judged judged_case(const std::string& status) {
  Judged judged{"rmsnorm_h64", "rmsnorm", "ours", "au/thor", "abc", {}, {}, {}};
  judged.workload = {
      {{"batch_size", 64}}, std::make_shared<Json>(Json{{"x", {{"type", "random"}}}}), "some-uuid"};
  judged.outcome.status = status;
  judged.outcome.log = status == kPassed ? "" : "because <it> is";
  judged.outcome.max_absolute_error = 0.5;
  judged.outcome.max_relative_error = std::numeric_limits<double>::infinity();
  judged.outcome.latency_ms = 0.002;
  judged.outcome.trial_ms = {0.002};
  judged.outcome.lowest_ms = 0.0019;
  judged.outcome.highest_ms = 0.0025;
  judged.outcome.bytes = 4000000;
  judged.baseline = {"engine", 0.005};
  return judged;
}

RecordContext context() {
  RecordContext context;
  context.mode = "bench";
  context.device.name = "NVIDIA H200";
  context.device.driver_version = 13000;
  context.copy_bytes_per_second = 4e12;
  context.timestamp = "2026-01-02T03:04:05Z";
  return context;
}

TEST(Records, HoldTheBlocksThatTheirStatusAsksFor) {
  const Json passed = make_record(judged_case(kPassed), context());
  EXPECT_EQ(
      passed.dump(),
      R"({"definition":"rmsnorm_h64","workload":{"axes":{"batch_size":64},"inputs":{"x":{"type":"random"}},"uuid":"some-uuid"},"solution":"ours","evaluation":{"status":"PASSED","environment":{"hardware":"NVIDIA H200","libs":{"fibshim":"0.1.0","cuda":"13.0","fibshim_mode":"bench","fibshim_image":"abc"}},"timestamp":"2026-01-02T03:04:05Z","log":"","correctness":{"max_relative_error":"Infinity","max_absolute_error":0.5,"extra":{"matched_ratio":1.0}},"performance":{"latency_ms":0.002,"reference_latency_ms":0.005,"speedup_factor":2.5},"fibshim":{"baseline":"engine","bytes":4000000,"gigabytes_per_second":2000.0,"copy_gigabytes_per_second":4000.0,"trial_ms":[0.002],"p10_ms":0.0019,"p90_ms":0.0025}}})");
  const Json wrong = make_record(judged_case(kIncorrect), context());
  EXPECT_TRUE(wrong["evaluation"]["correctness"].is_object());
  EXPECT_TRUE(wrong["evaluation"]["performance"].is_null());
  const Json slow = make_record(judged_case(kTimeout), context());
  EXPECT_TRUE(slow["evaluation"]["correctness"].is_null());
  EXPECT_TRUE(slow["evaluation"]["performance"].is_null());
  EXPECT_TRUE(make_record(judged_case(kSkipped), context()).is_null());
}

TEST(Records, AreKnownAgainUnlessWhatWasJudgedChanged) {
  const Judged judged = judged_case(kPassed);
  const std::string key = record_key(make_record(judged, context()));
  EXPECT_EQ(key, record_key(judged, context()));
  EXPECT_EQ(record_key(make_record(judged_case(kTimeout), context())), key);
  Judged rebuilt = judged;
  rebuilt.image = "abd";
  EXPECT_NE(record_key(rebuilt, context()), key);
  RecordContext other = context();
  other.mode = "verify";
  EXPECT_NE(record_key(judged, other), key);
}

TEST(Records, GoWhereTheOutputSays) {
  EXPECT_EQ(record_file("a/b.jsonl", judged_case(kPassed)), "a/b.jsonl");
  EXPECT_EQ(record_file("set", judged_case(kPassed)),
            "set/traces/au_thor/rmsnorm/rmsnorm_h64.jsonl");
}

TEST(Records, AppendingMendsAFileThatWasCutShort) {
  TemporaryFolder folder;
  const std::string file = folder / "deep/x.jsonl";
  const Json record = make_record(judged_case(kPassed), context());
  ASSERT_TRUE(append_record(file, record));
  const std::string whole = test::read_text(file);
  test::write_text(file, whole + "{\"defin");
  ASSERT_TRUE(append_record(file, record));
  EXPECT_EQ(test::read_text(file), whole + whole);
  test::write_text(file, whole.substr(0, whole.size() - 1));  // without its line end
  ASSERT_TRUE(append_record(file, record));
  EXPECT_EQ(test::read_text(file), whole + whole);
  std::vector<std::string> faults;
  test::write_text(file, "nonsense\n" + whole + "\n");
  EXPECT_EQ(read_records(file, &faults).size(), 1u);
  EXPECT_EQ(faults, std::vector<std::string>{file + ":1: not a JSON object"});
}

TEST(Records, OutcomesPassThroughThePipeUnchanged) {
  const CaseOutcome outcome = judged_case(kIncorrect).outcome;
  const CaseOutcome back = outcome_from_json(Json::parse(to_json(outcome).dump()));
  EXPECT_EQ(to_json(back), to_json(outcome));
  EXPECT_EQ(back.max_relative_error, std::numeric_limits<double>::infinity());
}

// ---- what people see

TEST(Table, ShowsCasesAndReasons) {
  const std::vector<Json> records = {make_record(judged_case(kPassed), context()),
                                     make_record(judged_case(kRuntimeError), context())};
  EXPECT_EQ(format_records(records, true),
            "DEFINITION   AXES           STATUS           US   P10   P90  BASELINE  SPEED-UP  GB/S "
            " OF COPY\n"
            "rmsnorm_h64  batch_size=64  PASSED         2.00  1.90  2.50      5.00      2.50  2000 "
            "    50 %\n"
            "rmsnorm_h64  batch_size=64  RUNTIME_ERROR     -     -     -         -         -     - "
            "       -\n"
            "\n"
            "ours (batch_size=64): because <it> is\n");
  EXPECT_EQ(format_records({records[0]}, false),
            "DEFINITION   AXES           STATUS  MAX ABS  MAX REL  MATCHED    US\n"
            "rmsnorm_h64  batch_size=64  PASSED  5.0e-01      inf        1  2.00\n");
  EXPECT_EQ(format_verdict(records, 1, true),
            "2 cases: 1 passed, 1 failed, 1 outside what the solution takes; speed-up over the "
            "baseline: geometric mean 2.50, least 2.50\n");
}

TEST(Page, EscapesWhatOthersWrote) {
  Json record = make_record(judged_case(kRuntimeError), context());
  record["definition"] = "<b>&\"";
  const std::string page = make_report_page("<t>", {record});
  EXPECT_CONTAINS(page, "&lt;b&gt;&amp;&quot;");
  EXPECT_CONTAINS(page, "because &lt;it&gt; is");
  EXPECT_LACKS(page, "<b>");
  EXPECT_CONTAINS(page, "<title>&lt;t&gt;</title>");
}

TEST(Page, CountsTheLastRecordOfACaseAndCopesWithAnything) {
  Json first = make_record(judged_case(kTimeout), context());
  const Json last = make_record(judged_case(kPassed), context());
  const std::string page = make_report_page("t", last_records({first, last}));
  EXPECT_CONTAINS(page,
                  "1 case of 1 definition on NVIDIA H200: 1 passed, 0 failed. Speed-up over "
                  "the baseline: geometric mean 2.50, least 2.50. Copy bandwidth: 4000 GB/s.");
  for (const char* const odd :
       {R"({"evaluation":{}})", R"({"definition":3,"workload":[],"evaluation":{"performance":7}})",
        R"({"evaluation":{"status":"PASSED","performance":{"latency_ms":"NaN"}}})"}) {
    EXPECT_CONTAINS(make_report_page("t", {Json::parse(odd)}), "</html>");
  }
}

TEST(Page, HasSeveralTicksWhereSpeedUpsAreAlike) {
  const std::string page = make_report_page("t", {make_record(judged_case(kPassed), context())});
  // The first picture.
  const std::string picture =
      page.substr(page.find("<svg"), page.find("</svg>") - page.find("<svg"));
  size_t ticks = 0;
  for (size_t at = 0; (at = picture.find("class=\"grid\"", at)) != std::string::npos; ++at) ++ticks;
  EXPECT_GE(ticks, 4u) << picture;
}

TEST(Page, HoldsFiveHundredRecords) {
  std::vector<Json> records;
  for (int i = 0; i < 500; ++i) {
    Judged judged = judged_case(kPassed);
    judged.definition = "rmsnorm_h" + std::to_string(i / 10);
    judged.workload.uuid = std::to_string(i);
    judged.baseline.latency_ms = 0.001 * (1 + i % 9);
    records.push_back(make_record(judged, context()));
  }
  const std::string page = make_report_page("t", records);
  size_t dots = 0;
  for (size_t at = 0; (at = page.find("<circle", at)) != std::string::npos; ++at) ++dots;
  EXPECT_EQ(dots, 1000u);
  EXPECT_NE(page.find("<details><summary>"), std::string::npos);  // closed, since it is long
  EXPECT_LT(page.size(), 700000u);
}

}  // namespace
}  // namespace fibshim::judge
