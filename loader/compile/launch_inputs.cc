#include "loader/compile/launch_inputs.h"

#include <algorithm>

#include "shim/abi/program.h"

namespace fibshim {
namespace {

using InputKind = LaunchInput::Kind;

LaunchInput make_input(InputKind kind, uint32_t param, uint32_t offset) {
  LaunchInput input{};
  input.kind = kind;
  input.param = static_cast<uint8_t>(param);
  input.offset = static_cast<uint16_t>(offset);
  return input;
}

bool has_room(uint32_t param, uint32_t offset) {
  return param <= UINT8_MAX && offset <= UINT16_MAX;
}

// Whether the program compares what the step at `i` loads with 0, and does nothing else with it.
bool is_compared_with_zero(const std::vector<Step>& steps, size_t i) {
  return i + 2 < steps.size() && steps[i + 1].op == Op::push && steps[i + 1].imm == 0 &&
         steps[i + 2].op >= Op::eq && steps[i + 2].op <= Op::ge;
}

}  // namespace

void LaunchInputList::add(LaunchInput input) {
  if (std::ranges::find(inputs_, input) == inputs_.end()) inputs_.push_back(input);
}

void LaunchInputList::add_geometry(uint32_t index) {
  add(make_input(InputKind::geometry, index, 0));
}

void LaunchInputList::add_value(uint32_t param, uint32_t offset, ValueType type) {
  // Addresses differ from launch to launch: a plan that depends on one is made for each.
  if (type == ValueType::address || !has_room(param, offset)) {
    is_whole_ = false;
    return;
  }
  const uint32_t bytes = size_of(type);
  add(make_input(bytes == 8   ? InputKind::long_word
                 : bytes == 4 ? InputKind::word
                 : bytes == 2 ? InputKind::half_word
                              : InputKind::byte,
                 param, offset));
}

void LaunchInputList::add_comparison(const Step& step) {
  // An address from 2^63 on has no value, and the comparison fails.
  const bool is_of_sign =
      (step.op == Op::require_least && (step.imm == 0 || step.imm == 1)) ||
      ((step.op == Op::require_unequal || step.op == Op::require_equal) && step.imm == 0);
  if (step.type == ValueType::address && is_of_sign && has_room(step.index, step.offset)) {
    add(make_input(InputKind::sign, step.index, step.offset));
  } else {
    add_value(step.index, step.offset, step.type);
  }
}

void LaunchInputList::add_equality(const Step& step) {
  const Field other = program_detail::field_of(step);
  const bool are_addresses = step.type == ValueType::address || other.type == ValueType::address;
  if (!are_addresses) {
    add_value(step.index, step.offset, step.type);
    add_value(other.index, other.offset, other.type);
    return;
  }
  if (size_of(step.type) != 8 || size_of(other.type) != 8 || !has_room(step.index, step.offset)) {
    is_whole_ = false;
    return;
  }
  LaunchInput input = make_input(InputKind::same, step.index, step.offset);
  input.more = uint32_t{other.index} << 16 | other.offset;
  add(input);
  add(make_input(InputKind::sign, step.index, step.offset));
}

void LaunchInputList::add(const std::vector<Step>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    switch (step.op) {
      case Op::load_param:
        if (step.type == ValueType::address && is_compared_with_zero(steps, i) &&
            has_room(step.index, step.offset)) {
          add(make_input(InputKind::sign, step.index, step.offset));
        } else {
          add_value(step.index, step.offset, step.type);
        }
        break;
      case Op::load_field: {
        const Field field = program_detail::field_of(step);
        add_value(field.index, field.offset, field.type);
        break;
      }
      case Op::load_geometry: add_geometry(step.index); break;
      case Op::require_equal:
      case Op::require_unequal:
      case Op::require_least:
      case Op::require_most:
      case Op::require_float: add_comparison(step); break;
      case Op::require_field: add_equality(step); break;
      case Op::require_aligned:
        if (step.imm < 0 || step.imm > UINT32_MAX || !has_room(step.index, step.offset)) {
          is_whole_ = false;
        } else {
          LaunchInput input = make_input(InputKind::aligned, step.index, step.offset);
          input.more = static_cast<uint32_t>(step.imm);
          add(input);
        }
        break;
      case Op::require_aligned_sum:  // as many low bits as are asked for
        add_value(step.index, step.offset,
                  step.imm <= UINT8_MAX    ? ValueType::uint8
                  : step.imm <= UINT16_MAX ? ValueType::uint16
                                           : ValueType::int64);
        break;
      default: break;  // reads nothing of the launch, but captures, which are the kernel's
    }
  }
}

void LaunchInputList::add(const BindingSpec& binding, const BindingSpec* other) {
  add(binding.when);
  if (other == nullptr || binding.where != other->where) add(binding.where.items());
  if (other == nullptr || binding.arguments != other->arguments) {
    for (const ArgumentSpec& argument : binding.arguments.items()) add(argument.steps);
  }
  for (const GeometrySpec& value : binding.geometry) {
    if (value.kind == GeometryMap::Kind::copy) add_geometry(value.index);
    if (value.kind == GeometryMap::Kind::program) add(value.value->steps);
  }
}

LaunchInputList find_launch_inputs(const PatternSpec& pattern) {
  LaunchInputList list;
  for (const CompiledValue& key : pattern.keys) list.add(key.steps);
  list.add(pattern.where_steps);
  return list;
}

}  // namespace fibshim
