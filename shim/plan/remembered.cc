#include "shim/plan/remembered.h"

#include <string.h>

namespace fibshim {
namespace {

// Of a condition; 0: a value.
uint32_t bits_of(const LaunchInput& input) {
  if (input.kind < LaunchInput::Kind::sign) return 0;
  return input.kind == LaunchInput::Kind::sign ? 2 : 1;
}

uint32_t bytes_of(LaunchInput::Kind kind) {
  switch (kind) {
    case LaunchInput::Kind::byte: return 1;
    case LaunchInput::Kind::half_word: return 2;
    case LaunchInput::Kind::word: return 4;
    default: return 8;
  }
}

// Whether the kernel has what the input reads: a binding that reads beyond the parameters is refused later (plan/fit.h).
bool is_within(const LaunchInput& input, const Param* params, uint32_t param_count) {
  const auto has = [&](uint32_t param, uint32_t offset) {
    return param < param_count && offset + bytes_of(input.kind) <= params[param].size;
  };
  if (input.kind == LaunchInput::Kind::geometry) return true;
  return has(input.param, input.offset) &&
         (input.kind != LaunchInput::Kind::same || has(input.other_param(), input.other_offset()));
}

// Writes how the replacement's arguments are made. False: there is no room for it.
bool set_arguments(void* const* params, const LaunchPlan& plan, RememberedLaunch* out) {
  const Binding& binding = *plan.decision->binding;
  if (binding.is_identity != 0) return true;
  if (binding.arguments.count > kMaxFastArguments) return false;
  const ArgumentMap* const arguments = plan.decision->snapshot->begin(binding.arguments);
  uint8_t computed = 0;
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    using Kind = ArgumentMap::Kind;
    RememberedLaunch::Argument& made = out->arguments[i];
    made = {RememberedLaunch::kNoParam, 0, 0};
    if (argument.kind == Kind::pass || argument.kind == Kind::shifted) {
      if (argument.param >= RememberedLaunch::kNoParam || argument.offset > UINT16_MAX)
        return false;
      made.param = static_cast<uint8_t>(argument.param);
      made.offset = static_cast<uint16_t>(argument.offset);
    }
    if (argument.kind == Kind::pass) continue;
    if (computed == kMaxRememberedValues) return false;
    int64_t& value = out->computed[computed++];
    value = plan.values[i];
    if (argument.kind == Kind::shifted) {
      const auto* const at = static_cast<const char*>(params[argument.param]) + argument.offset;
      value = program_detail::shift_to(value, at);
    }
    made.computed = computed;
  }
  out->argument_count = static_cast<uint8_t>(binding.arguments.count);
  return true;
}

bool is_uncached(const LaunchPlan& plan) {
  const auto* const at = reinterpret_cast<const char*>(plan.decision);
  const auto* const begin = reinterpret_cast<const char*>(&plan.uncached);
  return at >= begin && at < begin + sizeof plan.uncached;
}

// Whether launches with the same inputs have the same plan as long as the handles stay.
bool lasts(const LaunchPlan& plan) {
  if (plan.candidate == nullptr) return false;
  if (plan.decision != nullptr && is_uncached(plan)) return false;
  if (plan.action == LaunchAction::redirect) return true;
  return plan.action == LaunchAction::original &&
         (plan.outcome == Outcome::fallback_where || plan.outcome == Outcome::fallback_no_solution);
}

}  // namespace

bool merge_inputs(const Snapshot& snapshot, const SymbolMatch* matches, uint32_t count,
                  const Param* params, uint32_t param_count, MergedInputs* out) {
  out->count = 0;
  uint32_t condition_bits = 0;
  for (uint32_t kind = 0; kind < kLaunchInputKinds; ++kind) {
    for (uint32_t i = 0; i < count; ++i) {
      const Pattern& pattern = snapshot.begin(snapshot.patterns)[matches[i].pattern];
      if (pattern.has_all_inputs == 0) return false;
      for (uint32_t k = 0; k < pattern.inputs.count; ++k) {
        const LaunchInput& input = snapshot.begin(pattern.inputs)[k];
        if (static_cast<uint32_t>(input.kind) != kind) continue;
        bool is_known = false;
        for (uint32_t j = 0; j < out->count && !is_known; ++j) is_known = out->list[j] == input;
        if (is_known) continue;
        condition_bits += bits_of(input);
        if (out->count == kMaxLaunchInputs || condition_bits > kMaxConditionBits ||
            !is_within(input, params, param_count)) {
          return false;
        }
        out->list[out->count++] = input;
      }
    }
  }
  return true;
}

void fill_inputs(const MergedInputs& merged, LaunchInputs* out) {
  memcpy(out->list, merged.list, merged.count * sizeof *merged.list);
  out->are_whole = true;
  uint8_t end = 0;
  for (uint32_t kind = 0; kind < kLaunchInputKinds; ++kind) {
    while (end < merged.count && static_cast<uint32_t>(merged.list[end].kind) == kind) ++end;
    out->ends[kind] = end;
  }
}

void remember_launch(const LaunchRequest& request, const LaunchPlan& plan, uint32_t counter,
                     uint64_t changes, LaunchMemory* memory) {
  if (!plan.record->inputs.are_whole || !lasts(plan)) return;
  InputValues inputs;
  read_inputs(
      *plan.record, request.view.params,
      [&](uint32_t i) -> int64_t { return request.view.geometry[i]; }, &inputs);
  if (find_remembered(*memory, *plan.record, changes, inputs) != nullptr) return;
  const uint32_t set = LaunchMemory::set_of(inputs.hash);
  const uint32_t way = memory->next[set]++ % LaunchMemory::kWays;
  RememberedLaunch& made = memory->launches[set][way];
  made.record = nullptr;
  made.argument_count = 0;
  made.decision = nullptr;
  if (plan.action == LaunchAction::redirect) {
    if (!set_arguments(request.view.params, plan, &made)) return;
    made.decision = plan.decision;
    made.has_cluster = has_cluster(plan);
    memcpy(made.geometry, plan.geometry, sizeof made.geometry);
  }
  made.counter = counter;
  made.changes = changes;
  made.input_count = static_cast<uint8_t>(inputs.count);
  memcpy(made.inputs, inputs.values, inputs.count * sizeof *inputs.values);
  memory->tags[set][way] = LaunchMemory::tag_of(inputs.hash);
  made.record = plan.record;
}

}  // namespace fibshim
