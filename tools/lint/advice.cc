#include "tools/lint/advice.h"

#include <string.h>

#include <set>

#include "loader/check/choices.h"
#include "loader/compile/bind.h"
#include "tools/lint/ranges.h"

namespace fibshim {
namespace {

// The largest axis that is tried: 2^20 tokens, rows or pages. Larger launches are not checked.
constexpr int64_t kLargestAxis = 1 << 20;

// Knows the constant axes, and a value for each axis that varies. Names that only a launch defines
// have no meaning.
class TrialScope : public Scope {
 public:
  TrialScope(const PatternSpec& pattern, const Definition& definition,
             const std::map<std::string, int64_t>& axes)
      : pattern_(pattern), definition_(definition), axes_(axes) {}

  std::optional<Meaning> find(std::string_view name) const override {
    Source source;
    const DefinitionAxis* const axis = definition_.find_axis(name);
    if (axis != nullptr && axis->is_const) {
      source.integer = axis->value;
      return Meaning{source, nullptr, nullptr};
    }
    const auto trial = axes_.find(std::string(name));
    if (trial != axes_.end()) {
      source.integer = trial->second;
      return Meaning{source, nullptr, nullptr};
    }
    const PatternValue* const value = pattern_.find_value(name);
    if (value == nullptr) return std::nullopt;
    if (value->expression) return Meaning{{}, &value->expression->expression, this};
    if (!value->source.is_constant()) return std::nullopt;
    return Meaning{value->source, nullptr, nullptr};
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  const PatternSpec& pattern_;
  const Definition& definition_;
  const std::map<std::string, int64_t>& axes_;
};

class Adviser {
 public:
  Adviser(const FolderModel& model, const std::vector<uint32_t>& sms, Diagnostics* diagnostics)
      : model_(model), sms_(sms), diagnostics_(diagnostics) {
    has_routes_.assign(model.patterns.size(), false);
    for (const BindingSpec& binding : model.bindings) has_routes_[binding.pattern] = true;
  }

  void run() {
    for (size_t i = 0; i < model_.patterns.size(); ++i) {
      report_shadowed(i);
      report_unrouted(i);
    }
    report_unsolved();
    report_unserved_ranges();
    report_split_invariance();
    for (const BindingSpec& binding : model_.bindings) {
      if (binding.state == BindingState::ready) report_geometry(binding);
    }
    for (const SolutionSpec& solution : model_.solutions) report_sms(solution);
  }

 private:
  void add(Rule rule, Mark mark, std::string message, std::string hint = {}) {
    diagnostics_->add(rule, mark, std::move(message), std::move(hint));
  }

  // True if `a` fits every symbol that `b` fits.
  static bool covers_symbol(const PatternSpec& a, const PatternSpec& b) {
    if (a.symbol->text() == b.symbol->text()) return true;
    if (!a.captures.empty()) return false;
    if (a.symbol->text() == "glob:*") return true;
    if (b.symbol->kind() != SymbolPattern::Kind::exact ||
        a.symbol->kind() == SymbolPattern::Kind::demangled) {
      return false;
    }
    return a.symbol->fits(b.symbol->text());
  }

  static bool covers_images(const PatternSpec& a, const PatternSpec& b) {
    if (a.images.empty()) return true;
    if (b.images.empty()) return false;
    return std::ranges::all_of(b.images, [&](const ImageHash& wanted) {
      return std::ranges::any_of(a.images, [&](const ImageHash& known) {
        return known.low == wanted.low && known.high == wanted.high;
      });
    });
  }

  static bool is_same(const std::vector<Step>& a, const std::vector<Step>& b) {
    return a.size() == b.size() &&
           (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(Step)) == 0);
  }

  // True if `a` and `b` give a launch the same definition name.
  static bool has_same_name(const PatternSpec& a, const PatternSpec& b) {
    return a.symbol->text() == b.symbol->text() && a.captures == b.captures &&
           a.name.size() == b.name.size() && a.keys.size() == b.keys.size() &&
           std::equal(a.name.begin(), a.name.end(), b.name.begin(),
                      [](const TemplatePart& one, const TemplatePart& other) {
                        return one.kind == other.kind && one.index == other.index &&
                               (one.kind != TemplatePart::Kind::text || one.text == other.text);
                      }) &&
           std::equal(a.keys.begin(), a.keys.end(), b.keys.begin(),
                      [](const CompiledValue& one, const CompiledValue& other) {
                        return is_same(one.steps, other.steps);
                      });
  }

  // True if `a`, which is tried before `b`, takes every launch that `b` fits.
  bool shadows(size_t a_index, size_t b_index) const {
    const PatternSpec& a = *model_.patterns[a_index];
    const PatternSpec& b = *model_.patterns[b_index];
    if (a.is_rewrite() || b.is_rewrite()) return false;
    if (a.has_params && (!b.has_params || a.params != b.params)) return false;
    const bool has_weaker_where =
        a.where.empty() || (a.captures == b.captures && is_same(a.where_steps, b.where_steps));
    if (!has_weaker_where || !covers_images(a, b)) return false;
    // A pattern without a solution for a launch leaves the launch to the next pattern.
    const bool is_constant =
        a.keys.empty() && a.name.size() == 1 && a.name[0].kind == TemplatePart::Kind::text;
    const bool decides = (is_constant && has_routes_[a_index]) || has_same_name(a, b);
    return decides && covers_symbol(a, b);
  }

  void report_shadowed(size_t index) {
    for (size_t before = 0; before < index; ++before) {
      if (!shadows(before, index)) continue;
      const PatternSpec& pattern = *model_.patterns[index];
      const PatternSpec& first = *model_.patterns[before];
      add(Rule::shadowed_pattern, pattern.label_mark,
          "pattern " + in_quotes(first.label) + " in " + model_.shown_pattern(before) +
              " is tried first and takes every launch that " + in_quotes(pattern.label) + " fits",
          "give this one the higher \"benefit\", or narrow the other");
      return;
    }
  }

  void report_unrouted(size_t index) {
    const PatternSpec& pattern = *model_.patterns[index];
    if (has_routes_[index] || pattern.is_analysis) return;  // analysis needs no solution
    const bool has_definition = std::ranges::any_of(
        model_.definitions,
        [&](const Definition& definition) { return pattern.can_name(definition.name.name, {}); });
    if (has_definition) return;
    add(Rule::unrouted_pattern, pattern.definition.mark,
        "no definition of the folder has a name like " + in_quotes(pattern.definition.text));
  }

  void report_unsolved() {
    std::set<std::string_view> solved;
    for (const SolutionSpec& solution : model_.solutions) solved.insert(solution.definition.name);
    for (const Definition& definition : model_.definitions) {
      if (solved.count(definition.name.name) != 0) continue;
      add(Rule::unsolved_definition, definition.name.mark,
          "no solution solves definition " + in_quotes(definition.name.name));
    }
  }

  // Solutions by the name of their definition.
  std::map<std::string_view, std::vector<const SolutionSpec*>> solutions_by_definition() const {
    std::map<std::string_view, std::vector<const SolutionSpec*>> by_definition;
    for (const SolutionSpec& solution : model_.solutions) {
      by_definition[solution.definition.name].push_back(&solution);
    }
    return by_definition;
  }

  // Reports definitions whose solutions differ in their claim to be batch-invariant: a row's batch
  // decides which of them computes the row.
  void report_split_invariance() {
    if (model_.settings.requires_batch_invariant) return;
    for (const auto& [name, solutions] : solutions_by_definition()) {
      const auto claims = [](const SolutionSpec* one) { return one->batch_invariant == true; };
      const auto one = std::ranges::find_if(solutions, claims);
      const auto other = std::ranges::find_if_not(solutions, claims);
      if (one == solutions.end() || other == solutions.end()) continue;
      add(Rule::split_invariance, (*one)->launch_mark,
          "solution " + in_quotes((*one)->name.name) + " claims to be batch-invariant, but " +
              in_quotes((*other)->name.name) + ", for other sizes of definition " +
              in_quotes(name) + ", does not");
    }
  }

  void report_unserved_ranges() {
    ChoiceEffort effort;
    for (const auto& [name, solutions] : solutions_by_definition()) {
      if (std::ranges::any_of(solutions, [](const auto* one) { return one->when.empty(); }))
        continue;
      const ChoiceMap map = map_choices(*model_.definition_of(*solutions[0]), solutions, &effort);
      if (const std::string where = unserved_text(map); !where.empty()) {
        add(Rule::unserved_range, solutions[0]->when[0].text.mark,
            "no solution of definition " + in_quotes(name) + " is for " + where +
                ": the original runs there");
      }
    }
  }

  // The sizes without a solution, such as "rows from 257 on"; empty if there are none.
  static std::string unserved_text(const ChoiceMap& map) {
    const auto& samples = map.samples;
    const auto is_unserved = [](const ChoiceSample& sample) { return sample.holding == 0; };
    if (!map.is_whole) {
      const auto found = std::ranges::find_if(samples, is_unserved);
      return found == samples.end() ? "" : "sizes such as " + values_text(map.axes, found->values);
    }
    std::string text;
    for (auto at = samples.begin(); at != samples.end();) {
      const auto begin = std::find_if(at, samples.end(), is_unserved);
      if (begin == samples.end()) break;
      at = std::find_if_not(begin, samples.end(), is_unserved);
      const std::string low = std::to_string(begin->values[0]);
      const std::string high = std::to_string(std::prev(at)->values[0]);
      text += text.empty() ? map.axes[0] + " " : ", ";
      text += at == samples.end() ? "from " + low + " on" : low == high ? low : low + " to " + high;
    }
    return text;
  }

  // --- geometry

  struct Trial {
    const PatternSpec& pattern;
    const SolutionSpec& solution;
    const Definition& definition;
    std::map<std::string, int64_t> axes;
  };

  // The expression's value. Nothing if only a launch knows it, or a `where` may exclude the trial.
  static std::optional<int64_t> value_of(const Trial& trial, const MarkedExpression& expression,
                                         bool* overflows) {
    const TrialScope scope(trial.pattern, trial.definition, trial.axes);
    const auto compiled = compile_value(expression.expression, scope);
    if (!compiled) {
      *overflows = compiled.error().rule == Rule::expression_value;
      return std::nullopt;
    }
    return compiled->constant;
  }

  // True if a launch of these sizes passes all clauses, so that its geometry is computed.
  static bool is_allowed(const Trial& trial) {
    for (const auto* clauses :
         {&trial.pattern.where, &trial.solution.where, &trial.solution.when}) {
      for (const MarkedExpression& clause : *clauses) {
        bool overflows = false;
        const auto value = value_of(trial, clause, &overflows);
        if (overflows || (value && *value == 0)) return false;
        if (value) continue;
        const auto& names = clause.expression.names();
        // Together with values that only the launch knows, the clause may exclude these sizes.
        if (std::ranges::any_of(
                names, [&](const std::string& name) { return trial.axes.count(name) != 0; })) {
          return false;
        }
      }
    }
    return true;
  }

  // Why CUDA would refuse the geometry of a launch of these sizes.
  struct Fault {
    uint32_t index;
    std::string message;
    bool falls_back = false;  // the shim sees it, and runs the original
  };
  static std::optional<Fault> fault_of(const Trial& trial) {
    int64_t block_threads = 1;
    bool has_block = true;
    std::optional<int64_t> values[kGeometryCount];
    for (uint32_t i = 0; i < kGeometryCount; ++i) {
      bool overflows = false;
      const auto value = values[i] = value_of(trial, trial.solution.geometry[i], &overflows);
      const bool is_block = i >= kBlockX && i <= kBlockZ;
      if (overflows) return Fault{i, std::string(kGeometry[i].name) + " cannot be computed", true};
      if (!value) {
        has_block = has_block && !is_block;
        continue;
      }
      std::string why;
      if (!is_geometry_in_range(i, *value, &why)) {
        return Fault{i, why, *value < kGeometry[i].lowest || *value > INT32_MAX};
      }
      if (is_block) block_threads *= *value;
    }
    for (uint32_t i = 0; i < 3; ++i) {
      std::string why;
      const auto grid = values[kGridX + i];
      const auto cluster = values[kClusterX + i];
      if (grid && cluster && !is_whole_clusters(kGridX + i, *grid, *cluster, &why)) {
        return Fault{kClusterX + i, why};
      }
    }
    const int64_t most = trial.solution.max_threads == 0
                             ? kMaxBlockThreads
                             : std::min<int64_t>(kMaxBlockThreads, trial.solution.max_threads);
    if (has_block && block_threads > most) {
      return Fault{kBlockX, "a block has " + std::to_string(block_threads) +
                                " threads; the kernel takes " + std::to_string(most)};
    }
    return std::nullopt;
  }

  void report_geometry(const BindingSpec& binding) {
    const PatternSpec& pattern = *model_.patterns[binding.pattern];
    const SolutionSpec& solution = model_.solutions[binding.solution];
    const Definition& definition = *model_.definition_of(solution);
    Ranges ranges(pattern);
    for (const MarkedExpression& clause : pattern.where) ranges.add(clause.expression);
    for (const MarkedExpression& clause : solution.where) ranges.add(clause.expression);
    for (const MarkedExpression& clause : solution.when) ranges.add(clause.expression);
    Trial trial{pattern, solution, definition, {}};
    std::map<std::string, int64_t> largest;
    for (const PatternValue& value : pattern.values) {
      const DefinitionAxis* const axis = definition.find_axis(value.name);
      if (!value.is_axis || (axis != nullptr && axis->is_const)) continue;
      if (!value.expression && value.source.is_constant()) continue;
      Range range = ranges.of(value.name);
      range.keep(1, kLargestAxis);
      if (range.is_empty()) return;  // its launches are larger than the sizes tried here
      trial.axes[value.name] = range.low;
      largest[value.name] = range.high;
    }
    if (trial.axes.empty()) return;
    const auto is_faulty = [](const Trial& sizes) {
      return is_allowed(sizes) && fault_of(sizes).has_value();
    };
    if (is_faulty(trial)) {
      report_fault(binding, trial, trial.axes.begin()->first, false);
      return;
    }
    for (const auto& [name, high] : largest) {
      Trial grown = trial;
      grown.axes[name] = high;
      if (!is_faulty(grown)) continue;
      // Bisects between a size that is fine and one that is faulty, to find the first faulty one.
      int64_t fine = trial.axes[name];
      int64_t faulty = high;
      while (faulty - fine > 1) {
        grown.axes[name] = fine + (faulty - fine) / 2;
        (is_faulty(grown) ? faulty : fine) = grown.axes[name];
      }
      grown.axes[name] = faulty;
      report_fault(binding, grown, name, true);
    }
  }

  void report_fault(const BindingSpec& binding, const Trial& trial, const std::string& name,
                    bool has_bound) {
    const auto fault = fault_of(trial);
    if (!fault) return;
    // Reports once for each solution, however many patterns lead to it.
    if (!reported_.emplace(binding.solution, fault->index).second) return;
    const std::string value = std::to_string(trial.axes.at(name));
    add(Rule::geometry_overflow, trial.solution.geometry[fault->index].text.mark,
        "when " + in_quotes(name) + " is " + value + ", " + fault->message +
            (fault->falls_back ? "; the launch falls back" : "; the launch would fail"),
        fault->falls_back ? "let a \"where\" exclude it, if that is meant"
        : has_bound ? "add \"" + name + " < " + value + "\" to \"where\", so that it falls back"
                    : "let a \"where\" exclude it, so that it falls back");
  }

  // --- GPUs

  static bool runs_on(const SolutionImage& image, uint32_t sm) {
    if (image.kind == ImageKind::fatbin) return true;  // the driver chooses among its entries
    if (image.scope == ArchScope::arch_specific) return image.sm == sm;
    if (image.kind == ImageKind::ptx) return image.sm <= sm;
    return image.sm / 10 == sm / 10 && image.sm <= sm;
  }

  void report_sms(const SolutionSpec& solution) {
    for (const uint32_t sm : sms_) {
      if (std::ranges::any_of(solution.images,
                              [&](const SolutionImage& image) { return runs_on(image, sm); })) {
        continue;
      }
      add(Rule::no_image_for_gpu, solution.launch_mark,
          "solution " + in_quotes(solution.name.name) + " has no image for sm_" +
              std::to_string(sm) + ": its launches there fall back");
    }
  }

  const FolderModel& model_;
  const std::vector<uint32_t>& sms_;
  Diagnostics* diagnostics_;
  std::vector<bool> has_routes_;                      // of each pattern
  std::set<std::pair<uint32_t, uint32_t>> reported_;  // solution and geometry index
};

}  // namespace

void advise(const FolderModel& model, const std::vector<uint32_t>& sms, Diagnostics* diagnostics) {
  Adviser(model, sms, diagnostics).run();
}

}  // namespace fibshim
