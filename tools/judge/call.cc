#include "tools/judge/call.h"

#include <string.h>

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "loader/read/fields.h"
#include "tools/judge/described_launch.h"
#include "tools/judge/inputs.h"
#include "tools/judge/references.h"
#include "tools/judge/stated_values.h"
#include "tools/record/pattern_fit.h"

namespace fibshim::judge {
namespace {

constexpr int64_t kLargestGuess = int64_t{1} << 40;

const DefinitionArgument* find_input(const Definition& definition, std::string_view name) {
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output && argument.name == name) return &argument;
  }
  return nullptr;
}

// What the recorded launches had there; nothing where that was not kept.
std::optional<double> recorded_number(const tools::KernelRecord* kernel, const Source& source) {
  if (kernel == nullptr || kernel->geometries.empty()) return std::nullopt;
  if (source.kind == Source::Kind::geometry) return (*kernel->commonest_geometry())[source.index];
  const bool is_kept = source.kind == Source::Kind::param && source.index < kernel->params.size() &&
                       source.offset + size_of(source.type) <= sizeof(uint64_t);
  const auto bits = is_kept ? kernel->params[source.index].commonest_value() : std::nullopt;
  if (!bits) return std::nullopt;
  uint64_t bytes = *bits;
  void* const params[] = {&bytes};
  const LaunchView view{params, nullptr, {}};
  const Step step{Op::load_param, source.type, 0, source.offset, 0};
  int64_t value = 0;
  if (!program_detail::load_param(view, step, &value)) return std::nullopt;
  return is_floating(source.type) ? program_detail::bits_double(value) : static_cast<double>(value);
}

}  // namespace

// The numbers of one case: those that are given, and those that follow from them.
class Call::Values : public Scope {
 public:
  Values(const Call& call, const CaseData& data)
      : pattern_(*call.variant_.pattern), definition_(call.subject_.definition->name.name) {
    for (const PatternValue& value : pattern_.values) {
      if (value.is_pointer) continue;
      if (const auto stated = stated_number(value)) {
        add_number(value.name, *stated);
      } else {
        fields_.push_back(
            {value.name, value.source, value.expression ? &value.expression->expression : nullptr});
      }
    }
    for (const std::string& name : pattern_.captures) {
      if (pattern_.find_value(name) == nullptr)
        fields_.push_back({name, pattern_.find(name)->source});
    }
    for (const MarkedExpression& clause : pattern_.where) add_tie(clause);
    for (const VerifyArgument& told : call.subject_.verify->arguments) {
      if (told.kind != VerifyArgument::Kind::expression || find_number(told.name)) continue;
      fields_.push_back({told.name, {}, &told.expression->expression});
    }
    for (const auto& [name, value] : data.axes) add_number(name, static_cast<double>(value));
    for (const auto& [name, value] : data.scalars) add_number(name, value);
    split_name(0, 0);
    derive_numbers();
  }

  std::optional<double> find_number(const std::string& name) const {
    const auto known = numbers_.find(name);
    return known == numbers_.end() ? std::nullopt : std::optional(known->second);
  }
  void add_number(const std::string& name, double value) { numbers_.emplace(name, value); }

  // Adds what follows.
  void derive_numbers() {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const Field& field : fields_) has_changed = derive_field(field) || has_changed;
      for (const auto& [left, right] : ties_) {
        has_changed = derive_side(left, right) || derive_side(right, left) || has_changed;
      }
    }
  }

  // What a capture holds.
  std::string capture_text(uint16_t index) const {
    const auto known = captures_.find(index);
    if (known != captures_.end()) return known->second;
    const auto at = places_.find({Source::Kind::capture, index, 0});
    return std::to_string(at == places_.end() ? 0 : static_cast<int64_t>(at->second));
  }

  struct Field {
    std::string name;
    Source source;
    const Expression* expression = nullptr;
  };
  const std::vector<Field>& fields() const { return fields_; }

  std::optional<Meaning> find(std::string_view name) const override {
    Source source;
    if (const auto number = find_number(std::string(name))) {
      source.integer = static_cast<int64_t>(*number);
      return Meaning{source, nullptr, nullptr};
    }
    return std::nullopt;
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  using Place = std::tuple<Source::Kind, uint16_t, uint32_t>;

  // "name == expression" in a "where" says what the one is, and so does "name * expression == expression".
  void add_tie(const MarkedExpression& clause) {
    const Expression& expression = clause.expression;
    const Expression::Node& root = expression.node(expression.root());
    if (root.kind != Expression::Kind::binary || root.op != Op::eq) return;
    const std::string_view text = clause.text.text;
    auto left = Expression::parse(text.substr(0, root.offset));
    auto right = Expression::parse(text.substr(root.offset + strlen("==")));
    if (left && right) ties_.emplace_back(std::move(*left), std::move(*right));
  }

  // True when the one unknown of `open`, a name or a product, became known by what `other` is.
  bool derive_side(const Expression& open, const Expression& other) {
    const Expression::Node& root = open.node(open.root());
    const Expression::Node& value = other.node(other.root());
    const bool is_name = root.kind == Expression::Kind::name;
    if (is_name ? find_number(root.name).has_value() : !is_product(open, root)) return false;
    const auto integer = evaluate(other, *this);
    if (!integer && value.kind != Expression::Kind::floating) return false;
    const double wanted = integer ? static_cast<double>(*integer) : value.floating;
    if (!is_name) return solve(open, wanted);
    const PatternValue* const given = pattern_.find_value(root.name);
    if (given == nullptr || given->is_pointer) return false;
    add_number(root.name, wanted);
    return true;
  }

  static bool is_product(const Expression& expression, const Expression::Node& node) {
    if (node.kind != Expression::Kind::binary) {
      return node.kind == Expression::Kind::name || node.kind == Expression::Kind::integer;
    }
    return node.op == Op::mul && is_product(expression, expression.node(node.left)) &&
           is_product(expression, expression.node(node.right));
  }

  // True when that made something known.
  bool derive_field(const Field& field) {
    const auto known = numbers_.find(field.name);
    if (field.expression != nullptr) {
      if (known != numbers_.end()) return solve(*field.expression, known->second);
      const auto value = evaluate(*field.expression, *this);
      if (value) add_number(field.name, static_cast<double>(*value));
      return value.has_value();
    }
    const Place place{field.source.kind, field.source.index, field.source.offset};
    const auto at = places_.find(place);
    if ((known == numbers_.end()) == (at == places_.end())) return false;
    if (at == places_.end()) {
      places_.emplace(place, known->second);
    } else {
      add_number(field.name, at->second);
    }
    return true;
  }

  // The one unknown of an expression that does not fall with it: the least value that gives `wanted`.
  bool solve(const Expression& expression, double wanted) {
    std::string unknown;
    for (const std::string& name : expression.names()) {
      if (find_number(name)) continue;
      if (!unknown.empty()) return false;
      unknown = name;
    }
    if (unknown.empty()) return false;
    const auto value_for = [&](int64_t guess) {
      numbers_[unknown] = static_cast<double>(guess);
      return evaluate(expression, *this);
    };
    int64_t low = 0, high = kLargestGuess;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const auto value = value_for(middle);
      if (value && static_cast<double>(*value) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const auto value = value_for(low);
    if (value && static_cast<double>(*value) == wanted) return true;
    numbers_.erase(unknown);
    return false;
  }

  // Captures and numbers in the definition's name: its first reading, from part and byte on.
  bool split_name(size_t part_index, size_t begin) {
    if (part_index == pattern_.name.size()) return begin == definition_.size();
    const TemplatePart& part = pattern_.name[part_index];
    const auto number = find_number(part.text);
    const bool is_text = part.kind == TemplatePart::Kind::text;
    if (is_text || number) {
      const std::string text = is_text ? part.text : std::to_string(static_cast<int64_t>(*number));
      if (definition_.compare(begin, text.size(), text) != 0) return false;
      if (part.kind == TemplatePart::Kind::capture) captures_[part.index] = text;
      return split_name(part_index + 1, begin + text.size());
    }
    for (size_t end = begin; end <= definition_.size(); ++end) {
      const std::string text = definition_.substr(begin, end - begin);
      const bool is_number = !text.empty() && text.size() < 16 &&
                             text.find_first_not_of("0123456789") == std::string::npos;
      if (part.kind == TemplatePart::Kind::key && !is_number) continue;
      if (is_number) numbers_[part.text] = std::stod(text);
      if (split_name(part_index + 1, end)) {
        if (part.kind == TemplatePart::Kind::capture) captures_[part.index] = text;
        return true;
      }
      numbers_.erase(part.text);
    }
    return false;
  }

  const PatternSpec& pattern_;
  const std::string& definition_;
  std::vector<Field> fields_;
  std::vector<std::pair<Expression, Expression>> ties_;
  std::map<std::string, double> numbers_;
  std::map<Place, double> places_;
  std::map<uint16_t, std::string> captures_;
};

Call::Call(const Subject& subject, const Variant& variant, const Snapshot& snapshot,
           const std::vector<tools::KernelRecord>& recorded)
    : subject_(subject), variant_(variant), snapshot_(&snapshot) {
  const PatternSpec& pattern = *variant.pattern;
  for (const tools::KernelRecord& kernel : recorded) {
    for (const tools::PatternFit& fit : tools::fit_patterns(snapshot, kernel)) {
      if (recorded_ == nullptr && fit.fits && fit.label == pattern.label) recorded_ = &kernel;
    }
  }
  std::vector<std::string> needed = names_of_launch(*subject.solution);
  used_ = names_behind(needed, &pattern, {});
  needed.insert(needed.end(), pattern.key_names.begin(), pattern.key_names.end());
  for (const MarkedExpression& clause : pattern.where) {
    for (const std::string& name : clause.expression.names()) needed.push_back(name);
  }
  needed_ = names_behind(std::move(needed), &pattern, {});
  for (const Variant& twin : variant.twins) twins_.emplace_back(subject, twin, snapshot, recorded);
}

bool Call::takes(const std::string& name) const {
  const auto& arguments = subject_.solution->arguments;
  return std::ranges::any_of(arguments,
                             [&](const MarkedName& argument) { return argument.name == name; });
}

bool Call::is_fixed(const std::string& name) const {
  const PatternValue* const value = variant_.pattern->find_value(name);
  return (value != nullptr && (value->expression || value->source.is_constant())) ||
         variant_.pattern->pin_of(name).is_pinned;
}

std::optional<int64_t> Call::only_value(std::string_view name) const {
  const PatternValue* const value = variant_.pattern->find_value(name);
  const bool is_stated =
      value != nullptr && !value->expression && value->source.kind == Source::Kind::integer;
  return is_stated ? value->source.integer : variant_.pattern->pin_of(name).value;
}

void Call::add_scalars(int run, CaseData* data) const {
  for (const VerifyArgument& argument : subject_.verify->arguments) {
    if (argument.kind == VerifyArgument::Kind::value) {
      data->scalars.emplace(argument.name, argument.value);
    }
  }
  Values values(*this, *data);
  for (const Values::Field& field : values.fields()) {
    if (field.expression != nullptr || values.find_number(field.name)) continue;
    const PatternSpec::Pin pin = variant_.pattern->pin_of(field.name);
    const auto value = pin.value ? std::optional(static_cast<double>(*pin.value))
                                 : usual_value(field.name, subject_, data->axes, run);
    if (!value) continue;
    values.add_number(field.name, *value);
    values.derive_numbers();
  }
  // Also for the reference, which must know of a literal weight_bias.
  for (const PatternValue& value : variant_.pattern->values) {
    const auto number = values.find_number(value.name);
    if (number && data->axes.count(value.name) == 0) data->scalars[value.name] = *number;
  }
}

Result<std::vector<BufferSpec>> Call::buffers(const AxisValues& axes, bool for_original) const {
  const Definition& definition = *subject_.definition;
  std::vector<BufferSpec> buffers;
  const auto add = [&](BufferSpec buffer) -> Result<void> {
    if (buffer.type == nullptr) {
      return fail(ErrorCode::invalid_value,
                  in_quotes(buffer.name) + " has a dtype that cannot be made or compared");
    }
    buffers.push_back(std::move(buffer));
    return {};
  };
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.is_scalar || argument.is_output) continue;
    FIBSHIM_TRY(add({argument.name, element_type_of(argument.dtype), shape_of(argument.shape, axes),
                     false, ""}));
  }
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output) continue;
    BufferSpec output{argument.name, element_type_of(argument.dtype),
                      shape_of(argument.shape, axes), true, ""};
    // In place: an output of an input's name, one that FlashInfer says is written into it, unless the
    // solution takes both, or one that the pattern takes from the same parameter.
    const auto alias = variant_.aliases.find(argument.name);
    if (find_input(definition, argument.name) != nullptr) {
      output.shares = argument.name;
    } else if (find_input(definition, argument.written_into) != nullptr &&
               !(takes(argument.name) && takes(argument.written_into))) {
      output.shares = argument.written_into;
    } else if (!takes(argument.name)) {
      return fail(ErrorCode::invalid_value,
                  "the solution does not take the output " + in_quotes(argument.name));
    } else if (alias != variant_.aliases.end()) {
      output.shares = alias->second;
    } else {
      for (const auto& [later, earlier] : variant_.aliases) {
        if (earlier == argument.name) output.shares = later;
      }
    }
    if (!output.shares.empty() && find_input(definition, output.shares) == nullptr) {
      output.shares.clear();
    }
    FIBSHIM_TRY(add(std::move(output)));
  }
  const DefinitionArgument* const first = first_tensor(definition, false);
  std::set<std::string> names = used_;
  for (const PatternValue& value : variant_.pattern->values) {
    if (for_original && value.is_pointer) names.insert(value.name);
  }
  for (const std::string& name : names) {
    const PatternValue* const given = variant_.pattern->find_value(name);
    if (given == nullptr || !given->is_pointer || definition.find_argument(name) != nullptr)
      continue;
    BufferSpec extra{name, nullptr, {}, true, ""};
    if (const VerifyArgument* const told = subject_.verify->find_argument(name);
        told != nullptr && told->kind == VerifyArgument::Kind::tensor) {
      extra.type = element_type_of(told->dtype);
      extra.shape = FIBSHIM_TRY(shape_of(*told, axes));
      extra.is_output = !told->elements;
    } else if (const ExtraOutput* const known = find_extra_output(subject_.op, name);
               known != nullptr && first != nullptr && !first->shape.empty()) {
      extra.type = find_element_type(known->dtype);
      extra.shape = {axes.at(first->shape[0])};
    } else if (used_.count(name) == 0) {
      continue;
    } else {
      return fail(ErrorCode::invalid_value,
                  "the buffer " + in_quotes(name) +
                      " is not in the definition, and its shape is not known: give the solution a "
                      "\"verify\": {\"arguments\": {\"" +
                      name + "\": {\"shape\": [...], \"dtype\": ...}}}");
    }
    FIBSHIM_TRY(add(std::move(extra)));
  }
  return buffers;
}

std::string Call::lay_out(const CaseData& data, std::vector<BufferSpec>* buffers) const {
  const Values values(*this, data);
  for (BufferSpec& buffer : *buffers) {
    const PatternValue* const tensor = variant_.pattern->find_value(buffer.name);
    if (tensor == nullptr || !tensor->layout || is_row_by_row(*tensor, values)) continue;
    for (const auto& [count, stride] : *tensor->layout) {
      if (const auto step = evaluate(stride.expression, values)) buffer.strides.push_back(*step);
    }
    if (!buffer.is_output || !buffer.shares.empty() ||
        buffer.strides.size() != buffer.shape.size()) {
      return fmt::format("{} cannot be laid out as pattern \"{}\" says", in_quotes(buffer.name),
                         variant_.name);
    }
  }
  return "";
}

Result<std::optional<Launch>> Call::resolve(const CaseData& data,
                                            const std::map<std::string, uint64_t>& addresses,
                                            std::string* reason) const {
  auto launch = resolve_alone(data, addresses, reason);
  for (const Call& twin : twins_) {
    if (!launch) break;
    CaseData numbers{data.axes, {}, data.scalars};
    twin.add_scalars(0, &numbers);
    std::string why;
    auto other = twin.resolve_alone(numbers, addresses, &why);
    if (!other || !*launch) {
      launch = std::move(other);
    } else if (*other && **other != **launch) {
      return fail(ErrorCode::invalid_value,
                  fmt::format("patterns \"{}\" and \"{}\" call it alike, but their launches differ",
                              variant_.name, twin.variant_.name));
    }
  }
  return launch;
}

Result<std::optional<Call::Pair>> Call::resolve_both(
    const RecordedLaunch& recorded, const CaseData& data,
    const std::map<std::string, uint64_t>& addresses, std::string* reason) const {
  Pair pair;
  auto launch = FIBSHIM_TRY(resolve_alone(data, addresses, reason, &recorded, &pair.original));
  if (!launch) return std::optional<Pair>();
  pair.replacement = std::move(*launch);
  return std::optional(std::move(pair));
}

Result<std::optional<Launch>> Call::resolve_alone(const CaseData& data,
                                                  const std::map<std::string, uint64_t>& addresses,
                                                  std::string* reason,
                                                  const RecordedLaunch* recorded,
                                                  Launch* original) const {
  const PatternSpec& pattern = *variant_.pattern;
  Values values(*this, data);
  // A struct may hold an address twice, which a "where" says.
  for (const PatternValue& value : pattern.values) {
    const auto address = value.is_pointer ? addresses.find(value.name) : addresses.end();
    if (address != addresses.end())
      values.add_number(value.name, static_cast<double>(address->second));
  }
  values.derive_numbers();
  std::string unknown;
  reason->clear();
  for (const Values::Field& field : values.fields()) {
    if (field.expression != nullptr || values.find_number(field.name)) continue;
    if (needed_.count(field.name) == 0) continue;
    if (const auto number = recorded_number(recorded_, field.source)) {
      from_recording_.insert(field.name);
      values.add_number(field.name, *number);
      values.derive_numbers();
    } else if (used_.count(field.name) != 0) {
      return fail(ErrorCode::invalid_value,
                  in_quotes(field.name) +
                      " is not in the definition, and what it should be is not known: give the "
                      "solution a \"verify\": {\"arguments\": {\"" +
                      field.name + "\": {\"value\": ...}}}");
    } else {
      unknown += (unknown.empty() ? "" : ", ") + in_quotes(field.name);
    }
  }

  DescribedLaunch described(pattern, recorded);
  const auto store_address = [&](const PatternValue& value, uint64_t address) {
    const auto shift = value.shift ? evaluate(value.shift->expression, values) : 0;
    if (shift) described.store_address(value, address - static_cast<uint64_t>(*shift));
    if (!shift) *reason = "the \"shift\" of " + in_quotes(value.name) + " has no value";
    return shift.has_value();
  };
  for (const PatternValue& value : pattern.values) {
    if (value.expression || value.source.is_constant()) continue;
    if (!value.is_pointer) {
      const auto number = values.find_number(value.name);
      if (number) *reason = described.store(value, *number);
      if (!reason->empty()) return std::optional<Launch>();
    } else if (const auto address = addresses.find(value.name); address != addresses.end()) {
      if (!store_address(value, address->second)) return std::optional<Launch>();
    } else if (used_.count(value.name) != 0) {
      return fail(ErrorCode::invalid_value, in_quotes(value.name) + " has no buffer");
    } else if (recorded != nullptr && recorded->values.at(value.source.index) != 0) {
      return fail(ErrorCode::not_found,
                  "the original takes the buffer " + in_quotes(value.name) +
                      ", whose shape is not known: give the solution a \"verify\": {\"arguments\": "
                      "{\"" +
                      value.name + "\": {\"shape\": [...], \"dtype\": ...}}}");
    }
  }
  for (uint16_t i = 0; i < pattern.captures.size(); ++i) {
    described.add_capture(i, values.capture_text(i));
  }
  if (original != nullptr) *original = described.original();
  auto launch = described.plan(*snapshot_, variant_, reason);
  if (launch && !*launch && !unknown.empty()) {
    *reason += fmt::format("; nothing states {}: {}", unknown,
                           recorded_ == nullptr ? "give --recording FILE with such a launch"
                                                : "the recorded launches do not, either");
  }
  return launch;
}

std::string Call::recorded_values() const {
  std::set<std::string> names = from_recording_;
  for (const Call& twin : twins_) {
    names.insert(twin.from_recording_.begin(), twin.from_recording_.end());
  }
  if (names.empty()) return "";
  return fmt::format("\"{}\" as in a recorded launch", fmt::join(names, "\", \""));
}

}  // namespace fibshim::judge
