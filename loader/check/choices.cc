#include "loader/check/choices.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "loader/compile/compile_expression.h"

namespace fibshim {
namespace {

constexpr int64_t kLargestAxis = INT32_MAX;
constexpr size_t kMostSamples = 4096;

// The axes of a definition. Constant axes have their value; the others are parameters in the order
// of `variable`.
class AxisScope : public Scope {
 public:
  AxisScope(const Definition& definition, const std::vector<std::string>& variable)
      : definition_(definition), variable_(variable) {}

  std::optional<Meaning> find(std::string_view name) const override {
    const DefinitionAxis* const axis = definition_.find_axis(name);
    if (axis == nullptr) return std::nullopt;
    if (axis->is_const) return Meaning{Source::constant(axis->value)};
    const auto index = std::ranges::find(variable_, name) - variable_.begin();
    return Meaning{{.kind = Source::Kind::param, .index = static_cast<uint16_t>(index)}};
  }
  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> result;
    for (const DefinitionAxis& axis : definition_.axes) result.push_back(axis.name);
    return result;
  }

 private:
  const Definition& definition_;
  const std::vector<std::string>& variable_;
};

class ChoiceMapper {
 public:
  ChoiceMapper(const Definition& definition, const std::vector<const SolutionSpec*>& solutions) {
    std::set<int64_t> places = {1, kLargestAxis};
    for (const SolutionSpec* solution : solutions) {
      for (const MarkedExpression& clause : solution->when) collect(clause, definition, &places);
    }
    add_multiples(solutions, &places);
    places_.assign(places.begin(), places.end());
    for (const SolutionSpec* solution : solutions) compile(*solution, definition);
  }

  ChoiceMap run() {
    if (map_.axes.size() == 1) {
      for (const int64_t place : places_) add({place});
      search();
    } else {
      add_combinations({});
    }
    return std::move(map_);
  }

 private:
  void collect(const MarkedExpression& clause, const Definition& definition,
               std::set<int64_t>* places) {
    // Of products with a constant axis, such as "rows * hidden_size <= 65536", too.
    std::vector<int64_t> divisors = {1};
    for (const std::string& name : clause.expression.names()) {
      const DefinitionAxis* const axis = definition.find_axis(name);
      if (axis == nullptr) continue;
      const bool is_known = std::ranges::find(map_.axes, name) != map_.axes.end();
      if (axis->is_const) {
        if (axis->value > 1) divisors.push_back(axis->value);
      } else if (!is_known) {
        map_.axes.push_back(name);
      }
    }
    for (const int64_t integer : clause.expression.integers()) {
      for (const int64_t divisor : divisors) add_places(integer / divisor, places);
    }
  }

  // A clause such as "rows % 8 == 0" holds at places that no number of a clause is near: above each
  // place the next multiple of each number in a clause with %, and of all of them.
  static void add_multiples(const std::vector<const SolutionSpec*>& solutions,
                            std::set<int64_t>* places) {
    constexpr size_t kMostMultiples = 16;
    std::set<int64_t> numbers;
    for (const SolutionSpec* solution : solutions) {
      for (const MarkedExpression& clause : solution->when) {
        if (clause.text.text.find('%') == std::string::npos) continue;
        for (const int64_t integer : clause.expression.integers()) {
          if (integer > 1 && integer <= UINT16_MAX && numbers.size() < kMostMultiples)
            numbers.insert(integer);
        }
      }
    }
    int64_t common = 1;
    for (const int64_t number : numbers) {
      const int64_t next = std::lcm(common, number);
      if (next <= kLargestAxis) common = next;
    }
    if (common > 1) numbers.insert(common);
    const std::set<int64_t> before = *places;
    for (const int64_t place : before) {
      for (const int64_t number : numbers) add_places((place / number + 1) * number, places);
    }
  }

  static void add_places(int64_t middle, std::set<int64_t>* places) {
    if (middle < 0 || middle > kLargestAxis) return;
    for (int64_t place = middle - 1; place <= middle + 1; ++place) {
      if (place >= 1 && place <= kLargestAxis) places->insert(place);
    }
  }

  void compile(const SolutionSpec& solution, const Definition& definition) {
    const AxisScope scope(definition, map_.axes);
    std::vector<Step>& steps = programs_.emplace_back();
    for (const MarkedExpression& clause : solution.when) {
      if (compile_where(clause.expression, scope, &steps)) continue;
      steps = {Step{.op = Op::push}, Step{.op = Op::require}};
      return;
    }
  }

  void add(std::vector<int64_t> values) {
    std::vector<void*> params;
    params.reserve(values.size());
    for (int64_t& value : values) params.push_back(&value);
    LaunchView view{};
    view.params = params.data();
    uint32_t holding = 0;
    for (size_t i = 0; i < programs_.size(); ++i) {
      const auto count = static_cast<uint32_t>(programs_[i].size());
      if (run_program(programs_[i].data(), count, view, nullptr)) holding |= 1u << i;
    }
    map_.samples.push_back({std::move(values), holding});
  }

  void add_combinations(std::vector<int64_t> values) {
    if (map_.samples.size() >= kMostSamples) return;
    if (values.size() == map_.axes.size()) return add(std::move(values));
    for (const int64_t place : places_) {
      std::vector<int64_t> longer = values;
      longer.push_back(place);
      add_combinations(std::move(longer));
    }
  }

  // Bisects between neighbours that differ, until they are adjacent integers.
  void search() {
    auto& samples = map_.samples;
    for (size_t i = 0; i + 1 < samples.size() && samples.size() < kMostSamples;) {
      const int64_t low = samples[i].values[0];
      const int64_t high = samples[i + 1].values[0];
      if (samples[i].holding == samples[i + 1].holding || high - low <= 1) {
        ++i;
        continue;
      }
      add({low + (high - low) / 2});
      std::rotate(samples.begin() + static_cast<ptrdiff_t>(i) + 1, samples.end() - 1,
                  samples.end());
    }
  }

  ChoiceMap map_;
  std::vector<int64_t> places_;
  std::vector<std::vector<Step>> programs_;  // one for each solution
};

}  // namespace

bool is_tried_before(const SolutionSpec& a, const SolutionSpec& b) {
  if (a.share != b.share) return a.share != 0;
  return a.benefit != b.benefit ? a.benefit > b.benefit : a.name.name < b.name.name;
}

ChoiceMap map_choices(const Definition& definition,
                      const std::vector<const SolutionSpec*>& solutions) {
  return ChoiceMapper(definition, solutions).run();
}

std::string values_text(const ChoiceMap& map, const ChoiceSample& sample) {
  std::string text;
  for (size_t i = 0; i < map.axes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + map.axes[i] + " is " + std::to_string(sample.values[i]);
  }
  return text;
}

void check_when(const SolutionSpec& solution, const Definition& definition,
                Diagnostics* diagnostics) {
  const std::vector<std::string> none;
  const AxisScope scope(definition, none);
  std::vector<Step> unused;
  for (const MarkedExpression& clause : solution.when) {
    const auto compiled = compile_where(clause.expression, scope, &unused);
    if (compiled) continue;
    ExpressionError error = compiled.error();
    if (error.rule == Rule::unknown_name) {
      error.message += ": \"when\" takes the axes of definition " + in_quotes(definition.name.name);
      if (error.hint.empty()) error.hint = "conditions on arguments belong into \"where\"";
    }
    report(error, clause, diagnostics);
  }
}

void check_choices(const Definition* definition, const std::vector<const SolutionSpec*>& solutions,
                   Diagnostics* diagnostics) {
  if (solutions.size() > kMaxChoices) {
    const SolutionSpec& beyond = *solutions[kMaxChoices];
    diagnostics->add(Rule::limit, beyond.definition.mark,
                     "definition " + in_quotes(beyond.definition.name) + " has " +
                         std::to_string(solutions.size()) + " solutions; at most " +
                         std::to_string(kMaxChoices) + " are accepted");
    return;
  }
  const ChoiceMap map = definition == nullptr ? ChoiceMap{} : map_choices(*definition, solutions);
  for (size_t i = 1; i < solutions.size(); ++i) {
    for (size_t before = 0; before < i; ++before) {
      const SolutionSpec& first = *solutions[before];
      const SolutionSpec& second = *solutions[i];
      if (first.benefit != second.benefit) continue;
      const std::string place = *first.file + ":" + std::to_string(first.definition.mark.line);
      if (first.when.empty() && second.when.empty()) {
        diagnostics->add(Rule::duplicate_solution, second.definition.mark,
                         "definition " + in_quotes(second.definition.name) +
                             " is already solved by " + in_quotes(first.name.name) + " in " +
                             place);
        break;
      }
      const uint32_t both = 1u << before | 1u << i;
      const auto sample = std::ranges::find_if(
          map.samples, [&](const ChoiceSample& one) { return (one.holding & both) == both; });
      if (sample == map.samples.end()) continue;
      const Mark mark = second.when.empty() ? second.definition.mark : second.when[0].text.mark;
      diagnostics->add(Rule::duplicate_solution, mark,
                       "where " + values_text(map, *sample) + ", definition " +
                           in_quotes(second.definition.name) + " is already solved by " +
                           in_quotes(first.name.name) + " in " + place + ", of the same benefit",
                       "narrow one \"when\", or give one solution the higher \"benefit\"");
      break;
    }
  }
}

}  // namespace fibshim
