#include "loader/check/choices.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "loader/compile/compile_expression.h"

namespace fibshim {
namespace {

constexpr int64_t kLargestAxis = INT32_MAX;
constexpr size_t kMostSamples = 4096;
constexpr int64_t kMostTried = 65536;  // values of a single axis

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

// The integers of one axis that its plain clauses allow.
class AxisValues {
 public:
  void keep(int64_t lowest, int64_t highest) {
    low_ = std::max(low_, lowest);
    high_ = std::min(high_, highest);
  }

  // Keeps those with that remainder. Returns false if they cannot be described.
  bool keep_remainder(int64_t modulus, int64_t remainder) {
    const int64_t step = std::lcm(step_, modulus);
    if (step > kLargestAxis) return false;
    while (rest_ < step && rest_ % modulus != remainder) rest_ += step_;
    if (rest_ >= step) high_ = 0;
    step_ = step;
    return true;
  }

  // The first one from `least` on.
  std::optional<int64_t> first(int64_t least = 1) const {
    least = std::max(least, low_);
    if (least > high_) return std::nullopt;
    const int64_t ahead = (rest_ - least % step_ + step_) % step_;
    return ahead > high_ - least ? std::nullopt : std::optional(least + ahead);
  }
  int64_t high() const { return high_; }

 private:
  int64_t low_ = 1, high_ = INT64_MAX;
  int64_t step_ = 1, rest_ = 0;  // value % step_ == rest_
};

// Values of all axes, as the parameters of a launch.
struct Point {
  explicit Point(size_t axes) : values(axes) {
    for (int64_t& value : values) params.push_back(&value);
    view.params = params.data();
  }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  std::vector<int64_t> values;
  std::vector<void*> params;
  LaunchView view{};
};

// The `when` of one solution. A clause is plain if it is a range or a remainder of one axis.
class Condition {
 public:
  Condition(const SolutionSpec& solution, const Definition& definition,
            const std::vector<std::string>& axes)
      : definition_(definition), axes_(axes), places_(axes.size()) {
    const AxisScope scope(definition, axes);
    for (const MarkedExpression& clause : solution.when) {
      std::vector<Clause> parts;
      if (!compile_where(clause.expression, scope, &steps_, &parts)) {
        is_faulty_ = true;
        return;
      }
      size_t plain = 0;
      for (const Clause& part : parts) {
        if (part.kind != Clause::Kind::range) continue;
        ++plain;
        ranges_.push_back(part);
        add_places(part.low, &places_[part.source.index]);
        add_places(part.high, &places_[part.source.index]);
      }
      if (plain < parts.size()) find_changes(clause.expression, clause.expression.root());
      plain += find_remainders(clause.expression, clause.expression.root());
      if (plain == parts.size()) continue;
      is_plain_ = false;
      collect_places(clause.expression);
    }
  }

  bool is_plain() const { return is_plain_; }
  // It may change at integers that are not places. Products and quotients change at a place.
  bool hides_changes() const { return hides_changes_; }
  bool has_remainders() const { return has_remainders_; }
  // Integers of an axis at which clauses may change.
  const std::set<int64_t>& places(size_t axis) const { return places_[axis]; }

  bool holds(const Point& point) const {
    const auto count = static_cast<uint32_t>(steps_.size());
    return !is_faulty_ && run_program(steps_.data(), count, point.view, nullptr);
  }

  // Keeps what the plain clauses allow. Returns false if they allow less than that.
  bool narrow(std::vector<AxisValues>* allowed) const {
    for (const Clause& range : ranges_) (*allowed)[range.source.index].keep(range.low, range.high);
    bool is_exact = true;
    for (const Remainder& one : remainders_) {
      AxisValues& axis = (*allowed)[one.axis];
      is_exact = axis.keep_remainder(one.modulus, one.remainder) && is_exact;
    }
    return is_exact;
  }

 private:
  struct Remainder {
    size_t axis;
    int64_t modulus, remainder;
  };

  std::optional<int64_t> constant(const Expression::Node& node) const {
    if (node.kind == Expression::Kind::integer) return node.integer;
    if (node.kind != Expression::Kind::name) return std::nullopt;
    const DefinitionAxis* const axis = definition_.find_axis(node.name);
    return axis->is_const ? std::optional(axis->value) : std::nullopt;
  }

  // Finds operations after which a comparison may change at any integer. Returns whether a variable
  // axis is below the node.
  bool find_changes(const Expression& clause, uint16_t index) {
    const Expression::Node& node = clause.node(index);
    switch (node.kind) {
      case Expression::Kind::integer:
      case Expression::Kind::floating: return false;
      case Expression::Kind::name: return std::ranges::find(axes_, node.name) != axes_.end();
      case Expression::Kind::negate:
      case Expression::Kind::logical_not: return find_changes(clause, node.left);
      default: break;
    }
    const bool is_left_variable = find_changes(clause, node.left);
    const bool is_variable = find_changes(clause, node.right) || is_left_variable;
    if (!is_variable || node.kind != Expression::Kind::binary) return is_variable;
    has_remainders_ = has_remainders_ || node.op == Op::mod;
    hides_changes_ = hides_changes_ || node.op == Op::mod || node.op == Op::add ||
                     node.op == Op::sub || node.op == Op::eq || node.op == Op::ne;
    return true;
  }

  // Returns how many of the clause's parts, joined by &&, are `axis % modulus == remainder`.
  size_t find_remainders(const Expression& clause, uint16_t index) {
    const Expression::Node& node = clause.node(index);
    if (node.kind == Expression::Kind::logical_and) {
      return find_remainders(clause, node.left) + find_remainders(clause, node.right);
    }
    if (node.kind != Expression::Kind::binary || node.op != Op::eq) return 0;
    const Expression::Node& left = clause.node(node.left);
    const auto remainder = constant(clause.node(node.right));
    if (left.kind != Expression::Kind::binary || left.op != Op::mod || !remainder) return 0;
    const Expression::Node& name = clause.node(left.left);
    const auto modulus = constant(clause.node(left.right));
    if (name.kind != Expression::Kind::name || !modulus || *modulus < 2 || *modulus > UINT16_MAX ||
        *remainder < 0 || *remainder >= *modulus) {
      return 0;
    }
    const auto axis = static_cast<size_t>(std::ranges::find(axes_, name.name) - axes_.begin());
    if (axis == axes_.size()) return 0;  // a constant one
    remainders_.push_back({axis, *modulus, *remainder});
    return 1;
  }

  // Collects the clause's integers, and their products and quotients with each other and with
  // constant axes: "rows * hidden_size <= 65536", "rows / 100 == 3".
  void collect_places(const Expression& clause) {
    constexpr size_t kMostFactors = 16;
    std::set<int64_t> found, factors;
    for (const int64_t integer : clause.integers()) {
      found.insert(integer);
      if (integer > 1 && factors.size() < kMostFactors) factors.insert(integer);
    }
    for (const std::string& name : clause.names()) {
      const DefinitionAxis* const axis = definition_.find_axis(name);
      if (axis->is_const && axis->value > 1) factors.insert(axis->value);
    }
    std::set<int64_t> places;
    for (const int64_t integer : found) {
      add_places(integer, &places);
      for (const int64_t factor : factors) {
        add_places(integer / factor, &places);
        if (integer <= kLargestAxis / factor) add_places(integer * factor, &places);
      }
    }
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (std::ranges::find(clause.names(), axes_[i]) == clause.names().end()) continue;
      places_[i].insert(places.begin(), places.end());
    }
  }

  static void add_places(int64_t middle, std::set<int64_t>* places) {
    if (middle < 0 || middle == INT64_MAX) return;
    for (int64_t place = std::max<int64_t>(middle - 1, 1); place <= middle + 1; ++place) {
      places->insert(place);
    }
  }

  const Definition& definition_;
  const std::vector<std::string>& axes_;
  std::vector<Step> steps_;
  std::vector<Clause> ranges_;
  std::vector<Remainder> remainders_;
  std::vector<std::set<int64_t>> places_;
  bool is_plain_ = true, hides_changes_ = false, has_remainders_ = false, is_faulty_ = false;
};

class ChoiceFinder {
 public:
  ChoiceFinder(const Definition& definition, const std::vector<const SolutionSpec*>& solutions,
               ChoiceEffort* effort)
      : axes_(variable_axes(definition, solutions)), effort_(effort) {
    for (const SolutionSpec* solution : solutions) {
      conditions_.emplace_back(*solution, definition, axes_);
    }
  }

  const std::vector<std::string>& axes() const { return axes_; }

  const ChoiceMap& map() {
    if (map_) return *map_;
    map_.emplace();
    map_->axes = axes_;
    Point point(axes_.size());
    std::vector<std::set<int64_t>> places;
    for (size_t i = 0; i < axes_.size(); ++i) {
      places.push_back({1, kLargestAxis});
      for (const Condition& one : conditions_) {
        places[i].insert(one.places(i).begin(), one.places(i).end());
      }
    }
    if (axes_.size() == 1) {
      map_->is_whole = try_all(&point, &places[0]);
      for (const int64_t place : places[0]) add(&point, place);
      search(&point);
      map_->is_whole = map_->is_whole && map_->samples.size() < kMostSamples;
    } else {
      for_each(places, kMostSamples, &point, [&] {
        map_->samples.push_back({point.values, holding(point)});
        return false;
      });
    }
    return *map_;
  }

  // Returns values of the axes for which the `when` of both solutions holds, if it finds any.
  std::optional<std::vector<int64_t>> overlap(size_t a_index, size_t b_index) {
    const Condition& a = conditions_[a_index];
    const Condition& b = conditions_[b_index];
    std::vector<AxisValues> allowed(axes_.size());
    const bool is_a_exact = a.narrow(&allowed) && a.is_plain();
    const bool is_exact = b.narrow(&allowed) && b.is_plain() && is_a_exact;
    Point point(axes_.size());
    std::vector<std::set<int64_t>> places(axes_.size());
    for (size_t i = 0; i < axes_.size(); ++i) {
      const auto lowest = allowed[i].first();
      if (!lowest) return std::nullopt;
      point.values[i] = *lowest;
      places[i] = {*lowest, allowed[i].high()};
      for (const Condition* one : {&a, &b}) {
        for (const int64_t place : one->places(i)) {
          if (const auto next = allowed[i].first(place)) places[i].insert(*next);
        }
      }
    }
    const auto hold = [&] { return a.holds(point) && b.holds(point); };
    if (hold()) return point.values;
    if (is_exact) return std::nullopt;
    if (axes_.size() == 1) {
      const uint32_t both = 1u << a_index | 1u << b_index;
      for (const ChoiceSample& one : map().samples) {
        if ((one.holding & both) == both) return one.values;
      }
    }
    if (for_each(places, kMostSamples, &point, hold)) return point.values;
    return std::nullopt;
  }

 private:
  // The axes that vary and that a `when` uses.
  static std::vector<std::string> variable_axes(const Definition& definition,
                                                const std::vector<const SolutionSpec*>& solutions) {
    std::vector<std::string> axes;
    for (const SolutionSpec* solution : solutions) {
      for (const MarkedExpression& clause : solution->when) {
        for (const std::string& name : clause.expression.names()) {
          const DefinitionAxis* const axis = definition.find_axis(name);
          if (axis == nullptr || axis->is_const) continue;
          if (std::ranges::find(axes, name) == axes.end()) axes.push_back(name);
        }
      }
    }
    return axes;
  }

  uint32_t holding(const Point& point) const {
    uint32_t holding = 0;
    for (size_t i = 0; i < conditions_.size(); ++i) {
      if (conditions_[i].holds(point)) holding |= 1u << i;
    }
    return holding;
  }

  void add(Point* point, int64_t value) {
    point->values[0] = value;
    map_->samples.push_back({point->values, holding(*point)});
  }

  // Calls `visit` at the combinations of places, at most `most` of them, until it returns true.
  // Returns whether it has.
  template <class Visit>
  static bool for_each(const std::vector<std::set<int64_t>>& places, size_t most, Point* point,
                       Visit visit) {
    std::vector<std::set<int64_t>::const_iterator> at;
    at.reserve(places.size());
    for (const auto& some : places) at.push_back(some.begin());
    for (size_t count = 0; count < most; ++count) {
      for (size_t i = 0; i < at.size(); ++i) point->values[i] = *at[i];
      if (visit()) return true;
      size_t axis = at.size();
      while (axis > 0 && ++at[axis - 1] == places[axis - 1].end()) {
        --axis;
        at[axis] = places[axis].begin();
      }
      if (axis == 0) return false;
    }
    return false;
  }

  // Where changes may be hidden, tries all small values of the one axis, and adds those at which
  // something changes. Returns whether values between two places with equal `holding` count as
  // equal.
  bool try_all(Point* point, std::set<int64_t>* places) {
    if (std::ranges::none_of(conditions_, &Condition::hides_changes)) return true;
    const auto cost = kMostTried * static_cast<int64_t>(conditions_.size());
    if (effort_->evaluations < cost) return false;
    effort_->evaluations -= cost;
    std::set<uint32_t> known;
    uint32_t last = 0;
    for (int64_t value = 1; value <= kMostTried; ++value) {
      point->values[0] = value;
      const uint32_t found = holding(*point);
      const bool has_room = places->size() < kMostSamples / 2;
      if (known.insert(found).second || (found != last && has_room)) {
        places->insert({std::max<int64_t>(value - 1, 1), value});
      }
      last = found;
    }
    return places->size() < kMostSamples / 2 &&
           std::ranges::none_of(conditions_, &Condition::has_remainders);
  }

  // Bisects between neighbours that differ, until they are adjacent integers.
  void search(Point* point) {
    auto& samples = map_->samples;
    for (size_t i = 0; i + 1 < samples.size() && samples.size() < kMostSamples;) {
      const int64_t low = samples[i].values[0];
      const int64_t high = samples[i + 1].values[0];
      if (samples[i].holding == samples[i + 1].holding || high - low <= 1) {
        ++i;
        continue;
      }
      add(point, low + (high - low) / 2);
      std::rotate(samples.begin() + static_cast<ptrdiff_t>(i) + 1, samples.end() - 1,
                  samples.end());
    }
  }

  const std::vector<std::string> axes_;
  ChoiceEffort* effort_;
  std::vector<Condition> conditions_;  // one for each solution
  std::optional<ChoiceMap> map_;
};

}  // namespace

bool is_tried_before(const SolutionSpec& a, const SolutionSpec& b) {
  if (a.share != b.share) return a.share != 0;
  return a.benefit != b.benefit ? a.benefit > b.benefit : a.name.name < b.name.name;
}

ChoiceMap map_choices(const Definition& definition,
                      const std::vector<const SolutionSpec*>& solutions, ChoiceEffort* effort) {
  return ChoiceFinder(definition, solutions, effort).map();
}

std::string values_text(const std::vector<std::string>& axes, const std::vector<int64_t>& values) {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + axes[i] + " is " + std::to_string(values[i]);
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

namespace {

void check_choices(const Definition* definition, const std::vector<const SolutionSpec*>& solutions,
                   ChoiceEffort* effort, Diagnostics* diagnostics) {
  if (solutions.size() > kMaxChoices) {
    const SolutionSpec& beyond = *solutions[kMaxChoices];
    diagnostics->add(Rule::limit, beyond.definition.mark,
                     "definition " + in_quotes(beyond.definition.name) + " has " +
                         std::to_string(solutions.size()) + " solutions; at most " +
                         std::to_string(kMaxChoices) + " are accepted");
    return;
  }
  std::optional<ChoiceFinder> finder;
  if (definition != nullptr) finder.emplace(*definition, solutions, effort);
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
      const auto values = finder ? finder->overlap(before, i) : std::nullopt;
      if (!values) continue;
      const Mark mark = second.when.empty() ? second.definition.mark : second.when[0].text.mark;
      diagnostics->add(Rule::duplicate_solution, mark,
                       "where " + values_text(finder->axes(), *values) + ", definition " +
                           in_quotes(second.definition.name) + " is already solved by " +
                           in_quotes(first.name.name) + " in " + place + ", of the same benefit",
                       "narrow one \"when\", or give one solution the higher \"benefit\"");
      break;
    }
  }
}

}  // namespace

void check_all_choices(const FolderModel& model, const std::deque<SolutionSpec>& unused_solutions,
                       Diagnostics* diagnostics) {
  std::unordered_map<std::string, std::vector<const SolutionSpec*>> by_definition;
  const bool has_shares = model.folders[0].share != 0;
  std::unordered_map<std::string, size_t> counts;  // including those with a share
  for (const SolutionSpec& solution : model.solutions) {
    by_definition[solution.definition.name + share_text(solution.share)].push_back(&solution);
    if (++counts[solution.definition.name] != kMaxChoices + 1 || !has_shares) continue;
    diagnostics->add(Rule::limit, solution.definition.mark,
                     "more than " + std::to_string(kMaxChoices) +
                         " solutions in folders that share the launches of a definition");
  }
  std::vector<const std::vector<const SolutionSpec*>*> several;
  for (const auto& [name, solutions] : by_definition) {
    if (solutions.size() > 1) several.push_back(&solutions);
  }
  // In the order of reading: where the effort ends does not change from one check to the next.
  std::ranges::sort(several, {}, [](const auto* solutions) { return solutions->front(); });
  // A folder is rejected for what it has, though an earlier one's is used.
  std::map<std::pair<uint16_t, std::string_view>, std::vector<const SolutionSpec*>> unused;
  for (const SolutionSpec& solution : unused_solutions) {
    unused[{solution.folder, solution.definition.name}].push_back(&solution);
  }
  for (const auto& [key, solutions] : unused) {
    if (solutions.size() > 1) several.push_back(&solutions);
  }
  ChoiceEffort effort;
  for (const auto* solutions : several) {
    check_choices(model.definition_of(*solutions->front()), *solutions, &effort, diagnostics);
  }
}

}  // namespace fibshim
