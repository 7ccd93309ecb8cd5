// Plans that launches are made by again.
//
// Plans of the real engines' launches run hundreds of expression steps. They depend only on the kernel and on what its
// patterns read of a launch (LaunchInputs): sizes, strides, geometry, the alignment of addresses. An engine repeats those
// from layer to layer and from step to step. So each thread remembers the plans that the slow side has made for it, and
// the fast side finds them by these values: exactly, as all are compared.
//
// A plan holds while handle_changes() is what it was before the plan was made: its record and decision are then alive.
// What may change in a decision (its way, samples) is read at every launch.
//
// The fast side inlines what is here; nothing allocates or calls the driver.
#pragma once

#include "shim/abi/program.h"
#include "shim/abi/snapshot.h"
#include "shim/plan/plan.h"
#include "shim/registry/record.h"

namespace fibshim {

inline constexpr uint32_t kMaxRememberedValues = 8;

struct InputValues {
  static constexpr uint32_t kBlock = 4;
  static constexpr uint32_t kMost = kMaxLaunchInputs + kBlock;
  alignas(16) int64_t values[kMost];
  uint32_t count;
  uint64_t hash;
};

struct alignas(64) RememberedLaunch {
  const Record* record;      // null: nothing is remembered here
  uint64_t changes;          // handle_changes() before the plan was made
  const Decision* decision;  // null: the original runs
  uint32_t counter;
  uint8_t input_count;
  uint8_t argument_count;  // 0: the original's own
  bool has_cluster;
  uint32_t geometry[kGeometryCount];
  struct Argument {
    uint8_t param;     // kNoParam: the computed value alone
    uint8_t computed;  // 0: passes the parameter's bytes; else 1 + an index into `computed` below
    uint16_t offset;   // into the parameter
  };
  static constexpr uint8_t kNoParam = UINT8_MAX;
  static_assert(kMaxParams <= kNoParam);
  int64_t computed[kMaxRememberedValues];  // values, and shifts of pointers
  Argument arguments[kMaxFastArguments];
  alignas(16) int64_t inputs[InputValues::kMost];
};

// The plans of one thread, which alone reads and writes them: some 115 KB.
struct LaunchMemory {
  static constexpr uint32_t kSets = 32;
  static constexpr uint32_t kWays = 4;
  uint32_t tags[kSets][kWays];
  RememberedLaunch launches[kSets][kWays];
  uint8_t next[kSets];  // the place that is overwritten next

  static uint32_t set_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 59); }
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 27); }
};
static_assert(LaunchMemory::kSets == 1u << (64 - 59));

// Reads the inputs of a launch. `geometry_of(i)`: the launch's value, as GeometryIndex.
template <class GeometryOf>
inline void read_inputs(const Record& record, void* const* params, const GeometryOf& geometry_of,
                        InputValues* out) {
  using program_detail::read_bytes;
  using Kind = LaunchInput::Kind;
  const LaunchInput* const list = record.inputs.list;
  int64_t* const values = out->values;
  uint64_t hash = reinterpret_cast<uintptr_t>(&record);
  uint32_t i = 0;
  const auto add = [&](uint32_t at, int64_t value) {
    values[at] = value;
    hash = (hash << 7 | hash >> 57) + static_cast<uint64_t>(value);
  };
  const auto end_of = [&](Kind kind) -> uint32_t {
    return record.inputs.ends[static_cast<size_t>(kind)];
  };
  const auto bytes_of = [&](const LaunchInput& input) {
    return static_cast<const char*>(params[input.param]) + input.offset;
  };
  for (; i < end_of(Kind::word); ++i) add(i, read_bytes<int32_t>(bytes_of(list[i])));
  for (; i < end_of(Kind::long_word); ++i) add(i, read_bytes<int64_t>(bytes_of(list[i])));
  for (; i < end_of(Kind::byte); ++i) add(i, read_bytes<uint8_t>(bytes_of(list[i])));
  for (; i < end_of(Kind::half_word); ++i) add(i, read_bytes<uint16_t>(bytes_of(list[i])));
  for (; i < end_of(Kind::geometry); ++i) add(i, geometry_of(list[i].param));
  // Conditions are one value together: one bit each, of a sign two.
  uint32_t count = i;
  uint64_t bits = 0;
  for (; i < end_of(Kind::sign); ++i) {
    const auto value = read_bytes<int64_t>(bytes_of(list[i]));
    bits = bits << 2 | static_cast<uint64_t>(value > 0) << 1 | static_cast<uint64_t>(value == 0);
  }
  for (; i < end_of(Kind::aligned); ++i) {
    const auto value = read_bytes<uint64_t>(bytes_of(list[i]));
    bits = bits << 1 | static_cast<uint64_t>((value & list[i].more) == 0);
  }
  for (; i < end_of(Kind::same); ++i) {
    const char* const other = static_cast<const char*>(params[list[i].other_param()]);
    bits = bits << 1 | static_cast<uint64_t>(read_bytes<uint64_t>(bytes_of(list[i])) ==
                                             read_bytes<uint64_t>(other + list[i].other_offset()));
  }
  add(count++, static_cast<int64_t>(bits));
  // Whole blocks are compared.
  while (count % InputValues::kBlock != 0) values[count++] = 0;
  out->count = count;
  out->hash = hash * 0x9e3779b97f4a7c15;
}
// Bits that conditions may take in all.
inline constexpr uint32_t kMaxConditionBits = 64;

// Of two blocks: 0 if they are equal.
inline uint64_t differing_bits(const int64_t* a, const int64_t* b) {
  using Pair = uint64_t __attribute__((vector_size(16), may_alias));
  static_assert(InputValues::kBlock * sizeof(*a) == 2 * sizeof(Pair));
  const auto pair_at = [](const int64_t* from) { return *reinterpret_cast<const Pair*>(from); };
  const Pair difference = (pair_at(a) ^ pair_at(b)) | (pair_at(a + 2) ^ pair_at(b + 2));
  return difference[0] | difference[1];
}

// Null: nothing is remembered of such a launch.
inline const RememberedLaunch* find_remembered(const LaunchMemory& memory, const Record& record,
                                               uint64_t changes, const InputValues& inputs) {
  const uint32_t set = LaunchMemory::set_of(inputs.hash);
  const uint32_t tag = LaunchMemory::tag_of(inputs.hash);
  for (uint32_t way = 0; way < LaunchMemory::kWays; ++way) {
    if (memory.tags[set][way] != tag) continue;
    const RememberedLaunch& found = memory.launches[set][way];
    if (found.record != &record || found.changes != changes || found.input_count != inputs.count)
      continue;
    uint64_t difference = 0;
    for (uint32_t i = 0; i < inputs.count; i += InputValues::kBlock) {
      difference |= differing_bits(found.inputs + i, inputs.values + i);
    }
    if (difference == 0) return &found;
  }
  return nullptr;
}

// Returns the arguments of a replacement: those of the launch, or `pointers`, of which some point into `computed`.
inline void** make_remembered_arguments(const RememberedLaunch& plan, void** params,
                                        void* (&pointers)[kMaxFastArguments],
                                        int64_t (&computed)[kMaxRememberedValues]) {
  if (plan.argument_count == 0) return params;
  __builtin_memcpy(computed, plan.computed, sizeof computed);
  for (uint32_t i = 0; i < plan.argument_count; ++i) {
    const RememberedLaunch::Argument argument = plan.arguments[i];
    const auto at = [&] { return static_cast<char*>(params[argument.param]) + argument.offset; };
    if (argument.computed == 0) {
      pointers[i] = at();
      continue;
    }
    int64_t& value = computed[argument.computed - 1];
    pointers[i] = &value;
    if (argument.param == RememberedLaunch::kNoParam) continue;
    value = program_detail::add_shift(at(), value);
  }
  return pointers;
}

// Slow side. Merges the inputs of all candidates of a kernel with these parameters into `out`, sorted by kind. False: they
// cannot be told, or one is beyond the parameters.
struct MergedInputs {
  LaunchInput list[kMaxLaunchInputs];
  uint32_t count;
};
bool merge_inputs(const Snapshot& snapshot, const SymbolMatch* matches, uint32_t count,
                  const Param* params, uint32_t param_count, MergedInputs* out);
void fill_inputs(const MergedInputs& merged, LaunchInputs* out);

// Remembers a plan that will hold until handle_changes() is no longer `changes`.
void remember_launch(const LaunchRequest& request, const LaunchPlan& plan, uint32_t counter,
                     uint64_t changes, LaunchMemory* memory);

}  // namespace fibshim
