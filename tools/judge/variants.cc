#include "tools/judge/variants.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

// The pointers that a "where" makes equal, be it by an integer at the place of one: the earlier of the pattern first.
std::vector<std::pair<std::string, std::string>> equal_pointers(const PatternSpec& pattern) {
  const auto pointer_at = [&](const std::string& name) {
    const PatternValue* const value = pattern.find_value(name);
    return std::ranges::find_if(pattern.values, [&](const PatternValue& one) {
      return value != nullptr && value->reads_param && one.is_pointer && one.is_same_place(*value);
    });
  };
  std::vector<std::pair<std::string, std::string>> equal;
  for (const MarkedExpression& clause : pattern.where) {
    for (const auto& [left, right] : clause.expression.equal_names()) {
      const auto one = pointer_at(left), other = pointer_at(right);
      if (std::max(one, other) == pattern.values.end()) continue;
      equal.emplace_back(std::min(one, other)->name, std::max(one, other)->name);
    }
  }
  return equal;
}

std::set<std::string_view> parts_of(std::string_view text, char separator) {
  std::set<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos;) {
    parts.insert(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.insert(text);
  return parts;
}

// How many parts of a label are parts of the definition's name, too: "h4096" of "engine-norm-h4096". A folder has such
// patterns for each size, and each may lead to the definitions of all.
size_t shared_parts(const std::string& label, const std::string& definition) {
  const std::set<std::string_view> names = parts_of(definition, '_');
  return static_cast<size_t>(std::ranges::count_if(
      parts_of(label, '-'), [&](std::string_view part) { return names.contains(part); }));
}

// The one whose label looks most like the definition's name, with the others as its twins.
Variant make_variant(std::vector<Variant> alike, const std::string& definition) {
  const auto best = std::ranges::max_element(
      alike, {}, [&](const Variant& one) { return shared_parts(one.name, definition); });
  std::rotate(alike.begin(), best, best + 1);
  Variant variant = std::move(alike[0]);
  alike.erase(alike.begin());
  variant.twins = std::move(alike);
  return variant;
}

}  // namespace

std::string Variant::words() const {
  const std::string more = twins.empty() ? "" : fmt::format(" and {} more", twins.size());
  return fmt::format("pattern \"{}\"{}", name, more);
}

std::vector<Variant> find_variants(const FolderModel& model, uint32_t solution, bool ignores_when) {
  std::vector<std::vector<Variant>> alike;
  std::map<std::string, size_t> known;  // by the values that distinguish variants
  for (uint32_t i = 0; i < model.bindings.size(); ++i) {
    const BindingSpec& binding = model.bindings[i];
    if (binding.solution != solution || binding.state != BindingState::ready) continue;
    const PatternSpec& pattern = *model.patterns[binding.pattern];
    if (pattern.is_rewrite()) continue;
    Variant variant{pattern.label, &pattern, i, {}, {}, ignores_when};
    std::vector<const PatternValue*> owners;
    std::map<std::string, std::string> given;
    for (const PatternValue& value : pattern.values) {
      const Source& source = value.source;
      if (value.is_pointer) {
        const auto owner = std::ranges::find_if(
            owners, [&](const PatternValue* one) { return one->is_same_place(value); });
        if (owner == owners.end()) {
          owners.push_back(&value);
        } else {
          given[value.name] = variant.aliases[value.name] = (*owner)->name;
        }
      } else if (value.expression && !value.is_axis) {
        given[value.name] = value.expression->text.text;
      } else if (source.is_constant() && !value.is_axis) {
        given[value.name] = fmt::format("{} {}", source.integer, source.floating);
      }
    }
    // Or two parameters of which a "where" says that they are the same.
    for (const auto& [left, right] : equal_pointers(pattern)) {
      if (left != right && !variant.aliases.contains(right)) {
        given[right] = variant.aliases[right] = left;
      }
    }
    const std::string key = fmt::format("{}", fmt::join(given, "\n"));
    const auto [at, is_new] = known.emplace(key, alike.size());
    if (is_new) alike.emplace_back();
    alike[at->second].push_back(std::move(variant));
  }
  std::vector<Variant> variants;
  for (std::vector<Variant>& group : alike) {
    variants.push_back(make_variant(std::move(group), model.solutions[solution].definition.name));
  }
  return variants;
}

std::optional<double> stated_number(const PatternValue& value) {
  const Source& source = value.source;
  if (value.is_pointer || value.expression || !source.is_constant()) return std::nullopt;
  return source.is_floating() ? source.floating : static_cast<double>(source.integer);
}

std::string find_contradiction(const PatternSpec& pattern,
                               const std::map<std::string, double>& recorded) {
  for (const auto& [name, number] : recorded) {
    const PatternValue* const value = pattern.find_value(name);
    const auto stated = value == nullptr ? std::nullopt : stated_number(*value);
    // What was recorded may have passed through fp32.
    if (!stated || static_cast<float>(*stated) == static_cast<float>(number)) continue;
    return fmt::format("\"{}\" of the recorded launch is not the pattern's", name);
  }
  return "";
}

std::vector<std::string> names_of_launch(const SolutionSpec& solution) {
  std::vector<std::string> names;
  for (const MarkedName& argument : solution.arguments) {
    if (!is_supplied_by_shim(solution, argument.name)) names.push_back(argument.name);
  }
  if (solution.workspace) {
    for (const std::string& name : solution.workspace->expression.names()) names.push_back(name);
  }
  for (const auto* expressions : {&solution.geometry, &solution.where, &solution.when}) {
    for (const MarkedExpression& one : *expressions) {
      for (const std::string& name : one.expression.names()) names.push_back(name);
    }
  }
  return names;
}

std::set<std::string> names_behind(std::vector<std::string> open, const PatternSpec* pattern,
                                   const VerifyBlock& verify) {
  std::set<std::string> names;
  while (!open.empty()) {
    std::string name = std::move(open.back());
    open.pop_back();
    const MarkedExpression* expression = nullptr;
    if (pattern != nullptr) {
      const PatternValue* const value = pattern->find_value(name);
      if (value != nullptr && value->expression) expression = &*value->expression;
      if (value != nullptr && value->shift) expression = &*value->shift;
    } else if (const VerifyArgument* const told = verify.find_argument(name);
               told != nullptr && told->kind == VerifyArgument::Kind::expression) {
      expression = &*told->expression;
    }
    if (!names.insert(std::move(name)).second || expression == nullptr) continue;
    for (const std::string& used : expression->expression.names()) open.push_back(used);
  }
  return names;
}

}  // namespace fibshim::judge
