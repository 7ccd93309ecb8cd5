// Tests the plan by table: every check, on both sides of every boundary, for every form of a
// launch: parameters by pointers or packed, as a graph's node (no stream, no attributes), and, if
// the loader made the binding direct, by the fast form, which must give the same.
#include "shim/plan/plan.h"
#include "shim/plan/remembered.h"

#include <string.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shim/plan/fast_plan.h"
#include "tests/shim/plan/planned_folder.h"

namespace fibshim {
namespace {

// The engine's parameters. The pointers are addresses that are never read.
struct Given {
  uint64_t x = 0x7000'0000'0100;
  uint64_t w = 0x7000'0000'0200;
  uint64_t y = 0x7000'0000'0300;
  int32_t rows = 7;
  int32_t hidden = 4096;
  float eps = 1e-5F;
  uint32_t grid[3] = {7, 1, 1};
  uint32_t block[3] = {128, 1, 1};
  uint32_t cluster[3] = {1, 1, 1};
  uint32_t shared_mem = 64;
};

struct Planned {
  LaunchAction action;
  Outcome outcome;
  std::array<uint32_t, kGeometryCount> geometry;
  std::vector<uint64_t> arguments;  // the first 8 bytes of each of the kernel's parameters

  bool operator==(const Planned&) const = default;
};

// Decides as the shim would if the driver accepted every image.
class Decider {
 public:
  explicit Decider(const Record& record) : record_(record) {}
  const Decision& operator()(const Candidate& candidate, const int64_t* key) const {
    Resolution resolution;
    const auto complete = [&](const Resolution& one, Decision* out) {
      const bool is_asked =
          one.kind == DecisionKind::ready &&
          (asked_solution < 0 || one.binding->solution == static_cast<uint32_t>(asked_solution));
      const DecisionKind kind = is_asked ? kind_of_ready : one.kind;
      fill_decision(candidate, one, kind, key, candidate.pattern->key.count, out);
      out->is_quarantined = is_quarantined;
      out->on_error = on_error;
    };
    make_decision(record_, candidate, key, &resolution, &room, complete);
    definition = resolution.definition;
    return room.decision;
  }

  DecisionKind kind_of_ready = DecisionKind::ready;
  uint8_t is_quarantined = 0;
  OnError on_error = OnError::fail;
  int asked_solution = -1;  // the solution for which kind_of_ready holds; -1: all
  mutable DecisionRoom room;
  mutable std::string definition;

 private:
  const Record& record_;
};

// One launch of the folder's kernel.
class OneLaunch {
 public:
  OneLaunch(const PlannedFolder& folder, const Given& given) : folder_(folder), given_(given) {
    const auto put = [&](uint32_t i, const auto& value) {
      memcpy(bytes_ + folder.record().params[i].offset, &value, sizeof value);
      pointers_[i] = bytes_ + folder.record().params[i].offset;
    };
    put(0, given.x);
    put(1, given.w);
    put(2, given.y);
    put(3, given.rows);
    put(4, given.hidden);
    put(5, given.eps);
    memset(static_cast<void*>(&request_), 0, sizeof request_);
    for (int i = 0; i < 3; ++i) {
      request_.view.geometry[kGridX + i] = given.grid[i];
      request_.view.geometry[kBlockX + i] = given.block[i];
      request_.view.geometry[kClusterX + i] = given.cluster[i];
    }
    request_.view.geometry[kSharedMem] = given.shared_mem;
    request_.view.params = pointers_;
  }
  OneLaunch(const OneLaunch&) = delete;
  OneLaunch& operator=(const OneLaunch&) = delete;

  LaunchRequest& request() { return request_; }
  void** pointers() { return pointers_; }

  // Puts the parameters into a packed buffer, as cuBLASLt does.
  void pack() {
    size_ = folder_.record().params_bytes;
    extra_[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    extra_[1] = bytes_;
    extra_[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    extra_[3] = &size_;
    extra_[4] = CU_LAUNCH_PARAM_END;
    request_.view.params = nullptr;
    request_.extra = extra_;
  }
  size_t& packed_size() { return size_; }
  void** extra() { return extra_; }

  const LaunchPlan& plan(const Decider& decide, Mode mode = Mode::apply) {
    plan_launch(folder_.record(), mode, &request_, &plan_,
                [&](Candidate& candidate, int64_t* key) -> const Decision& {
                  return decide(candidate, key);
                });
    return plan_;
  }

  Planned planned(const Decider& decide) {
    const LaunchPlan& made = plan(decide);
    Planned out = {made.action, made.outcome, {}, {}};
    if (made.action != LaunchAction::redirect) return out;
    memcpy(out.geometry.data(), made.geometry, sizeof made.geometry);
    const Binding& binding = *made.decision->binding;
    for (uint32_t i = 0; i < binding.arguments.count; ++i) {
      out.arguments.push_back(read(made.params[i], size_of_argument(binding, i)));
    }
    return out;
  }

  // Remembers what planned() has made.
  void remember(uint64_t changes, LaunchMemory* memory) const {
    remember_launch(request_, plan_, static_cast<uint32_t>(plan_.outcome), changes, memory);
  }

  InputValues inputs() const {
    InputValues out;
    read_inputs(
        folder_.record(), pointers_,
        [&](uint32_t i) -> int64_t { return request_.view.geometry[i]; }, &out);
    return out;
  }

  // The same by a plan that is remembered. Nothing if there is none.
  std::optional<Planned> planned_again(uint64_t changes, const LaunchMemory& memory) {
    const RememberedLaunch* const found =
        find_remembered(memory, folder_.record(), changes, inputs());
    if (found == nullptr) return std::nullopt;
    if (found->decision == nullptr) {
      return Planned{LaunchAction::original, static_cast<Outcome>(found->counter), {}, {}};
    }
    Planned out = {LaunchAction::redirect, Outcome::hit, {}, {}};
    memcpy(out.geometry.data(), found->geometry, sizeof found->geometry);
    void* room[kMaxFastArguments];
    int64_t computed[kMaxRememberedValues];
    void** const arguments = make_remembered_arguments(*found, pointers_, room, computed);
    const Binding& binding = folder_.snapshot().begin(folder_.snapshot().bindings)[0];
    for (uint32_t i = 0; i < binding.arguments.count; ++i) {
      out.arguments.push_back(read(arguments[i], size_of_argument(binding, i)));
    }
    return out;
  }

  // The same by the fast form. Nothing if that leaves the launch to the slow side.
  std::optional<Planned> planned_fast(const Decider& decide) {
    const Candidate& candidate = folder_.record().candidates[0];
    if (candidate.fast_key.kind == KeyKind::computed) return std::nullopt;
    const int64_t key = read_fast_key(candidate.fast_key, pointers_);
    const Decision* chosen = &decide(candidate, &key);
    if (chosen->way == Way::chosen) {
      const Choices& choices = *chosen->choices;
      const auto plain = [&](uint32_t i) { return request_.view.geometry[i]; };
      if (!choices.is_fast) return std::nullopt;
      const Decision* const by_expressions = choose(*chosen, request_.view);
      chosen = choose_fast(choices, pointers_, plain);
      EXPECT_EQ(chosen, by_expressions);
      if (chosen == nullptr)
        return Planned{LaunchAction::original, Outcome::fallback_where, {}, {}};
    }
    const Decision& decision = *chosen;
    const bool may_be_fast = decision.way == Way::direct || decision.way == Way::original;
    if (!may_be_fast || !fast_checks_hold(decision.fast.checks, pointers_)) return std::nullopt;
    if (decision.way == Way::original) {
      return Planned{LaunchAction::original, outcome_of(decision.kind), {}, {}};
    }
    uint32_t plain[kPlainGeometryCount];
    void* room[kMaxFastArguments];
    void** arguments;
    const uint32_t* const given = request_.view.geometry;
    const auto geometry_of = [&](uint32_t i) {
      return i == kPlainSharedMem ? given[kSharedMem] : given[i];
    };
    if (!compose_direct(decision.fast, pointers_, geometry_of, plain, room, &arguments)) {
      return std::nullopt;
    }
    Planned out = {LaunchAction::redirect, Outcome::hit, {}, {}};
    uint32_t geometry[kGeometryCount];
    widen_geometry(plain, geometry);
    memcpy(out.geometry.data(), geometry, sizeof geometry);
    const Binding& binding = *decision.binding;
    for (uint32_t i = 0; i < binding.arguments.count; ++i) {
      out.arguments.push_back(read(arguments[i], size_of_argument(binding, i)));
    }
    return out;
  }

 private:
  uint32_t size_of_argument(const Binding& binding, uint32_t i) const {
    const Snapshot& snapshot = folder_.snapshot();
    return snapshot.begin(binding.arguments)[i].size;
  }
  static uint64_t read(const void* from, uint32_t size) {
    uint64_t value = 0;
    memcpy(&value, from, size);
    return value;
  }

  const PlannedFolder& folder_;
  Given given_;
  char bytes_[64] = {};
  void* pointers_[6] = {};
  void* extra_[5] = {};
  size_t size_ = 0;
  LaunchRequest request_;
  LaunchPlan plan_;
};

// A row: the folder's where clauses and launch block, a launch, and its outcome.
struct Row {
  const char* name;
  FolderText folder;
  Given given = {};
  Outcome outcome = Outcome::hit;
  bool is_direct = true;  // the loader made the binding direct
  uint32_t grid_x = 7;
  uint32_t block_x = 512;
  uint64_t y_shift = 0;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

constexpr Outcome kHit = Outcome::hit;
constexpr Outcome kWhere = Outcome::fallback_where;

const Row kRows[] = {
    {"plain", {}},
    // Alignment to 16 bytes, in the pattern and in the solution.
    {"aligned", {.where = R"("x % 16 == 0")"}, {.x = 0x7000'0000'0110}},
    {"one beyond aligned", {.where = R"("x % 16 == 0")"}, {.x = 0x7000'0000'0111}, kWhere},
    {"one short of aligned", {.where = R"("x % 16 == 0")"}, {.x = 0x7000'0000'010f}, kWhere},
    {"half aligned", {.where = R"("x % 16 == 0")"}, {.x = 0x7000'0000'0108}, kWhere},
    {"second misaligned",
     {.where = R"("x % 16 == 0", "y % 16 == 0")"},
     {.y = 0x7000'0000'0301},
     kWhere},
    {"third misaligned",
     {.where = R"("x % 16 == 0", "y % 16 == 0", "w % 16 == 0")"},
     {.w = 0x7000'0000'0208},
     kWhere},
    {"solution's alignment holds", {.solution_where = R"("y % 16 == 0")"}, {.y = 0x7000'0000'0310}},
    {"solution's alignment fails",
     {.solution_where = R"("y % 16 == 0")"},
     {.y = 0x7000'0000'0318},
     kWhere},
    {"aligned, from 2^63 on", {.where = R"("x % 16 == 0")"}, {.x = 0xffff'ffff'ffff'fff0}},
    // Null.
    {"not null", {.where = R"("w != 0")"}},
    {"lowest address", {.where = R"("w != 0")"}, {.w = 1}},
    {"null", {.where = R"("w != 0")"}, {.w = 0}, kWhere},
    {"null the other way round", {.where = R"("0 != w")"}, {.w = 0}, kWhere},
    {"no value from 2^63 on", {.where = R"("w != 0")"}, {.w = uint64_t{1} << 63}, kWhere},
    {"the highest address that has one", {.where = R"("w != 0")"}, {.w = (uint64_t{1} << 63) - 1}},
    {"one of two null", {.where = R"("x != 0", "w != 0")"}, {.w = 0}, kWhere},
    {"solution's not null", {.solution_where = R"("w != 0")"}, {.w = 0}, kWhere},
    {"aligned and null", {.where = R"("w % 16 == 0", "w != 0")"}, {.w = 0}, kWhere},
    // Other clauses: no fast form, or "computed".
    {"a comparison holds", {.where = R"("rows <= 7")"}, {}, kHit, false},
    {"a comparison does not", {.where = R"("rows <= 6")"}, {}, kWhere, false},
    {"solution's where with pdl",
     {.solution_where = R"("rows <= 6")", .pdl = "true"},
     {},
     kWhere,
     false},
    {"solution's alignment with pdl",
     {.solution_where = R"("y % 16 == 0")", .pdl = "true"},
     {.y = 0x7000'0000'0301},
     kWhere},
    {"an overflow falls back", {.where = R"("rows * 9223372036854775807 > 0")"}, {}, kWhere, false},
    // Dimensions.
    {"from the grid", {.grid = R"("grid_rows")"}, {}, kHit, true, 7},
    {"smallest", {}, {.rows = 1}, kHit, true, 1},
    {"none", {}, {.rows = 0}, kWhere},
    {"negative", {}, {.rows = -1}, kWhere},
    {"largest", {}, {.rows = INT32_MAX}, kHit, true, INT32_MAX},
    {"ceil_div by 4, exact", {.grid = R"_("ceil_div(rows, 4)")_"}, {.rows = 8}, kHit, true, 2},
    {"ceil_div by 4, one more", {.grid = R"_("ceil_div(rows, 4)")_"}, {.rows = 9}, kHit, true, 3},
    {"ceil_div by 3, exact", {.grid = R"_("ceil_div(rows, 3)")_"}, {.rows = 9}, kHit, true, 3},
    {"ceil_div by 3, one more", {.grid = R"_("ceil_div(rows, 3)")_"}, {.rows = 10}, kHit, true, 4},
    {"ceil_div of none", {.grid = R"_("ceil_div(rows, 4)")_"}, {.rows = 0}, kWhere},
    {"limited, at the limit", {.grid = R"_("min(rows, 7)")_"}, {}, kHit, true, 7},
    {"limited, one above", {.grid = R"_("min(rows, 6)")_"}, {}, kHit, true, 6},
    {"limited, one below", {.grid = R"_("min(8, rows)")_"}, {}, kHit, true, 7},
    {"limited and divided", {.grid = R"_("min(ceil_div(rows, 2), 3)")_"}, {}, kHit, true, 3},
    {"limited and negative", {.grid = R"_("min(rows, 6)")_"}, {.rows = -5}, kWhere},
    {"computed otherwise", {.grid = R"("rows * 2 + 1")"}, {}, kHit, false, 15},
    {"computed to none", {.grid = R"("rows - 7")"}, {}, kWhere, false},
    {"computed too large", {.grid = R"("rows * 1000000000")"}, {}, kWhere, false},
    {"two dimensions",
     {.grid = R"("rows")", .block = R"_("min(hidden, 256)")_"},
     {},
     kHit,
     true,
     7,
     256},
    // Keys.
    {"no solution", {}, {.hidden = 4095}, Outcome::fallback_no_solution},
    {"neither solution nor where", {.where = R"("w != 0")"}, {.w = 0, .hidden = 4095}, kWhere},
    // Pointers with a shift.
    {"shifted", {.y_shift = "256"}, {}, kHit, false, 7, 512, 256},
    {"shifted back", {.y_shift = "-256"}, {}, kHit, false, 7, 512, ~uint64_t{255}},
    {"shifted by nothing", {.y_shift = "0"}, {}, kHit, false},
    {"shifted by what is computed",
     {.y_shift = R"_("2 * rows * min(hidden, 128)")_"},
     {},
     kHit,
     false,
     7,
     512,
     1792},
    {"shifted from 2^63 on",
     {.y_shift = "-8"},
     {.y = (uint64_t{1} << 63) + 16},
     kHit,
     false,
     7,
     512,
     ~uint64_t{7}},
    {"a shift that overflows", {.y_shift = R"("rows * 9223372036854775807")"}, {}, kWhere, false},
    {"a shift by none", {.y_shift = R"_("64 / (rows - 7)")_"}, {}, kWhere, false},
    {"aligned when shifted",
     {.where = R"("y % 16 == 0")", .y_shift = "-8"},
     {.y = 0x7000'0000'0308},
     kHit,
     false,
     7,
     512,
     ~uint64_t{7}},
    {"aligned when shifted, from 2^63 on",
     {.where = R"("y % 16 == 0")", .y_shift = "8"},
     {.y = 0xffff'ffff'ffff'fff8},
     kHit,
     false,
     7,
     512,
     8},
    {"misaligned when shifted", {.where = R"("y % 16 == 0")", .y_shift = "-8"}, {}, kWhere, false},
    {"solution's, aligned when shifted",
     {.solution_where = R"("y % 16 == 0")", .y_shift = "8"},
     {.y = 0x7000'0000'0308},
     kHit,
     false,
     7,
     512,
     8},
    {"solution's, misaligned when shifted",
     {.solution_where = R"("y % 16 == 0")", .y_shift = "8"},
     {},
     kWhere,
     false},
    {"equal when shifted",
     {.where = R"("y == w")", .y_shift = R"("-hidden / 16")"},
     {},
     kHit,
     false,
     7,
     512,
     ~uint64_t{255}},
    {"equal unless shifted",
     {.where = R"("y == w")", .y_shift = "-16"},
     {.y = 0x7000'0000'0200},
     kWhere,
     false},
};

class PlanTable : public testing::TestWithParam<Row> {};

TEST_P(PlanTable, SaysTheSameInEveryWay) {
  const Row& row = GetParam();
  SCOPED_TRACE(row.name);
  const PlannedFolder folder(row.folder);
  ASSERT_EQ(folder.error(), "");
  const Decider decide(folder.record());
  OneLaunch launch(folder, row.given);
  const Planned planned = launch.planned(decide);
  EXPECT_EQ(planned.outcome, row.outcome);
  EXPECT_EQ(planned.action,
            row.outcome == Outcome::hit ? LaunchAction::redirect : LaunchAction::original);
  if (row.outcome == Outcome::hit) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(planned.geometry[kGridX + i], i == 0 ? row.grid_x : 1U) << i;
      EXPECT_EQ(planned.geometry[kBlockX + i], i == 0 ? row.block_x : 1U) << i;
      EXPECT_EQ(planned.geometry[kClusterX + i], 1U) << i;
    }
    EXPECT_EQ(planned.arguments,
              (std::vector<uint64_t>{row.given.y + row.y_shift, row.given.x, row.given.w,
                                     static_cast<uint32_t>(row.given.rows)}));
  }

  OneLaunch packed(folder, row.given);
  packed.pack();
  EXPECT_EQ(packed.planned(decide), planned) << "packed";

  OneLaunch fast(folder, row.given);
  const std::optional<Planned> by_fast_form = fast.planned_fast(decide);
  const bool decides_fast = row.outcome == Outcome::hit ||
                            (row.outcome == Outcome::fallback_no_solution && row.is_direct);
  EXPECT_EQ(by_fast_form.has_value(), row.is_direct && decides_fast) << "fast";
  if (by_fast_form) {
    EXPECT_EQ(*by_fast_form, planned) << "fast";
  }
}

// Launches of which each differs in one value from the first.
std::vector<Given> variants_of(const Given& first) {
  std::vector<Given> all = {first};
  const auto add = [&](const auto& change) {
    all.push_back(first);
    change(&all.back());
  };
  for (uint64_t Given::*const pointer : {&Given::x, &Given::w, &Given::y}) {
    for (const uint64_t bits : {uint64_t{0}, uint64_t{1}, uint64_t{0x7000'0000'0400},
                                uint64_t{0x7000'0000'0408}, uint64_t{1} << 63, ~uint64_t{15}}) {
      add([&](Given* given) { given->*pointer = bits; });
    }
  }
  for (const int32_t rows : {INT32_MIN, -1, 0, 1, 6, 8, INT32_MAX}) {
    add([&](Given* given) { given->rows = rows; });
  }
  for (const int32_t hidden : {0, 128, 4095}) add([&](Given* given) { given->hidden = hidden; });
  add([](Given* given) { given->eps = 2e-5F; });
  for (uint32_t i = 0; i < 3; ++i) {
    add([&](Given* given) { given->grid[i] = 9; });
    add([&](Given* given) { given->block[i] = 2; });
    add([&](Given* given) { given->cluster[i] = 2; });
  }
  add([](Given* given) { given->shared_mem = 0; });
  return all;
}

TEST_P(PlanTable, SaysTheSameAgain) {
  const Row& row = GetParam();
  SCOPED_TRACE(row.name);
  const PlannedFolder folder(row.folder);
  ASSERT_EQ(folder.error(), "");
  const Decider decide(folder.record());
  const auto memory = std::make_unique<LaunchMemory>();
  constexpr uint64_t kChanges = 5;
  for (const Given& given : variants_of(row.given)) {
    OneLaunch launch(folder, given);
    const Planned planned = launch.planned(decide);
    const std::optional<Planned> before = launch.planned_again(kChanges, *memory);
    if (before) {
      EXPECT_EQ(*before, planned) << "another launch's";
    }
    launch.remember(kChanges, memory.get());
    const std::optional<Planned> again = launch.planned_again(kChanges, *memory);
    ASSERT_EQ(again.has_value(), folder.record().inputs.are_whole);
    if (again) {
      EXPECT_EQ(*again, planned);
    }
    EXPECT_FALSE(launch.planned_again(kChanges + 1, *memory)) << "handles have changed";
  }
}

// Other addresses need no other plan, of another shift they do.
TEST(Plan, RemembersAShiftWhateverThePointerIs) {
  const PlannedFolder folder({.y_shift = R"("2 * rows")"});
  ASSERT_EQ(folder.error(), "");
  ASSERT_TRUE(folder.record().inputs.are_whole);
  const PlannedFolder aligned({.where = R"("y % 16 == 0")", .y_shift = R"("2 * rows")"});
  EXPECT_TRUE(aligned.record().inputs.are_whole);
  const Decider decide(folder.record());
  const auto memory = std::make_unique<LaunchMemory>();
  OneLaunch first(folder, {});
  EXPECT_EQ(first.planned(decide).arguments[0], 0x7000'0000'030eU);
  first.remember(5, memory.get());
  OneLaunch elsewhere(folder, {.y = 0x6000'0000'0000});
  const std::optional<Planned> again = elsewhere.planned_again(5, *memory);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->arguments[0], 0x6000'0000'000eU);
  OneLaunch other(folder, {.rows = 8});
  EXPECT_FALSE(other.planned_again(5, *memory));
}

TEST(Plan, ReadsAPointerWithItsShift) {
  const PlannedFolder folder({.y_shift = R"_("64 / (rows - 7)")_"});
  const Snapshot& snapshot = folder.snapshot();
  const TensorUse* const tensors = snapshot.begin(snapshot.begin(snapshot.bindings)[0].tensors);
  const auto address = [&](const Given& given) {
    OneLaunch launch(folder, given);
    const TensorUse& y = tensors[2];
    uint64_t out = 0;
    return read_pointer(snapshot, launch.request().view, y.param, y.offset, y.shift, &out) ? out
                                                                                           : 0;
  };
  EXPECT_EQ(address({.rows = 8}), 0x7000'0000'0340U);
  EXPECT_EQ(address({.rows = 6}), 0x7000'0000'02c0U);
  EXPECT_EQ(address({.rows = 7}), 0U);
}

TEST(Plan, RemembersNothingOfAKernelWithoutTheParameters) {
  const PlannedFolder folder({.where = R"("rows < 100", "x != 0")"});
  ASSERT_EQ(folder.error(), "");
  const Candidate& candidate = folder.record().candidates[0];
  MergedInputs merged;
  const auto merges = [&](std::vector<Param> params) {
    return merge_inputs(folder.snapshot(), &candidate.match, 1, params.data(),
                        static_cast<uint32_t>(params.size()), &merged);
  };
  const std::vector<Param> whole(folder.record().params, folder.record().params + 6);
  EXPECT_TRUE(merges(whole));
  EXPECT_FALSE(merges({whole.begin(), whole.begin() + 4})) << "no hidden size";
  std::vector<Param> narrow = whole;
  narrow[3].size = 2;
  EXPECT_FALSE(merges(narrow)) << "rows of two bytes";
  narrow = whole;
  narrow[0].size = 4;
  EXPECT_FALSE(merges(narrow)) << "an address of four bytes";
}

TEST(Plan, TellsApartLaunchesWhoseHashesAreTheSame) {
  const PlannedFolder folder({.where = R"("rows < 100")", .grid = R"("rows * 2 + 1")"});
  ASSERT_EQ(folder.error(), "");
  const Decider decide(folder.record());
  const auto memory = std::make_unique<LaunchMemory>();
  OneLaunch first(folder, {.rows = 7, .hidden = 4096});
  OneLaunch other(folder, {.rows = 8, .hidden = 4096 - 128});
  OneLaunch mirrored(folder, {.rows = 7 + 128, .hidden = 4095});
  const uint64_t hash = first.inputs().hash;
  ASSERT_TRUE(other.inputs().hash == hash || mirrored.inputs().hash == hash);
  (void)first.planned(decide);
  first.remember(1, memory.get());
  EXPECT_TRUE(first.planned_again(1, *memory));
  EXPECT_FALSE(other.planned_again(1, *memory));
  EXPECT_FALSE(mirrored.planned_again(1, *memory));
}

INSTANTIATE_TEST_SUITE_P(Rows, PlanTable, testing::ValuesIn(kRows), [](const auto& row) {
  std::string name = row.param.name;
  for (char& c : name) c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// --- several solutions ---

constexpr uint32_t kOriginal = 0;

// The solution that is tried first has blocks of 512, the other one blocks of 256.
struct ChoiceRow {
  const char* name;
  FolderText folder;
  std::vector<std::pair<int32_t, uint32_t>> block_by_rows;  // kOriginal: the original
  bool is_fast = true;
};

const ChoiceRow kChoiceRows[] = {
    {"one, below", {.when = R"("rows < 8")"}, {{1, 512}, {7, 512}, {8, kOriginal}, {9, kOriginal}}},
    {"one, above", {.when = R"("rows >= 8")"}, {{7, kOriginal}, {8, 512}, {INT32_MAX, 512}}},
    {"one, mirrored", {.when = R"("8 > rows")"}, {{7, 512}, {8, kOriginal}}},
    {"one, between",
     {.when = R"("rows > 3", "rows <= 5")"},
     {{3, kOriginal}, {4, 512}, {5, 512}, {6, kOriginal}}},
    {"one, joined",
     {.when = R"("rows > 3 && rows <= 5")"},
     {{3, kOriginal}, {4, 512}, {5, 512}, {6, kOriginal}}},
    {"one, exactly", {.when = R"("rows == 4")"}, {{3, kOriginal}, {4, 512}, {5, kOriginal}}},
    {"two that meet",
     {.when = R"("rows <= 4")", .other_when = R"("rows > 4")"},
     {{1, 512}, {4, 512}, {5, 256}, {1000, 256}}},
    {"two with a hole",
     {.when = R"("rows <= 4")", .other_when = R"("rows >= 7")"},
     {{4, 512}, {5, kOriginal}, {6, kOriginal}, {7, 256}}},
    {"the first goes before",
     {.when = R"("rows <= 4")", .other_when = R"("rows <= 6")"},
     {{4, 512}, {5, 256}, {6, 256}, {7, kOriginal}}},
    {"the other for the rest",
     {.when = R"("rows <= 4")", .other_when = R"("rows >= 1")"},
     {{4, 512}, {5, 256}}},
    {"of 64 bits unsigned or not",
     {.when = R"("rows <= 3000000000")", .rows = R"("arg": 3, "type": "uint32")"},
     {{INT32_MAX, 512}}},
    {"divided",
     {.when = R"("rows <= 2")", .grid = "1", .rows = R"("expr": "grid_rows / 3")"},
     {{8, 512}, {9, kOriginal}}},
    {"divided, from",
     {.when = R"("rows > 2")", .grid = "1", .rows = R"("expr": "grid_rows / 3")"},
     {{8, kOriginal}, {9, 512}}},
    {"added",
     {.when = R"("rows <= 4")",
      .rows = R"("expr": "last_row + 1"}, "last_row": {"arg": 3, "type": "int32")"},
     {{0, 512}, {3, 512}, {4, kOriginal}}},
    {"added, from",
     {.when = R"("rows > 4")",
      .rows = R"("expr": "1 + last_row"}, "last_row": {"arg": 3, "type": "int32")"},
     {{3, kOriginal}, {4, 512}}},
    {"added and divided",
     {.when = R"("rows <= 4")",
      .rows = R"("expr": "(last_row + 1) / 2"}, "last_row": {"arg": 3, "type": "int32")"},
     {{8, 512}, {9, kOriginal}}},
    {"subtracted from",
     {.when = R"("rows <= 4")",
      .rows = R"("expr": "8 - rest"}, "rest": {"arg": 3, "type": "int32")"},
     {{3, kOriginal}, {4, 512}},
     false},
    {"computed", {.when = R"("rows % 2 == 0")"}, {{7, kOriginal}, {8, 512}}, false},
    {"computed and not",
     {.when = R"("rows % 2 == 0")", .other_when = R"("rows <= 4")"},
     {{3, 256}, {4, 512}, {5, kOriginal}},
     false},
    {"never",
     {.when = R"("rows < 4", "rows > 4")"},
     {{3, kOriginal}, {4, kOriginal}, {5, kOriginal}},
     false},
};

TEST(Plan, ChoosesTheSolutionThatIsForTheLaunch) {
  for (const ChoiceRow& row : kChoiceRows) {
    const PlannedFolder folder(row.folder);
    ASSERT_EQ(folder.error(), "") << row.name;
    const Decider decide(folder.record());
    for (const auto& [rows, block] : row.block_by_rows) {
      SCOPED_TRACE(std::string(row.name) + ", rows " + std::to_string(rows));
      Given given = {.rows = rows};
      given.grid[0] = static_cast<uint32_t>(rows);
      OneLaunch launch(folder, given);
      const Planned planned = launch.planned(decide);
      EXPECT_EQ(planned.outcome, block == kOriginal ? kWhere : kHit);
      if (block != kOriginal) {
        EXPECT_EQ(planned.geometry[kBlockX], block);
      }
      OneLaunch packed(folder, given);
      packed.pack();
      EXPECT_EQ(packed.planned(decide), planned) << "packed";
      OneLaunch fast(folder, given);
      const std::optional<Planned> by_fast_form = fast.planned_fast(decide);
      const bool has_form = row.is_fast && row.folder.rows.find("expr") == std::string::npos;
      EXPECT_TRUE(by_fast_form.has_value() || !has_form);
      if (by_fast_form) {
        EXPECT_EQ(*by_fast_form, planned) << "fast";
      }
      EXPECT_EQ(decide.room.choices.is_fast, row.is_fast);
    }
  }
}

TEST(Plan, PassesOverASolutionThatIsNotForThisGpu) {
  const PlannedFolder folder({.when = R"("rows <= 4")", .other_when = R"("rows <= 6")"});
  ASSERT_EQ(folder.error(), "");
  Decider decide(folder.record());
  const Snapshot& snapshot = folder.snapshot();
  const std::string first = snapshot.text(snapshot.begin(snapshot.solutions)[0].name);
  decide.kind_of_ready = DecisionKind::arch;
  decide.asked_solution = first == "mine" ? 0 : 1;
  OneLaunch small(folder, {.rows = 4});
  EXPECT_EQ(small.planned(decide).geometry[kBlockX], 256U);
  OneLaunch large(folder, {.rows = 7});
  EXPECT_EQ(large.planned(decide).outcome, kWhere);
  // If no other solution is left, the outcome says why.
  decide.asked_solution = -1;
  OneLaunch none(folder, {.rows = 4});
  EXPECT_EQ(none.planned(decide).outcome, Outcome::fallback_arch);
}

TEST(Plan, CountsALaunchThatNoSolutionIsForByItsPatternWhereWhenTheNextPatternKnowsNoMore) {
  const PlannedFolder folder({.second_pattern = true, .when = R"("rows <= 4")"});
  ASSERT_EQ(folder.error(), "");
  const Decider decide(folder.record());
  OneLaunch launch(folder, {.rows = 5});
  const LaunchPlan& plan = launch.plan(decide);
  EXPECT_EQ(plan.outcome, kWhere);
  EXPECT_EQ(plan.candidate, &folder.record().candidates[0]);
}

// --- what the caller says ---

struct Said {
  const char* name;
  DecisionKind kind;
  Mode mode;
  OnError on_error;
  bool is_quarantined;
  bool must_keep_kernel;
  LaunchAction action;
  Outcome outcome;
};
const Said kSaid[] = {
    {"apply", DecisionKind::ready, Mode::apply, OnError::fail, false, false, LaunchAction::redirect,
     Outcome::hit},
    {"observe", DecisionKind::ready, Mode::observe, OnError::fail, false, false,
     LaunchAction::original, Outcome::observed},
    {"kept", DecisionKind::ready, Mode::apply, OnError::fail, false, true, LaunchAction::original,
     Outcome::fallback_refused},
    {"quarantined", DecisionKind::ready, Mode::apply, OnError::fail, true, false,
     LaunchAction::original, Outcome::fallback_quarantined},
    {"quarantined after a failure", DecisionKind::failed, Mode::apply, OnError::fail, true, false,
     LaunchAction::original, Outcome::fallback_quarantined},
    {"no image", DecisionKind::arch, Mode::apply, OnError::fail, false, false,
     LaunchAction::original, Outcome::fallback_arch},
    {"in a capture", DecisionKind::in_capture, Mode::apply, OnError::fail, false, false,
     LaunchAction::original, Outcome::fallback_in_capture},
    {"failed", DecisionKind::failed, Mode::apply, OnError::fail, false, false, LaunchAction::fail,
     Outcome::error},
    {"failed, falls back", DecisionKind::failed, Mode::apply, OnError::fallback, false, false,
     LaunchAction::original, Outcome::error_fallback},
    {"failed, observed", DecisionKind::failed, Mode::observe, OnError::fail, false, false,
     LaunchAction::original, Outcome::error_fallback},
};

TEST(Plan, DoesWhatTheCallerSays) {
  const PlannedFolder folder({});
  for (const Said& said : kSaid) {
    SCOPED_TRACE(said.name);
    Decider decide(folder.record());
    decide.kind_of_ready = said.kind;
    decide.is_quarantined = said.is_quarantined;
    decide.on_error = said.on_error;
    OneLaunch launch(folder, {});
    launch.request().must_keep_kernel = said.must_keep_kernel;
    const LaunchPlan& plan = launch.plan(decide, said.mode);
    EXPECT_EQ(plan.action, said.action);
    EXPECT_EQ(plan.outcome, said.outcome);
  }
}

// The kernel's last parameter has 4 bytes, for a value of int32 or uint32.
TEST(Plan, ComputesAnArgumentThatItsParameterHolds) {
  constexpr struct {
    const char* factor;  // of the grid's 7 rows
    int64_t value;
    bool fits;
  } kFactors[] = {{"613566756", 4294967292, true},
                  {"613566757", 4294967299, false},
                  {"-306783378", -2147483646, true},
                  {"-306783379", -2147483653, false}};
  for (const auto& row : kFactors) {
    SCOPED_TRACE(row.factor);
    const PlannedFolder folder(
        {.grid = "1", .rows = R"("expr": "grid_rows * )" + std::string(row.factor) + "\""});
    ASSERT_EQ(folder.error(), "");
    // PTX does not give the sizes of parameters, a cubin's table does.
    const Snapshot& snapshot = folder.snapshot();
    const ArgumentMap* arguments = snapshot.begin(snapshot.begin(snapshot.bindings)[0].arguments);
    const_cast<ArgumentMap&>(arguments[3]).size = 4;
    const Decider decide(folder.record());
    OneLaunch launch(folder, {});
    const Planned planned = launch.planned(decide);
    EXPECT_EQ(planned.outcome, row.fits ? Outcome::hit : Outcome::fallback_where);
    if (row.fits) {
      ASSERT_EQ(planned.arguments.size(), 4U);
      EXPECT_EQ(planned.arguments[3], static_cast<uint32_t>(row.value));
    }
  }
}

TEST(Plan, NamesTheDefinitionByTheKey) {
  const PlannedFolder folder({});
  const Decider decide(folder.record());
  OneLaunch launch(folder, {.hidden = -3});
  EXPECT_EQ(read_fast_key(folder.record().candidates[0].fast_key, launch.pointers()), -3);
  (void)launch.plan(decide);
  EXPECT_EQ(decide.definition, "norm_h-3");
}

TEST(Plan, LeavesALaunchWhoseParametersCannotBeRead) {
  const PlannedFolder folder({});
  const Decider decide(folder.record());
  enum { kNone, kBoth, kShort, kNoSize, kUnknownWord, kEnd };
  for (int way = kNone; way < kEnd; ++way) {
    SCOPED_TRACE(way);
    OneLaunch launch(folder, {});
    if (way != kNone) launch.pack();
    if (way == kNone) launch.request().view.params = nullptr;
    if (way == kBoth) launch.request().view.params = launch.pointers();
    if (way == kShort) --launch.packed_size();
    if (way == kNoSize) launch.extra()[2] = CU_LAUNCH_PARAM_END;
    if (way == kUnknownWord) launch.extra()[2] = reinterpret_cast<void*>(77);
    const LaunchPlan& plan = launch.plan(decide);
    EXPECT_EQ(plan.action, LaunchAction::original);
    EXPECT_EQ(plan.outcome, Outcome::untracked);
    EXPECT_EQ(plan.arguments, nullptr);
  }
}

// --- fitting ---

TEST(Fit, AsksForTheLayoutAndForWhatIsRead) {
  const PlannedFolder folder({});
  const Snapshot& snapshot = folder.snapshot();
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[0];
  std::vector<Param> params(folder.record().params, folder.record().params + 6);
  const auto fit = [&] {
    return fit_pattern(snapshot, pattern, params.data(), static_cast<uint32_t>(params.size()),
                       nullptr);
  };
  EXPECT_EQ(fit(), Fit::fits);
  params[3].size = 8;
  EXPECT_EQ(fit(), Fit::other_layout) << "another size";
  params[3].size = 4;
  params.push_back({48, 4});
  EXPECT_EQ(fit(), Fit::other_layout) << "one more";
  params.resize(5);
  EXPECT_EQ(fit(), Fit::other_layout) << "one less";
}

TEST(Fit, WithoutParamsAsksForWhatIsReadAlone) {
  const PlannedFolder folder({.params = ""});
  const Snapshot& snapshot = folder.snapshot();
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[0];
  ASSERT_EQ(pattern.has_params, 0);
  // The key reads parameter 4.
  std::vector<Param> params = {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}};
  const auto fit = [&] {
    return fit_pattern(snapshot, pattern, params.data(), static_cast<uint32_t>(params.size()),
                       nullptr);
  };
  EXPECT_EQ(fit(), Fit::fits);
  params[4].size = 3;
  EXPECT_EQ(fit(), Fit::other_layout);
  params.pop_back();
  EXPECT_EQ(fit(), Fit::other_layout);
}

TEST(Fit, AsksForTheImage) {
  const PlannedFolder folder({.image = R"("image": ["xxh128:000000000000000a000000000000000b",
                                                    "code:000000000000000c000000000000000d",
                                                    "xxh128:00000000000000000000000000000000"],)"});
  const Snapshot& snapshot = folder.snapshot();
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[0];
  const Record& record = folder.record();
  const auto fit = [&](const ImageHashes* image) {
    return fit_pattern(snapshot, pattern, record.params, record.param_count, image);
  };
  const std::pair<ImageHashes, Fit> rows[] = {
      {{{0xb, 0xa}, {}}, Fit::fits},
      {{{0xc, 0xa}, {}}, Fit::other_image},
      {{{0xb, 0xc}, {}}, Fit::other_image},
      {{{1, 1}, {0xd, 0xc}}, Fit::fits},
      {{{1, 1}, {0xd, 0xb}}, Fit::other_image},
      {{{1, 1}, {0xe, 0xc}}, Fit::other_image},
      {{{1, 1}, {}}, Fit::other_image},  // not a cubin: it has no code hash
  };
  for (const auto& [image, expected] : rows) EXPECT_EQ(fit(&image), expected);
  EXPECT_EQ(fit(nullptr), Fit::other_image);
}

class FitOf : public testing::TestWithParam<const char*> {};
TEST_P(FitOf, RefusesABindingThatReadsBeyondTheParameters) {
  const PlannedFolder folder({.y_shift = GetParam(), .params = ""});
  const Snapshot& snapshot = folder.snapshot();
  const Binding& binding = snapshot.begin(snapshot.bindings)[0];
  const Record& record = folder.record();
  EXPECT_TRUE(fits_binding(snapshot, binding, record.params, record.param_count));
  // The solution passes y, which is the whole parameter 2.
  std::vector<Param> params(record.params, record.params + 6);
  params[2].size = 7;
  EXPECT_FALSE(fits_binding(snapshot, binding, params.data(), 6));
  EXPECT_FALSE(fits_binding(snapshot, binding, record.params, 2));
}
INSTANTIATE_TEST_SUITE_P(APointer, FitOf, testing::Values("", "16"));

TEST(Fit, RefusesAShiftByWhatIsBeyondTheParameters) {
  const PlannedFolder folder({.grid = "1", .y_shift = "\"hidden\"", .params = ""});
  const Snapshot& snapshot = folder.snapshot();
  const Binding& binding = snapshot.begin(snapshot.bindings)[0];
  const Record& record = folder.record();
  EXPECT_TRUE(fits_binding(snapshot, binding, record.params, 5));
  EXPECT_FALSE(fits_binding(snapshot, binding, record.params, 4));
}

// --- attributes ---

CUlaunchAttribute attribute(CUlaunchAttributeID id) {
  CUlaunchAttribute out;
  memset(static_cast<void*>(&out), 0, sizeof out);
  out.id = id;
  return out;
}

std::vector<CUlaunchAttributeID> planned_attributes(const FolderText& text,
                                                    std::vector<CUlaunchAttribute> given,
                                                    bool* fits = nullptr) {
  const PlannedFolder folder(text);
  const Decider decide(folder.record());
  OneLaunch launch(folder, {});
  const LaunchPlan& plan = launch.plan(decide);
  EXPECT_EQ(plan.action, LaunchAction::redirect);
  CUlaunchAttribute out[kMaxAttributes];
  unsigned count = 0;
  const bool is_fine =
      plan_attributes(given.data(), static_cast<unsigned>(given.size()), plan, out, &count);
  if (fits != nullptr) *fits = is_fine;
  std::vector<CUlaunchAttributeID> ids;
  for (unsigned i = 0; is_fine && i < count; ++i) ids.push_back(out[i].id);
  return ids;
}

TEST(Attributes, KeepsWhatIsNotAboutTheOriginal) {
  using Ids = std::vector<CUlaunchAttributeID>;
  const auto given = [] {
    return std::vector<CUlaunchAttribute>{
        attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY),
        attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE),
        attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
        attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE),
        attribute(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION),
        attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
        attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)};
  };
  EXPECT_EQ(planned_attributes({}, given()),
            (Ids{CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT}));
  EXPECT_EQ(
      planned_attributes({.pdl = "true"}, given()),
      (Ids{CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
           CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT}));
  EXPECT_EQ(planned_attributes({.cluster = "[2, 1, 1]"}, given()),
            (Ids{CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
                 CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}));
}

TEST(Attributes, RefusesMoreThanThereIsRoomFor) {
  bool fits = false;
  std::vector<CUlaunchAttribute> given(kMaxAttributes, attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY));
  EXPECT_EQ(planned_attributes({}, given, &fits).size(), kMaxAttributes);
  EXPECT_TRUE(fits);
  (void)planned_attributes({.cluster = "[2, 1, 1]"}, given, &fits);
  EXPECT_FALSE(fits) << "the replacement's cluster finds no room";
  given.push_back(given[0]);
  (void)planned_attributes({}, given, &fits);
  EXPECT_FALSE(fits);
}

TEST(Attributes, SeesANodeThatTheDeviceUpdates) {
  CUlaunchAttribute given[2] = {attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY),
                                attribute(CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)};
  EXPECT_FALSE(is_device_updatable(given, 2));
  given[1].value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  EXPECT_TRUE(is_device_updatable(given, 2));
  EXPECT_FALSE(is_device_updatable(given, 1));
}

// --- several patterns ---

TEST(Plan, TellsOfTheCandidateThatCameNearest) {
  // By falling benefit: a pattern whose where does not hold, and one without any solution.
  const PlannedFolder folder({.second_pattern = true, .where = R"("w == 0")"});
  const Decider decide(folder.record());
  ASSERT_EQ(folder.record().candidate_count, 2);
  OneLaunch launch(folder, {});
  const LaunchPlan& plan = launch.plan(decide);
  EXPECT_EQ(plan.outcome, Outcome::fallback_no_solution);
  EXPECT_STREQ(folder.snapshot().text(plan.candidate->pattern->label), "second");
}

}  // namespace
}  // namespace fibshim
