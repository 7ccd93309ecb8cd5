#include "loader/check/snapshot_layout.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "loader/read/limits.h"
#include "shim/abi/snapshot.h"
#include "shim/abi/settings.h"

namespace fibshim {
namespace {

constexpr uint32_t kMaxParamOffset = 1 << 16;  // beyond the bytes of any kernel's parameters

// Steps and elements that are looked at: 0.2 s. Programs that are alike share their memory, so that a
// block's size bounds nothing.
constexpr uint64_t kMaxLooks = uint64_t{1} << 26;

// Enumerators are compared as the numbers that they are: one that does not exist must not be made.
template <class Enum>
bool is_at_most(Enum value, Enum last) {
  return static_cast<uint32_t>(value) <= static_cast<uint32_t>(last);
}

class LayoutCheck {
 public:
  explicit LayoutCheck(std::string_view block)
      : block_(block), snapshot_(*reinterpret_cast<const Snapshot*>(block.data())) {}

  bool is_sound() const {
    const Snapshot& s = snapshot_;
    return is_sound(s.patterns) && is_sound(s.solutions) && is_sound(s.bindings) &&
           is_sound(s.settings) && is_sound(s.symbols) && s.symbols.count == s.patterns.count &&
           s.patterns.count <= kMaxPatterns && s.settings.count <= kSettingCount &&
           all(s.patterns, [&](const Pattern& pattern) { return is_sound(pattern); }) &&
           all(s.solutions, [&](const Solution& solution) { return is_sound(solution); }) &&
           all(s.bindings, [&](const Binding& binding) { return is_sound(binding); }) &&
           all(s.settings,
               [&](const Setting& setting) {
                 return is_text(setting.name) && is_text(setting.value);
               }) &&
           are_symbols_sound();
  }

 private:
  template <class T>
  bool is_sound(Array<T> array) const {
    return array.count == 0 || (array.at >= sizeof(Snapshot) && array.at % alignof(T) == 0 &&
                                uint64_t{array.count} * sizeof(T) <= block_.size() &&
                                array.at <= block_.size() - uint64_t{array.count} * sizeof(T));
  }

  template <class T, class Test>
  bool all(Array<T> array, const Test& test) const {
    const T* const begin = snapshot_.begin(array);
    return spend(array.count) && std::all_of(begin, begin + array.count, test);
  }

  // False: it takes too long.
  bool spend(uint64_t looks) const {
    if (looks > left_looks_) return false;
    left_looks_ -= looks;
    return true;
  }

  // A text ends within the block or, at the latest, with the root's path that follows it.
  bool is_text(Offset at) const { return at >= sizeof(Snapshot) && at < block_.size(); }
  bool is_short_text(Offset at) const {
    const size_t most = std::min(kMaxSymbolPatternLength + 1, block_.size() - at);
    return strnlen(block_.data() + at, most) <= kMaxSymbolPatternLength;
  }
  bool is_text_or_none(Offset at) const { return at == 0 || is_text(at); }

  bool is_sound(const Pattern& pattern) const {
    return is_text(pattern.label) && is_text(pattern.file) && is_sound(pattern.param_sizes) &&
           pattern.param_sizes.count <= kMaxParams && is_sound(pattern.images) &&
           pattern.capture_count <= kMaxCaptures && is_sound(pattern.key) &&
           pattern.key.count <= kMaxKeyParts && is_sound(pattern.name) &&
           is_sound(pattern.routes) && is_statements(pattern.where, pattern) &&
           all(pattern.key, [&](const KeyPart& key) { return is_value(key.program, pattern); }) &&
           all(pattern.name, [&](const NamePart& part) { return is_sound(part, pattern); }) &&
           all(pattern.routes, [&](const Route& route) {
             return is_text(route.definition) && route.binding < snapshot_.bindings.count;
           });
  }

  bool is_sound(const NamePart& part, const Pattern& pattern) const {
    if (!is_at_most(part.kind, NamePart::Kind::capture)) return false;
    switch (part.kind) {
      case NamePart::Kind::text: return is_text(part.text);
      case NamePart::Kind::key: return part.index < pattern.key.count;
      case NamePart::Kind::capture: return part.index < pattern.capture_count;
    }
    return false;
  }

  bool is_sound(const Solution& solution) const {
    return is_text(solution.name) && is_text(solution.definition) && is_text(solution.file) &&
           is_text(solution.kernel) && is_text_or_none(solution.error_message) &&
           is_at_most(solution.on_error, SolutionOnError::fallback) &&
           is_sound(solution.param_sizes) && solution.param_sizes.count <= kMaxParams &&
           is_sound(solution.images) && all(solution.images, [&](const Image& image) {
             return is_text(image.path) && is_at_most(image.kind, ImageKind::ptx);
           });
  }

  bool is_sound(const Binding& binding) const {
    if (binding.pattern >= snapshot_.patterns.count ||
        binding.solution >= snapshot_.solutions.count ||
        !is_at_most(binding.state, BindingState::broken) || !is_text_or_none(binding.reason) ||
        !is_sound(binding.arguments) || binding.arguments.count > kMaxParams) {
      return false;
    }
    const Pattern& pattern = snapshot_.begin(snapshot_.patterns)[binding.pattern];
    return pattern.capture_count <= kMaxCaptures && is_statements(binding.where, pattern) &&
           all(binding.arguments,
               [&](const ArgumentMap& argument) { return is_sound(argument, pattern); }) &&
           std::all_of(
               std::begin(binding.geometry), std::end(binding.geometry),
               [&](const GeometryMap& map) {
                 return is_at_most(map.kind, GeometryMap::Kind::program) &&
                        map.index < kGeometryCount &&
                        (map.kind != GeometryMap::Kind::program || is_value(map.program, pattern));
               });
  }

  bool is_sound(const ArgumentMap& argument, const Pattern& pattern) const {
    const bool has_size =
        argument.size == 1 || argument.size == 2 || argument.size == 4 || argument.size == 8;
    if (!is_at_most(argument.kind, ArgumentMap::Kind::floating) || !has_size) return false;
    if (argument.kind == ArgumentMap::Kind::pass) {
      return argument.param < kMaxParams && argument.offset <= kMaxParamOffset;
    }
    return is_value(argument.program, pattern);
  }

  bool are_symbols_sound() const {
    const SymbolEntry* const symbols = snapshot_.begin(snapshot_.symbols);
    const Pattern* const patterns = snapshot_.begin(snapshot_.patterns);
    for (uint32_t i = 0; i < snapshot_.symbols.count; ++i) {
      if (!is_text(symbols[i].text) || !is_short_text(symbols[i].text) ||
          !is_at_most(symbols[i].filing, SymbolEntry::Filing::always) ||
          symbols[i].capture_count > kMaxCaptures ||
          symbols[i].capture_count != patterns[i].capture_count) {
        return false;
      }
    }
    return true;
  }

  bool is_value(Program program, const Pattern& pattern) const {
    return program.count > 0 && is_sound(program) && depth_after(program, pattern) == 1;
  }
  bool is_statements(Program program, const Pattern& pattern) const {
    return is_sound(program) && depth_after(program, pattern) == 0;
  }

  // How many values a step takes off the stack, and how many it leaves instead. False: no such step.
  static bool effect_of(Op op, uint32_t* taken, uint32_t* left) {
    if (!is_at_most(op, Op::require_equal)) return false;
    *taken = 2;
    *left = 1;
    switch (op) {
      case Op::load_param:
      case Op::load_geometry:
      case Op::load_capture:
      case Op::push: *taken = 0; break;
      case Op::to_float:
      case Op::neg:
      case Op::logical_not:
      case Op::to_bool: *taken = 1; break;
      case Op::jump_if_zero_else_pop:
      case Op::jump_if_nonzero_else_pop:
      case Op::require:
        *taken = 1;
        *left = 0;
        break;
      case Op::require_aligned:
      case Op::require_equal: *taken = *left = 0; break;
      default: break;  // everything else makes one of two
    }
    return true;
  }

  bool has_sound_operand(const Step& step, const Pattern& pattern) const {
    switch (step.op) {
      case Op::load_geometry: return step.index < kGeometryCount;
      case Op::load_capture: return step.index < pattern.capture_count;
      case Op::load_param:
      case Op::require_aligned:
      case Op::require_equal:
        return is_at_most(step.type, ValueType::address) && step.index < kMaxParams &&
               step.offset <= kMaxParamOffset;
      default: return true;
    }
  }

  // Values on the stack when the program has run, whichever way it took; -1: it must not run.
  int depth_after(Program program, const Pattern& pattern) const {
    if (!spend(program.count)) return -1;
    const Step* const steps = snapshot_.begin(program);
    uint32_t depth = 0;
    struct Landing {
      uint32_t at, depth;
    };
    std::vector<Landing> landings;  // of jumps that lie ahead; the innermost last
    const auto land = [&](uint32_t at) {
      while (!landings.empty() && landings.back().at == at) {
        if (landings.back().depth != depth) return false;
        landings.pop_back();
      }
      return landings.empty() || landings.back().at > at;
    };
    for (uint32_t i = 0; i < program.count; ++i) {
      const Step& step = steps[i];
      uint32_t taken = 0;
      uint32_t left = 0;
      if (!land(i) || !effect_of(step.op, &taken, &left) || !has_sound_operand(step, pattern) ||
          depth < taken) {
        return -1;
      }
      if (step.op == Op::jump_if_zero_else_pop || step.op == Op::jump_if_nonzero_else_pop) {
        if (step.imm < 0 || step.imm >= program.count - i) return -1;
        // Jumps nest, or end at one place: what && and || make.
        const uint32_t at = i + 1 + static_cast<uint32_t>(step.imm);
        if (!landings.empty() && at > landings.back().at) return -1;
        landings.push_back({at, depth});
      }
      depth = depth - taken + left;
      if (depth > kMaxStackDepth) return -1;
    }
    return land(program.count) && landings.empty() ? static_cast<int>(depth) : -1;
  }

  const std::string_view block_;
  const Snapshot& snapshot_;
  mutable uint64_t left_looks_ = kMaxLooks;
};

}  // namespace

bool is_sound_layout(std::string_view block) {
  if (block.size() < sizeof(Snapshot) || block.size() > UINT32_MAX / 2 ||
      reinterpret_cast<uintptr_t>(block.data()) % alignof(Snapshot) != 0) {
    return false;
  }
  const auto& snapshot = *reinterpret_cast<const Snapshot*>(block.data());
  return memcmp(snapshot.magic, "FIBSNAP", 8) == 0 && snapshot.version == kSnapshotVersion &&
         LayoutCheck(block).is_sound();
}

}  // namespace fibshim
