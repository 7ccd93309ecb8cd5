#include "loader/check/names.h"

#include "loader/check/choices.h"
#include "loader/compile/bind.h"

namespace fibshim {
namespace {

constexpr size_t kMaxSuggestionWords = 64;  // with more names a suggestion would be a guess

// The meaning of a solution's names without a particular pattern: enough to parse, to check types
// and to fold constants. Values that only a launch supplies have stand-ins.
class SolutionScope : public Scope {
 public:
  SolutionScope(const Definition& definition, const SolutionSpec& solution,
                const SuppliedNames& supplied)
      : definition_(definition), solution_(solution), supplied_(supplied) {}

  std::optional<Meaning> find(std::string_view name) const override {
    if (const DefinitionAxis* const axis = definition_.find_axis(name)) {
      return axis->is_const ? Meaning{Source::constant(axis->value)} : integer();
    }
    if (const DefinitionArgument* const argument = definition_.find_argument(name)) {
      return param(argument->is_scalar ? kDtypes[argument->dtype].scalar : ValueType::address);
    }
    const auto supplied = supplied_.find(name);
    if (supplied == supplied_.end()) {
      // A baseline's own argument: the judge supplies it, though no pattern does.
      for (const auto& [judged, type] : solution_.judged_arguments) {
        if (judged == name) return param(type);
      }
      return std::nullopt;
    }
    const PatternValue& value = *supplied->second;
    if (value.expression) return integer();
    if (value.source.kind == Source::Kind::param) return param(value.source.type);
    // A constant in one pattern may come from the launch in another.
    return value.source.is_floating() ? param(ValueType::float64) : integer();
  }

  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> result;
    for (const DefinitionAxis& axis : definition_.axes) result.push_back(axis.name);
    for (const DefinitionArgument& argument : definition_.arguments) {
      result.push_back(argument.name);
    }
    for (const auto& [name, value] : supplied_) {
      if (result.size() >= kMaxSuggestionWords) break;
      if (definition_.find_axis(name) != nullptr || definition_.find_argument(name) != nullptr) {
        continue;
      }
      result.push_back(name);
    }
    return result;
  }

 private:
  static Meaning integer() { return param(ValueType::int64); }
  static Meaning param(ValueType type) { return {{.kind = Source::Kind::param, .type = type}}; }

  const Definition& definition_;
  const SolutionSpec& solution_;
  const SuppliedNames& supplied_;
};

}  // namespace

void check_names(const SolutionSpec& solution, const Definition& definition,
                 const SuppliedNames& supplied, bool has_faulty_patterns,
                 Diagnostics* diagnostics) {
  const auto report_unless_it_follows = [&](const ExpressionError& error,
                                            const MarkedExpression& expression) {
    if (error.rule == Rule::unknown_name && has_faulty_patterns) return;
    report(error, expression, diagnostics);
  };
  const SolutionScope scope(definition, solution, supplied);
  for (const MarkedName& argument : solution.arguments) {
    // A faulty pattern may be the one that supplies it.
    const bool is_known = is_supplied_by_shim(solution, argument.name) || scope.find(argument.name);
    if (is_known || has_faulty_patterns) continue;
    const auto known = scope.names();
    diagnostics->add(Rule::unknown_argument, argument.mark,
                     in_quotes(argument.name) + " is neither in definition " +
                         in_quotes(definition.name.name) + " nor supplied by any pattern",
                     diagnostics->suggestion(argument.name, known));
  }
  int64_t block_threads = 1;
  int64_t cluster_blocks = 1;
  int64_t values[kGeometryCount] = {};  // constants that are in range, else 0
  std::vector<Step> unused;
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    const MarkedExpression& entry = solution.geometry[i];
    const auto compiled = append_value(entry.expression, scope, &unused);
    if (!compiled) {
      report_unless_it_follows(compiled.error(), entry);
      continue;
    }
    if (compiled->is_floating) {
      diagnostics->add(Rule::expression_type, entry.text.mark,
                       std::string(kGeometry[i].name) + " is a floating-point value");
      continue;
    }
    if (!compiled->constant) continue;
    std::string why;
    if (!is_geometry_in_range(i, *compiled->constant, &why)) {
      diagnostics->add(Rule::geometry_range, entry.text.mark, why);
      continue;
    }
    values[i] = *compiled->constant;
    if (i >= kBlockX && i <= kBlockZ) block_threads *= *compiled->constant;
    if (i >= kClusterX && i <= kClusterZ) cluster_blocks *= *compiled->constant;
  }
  if (block_threads > kMaxBlockThreads) {
    diagnostics->add(Rule::geometry_range, solution.geometry[kBlockX].text.mark,
                     "a block of " + std::to_string(block_threads) + " threads; CUDA takes " +
                         std::to_string(kMaxBlockThreads));
  }
  if (cluster_blocks > kMaxClusterBlocks) {
    diagnostics->add(Rule::geometry_range, solution.geometry[kClusterX].text.mark,
                     "a cluster of " + std::to_string(cluster_blocks) + " blocks; CUDA takes " +
                         std::to_string(kMaxClusterBlocks));
  }
  for (uint32_t i = 0; i < 3; ++i) {
    std::string why;
    const int64_t cluster = values[kClusterX + i];
    if (cluster == 0 || is_whole_clusters(kGridX + i, values[kGridX + i], cluster, &why)) continue;
    diagnostics->add(Rule::geometry_range, solution.geometry[kClusterX + i].text.mark, why);
  }
  check_when(solution, definition, diagnostics);
  for (const MarkedExpression& clause : solution.where) {
    const auto compiled = compile_where(clause.expression, scope, &unused);
    if (!compiled) report_unless_it_follows(compiled.error(), clause);
  }
}

}  // namespace fibshim
