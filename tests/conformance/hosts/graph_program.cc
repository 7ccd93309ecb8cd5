// See graph_program.h.
#include "tests/conformance/hosts/graph_program.h"

#include <algorithm>

#include "tests/conformance/hosts/random.h"

namespace conform {
namespace {

constexpr char kLetters[] = "abcdefghz";
constexpr int kSlotWords = 64;
constexpr size_t kMostSteps = 40;  // bit masks below have one bit per step

// Words that a step accesses.
struct Touch {
  int begin, end;
  bool is_written;
};

void add_touches(const Step& step, std::vector<Touch>* out) {
  const auto add = [&](int begin, bool is_written) {
    out->push_back({begin, begin + step.words, is_written});
  };
  switch (step.kind) {
    case StepKind::kernel:
      add(step.in, false);
      add(step.with, false);
      add(step.out, true);
      break;
    case StepKind::copy:
      add(step.in, false);
      add(step.out, true);
      break;
    case StepKind::fill: add(step.out, true); break;
    case StepKind::child:
      for (const Step& one : step.body) add_touches(one, out);
      break;
    case StepKind::empty:
    case StepKind::host: break;
  }
}

std::vector<Touch> touches_of(const Step& step) {
  std::vector<Touch> out;
  add_touches(step, &out);
  return out;
}

bool conflict(const Step& one, const Step& other) {
  for (const Touch& a : touches_of(one)) {
    for (const Touch& b : touches_of(other)) {
      if ((a.is_written || b.is_written) && a.begin < b.end && b.begin < a.end) return true;
    }
  }
  return false;
}

// How a pattern's kernels depend on each other: for each kernel, the one whose output is its first
// and its second input, or -1 if the input is not of the pattern.
struct Shape {
  const char* letters;
  std::vector<std::pair<int, int>> ties;
  bool is_dead;      // intermediate results are dead
  bool is_in_place;  // the last kernel works in place
};

std::vector<std::pair<int, int>> chain(int count) {
  std::vector<std::pair<int, int>> ties;
  for (int i = 0; i < count; ++i) ties.emplace_back(i - 1, -1);
  return ties;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"ab", chain(2), true, false},
      {"abc", chain(3), true, false},
      {"cd", chain(2), false, false},
      {"de", {{-1, -1}, {-1, 0}}, true, false},
      {"efgh", {{-1, -1}, {0, -1}, {0, -1}, {1, 2}}, true, false},
      {"gh", chain(2), false, true},
      {"bbbbbbbb", chain(8), true, false},
      {"bd", chain(2), false, false},
  };
  return all;
}

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  Program make() {
    const size_t count = static_cast<size_t>(1 + random_.below(random_.one_in(8) ? 24 : 9));
    while (program_.steps.size() < count) {
      if (random_.below(3) != 0) {
        add_shape(shapes()[static_cast<size_t>(random_.below(static_cast<int>(shapes().size())))]);
      } else {
        add_step(any_step());
      }
    }
    if (random_.one_in(12)) {
      program_.condition = random_.below(2);
      add_step(kernel_step());
      program_.steps.back().begins_early = false;
    } else {
      program_.has_memory_node = random_.one_in(16);
      program_.is_captured = !program_.has_memory_node && random_.one_in(4) && can_be_captured();
    }
    add_ops();
    return program_;
  }

 private:
  int live() {
    return kSlotWords * random_.below(kLiveWords / kSlotWords - 1) +
           (random_.one_in(4) ? kSlotWords / 2 : 0);
  }
  // Whole slots: an unknown kernel must not access words that are dead before it (rewrites.cc).
  int scratch() { return kScratch + kSlotWords * random_.below(kScratchWords / kSlotWords); }
  int place() { return random_.below(4) != 0 ? live() : scratch(); }
  int salt() { return static_cast<int>(random_.next() & 0xffff); }

  static bool overlap_in_part(const Step& step, int other) {
    return other != step.out && other < step.out + step.words && step.out < other + step.words;
  }
  // The places of one kernel must not overlap in part, those of a copy not at all.
  static bool is_fine(const Step& step) {
    if (step.kind == StepKind::copy) return step.in != step.out && !overlap_in_part(step, step.in);
    return step.kind != StepKind::kernel ||
           (!overlap_in_part(step, step.in) && !overlap_in_part(step, step.with));
  }

  Step kernel_step() {
    Step step;
    do {
      step.letter = kLetters[random_.below(static_cast<int>(sizeof kLetters) - 1)];
      step.in = place();
      step.with = place();
      step.out = random_.one_in(6) ? step.in : place();
      step.words = random_.one_in(10) ? kSlotWords / 2 + 16 : kSlotWords;
      step.salt = salt();
    } while (!is_fine(step));
    if (random_.one_in(16)) step.priority = -1 - random_.below(2);
    step.has_cluster = random_.one_in(16);
    return step;
  }

  Step any_step() {
    const int kind = random_.below(20);
    if (kind < 11) return kernel_step();
    Step step;
    step.kind = kind < 14   ? StepKind::fill
                : kind < 17 ? StepKind::copy
                : kind < 18 ? StepKind::child
                : kind < 19 ? StepKind::empty
                            : StepKind::host;
    if (step.kind == StepKind::child) {
      for (int i = 1 + random_.below(3); i > 0; --i) step.body.push_back(kernel_step());
      return step;
    }
    do {
      step.in = place();
      step.out = place();
      step.salt = salt();
    } while (!is_fine(step));
    return step;
  }

  // Adds kernels that follow a pattern, mostly exactly.
  void add_shape(const Shape& shape) {
    const size_t first = program_.steps.size();
    const bool is_exact = random_.below(4) != 0;
    const auto is_noise = [&] { return !is_exact && random_.one_in(4); };
    std::vector<int> places;
    for (size_t i = 0; shape.letters[i] != 0; ++i) {
      Step step = kernel_step();
      step.letter = is_noise() ? kLetters[random_.below(9)] : shape.letters[i];
      step.words = is_noise() ? kSlotWords / 2 : kSlotWords;
      const bool is_last = shape.letters[i + 1] == 0;
      const auto [in, with] = shape.ties[i];
      const auto from = [&](int member) {
        return program_.steps[static_cast<size_t>(places[static_cast<size_t>(member)])].out;
      };
      do {
        step.in = in >= 0 && !is_noise() ? from(in) : random_.one_in(8) ? place() : live();
        step.with = with >= 0 && !is_noise() ? from(with) : random_.one_in(8) ? place() : live();
        step.out = shape.is_in_place && is_last               ? step.in
                   : !is_last && shape.is_dead && !is_noise() ? fresh_scratch()
                                                              : place();
      } while (!is_fine(step));
      if (random_.one_in(10)) add_step(any_step());
      add_step(step);
      places.push_back(static_cast<int>(program_.steps.size()) - 1);
    }
    // Another kernel reads an intermediate result.
    if (!is_exact && random_.one_in(3)) {
      Step reader = kernel_step();
      reader.in = program_.steps[first].out;
      if (is_fine(reader)) add_step(reader);
    }
  }

  int fresh_scratch() {
    if (random_.one_in(8)) return scratch();
    const int at = kScratch + kSlotWords * next_scratch_;
    next_scratch_ = (next_scratch_ + 1) % (kScratchWords / kSlotWords);
    return at;
  }

  void add_step(Step step) {
    if (program_.steps.size() >= kMostSteps) return;
    const auto at = static_cast<int>(program_.steps.size());
    uint64_t before = 0;
    const auto add_edge = [&](int i) {
      step.after.push_back(i);
      before |= before_[static_cast<size_t>(i)] | uint64_t{1} << i;
    };
    for (int i = at - 1; i >= 0; --i) {
      const bool is_before = (before >> i & 1) != 0;
      if (!is_before && conflict(program_.steps[static_cast<size_t>(i)], step))
        add_edge(i);
      else if (random_.one_in(is_before ? 12 : 16))
        add_edge(i);
    }
    step.begins_early = step.kind == StepKind::kernel && step.after.size() == 1 &&
                        random_.one_in(3) &&
                        program_.steps[static_cast<size_t>(step.after[0])].kind == StepKind::kernel;
    before_.push_back(before);
    program_.steps.push_back(std::move(step));
  }

  bool can_be_captured() const {
    return std::none_of(program_.steps.begin(), program_.steps.end(), [](const Step& step) {
      return step.kind == StepKind::child || step.kind == StepKind::empty;
    });
  }

  bool are_ordered(int one, int other) const {
    return (before_[static_cast<size_t>(std::max(one, other))] >> std::min(one, other) & 1) != 0;
  }

  // False: they do not fit each other.
  bool change_values(Step* step) {
    if (step->kind == StepKind::kernel && random_.one_in(2)) {
      step->letter = kLetters[random_.below(9)];
    }
    if (random_.one_in(2)) step->in = place();
    if (random_.one_in(2)) step->with = place();
    if (random_.one_in(2)) step->out = place();
    step->salt = salt();
    return is_fine(*step);
  }

  // Returns other parameters for a node that need no other edges; if none are found, the same with
  // another salt.
  Step change(int at, const std::vector<Step>& now, bool keeps_places = false) {
    const Step& before = now[static_cast<size_t>(at)];
    for (int trial = keeps_places ? 6 : 0; trial < 6; ++trial) {
      Step step = before;
      bool is_right = change_values(&step);
      for (Step& one : step.body) is_right = change_values(&one) && is_right;
      for (int i = 0; is_right && i < static_cast<int>(now.size()); ++i) {
        is_right = i == at || are_ordered(i, at) || !conflict(now[static_cast<size_t>(i)], step);
      }
      if (is_right) return step;
    }
    Step step = before;
    step.salt = salt();
    return step;
  }

  void add_ops() {
    std::vector<Step> now = program_.steps;
    std::vector<Step> other;
    bool has_graph = true;
    for (int i = 2 + random_.below(9); i >= 0; --i) {
      Op op{OpKind::launch, 0, random_.below(3), {}, random_.below(4)};
      const int kind = i == 0 ? 0 : random_.below(23);
      op.step = random_.below(static_cast<int>(now.size()));
      const StepKind step_kind = now[static_cast<size_t>(op.step)].kind;
      const bool is_in_body =
          program_.condition >= 0 && op.step + 1 == static_cast<int>(now.size());
      const bool can_switch = step_kind == StepKind::kernel || step_kind == StepKind::fill ||
                              step_kind == StepKind::copy;
      if (kind >= 9 && kind < 13 && (can_switch || step_kind == StepKind::child) && has_graph &&
          !is_in_body) {
        op.kind = OpKind::set;
        op.steps = {change(op.step, now, random_.one_in(2))};
        now[static_cast<size_t>(op.step)] = op.steps[0];
      } else if (kind >= 13 && kind < 15 && can_switch && has_graph && !is_in_body) {
        op.kind = random_.one_in(2) ? OpKind::disable : OpKind::enable;
      } else if ((kind == 15 || kind > 20) && !program_.is_captured && program_.condition < 0 &&
                 !program_.has_memory_node) {
        op.kind = OpKind::update;
        const bool keeps_places = !random_.one_in(3);
        for (size_t at = 0; at < now.size(); ++at) {
          if (random_.one_in(2) && now[at].kind != StepKind::child &&
              now[at].kind != StepKind::empty && now[at].kind != StepKind::host) {
            now[at] = change(static_cast<int>(at), now, keeps_places);
          }
        }
        op.steps = now;
      } else if (kind == 16) {
        op.kind = OpKind::swap;
      } else if (kind == 17 && has_graph) {
        op.kind = OpKind::end_graph;
        has_graph = false;
      } else if (kind == 18 && has_graph) {
        op.kind = OpKind::instantiate;  // resets all nodes to the graph's
        now = program_.steps;
      } else if (kind == 19) {
        op.kind = OpKind::rate;
      } else if (kind == 20 && program_.condition < 0 && !program_.has_memory_node &&
                 (has_graph || !other.empty())) {
        op.kind = OpKind::other;
        if (other.empty()) other = program_.steps;
        now.swap(other);
      }
      program_.ops.push_back(std::move(op));
    }
  }

  Random random_;
  Program program_;
  std::vector<uint64_t> before_;  // for each step, a bit for every step before it
  int next_scratch_ = 0;
};

std::string place_name(int place) {
  return place < kScratch ? "live+" + std::to_string(place)
                          : "scratch+" + std::to_string(place - kScratch);
}

std::string describe(const Step& step) {
  static const char* const kNames[] = {"kernel", "fill", "copy", "child", "empty", "host"};
  std::string text = kNames[static_cast<int>(step.kind)];
  if (step.kind == StepKind::kernel) text = std::string("graph_") + step.letter;
  if (step.kind == StepKind::kernel)
    text += "(" + place_name(step.in) + ", " + place_name(step.with) + ")";
  if (step.kind == StepKind::copy) text += "(" + place_name(step.in) + ")";
  if (step.kind == StepKind::child) {
    for (const Step& one : step.body) text += " {" + describe(one) + "}";
    return text;
  }
  if (step.kind == StepKind::empty || step.kind == StepKind::host) return text;
  return text + " -> " + place_name(step.out) + ", " + std::to_string(step.words) + " words, " +
         std::to_string(step.salt);
}

}  // namespace

Program make_program(uint64_t seed) { return Maker(seed).make(); }

Program shrink(const Program& program, const std::vector<int>& without_steps,
               const std::vector<int>& without_ops) {
  const auto has = [](const std::vector<int>& all, int one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  Program out = program;
  out.steps.clear();
  out.ops.clear();
  // For each step, the steps that later steps depend on in its place: itself or, if left out, its
  // own predecessors.
  std::vector<std::vector<int>> stands_for;
  const auto leave_out = [&](const std::vector<Step>& all) {
    std::vector<Step> kept;
    stands_for.clear();
    for (int i = 0; i < static_cast<int>(all.size()); ++i) {
      Step step = all[static_cast<size_t>(i)];
      std::vector<int> after;
      for (const int one : step.after) {
        for (const int other : stands_for[static_cast<size_t>(one)]) {
          if (!has(after, other)) after.push_back(other);
        }
      }
      if (has(without_steps, i)) {
        stands_for.push_back(after);
        continue;
      }
      stands_for.push_back({static_cast<int>(kept.size())});
      step.begins_early = step.begins_early && after == step.after;
      step.after = after;
      kept.push_back(step);
    }
    return kept;
  };
  out.steps = leave_out(program.steps);
  if (program.condition >= 0 && has(without_steps, static_cast<int>(program.steps.size()) - 1)) {
    out.condition = -1;
  }
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    Op op = program.ops[static_cast<size_t>(i)];
    const bool is_on_step =
        op.kind == OpKind::set || op.kind == OpKind::enable || op.kind == OpKind::disable;
    if (has(without_ops, i) || (is_on_step && has(without_steps, op.step))) continue;
    int gone = 0;
    for (const int one : without_steps) gone += one < op.step ? 1 : 0;
    op.step -= gone;
    if (op.kind == OpKind::update) op.steps = leave_out(op.steps);
    out.ops.push_back(op);
  }
  return out;
}

std::string describe(const Program& program) {
  std::string text;
  if (program.is_captured) text += "captured\n";
  if (program.has_memory_node) text += "with a memory node\n";
  if (program.condition >= 0)
    text +=
        "the last in the body of a conditional node: " + std::to_string(program.condition) + "\n";
  for (size_t i = 0; i < program.steps.size(); ++i) {
    text += "  " + std::to_string(i) + ": " + describe(program.steps[i]);
    for (const int one : program.steps[i].after) text += " <" + std::to_string(one);
    text += program.steps[i].begins_early ? " early\n" : "\n";
  }
  static const char* const kNames[] = {"launch", "set",       "enable",      "disable", "update",
                                       "swap",   "end_graph", "instantiate", "rate",    "other"};
  for (const Op& op : program.ops) {
    text += std::string("  ") + kNames[static_cast<int>(op.kind)];
    if (op.kind == OpKind::launch) text += " into stream " + std::to_string(op.stream);
    if (op.kind == OpKind::set || op.kind == OpKind::enable || op.kind == OpKind::disable)
      text += " " + std::to_string(op.step);
    if (op.kind == OpKind::rate) text += " " + std::to_string(op.way);
    if (op.kind == OpKind::set) text += ": " + describe(op.steps[0]);
    text += "\n";
    for (size_t i = 0; op.kind == OpKind::update && i < op.steps.size(); ++i) {
      text += "    " + std::to_string(i) + ": " + describe(op.steps[i]) + "\n";
    }
  }
  return text;
}

}  // namespace conform
