#include "loader/compile/bind.h"

#include <algorithm>

#include "loader/compile/read_rewrite.h"
#include "loader/compile/tensors.h"
#include "shim/abi/folder_list.h"
#include "shim/abi/hash.h"

namespace fibshim {
namespace {

class Binder {
 public:
  Binder(const PatternSpec& pattern, const SolutionSpec& solution, const Definition& definition,
         const Sibling& sibling, KnownClauses* known, Diagnostics* diagnostics)
      : pattern_(pattern),
        solution_(solution),
        definition_(definition),
        sibling_(sibling),
        known_(known),
        diagnostics_(diagnostics),
        scope_(pattern, definition) {}

  BindingSpec bind() {
    if (solution_.lacks_invariance) {
      binding_.state = BindingState::refused;  // `check` reports it once per solution
      binding_.reason = "it does not claim to be batch-invariant, which fibshim.json requires";
    }
    if (!has_sibling()) {
      check_axes();
      check_dtypes();
    }
    const bool has_same_arguments = copy_arguments();
    if (!has_same_arguments) {
      check_writes();
      bind_arguments();
    }
    const bool has_same_names = bind_geometry();
    const bool has_same_where = copy_where();
    if (!has_same_where) bind_where();
    bind_when();
    if (binding_.state == BindingState::ready) {
      if (!has_same_arguments || !has_same_names || !has_same_where) warn_of_dropped_scalars();
      if (solution_.error_code != ErrorCode::success) {
        binding_.state = BindingState::broken;
        binding_.reason = solution_.error_message;
      }
    }
    if (binding_.state == BindingState::ready) {
      if (!has_same_arguments) binding_.arguments = std::move(arguments_);
      if (!has_same_where) {
        binding_.where = std::move(where_);
        binding_.where_clauses = std::move(where_clauses_);
      }
      binding_.tensors = has_sibling() ? sibling_.binding->tensors
                                       : bind_tensors(pattern_, definition_, scope_, known_);
    } else {
      binding_.arguments = {};
      binding_.where = {};
      binding_.where_clauses = {};
      for (GeometrySpec& geometry : binding_.geometry) geometry = {};
    }
    return std::move(binding_);
  }

 private:
  bool has_sibling() const { return sibling_.binding != nullptr; }

  std::string pair_text() const {
    return "pattern " + in_quotes(pattern_.label) + ", solution " + in_quotes(solution_.name.name);
  }

  void refuse(Rule rule, Mark mark, const std::string& why) {
    diagnostics_->add(rule, mark, pair_text() + ": " + why);
    if (binding_.state == BindingState::refused) return;
    binding_.state = BindingState::refused;
    binding_.reason = why;
  }

  void check_axes() {
    PatternSpec::FixedValues fixed, pinned;
    fixed.reserve(definition_.axes.size());
    bool is_tied = false;
    for (const DefinitionAxis& axis : definition_.axes) {
      if (!axis.is_const) continue;
      fixed.emplace_back(axis.name, axis.value);
      const PatternValue* const value = pattern_.find_value(axis.name);
      if (value == nullptr) continue;
      const PatternSpec::Pin pin = pattern_.pin_of(axis.name);
      std::optional<int64_t> known = pin.value;
      if (!value->expression && value->source.kind == Source::Kind::integer) {
        known = value->source.integer;
      }
      if (known) pinned.emplace_back(axis.name, *known);
      is_tied = is_tied || !known;
      if (known && *known != axis.value) {
        refuse(Rule::refused_axis, value->mark,
               "the pattern's " + in_quotes(axis.name) + " is " + std::to_string(*known) +
                   ", but definition " + in_quotes(definition_.name.name) + " says " +
                   std::to_string(axis.value));
      } else if (!known && !is_known_by_another_name(*value)) {
        diagnostics_->add(Rule::unpinned_axis, value->mark,
                          pair_text() + ": the definition fixes " + in_quotes(axis.name) + " to " +
                              std::to_string(axis.value) +
                              ", which neither the name nor a \"where\" ensures",
                          "add \"" + axis.name + " == " + std::to_string(axis.value) +
                              "\" to \"where\", or {" + axis.name + "} to \"definition\"");
      }
    }
    if (!pattern_.can_name(definition_.name.name, fixed)) {
      refuse(Rule::refused_axis, pattern_.definition.mark,
             "the axes of definition " + in_quotes(definition_.name.name) +
                 " have other values than the name gives them");
    } else if (is_tied && pattern_.is_ambiguous(definition_.name.name, pinned)) {
      refuse(Rule::refused_axis, pattern_.definition.mark,
             "the name gives definition " + in_quotes(definition_.name.name) +
                 " to launches of other axes, too; put a text between its values");
    }
  }

  // True if the name or a "where" says what this value is, or what one is that is read from the
  // same place.
  bool is_known_by_another_name(const PatternValue& value) const {
    return std::ranges::any_of(pattern_.values, [&](const PatternValue& other) {
      const bool is_same =
          other.name == value.name ||
          (!other.expression && !value.expression && other.kernel == value.kernel &&
           other.source.kind == value.source.kind && other.source.type == value.source.type &&
           other.source.index == value.source.index && other.source.offset == value.source.offset);
      return is_same &&
             (pattern_.pin_of(other.name).is_pinned || pattern_.is_tied_to_name(other.name));
    });
  }

  void check_dtypes() {
    for (const PatternValue& value : pattern_.values) {
      if (value.is_axis) continue;
      const DefinitionArgument* const argument = definition_.find_argument(value.name);
      if (argument == nullptr) continue;
      const DtypeInfo& wanted = kDtypes[argument->dtype];
      const Mark mark = value.dtype ? value.dtype_mark : value.mark;
      std::string found;
      if (argument->is_scalar) {
        if (value.is_pointer) {
          found = "a pointer";
        } else if (value.reads_param) {
          if (value.source.type != wanted.scalar) found = "a scalar of another type";
        } else if (value.source.is_floating() != is_floating(wanted.scalar) ||
                   wanted.scalar == ValueType::address) {
          found = value.source.is_floating() ? "a floating-point value" : "an integer";
        }
      } else if (!value.is_pointer) {
        found = "no pointer";
      }
      if (found.empty() && value.dtype && *value.dtype != argument->dtype) {
        found = kDtypes[*value.dtype].name;
      }
      if (found.empty()) continue;
      refuse(Rule::refused_dtype, mark,
             in_quotes(value.name) + " is " + found + ", but definition " +
                 in_quotes(definition_.name.name) + " says " +
                 (argument->is_scalar ? "a scalar of " : "a tensor of ") + wanted.name);
    }
  }

  bool takes(std::string_view name) const { return has_name(solution_.arguments, name); }

  // A buffer that several kernels of a rewrite write has several names; the solution may take any.
  bool takes_buffer(const std::string& name) const {
    return takes(name) || std::ranges::any_of(pattern_.writes, [&](const MarkedName& written) {
             return takes(written.name) && is_one_buffer(pattern_, written.name, name);
           });
  }

  void check_writes() {
    for (const MarkedName& written : pattern_.writes) {
      if (takes_buffer(written.name) || has_name(pattern_.dead, written.name)) continue;
      refuse(
          Rule::refused_writes, written.mark,
          "the original writes " + in_quotes(written.name) + ", which the solution does not take");
    }
  }

  // Reports that a kernel parameter of `size` bytes cannot hold the value that this pattern
  // supplies.
  void break_size(const MarkedName& argument, uint32_t size, const std::string& found) {
    // The solution's own faults are reported once, without any pattern.
    if (solution_.error_code != ErrorCode::success) return;
    const std::string why = "kernel " + in_quotes(solution_.kernel.name) + " takes " +
                            std::to_string(size) + " bytes for " + in_quotes(argument.name) +
                            ", but it is " + found;
    diagnostics_->add(Rule::kernel_params, argument.mark, pair_text() + ": " + why);
    if (binding_.state != BindingState::ready) return;
    binding_.state = BindingState::broken;
    binding_.reason = why;
  }

  // Returns true if the sibling's arguments are the same.
  bool copy_arguments() {
    if (!has_sibling()) return false;
    const SolutionSpec& other = *sibling_.solution;
    if (solution_.workspace_argument != 0 || other.workspace_argument != 0 ||
        solution_.has_params != other.has_params ||
        !std::ranges::equal(solution_.arguments, other.arguments, {}, &MarkedName::name,
                            &MarkedName::name) ||
        !std::ranges::equal(solution_.params, other.params, {}, &KernelParam::size,
                            &KernelParam::size)) {
      return false;
    }
    binding_.arguments = sibling_.binding->arguments;
    binding_.is_identity = sibling_.binding->is_identity;
    return true;
  }

  void bind_arguments() {
    arguments_.reserve(solution_.arguments.size());
    for (size_t i = 0; i < solution_.arguments.size(); ++i) {
      const MarkedName& argument = solution_.arguments[i];
      if (i + 1 == solution_.workspace_argument) {
        bind_workspace(argument);
        continue;
      }
      const auto meaning = scope_.find(argument.name);
      if (!meaning) {
        refuse(Rule::refused_argument, argument.mark,
               "the solution takes " + in_quotes(argument.name) +
                   ", which the pattern does not supply");
        continue;
      }
      // Without a parameter table every integer is passed in eight bytes: a kernel that reads fewer
      // gets the low ones.
      const bool is_known = solution_.has_params && i < solution_.params.size();
      const uint32_t size = is_known ? solution_.params[i].size : 0;
      if (auto spec = make_argument(argument, *meaning, size)) {
        arguments_.push_back(std::move(*spec));
      }
    }
    binding_.is_identity = pattern_.has_params && pattern_.params.size() == arguments_.size();
    for (size_t i = 0; binding_.is_identity && i < arguments_.size(); ++i) {
      const ArgumentSpec& argument = arguments_[i];
      binding_.is_identity = argument.kind == ArgumentMap::Kind::pass && argument.param == i &&
                             argument.offset == 0 && argument.size == pattern_.params[i];
    }
  }

  // Its address is not known before the launch.
  void bind_workspace(const MarkedName& argument) {
    const size_t index = solution_.workspace_argument - 1u;
    const MarkedExpression& bytes = *solution_.workspace;
    auto compiled = compile_value(bytes.expression, scope_);
    if (!compiled) return refuse_expression(compiled.error(), bytes);
    if (compiled->is_floating) {
      return refuse(Rule::refused_expression, bytes.text.mark,
                    "the workspace's size is a floating-point value");
    }
    if (compiled->constant && (*compiled->constant < 1 || *compiled->constant > kMaxWorkspace)) {
      return refuse(Rule::refused_expression, bytes.text.mark,
                    "the workspace has " + std::to_string(*compiled->constant) + " bytes; 1 to " +
                        std::to_string(kMaxWorkspace) + " can be had");
    }
    if (solution_.has_params && index < solution_.params.size() &&
        solution_.params[index].size != sizeof(uint64_t)) {
      return break_size(argument, solution_.params[index].size, "an address of 8 bytes");
    }
    binding_.workspace = std::move(compiled->steps);
    ArgumentSpec spec{};
    spec.kind = ArgumentMap::Kind::workspace;
    spec.size = sizeof(uint64_t);
    arguments_.push_back(std::move(spec));
  }

  std::optional<CompiledValue> compile(const MarkedName& argument, const Scope::Meaning& meaning) {
    if (meaning.expression == nullptr) return compile_source(meaning.source);
    auto compiled = compile_value(*meaning.expression, *meaning.scope);
    if (compiled) return std::move(*compiled);
    refuse(Rule::refused_expression, argument.mark, compiled.error().message);
    return std::nullopt;
  }

  std::optional<ArgumentSpec> make_argument(const MarkedName& argument,
                                            const Scope::Meaning& meaning, uint32_t size) {
    ArgumentSpec spec{};
    const Source& source = meaning.source;
    if (source.kind == Source::Kind::param) {
      const uint32_t bytes = size_of(source.type);
      spec.size = static_cast<uint8_t>(bytes);
      spec.param = source.index;
      spec.offset = source.offset;
      if (size == 0 || size == bytes) {
        if (!meaning.is_shift) return spec;  // passed
        auto shift = compile(argument, meaning);
        if (!shift) return std::nullopt;
        spec.kind = ArgumentMap::Kind::shifted;
        spec.steps = std::move(shift->steps);
        return spec;
      }
      if (source.type == ValueType::address || source.is_floating()) {
        break_size(argument, size,
                   (source.type == ValueType::address ? "a pointer of " : "a float of ") +
                       std::to_string(bytes) + " bytes");
        return std::nullopt;
      }
      spec = {};
    }
    auto value = compile(argument, meaning);
    if (!value) return std::nullopt;
    if (value->is_floating) {
      // Four bytes if the size is unknown: kernels take their scales as float.
      spec.kind = ArgumentMap::Kind::floating;
      spec.size = static_cast<uint8_t>(size == 0 ? 4 : size);
      if (spec.size != size && size != 0) spec.size = 0;
      if (spec.size != 4 && spec.size != 8) {
        break_size(argument, size, "a floating-point value");
        return std::nullopt;
      }
    } else {
      spec.kind = ArgumentMap::Kind::integer;
      if (size != 0 && size != 1 && size != 2 && size != 4 && size != 8) {
        break_size(argument, size, "an integer");
        return std::nullopt;
      }
      spec.size = static_cast<uint8_t>(size == 0 ? 8 : size);
      if (value->constant && !fits_in_bytes(*value->constant, spec.size)) {
        break_size(argument, size, std::to_string(*value->constant));
        return std::nullopt;
      }
    }
    spec.steps = std::move(value->steps);
    return spec;
  }

  void refuse_expression(const ExpressionError& error, const MarkedExpression& expression) {
    const bool is_missing = error.rule == Rule::unknown_name;
    refuse(is_missing ? Rule::refused_argument : Rule::refused_expression,
           expression.at(error.offset),
           is_missing ? error.message + ": the solution uses it, the pattern does not supply it"
                      : error.message);
  }

  static bool is_geometry_alone(const CompiledValue& value) {
    return value.simple && value.simple->is_source_alone() &&
           value.simple->source.kind == Source::Kind::geometry;
  }

  // Returns true if it uses the same names as the sibling's.
  bool bind_geometry() {
    bool has_same_names = has_sibling();
    for (uint32_t i = 0; i < kGeometryCount; ++i) {
      const MarkedExpression& entry = solution_.geometry[i];
      GeometrySpec& spec = binding_.geometry[i];
      has_same_names = has_same_names && entry.expression.names() ==
                                             sibling_.solution->geometry[i].expression.names();
      if (has_sibling() && is_same(entry, sibling_.solution->geometry[i])) {
        spec = sibling_.binding->geometry[i];
        if (is_cluster(i, spec)) binding_.has_cluster = true;
        continue;
      }
      if (entry.is_number) {
        set_constant(i, entry, entry.expression.node(0).integer);
        continue;
      }
      auto compiled = compile_value(entry.expression, scope_);
      if (!compiled) {
        refuse_expression(compiled.error(), entry);
        continue;
      }
      if (compiled->is_floating) {
        refuse(Rule::refused_expression, entry.text.mark,
               std::string(kGeometry[i].name) + " is a floating-point value");
        continue;
      }
      if (compiled->constant) {
        set_constant(i, entry, *compiled->constant);
        continue;
      }
      if (is_geometry_alone(*compiled)) {
        spec.kind = GeometryMap::Kind::copy;
        spec.index = static_cast<uint8_t>(compiled->simple->source.index);
      } else {
        spec.kind = GeometryMap::Kind::program;
      }
      spec.value = std::make_shared<const CompiledValue>(std::move(*compiled));
      if (is_cluster(i, spec)) binding_.has_cluster = true;
    }
    return has_same_names;
  }

  void set_constant(uint32_t index, const MarkedExpression& entry, int64_t value) {
    std::string why;
    if (!is_geometry_in_range(index, value, &why)) {
      return refuse(Rule::refused_expression, entry.text.mark, why);
    }
    GeometrySpec& spec = binding_.geometry[index];
    spec.constant = static_cast<uint32_t>(value);
    if (is_cluster(index, spec)) binding_.has_cluster = true;
  }

  static bool is_cluster(uint32_t index, const GeometrySpec& spec) {
    return index >= kClusterX && index <= kClusterZ &&
           (spec.kind != GeometryMap::Kind::constant || spec.constant != 1);
  }

  static bool is_same(const MarkedExpression& a, const MarkedExpression& b) {
    if (a.is_number != b.is_number) return false;
    return a.is_number ? a.expression.node(0).integer == b.expression.node(0).integer
                       : a.text.text == b.text.text;
  }

  // Returns true if the sibling's clauses are the same.
  bool copy_where() {
    if (!has_sibling() || !std::ranges::equal(solution_.where, sibling_.solution->where, is_same)) {
      return false;
    }
    binding_.where = sibling_.binding->where;
    binding_.where_clauses = sibling_.binding->where_clauses;
    return true;
  }

  void bind_where() {
    where_.reserve(solution_.where.size());
    where_clauses_.reserve(solution_.where.size());
    for (const MarkedExpression& clause : solution_.where) {
      const auto compiled = known_->compile(clause, definition_, scope_, &where_, &where_clauses_);
      if (!compiled) refuse_expression(compiled.error(), clause);
    }
  }

  void bind_when() {
    binding_.when.reserve(solution_.when.size());
    binding_.when_clauses.reserve(solution_.when.size());
    for (const MarkedExpression& clause : solution_.when) {
      const auto compiled =
          known_->compile(clause, definition_, scope_, &binding_.when, &binding_.when_clauses);
      if (compiled) continue;
      refuse_expression(compiled.error(), clause);
      binding_.when.clear();
      return binding_.when_clauses.clear();
    }
    if (solution_.share != 0) bind_share();
  }

  // Makes a folder with a share serve only some shapes: those whose hash of the definition's name
  // and the values of its variable axes is small. So all ranks of a job choose alike, and a larger
  // share includes a smaller one.
  void bind_share() {
    constexpr uint64_t kModulus = 2147483647;  // prime, and below it no product overflows
    const std::string& text = definition_.name.name;
    const uint64_t hash = hash_bytes(kEmptyHash, text.data(), text.size());
    std::string number = std::to_string(hash % kModulus);
    for (const DefinitionAxis& axis : definition_.axes) {
      const auto name = axis.is_const ? std::nullopt : std::optional(known_->parse(axis.name));
      const auto value =
          name && *name ? std::optional(compile_value(**name, scope_)) : std::nullopt;
      if (!value || !*value || (*value)->is_floating) continue;
      number.insert(0, "(").append(" + ").append(axis.name);
      number.append(" % 2147483647) * 1583458089 % 2147483647");
    }
    const uint64_t end = kModulus * solution_.share / kWholeShare;
    const auto clause = Expression::parse(number + " < " + std::to_string(end));
    if (number.find(' ') == std::string::npos) {
      if (hash % kModulus >= end) serve_nothing();
    } else if (!clause || !compile_where(*clause, scope_, &binding_.when, &binding_.when_clauses)) {
      serve_nothing();
    }
  }

  void serve_nothing() {
    binding_.when = {Step{.op = Op::push}, Step{.op = Op::require}};
    binding_.when_clauses = {Clause{}};
  }

  // The names that the solution uses beside its arguments.
  std::vector<std::string_view> names_in_expressions() const {
    std::vector<std::string_view> names;
    for (const MarkedExpression& value : solution_.geometry) {
      const auto& used = value.expression.names();
      names.insert(names.end(), used.begin(), used.end());
    }
    for (const MarkedExpression& clause : solution_.where) {
      for (const Expression::Pin& pin : clause.expression.pins()) names.emplace_back(pin.name);
    }
    return names;
  }

  // Warns of the original's scalars whose values have no effect: the solution does not use them, no
  // axis is computed from them, and no `where` makes them equal to a constant or to other values.
  void warn_of_dropped_scalars() {
    if (pattern_.loose_scalars.empty()) return;
    std::vector<uint16_t> dropped;
    const std::vector<std::string_view> used = names_in_expressions();
    for (const uint16_t index : pattern_.loose_scalars) {
      const PatternValue& value = pattern_.values[index];
      const bool is_known = definition_.find_argument(value.name) != nullptr ||
                            definition_.find_axis(value.name) != nullptr || takes(value.name) ||
                            std::ranges::find(used, value.name) != used.end();
      if (!is_known) dropped.push_back(index);
    }
    pattern_.leave_out_equal(&dropped);
    for (const uint16_t index : dropped) {
      const PatternValue& value = pattern_.values[index];
      diagnostics_->add(Rule::dropped_scalar, value.mark,
                        pair_text() + ": the original takes " + in_quotes(value.name) +
                            ", which the solution drops",
                        "take it as an argument, or pin its value with \"where\"");
    }
  }

  const PatternSpec& pattern_;
  const SolutionSpec& solution_;
  const Definition& definition_;
  const Sibling sibling_;
  KnownClauses* const known_;
  Diagnostics* diagnostics_;
  BindingScope scope_;
  BindingSpec binding_;
  std::vector<ArgumentSpec> arguments_;
  std::vector<Step> where_;
  std::vector<Clause> where_clauses_;
};

}  // namespace

bool is_geometry_in_range(uint32_t index, int64_t value, std::string* why) {
  const GeometryInfo& info = kGeometry[index];
  if (value >= info.lowest && value <= info.highest) return true;
  *why = std::string(info.name) + " is " + std::to_string(value) + "; CUDA takes " +
         std::to_string(info.lowest) + " to " + std::to_string(info.highest);
  return false;
}

bool is_whole_clusters(uint32_t grid_index, int64_t grid, int64_t cluster, std::string* why) {
  if (grid % cluster == 0) return true;
  *why = std::string(kGeometry[grid_index].name) + " is " + std::to_string(grid) +
         ", which clusters of " + std::to_string(cluster) + " do not divide";
  return false;
}

bool fits_in_bytes(int64_t value, uint32_t size) {
  if (size >= 8) return true;
  const int64_t limit = int64_t{1} << (8 * size);
  return value >= -(limit / 2) && value < limit;
}

BindingSpec bind(const PatternSpec& pattern, const SolutionSpec& solution,
                 const Definition& definition, const Sibling& sibling, KnownClauses* known,
                 Diagnostics* diagnostics) {
  return Binder(pattern, solution, definition, sibling, known, diagnostics).bind();
}

}  // namespace fibshim
