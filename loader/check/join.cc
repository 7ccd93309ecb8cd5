#include "loader/check/join.h"

#include <algorithm>

#include "loader/check/choices.h"
#include "loader/compile/bind.h"
#include "loader/read/ahead.h"

namespace fibshim {
namespace {

constexpr size_t kBatchPairs = 64;  // about
constexpr size_t kPairsPerThread = 192;
constexpr size_t kMostFindingsAhead = 16;  // of a pair: one with more is bound again in its turn

class Joiner {
 public:
  Joiner(FolderModel* model, const Shadows& shadows, Diagnostics* diagnostics,
         const std::function<void(size_t count)>& bound)
      : model_(model), shadows_(shadows), diagnostics_(diagnostics), bound_(bound) {}

  std::vector<bool> run() {
    // Sort solutions by definition name, so that a template's literal prefix selects a range.
    SolutionsByName by_name;
    for (uint32_t i = 0; i < model_->solutions.size(); ++i) {
      by_name.emplace_back(model_->solutions[i].definition.name, i);
    }
    std::ranges::sort(by_name, [&](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first < b.first;
      return is_tried_before(model_->solutions[a.second], model_->solutions[b.second]);
    });
    std::vector<bool> is_reached(model_->solutions.size());
    if (!are_pairs_within_limits(by_name)) return is_reached;
    Pairs pairs;
    for (uint32_t i = 0; i < model_->patterns.size(); ++i) {
      const PatternSpec& pattern = *model_->patterns[i];
      const std::string_view prefix = pattern.name_prefix();
      auto at = first_with_prefix(by_name, prefix);
      std::string_view last_name;
      bool can_name_last = false;
      for (; at != by_name.end() && at->first.substr(0, prefix.size()) == prefix; ++at) {
        const bool has_share = model_->solutions[at->second].share != 0;
        if (!(has_share ? pattern.reads_share : pattern.reads_rest)) continue;
        if (at->first != last_name) {
          last_name = at->first;
          can_name_last = pattern.can_name(last_name, {});
        }
        if (can_name_last) pairs.emplace_back(i, at->second);
      }
    }
    if (pairs.size() > kMaxBindings) {
      beyond_limit(std::to_string(pairs.size()) + " pairs of a pattern and a solution; at most " +
                   std::to_string(kMaxBindings));
      return is_reached;
    }
    bind_all(pairs);
    for (const auto& [pattern, solution] : pairs) is_reached[solution] = true;
    return is_reached;
  }

 private:
  using SolutionsByName = std::vector<std::pair<std::string_view, uint32_t>>;  // sorted

  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;  // of a pattern and a solution

  // What was found about a pair.
  struct Said {
    size_t pair;
    Diagnostics findings;
  };

  static SolutionsByName::const_iterator first_with_prefix(const SolutionsByName& by_name,
                                                           std::string_view prefix) {
    return std::lower_bound(by_name.begin(), by_name.end(),
                            std::pair<std::string_view, uint32_t>(prefix, 0));
  }

  // Counts how many names will be compared, before the first comparison.
  bool are_pairs_within_limits(const SolutionsByName& by_name) {
    uint64_t pairs = 0;
    for (const auto& pattern : model_->patterns) {
      const std::string_view prefix = pattern->name_prefix();
      const auto begin = first_with_prefix(by_name, prefix);
      const auto end = std::partition_point(begin, by_name.end(), [&](const auto& named) {
        return named.first.substr(0, prefix.size()) == prefix;
      });
      pairs += static_cast<uint64_t>(end - begin);
    }
    if (pairs <= kMaxComparedPairs) return true;
    beyond_limit(std::to_string(pairs) +
                 " pairs of a pattern and a solution whose name begins as the pattern's does; at "
                 "most " +
                 std::to_string(kMaxComparedPairs));
    return false;
  }

  void beyond_limit(const std::string& what) {
    diagnostics_->add(Rule::limit, {model_->folders[0].given, 0, 0}, what + " are accepted");
  }

  std::string_view definition_of(const std::pair<uint32_t, uint32_t>& pair) const {
    return model_->solutions[pair.second].definition.name;
  }

  // Returns where batches begin, and the end. A batch has one pattern, and all pairs of a
  // definition: these are bound together.
  std::vector<size_t> batches_of(const Pairs& pairs) const {
    std::vector<size_t> begins;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const bool goes_on = i > 0 && pairs[i].first == pairs[i - 1].first &&
                           (i - begins.back() < kBatchPairs ||
                            definition_of(pairs[i]) == definition_of(pairs[i - 1]));
      if (!goes_on) begins.push_back(i);
    }
    begins.push_back(pairs.size());
    return begins;
  }

  void bind_all(const Pairs& pairs) {
    const std::vector<size_t> begins = batches_of(pairs);
    const size_t batches = begins.size() - 1;
    model_->bindings.resize(pairs.size());
    const auto bind_pair = [&](size_t i, const Sibling& sibling, KnownClauses* known,
                               Diagnostics* said) {
      const SolutionSpec& solution = model_->solutions[pairs[i].second];
      BindingSpec& binding = model_->bindings[i];
      binding = bind(*model_->patterns[pairs[i].first], solution, *model_->definition_of(solution),
                     sibling, known, said);
      binding.pattern = pairs[i].first;
      binding.solution = pairs[i].second;
    };
    // Each batch has its own part of the bindings.
    const auto bind_batch = [&](size_t batch) {
      auto all_said = std::make_unique<std::vector<Said>>();
      KnownClauses known(&texts_);
      Sibling sibling;
      for (size_t i = begins[batch]; i < begins[batch + 1]; ++i) {
        if (i > begins[batch] && definition_of(pairs[i]) != definition_of(pairs[i - 1])) {
          sibling = {};
        }
        Diagnostics said(kMostFindingsAhead);
        bind_pair(i, sibling, &known, &said);
        const BindingSpec& binding = model_->bindings[i];
        if (!said.all().empty()) {
          all_said->push_back({i, std::move(said)});
        } else if (binding.state == BindingState::ready) {
          sibling = {&binding, &model_->solutions[pairs[i].second]};
        }
      }
      return all_said;
    };
    // No threads for few pairs, in however many batches.
    const size_t per_thread = kPairsPerThread * batches / std::max<size_t>(pairs.size(), 1) + 1;
    Ahead<std::vector<Said>> ahead(batches, per_thread, bind_batch);
    for (size_t batch = 0; batch < batches; ++batch) {
      const auto all_said = ahead.fetch(batch);
      if (all_said == nullptr) throw std::bad_alloc();
      auto said = all_said->begin();
      for (size_t i = begins[batch]; i < begins[batch + 1]; ++i) {
        const bool is_quiet = said == all_said->end() || said->pair != i;
        Diagnostics findings = is_quiet ? Diagnostics() : std::move((said++)->findings);
        if (findings.is_full()) {
          findings = Diagnostics();
          KnownClauses known(&texts_);
          bind_pair(i, {}, &known, &findings);
        }
        if (!tell_of_shadow(model_->bindings[i])) diagnostics_->add_all(std::move(findings));
      }
      bound_(begins[batch + 1]);
    }
  }

  // If a pattern does not fit because an earlier folder's solution or definition is used, this is
  // reported once per pattern, in place of what bind() said. Returns false if that is not so.
  bool tell_of_shadow(const BindingSpec& binding) {
    if (binding.state != BindingState::refused) return false;
    const PatternSpec& pattern = *model_->patterns[binding.pattern];
    const SolutionSpec& solution = model_->solutions[binding.solution];
    const Definition& definition = *model_->definition_of(solution);
    const auto own = std::pair(pattern.folder, solution.definition.name);
    const auto other = shadows_.definitions.find(own);
    const bool is_other = definition.folder < pattern.folder && other != shadows_.definitions.end();
    if (!is_other && shadows_.solutions.count(own) == 0) return false;
    const Rule rule = is_other ? Rule::shadowed_definition : Rule::shadowed_solution;
    if (!told_.emplace(&pattern, rule).second) return true;
    const auto at = [](const Mark& mark) { return *mark.file + ":" + std::to_string(mark.line); };
    const std::string name = in_quotes(solution.definition.name);
    diagnostics_->add(rule, pattern.definition.mark,
                      "pattern " + in_quotes(pattern.label) + " does not fit " +
                          (is_other ? "definition " + name + " of " + at(definition.name.mark) +
                                          ", which comes before that of " + at(other->second)
                                    : "solution " + in_quotes(solution.name.name) + " of " +
                                          at(solution.definition.mark) +
                                          ", which comes before that of its own folder") +
                          ": " + binding.reason);
    return true;
  }

  FolderModel* model_;
  const Shadows& shadows_;
  Diagnostics* diagnostics_;
  const std::function<void(size_t count)>& bound_;
  KnownTexts texts_;
  std::set<std::pair<const PatternSpec*, Rule>> told_;
};

}  // namespace

std::vector<bool> join_all(FolderModel* model, const Shadows& shadows, Diagnostics* diagnostics,
                           const std::function<void(size_t count)>& bound) {
  return Joiner(model, shadows, diagnostics, bound).run();
}

}  // namespace fibshim
