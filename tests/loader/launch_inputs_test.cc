// What the plans of launches depend on.
#include "loader/compile/launch_inputs.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fibshim {
namespace {

using Inputs = LaunchInput::Kind;

Step step_of(Op op, ValueType type, int64_t imm = 0, uint16_t index = 2, uint32_t offset = 8) {
  return {op, type, index, offset, imm};
}

Step field_step(Op op, ValueType type, Field field) {
  Step step = step_of(op, type);
  memcpy(&step.imm, &field, sizeof field);
  return step;
}

std::vector<Inputs> kinds_of(const std::vector<Step>& steps) {
  LaunchInputList list;
  list.add(steps);
  EXPECT_TRUE(list.is_whole());
  std::vector<Inputs> kinds;
  for (const LaunchInput& input : list.inputs()) kinds.push_back(input.kind);
  return kinds;
}

bool is_whole(const std::vector<Step>& steps) {
  LaunchInputList list;
  list.add(steps);
  return list.is_whole();
}

TEST(LaunchInputs, AreTheValuesThatProgramsRead) {
  using V = ValueType;
  EXPECT_EQ(kinds_of({step_of(Op::load_param, V::int32), step_of(Op::push, V::int64),
                      step_of(Op::add, V::int64)}),
            std::vector{Inputs::word});
  EXPECT_EQ(kinds_of({step_of(Op::require_most, V::uint64, 5)}), std::vector{Inputs::long_word});
  EXPECT_EQ(kinds_of({step_of(Op::require_equal, V::uint8)}), std::vector{Inputs::byte});
  EXPECT_EQ(kinds_of({step_of(Op::load_param, V::int16)}), std::vector{Inputs::half_word});
  EXPECT_EQ(kinds_of({step_of(Op::require_float, V::float32)}), std::vector{Inputs::word});
  EXPECT_EQ(kinds_of({step_of(Op::load_geometry, V::int64, 0, kBlockX)}),
            std::vector{Inputs::geometry});
  EXPECT_EQ(kinds_of({step_of(Op::load_capture, V::int64)}), std::vector<Inputs>{});
  EXPECT_EQ(kinds_of({field_step(Op::load_field, V::int32, {4, 1, V::int64, 1, 0})}),
            std::vector{Inputs::long_word});
  EXPECT_EQ(kinds_of({field_step(Op::require_field, V::int32, {4, 1, V::int32, 2, 1})}),
            (std::vector{Inputs::word, Inputs::word}));
}

TEST(LaunchInputs, AreConditionsOfAddresses) {
  using V = ValueType;
  EXPECT_EQ(kinds_of({step_of(Op::require_unequal, V::address)}), std::vector{Inputs::sign});
  EXPECT_EQ(kinds_of({step_of(Op::require_least, V::address, 1)}), std::vector{Inputs::sign});
  EXPECT_EQ(kinds_of({step_of(Op::load_param, V::address), step_of(Op::push, V::int64, 0),
                      step_of(Op::ne, V::int64), step_of(Op::require, V::int64)}),
            std::vector{Inputs::sign});
  LaunchInputList aligned;
  aligned.add({step_of(Op::require_aligned, V::address, 15)});
  ASSERT_EQ(aligned.inputs().size(), 1U);
  EXPECT_EQ(aligned.inputs()[0].kind, Inputs::aligned);
  EXPECT_EQ(aligned.inputs()[0].more, 15U);
  LaunchInputList same;
  same.add({field_step(Op::require_field, V::int64, {16, 3, V::address, 1, 0})});
  ASSERT_EQ(same.inputs().size(), 2U);
  EXPECT_EQ(same.inputs()[0].kind, Inputs::same);
  EXPECT_EQ(same.inputs()[0].other_param(), 3U);
  EXPECT_EQ(same.inputs()[0].other_offset(), 16U);
  EXPECT_EQ(same.inputs()[1].kind, Inputs::sign);
}

TEST(LaunchInputs, AreTheLowBitsOfAnAddressThatIsAlignedWithAShift) {
  using V = ValueType;
  const auto kinds = [](int64_t mask) {
    return kinds_of({step_of(Op::load_param, V::int32, 0, 3),
                     step_of(Op::require_aligned_sum, V::address, mask)});
  };
  EXPECT_EQ(kinds(255), (std::vector{Inputs::word, Inputs::byte}));
  EXPECT_EQ(kinds(511), (std::vector{Inputs::word, Inputs::half_word}));
  EXPECT_EQ(kinds(65535), (std::vector{Inputs::word, Inputs::half_word}));
  EXPECT_EQ(kinds(131071), (std::vector{Inputs::word, Inputs::long_word}));
}

TEST(LaunchInputs, AreNotWholeWhereAnAddressIsComputedWith) {
  using V = ValueType;
  EXPECT_FALSE(is_whole({step_of(Op::load_param, V::address)}));
  EXPECT_FALSE(is_whole({step_of(Op::require_unequal, V::address, 4)}));
  EXPECT_FALSE(is_whole({step_of(Op::require_most, V::address, 1)}));
  EXPECT_FALSE(is_whole({step_of(Op::load_param, V::address), step_of(Op::push, V::int64, 1),
                         step_of(Op::ne, V::int64)}));
  EXPECT_FALSE(is_whole({step_of(Op::load_param, V::address), step_of(Op::push, V::int64, 0),
                         step_of(Op::add, V::int64)}));
  EXPECT_FALSE(is_whole({field_step(Op::load_field, V::int64, {16, 3, V::address, 1, 0})}));
}

TEST(LaunchInputs, AreThereOnceAndNotTooMany) {
  std::vector<Step> steps;
  for (uint32_t i = 0; i < kMaxLaunchInputs; ++i) {
    steps.push_back(step_of(Op::load_param, ValueType::int32, 0, 0, 4 * i));
  }
  steps.push_back(steps.front());
  EXPECT_EQ(kinds_of(steps).size(), kMaxLaunchInputs);
  steps.push_back(step_of(Op::load_param, ValueType::int32, 0, 1, 0));
  EXPECT_FALSE(is_whole(steps));
}

TEST(LaunchInputs, OfABindingAreThoseOfAllItsPrograms) {
  BindingSpec binding;
  binding.when = {step_of(Op::require_most, ValueType::int32, 8, 0, 0)};
  binding.where = std::vector{step_of(Op::require_equal, ValueType::int32, 8, 1, 0)};
  ArgumentSpec argument{};
  argument.steps = {step_of(Op::load_param, ValueType::int32, 0, 2, 0)};
  binding.arguments = std::vector{argument};
  CompiledValue grid_x;
  grid_x.steps = {step_of(Op::load_param, ValueType::int32, 0, 3, 0)};
  binding.geometry[kGridX].kind = GeometryMap::Kind::program;
  binding.geometry[kGridX].value = std::make_shared<const CompiledValue>(grid_x);
  binding.geometry[kGridY].kind = GeometryMap::Kind::copy;
  binding.geometry[kGridY].index = kGridZ;
  LaunchInputList list;
  list.add(binding);
  std::vector<int> params;
  for (const LaunchInput& input : list.inputs()) params.push_back(input.param);
  EXPECT_EQ(params, (std::vector<int>{0, 1, 2, 3, kGridZ}));
}

}  // namespace
}  // namespace fibshim
