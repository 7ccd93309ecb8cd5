#include "loader/compile/read_pattern.h"

#include <algorithm>
#include <bitset>
#include <set>

#include "loader/compile/read_pointer.h"
#include "loader/compile/read_rewrite.h"

namespace fibshim {
namespace {

struct TypeName {
  const char* name;
  ValueType type;
};
constexpr TypeName kTypeNames[] = {
    {"int8", ValueType::int8},       {"uint8", ValueType::uint8},     {"bool", ValueType::uint8},
    {"int16", ValueType::int16},     {"uint16", ValueType::uint16},   {"int32", ValueType::int32},
    {"uint32", ValueType::uint32},   {"int64", ValueType::int64},     {"uint64", ValueType::uint64},
    {"float32", ValueType::float32}, {"float64", ValueType::float64},
};

struct DimensionName {
  const char* key;
  uint16_t first;  // GeometryIndex of x
};
constexpr DimensionName kDimensions[] = {
    {"grid", kGridX}, {"block", kBlockX}, {"cluster", kClusterX}};

constexpr std::string_view kValueSources[] = {"arg",        "grid",    "block", "cluster",
                                              "shared_mem", "capture", "value", "expr"};

class PatternReader {
 public:
  PatternReader(JsonValue root, Diagnostics* diagnostics, KnownTexts* known)
      : root_(root),
        diagnostics_(diagnostics),
        known_(known),
        pattern_(std::make_unique<PatternSpec>()) {}

  std::unique_ptr<PatternSpec> read() {
    if (!expect_kind(root_, JsonKind::object, "a pattern", diagnostics_)) return nullptr;
    const uint32_t errors_before = diagnostics_->error_count();
    accept_only(root_,
                {"label", "benefit", "description", "match", "axes", "arguments", "writes", "where",
                 "definition", "dead", "written_first", "analysis"},
                "a pattern", diagnostics_);
    is_rewrite_ = root_.find("match") && root_.find("match").kind() == JsonKind::array;
    pattern_->mark = root_.mark();
    const auto label = read_name(require_member(root_, "label", "the pattern", diagnostics_),
                                 "\"label\"", diagnostics_);
    if (label) {
      pattern_->label = label->name;
      pattern_->label_mark = label->mark;
    }
    pattern_->benefit = static_cast<int32_t>(
        read_integer(root_.find("benefit"), INT32_MIN, INT32_MAX, "\"benefit\"", diagnostics_)
            .value_or(0));
    expect_kind(root_.find("description"), JsonKind::string, "\"description\"", diagnostics_);
    read_match();
    read_values("axes", true);
    read_values("arguments", false);
    read_writes();
    read_rewrite_keys(root_, is_rewrite_, pattern_.get(), diagnostics_);
    pattern_->where = read_clauses(root_.find("where"), "where", diagnostics_, known_);
    const auto definition =
        read_text(require_member(root_, "definition", "the pattern", diagnostics_),
                  "\"definition\"", diagnostics_);
    if (definition) {
      pattern_->definition = *definition;
      parse_template();
    }
    // Resolve names only if all could be read, so that no error causes further messages.
    if (diagnostics_->error_count() == errors_before) compile();
    if (!label) return nullptr;
    return std::move(pattern_);
  }

 private:
  void error(Rule rule, Mark mark, std::string message, std::string hint = {}) {
    diagnostics_->add(rule, mark, std::move(message), std::move(hint));
  }

  void read_match() {
    const JsonValue match = require_member(root_, "match", "the pattern", diagnostics_);
    if (!match) return;
    if (match.kind() == JsonKind::array) {
      return read_members(match, pattern_.get(), known_, diagnostics_);
    }
    MatchSpec own = fibshim::read_match(match, "\"match\"", known_, diagnostics_);
    pattern_->symbol = std::move(own.symbol);
    pattern_->has_params = own.has_params;
    pattern_->params = std::move(own.params);
    pattern_->images = std::move(own.images);
  }

  void read_values(const char* key, bool is_axis) {
    const JsonValue values = root_.find(key);
    if (!expect_kind(values, JsonKind::object, {"", key}, diagnostics_) ||
        !check_entry_count(values, {"", key}, diagnostics_)) {
      return;
    }
    pattern_->values.reserve(pattern_->values.size() + values.size());
    for (const JsonValue::Member& member : values.members()) {
      if (!check_identifier(member.key, member.key_mark,
                            is_axis ? "the name of an axis" : "the name of an argument",
                            diagnostics_)) {
        continue;
      }
      if (pattern_->find_value(member.key) != nullptr) {
        // Within one object this is a duplicate key, which has been reported.
        if (!is_axis && pattern_->find_value(member.key)->is_axis) {
          error(Rule::duplicate_name, member.key_mark,
                in_quotes(member.key) + " is an axis and an argument");
        }
        continue;
      }
      const What what(is_axis ? "axis " : "argument ", member.key);
      PatternValue value;
      value.name = member.key;
      value.is_axis = is_axis;
      read_value(values.value_of(member), what, &value);
      pattern_->values.push_back(std::move(value));
    }
  }

  static std::vector<std::string_view> value_keys(bool is_axis) {
    std::vector<std::string_view> keys(std::begin(kValueSources), std::end(kValueSources));
    keys.insert(keys.end(), {"type", "offset"});
    if (!is_axis) keys.push_back("dtype");
    keys.push_back("kernel");
    if (!is_axis) keys.insert(keys.end(), {"bytes", "layout", "shift"});
    return keys;
  }

  // In the order of kValueSources.
  static std::vector<std::string_view> sources_in(JsonValue object) {
    std::bitset<std::size(kValueSources) + 1> found;
    for (const JsonValue::Member& member : object.members()) {
      found.set(static_cast<size_t>(std::ranges::find(kValueSources, member.key) - kValueSources));
    }
    std::vector<std::string_view> given;
    for (size_t i = 0; i < std::size(kValueSources); ++i) {
      if (found[i]) given.push_back(kValueSources[i]);
    }
    return given;
  }

  void read_value(JsonValue object, const What& what, PatternValue* value) {
    value->mark = object.mark();
    if (!expect_kind(object, JsonKind::object, what, diagnostics_)) return;
    static const std::vector<std::string_view> of_axis = value_keys(true),
                                               others = value_keys(false);
    accept_only(object, value->is_axis ? of_axis : others, what, diagnostics_);
    if (!read_value_of_rewrite(object, what, is_rewrite_, *pattern_, value, known_, diagnostics_))
      return;

    const std::vector<std::string_view> given = sources_in(object);
    if (given.size() != 1) {
      error(Rule::value_source, object.mark(),
            what + (given.empty() ? " has no value" : " has " + list_words(given)) +
                "; it takes exactly one of " +
                list_words({std::begin(kValueSources), std::end(kValueSources)}, "or"));
      return;
    }
    const std::string_view source = given[0];
    const JsonValue from = object.find(source);
    const What of = " of " + what;
    const What where("", source, &of);
    if (source != "arg") {
      for (const std::string_view key : {"type", "dtype", "offset", "layout", "shift"}) {
        const bool is_literal_type = source == "value" && key == "type";
        if (object.find(key) && !is_literal_type) {
          error(Rule::value_source, object.find(key).mark(),
                what + ": " + in_quotes(key) + " goes with \"arg\" only");
        }
      }
    }
    if (source == "arg") {
      read_param(object, from, what, value);
    } else if (source == "shared_mem") {
      const auto is_wanted = read_boolean(from, where, diagnostics_);
      if (is_wanted && !*is_wanted) {
        error(Rule::bad_value, from.mark(), where + " must be true");
      }
      value->source = geometry_source(*value, kSharedMem);
    } else if (source == "capture") {
      const auto group = read_text(from, where, diagnostics_);
      if (!group) return;
      const auto index = use_capture(group->text, true, group->mark);
      if (index) value->source = {Source::Kind::capture, ValueType::int64, *index, 0, 0, 0};
    } else if (source == "value") {
      read_literal(object, from, where, what, value);
    } else if (source == "expr") {
      value->expression = boxed(read_expression(from, false, where, diagnostics_, known_));
    } else {
      read_dimension(source, from, where, value);
    }
  }

  // Without "type" the number's spelling decides whether it is an integer; "type" makes 1 a float.
  void read_literal(JsonValue object, JsonValue from, const What& where, const What& what,
                    PatternValue* value) {
    const ValueType untyped = value->source.type;
    const JsonValue type = object.find("type");
    if (type && !read_type(type, what, value)) return;
    const bool wants_floating = type && is_floating(value->source.type);
    const bool wants_integer = value->is_axis || (type && !wants_floating);
    value->source.type = untyped;
    if (from.kind() == JsonKind::integer && !wants_floating) {
      value->source.integer = from.integer();
    } else if (from.kind() == JsonKind::integer) {
      value->source.kind = Source::Kind::floating;
      value->source.floating = static_cast<double>(from.integer());
    } else if (from.kind() == JsonKind::floating && !wants_integer) {
      value->source.kind = Source::Kind::floating;
      value->source.floating = from.floating();
    } else {
      error(Rule::wrong_type, from.mark(),
            where + " must be " + (wants_integer ? "an integer" : "a number") + ", not " +
                json_kind_words(from.kind()));
    }
  }

  void read_dimension(std::string_view key, JsonValue from, const What& where,
                      PatternValue* value) {
    if (!expect_kind(from, JsonKind::string, where, diagnostics_)) return;
    const std::string_view axis = from.string();
    if (axis != "x" && axis != "y" && axis != "z") {
      error(Rule::bad_value, from.mark(),
            where + " is " + in_quotes(axis) + "; accepted are \"x\", \"y\" and \"z\"");
      return;
    }
    for (const DimensionName& dimension : kDimensions) {
      if (key != dimension.key) continue;
      value->source =
          geometry_source(*value, static_cast<uint16_t>(dimension.first + (axis[0] - 'x')));
    }
  }

  // The geometry of a rewrite's later kernels is stored behind their parameters.
  Source geometry_source(const PatternValue& value, uint16_t index) const {
    if (value.kernel == 0) return {.kind = Source::Kind::geometry, .index = index};
    const MemberSpec& member = pattern_->members[value.kernel];
    const size_t at = member.first_param + member.params.size() + index;
    return {
        .kind = Source::Kind::param, .type = ValueType::uint32, .index = static_cast<uint16_t>(at)};
  }

  void read_param(JsonValue object, JsonValue arg, const What& what, PatternValue* value) {
    value->reads_param = true;
    value->source.kind = Source::Kind::param;
    const JsonValue type = object.find("type");
    const JsonValue dtype = object.find("dtype");
    const JsonValue offset = object.find("offset");
    read_pointer_keys(object, what, value, known_, diagnostics_);
    if (dtype && !value->is_axis) {
      value->dtype = read_dtype(dtype, "\"dtype\" of " + what, diagnostics_);
      value->dtype_mark = dtype.mark();
    }
    if (type) {
      if (!read_type(type, what, value)) return;
    } else if (value->is_axis) {
      error(Rule::missing_key, object.mark(), what + " has no \"type\"",
            "give the parameter's integer type, such as \"int32\"");
      return;
    } else if (!dtype) {
      error(Rule::missing_key, object.mark(), what + " has neither \"type\" nor \"dtype\"",
            "a scalar has a \"type\", a pointer the \"dtype\" that it points to");
      return;
    } else {
      value->is_pointer = true;
      value->source.type = ValueType::address;
    }
    const auto index = read_integer(arg, 0, kMaxParams - 1, "\"arg\" of " + what, diagnostics_);
    const auto bytes =
        offset ? read_integer(offset, 0, kMaxParamBytes, "\"offset\" of " + what, diagnostics_)
               : std::optional<int64_t>(0);
    if (!index || !bytes) return;
    const bool is_in_rewrite = pattern_->is_rewrite();
    const auto first = is_in_rewrite ? pattern_->members[value->kernel].first_param : 0;
    const std::vector<uint16_t>& params =
        is_in_rewrite ? pattern_->members[value->kernel].params : pattern_->params;
    value->source.index = static_cast<uint16_t>(first + *index);
    value->source.offset = static_cast<uint32_t>(*bytes);
    if (!pattern_->has_params) return;

    if (static_cast<size_t>(*index) >= params.size()) {
      error(Rule::param_range, arg.mark(),
            "\"arg\" of " + what + " is " + std::to_string(*index) + ", but \"params\" has " +
                std::to_string(params.size()) + " entries, counted from 0");
      return;
    }
    const uint32_t param_bytes = params[static_cast<size_t>(*index)];
    const uint32_t size = size_of(value->source.type);
    if (param_bytes == 0) return;  // reported when "params" was read
    const std::string type_words =
        value->is_pointer ? "a pointer"
                          : in_quotes(type.kind() == JsonKind::string ? type.string() : "");
    if (!offset && size != param_bytes) {
      error(Rule::param_size, type ? type.mark() : arg.mark(),
            what + ": " + type_words + " has " + std::to_string(size) + " bytes, but parameter " +
                std::to_string(*index) + " has " + std::to_string(param_bytes),
            size < param_bytes ? "give an \"offset\" to read a field of a larger parameter" : "");
    } else if (offset && *bytes + size > param_bytes) {
      error(Rule::param_range, offset.mark(),
            what + ": bytes " + std::to_string(*bytes) + " to " +
                std::to_string(*bytes + size - 1) + " are not within parameter " +
                std::to_string(*index) + " of " + std::to_string(param_bytes) + " bytes");
    }
  }

  bool read_type(JsonValue type, const What& what, PatternValue* value) {
    if (!expect_kind(type, JsonKind::string, "\"type\" of " + what, diagnostics_)) return false;
    const auto known = std::ranges::find(kTypeNames, type.string(), &TypeName::name);
    if (known != std::end(kTypeNames) && !(value->is_axis && is_floating(known->type))) {
      value->source.type = known->type;
      return true;
    }
    std::vector<std::string_view> names;
    for (const TypeName& one : kTypeNames) {
      if (!value->is_axis || !is_floating(one.type)) names.push_back(one.name);
    }
    error(Rule::bad_value, type.mark(),
          "\"type\" of " + what + " is " + in_quotes(type.string()) + "; accepted are " +
              list_words(names),
          diagnostics_->suggestion(type.string(), names));
    return false;
  }

  void read_writes() {
    const JsonValue writes = require_member(root_, "writes", "the pattern", diagnostics_);
    if (!expect_kind(writes, JsonKind::array, "\"writes\"", diagnostics_) ||
        !check_entry_count(writes, "\"writes\"", diagnostics_)) {
      return;
    }
    pattern_->writes_mark = writes.mark();
    for (const JsonValue element : writes.elements()) {
      const auto name = read_name(element, "an entry of \"writes\"", diagnostics_);
      if (!name) continue;
      if (has_name(pattern_->writes, name->name)) {
        error(Rule::duplicate_name, name->mark, in_quotes(name->name) + " is twice in \"writes\"");
        continue;
      }
      const PatternValue* const value = pattern_->find_value(name->name);
      if (value == nullptr || value->is_axis) {
        std::vector<std::string_view> pointers;
        for (const PatternValue& known : pattern_->values) {
          if (known.is_pointer) pointers.push_back(known.name);
        }
        error(Rule::unknown_name, name->mark,
              "\"writes\" names " + in_quotes(name->name) + ", which is no argument of the pattern",
              diagnostics_->suggestion(name->name, pointers));
        continue;
      }
      if (!value->is_pointer && value->reads_param) {
        error(Rule::bad_value, name->mark,
              "\"writes\" names " + in_quotes(name->name) + ", which is a scalar, not a pointer");
      }
      pattern_->writes.push_back(*name);
    }
  }

  bool has_group(const std::string& name) const {
    if (pattern_->symbol == nullptr) return false;
    const auto& groups = pattern_->symbol->groups();
    return std::find(groups.begin(), groups.end(), name) != groups.end();
  }

  // Returns the capture's index, or nothing after reporting why.
  std::optional<uint16_t> use_capture(const std::string& name, bool is_numeric, Mark mark) {
    if (!has_group(name)) {
      if (pattern_->symbol != nullptr) {
        std::vector<std::string_view> groups(pattern_->symbol->groups().begin(),
                                             pattern_->symbol->groups().end());
        error(Rule::unknown_name, mark,
              "the symbol has no group named " + in_quotes(name) +
                  (groups.empty() ? "" : "; it has " + list_words(groups)),
              groups.empty() ? "write (?<" + name + ">...) in a re: symbol" : "");
      }
      return std::nullopt;
    }
    auto& captures = pattern_->captures;
    auto at = std::find(captures.begin(), captures.end(), name);
    if (at == captures.end()) {
      if (captures.size() == kMaxCaptures) {
        error(Rule::limit, mark,
              "the pattern uses more than " + std::to_string(kMaxCaptures) + " captures");
        return std::nullopt;
      }
      captures.push_back(name);
      at = captures.end() - 1;
    }
    const auto index = static_cast<uint16_t>(at - captures.begin());
    if (is_numeric) pattern_->numeric_captures |= 1u << index;
    return index;
  }

  // Splits the template into parts. compile() resolves the names.
  void parse_template() {
    const MarkedText& source = pattern_->definition;
    const std::string& text = source.text;
    std::string literal;
    const auto flush = [&] {
      if (!literal.empty()) pattern_->name.push_back({TemplatePart::Kind::text, literal, 0});
      literal.clear();
    };
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '}') {
        error(Rule::bad_template, source.at(i), "a } without its {");
        return;
      }
      if (text[i] != '{') {
        literal += text[i];
        continue;
      }
      const size_t end = text.find_first_of("{}", i + 1);
      if (end == std::string::npos || text[end] == '{') {
        error(Rule::bad_template, source.at(i), "this { is not closed");
        return;
      }
      if (end == i + 1) {
        error(Rule::bad_template, source.at(i), "{} names nothing");
        return;
      }
      flush();
      pattern_->name.push_back({TemplatePart::Kind::key, text.substr(i + 1, end - i - 1), 0});
      template_offsets_.push_back(i + 1);
      i = end;
    }
    flush();
    check_name(text, source.mark, "\"definition\"", diagnostics_);
  }

  void compile() {
    compile_template();
    // Captures named in expressions count as used.
    const auto use_captures_of = [&](const MarkedExpression& expression) {
      for (const std::string& name : expression.expression.names()) {
        if (pattern_->find_value(name) == nullptr && has_group(name)) {
          use_capture(name, true, expression.text.mark);
        }
      }
    };
    for (const PatternValue& value : pattern_->values) {
      if (value.expression) use_captures_of(*value.expression);
    }
    for (const MarkedExpression& clause : pattern_->where) use_captures_of(clause);
    for (const PatternValue& value : pattern_->values) {
      for (const MarkedExpression* const one : pointer_expressions(value)) use_captures_of(*one);
    }
    for (const PatternValue& value : pattern_->values) {
      check_pointer(value, *pattern_, diagnostics_);
    }

    for (const PatternValue& value : pattern_->values) {
      if (!value.expression) continue;
      const auto compiled = compile_value(value.expression->expression, *pattern_);
      if (!compiled) {
        report(compiled.error(), *value.expression, diagnostics_);
      } else if (compiled->is_floating) {
        error(Rule::expression_type, value.expression->text.mark,
              "\"expr\" of " + in_quotes(value.name) + " is a floating-point value",
              "name the argument itself where its value is needed");
      }
    }
    compile_keys();
    for (const MarkedExpression& clause : pattern_->where) {
      const auto compiled = compile_where(clause.expression, *pattern_, &pattern_->where_steps,
                                          &pattern_->where_clauses);
      if (!compiled) report(compiled.error(), clause, diagnostics_);
    }
    if (is_rewrite_) compile_buffers(pattern_.get(), diagnostics_);
    note_loose_scalars();
  }

  void note_loose_scalars() {
    std::set<std::string_view> used;  // for axes and shifts
    const auto use = [&](const BoxedExpression& by) {
      if (by) used.insert(by->expression.names().begin(), by->expression.names().end());
    };
    for (const PatternValue& value : pattern_->values) {
      if (value.is_axis) use(value.expression);
      use(value.shift);
    }
    for (size_t i = 0; i < pattern_->values.size(); ++i) {
      const PatternValue& value = pattern_->values[i];
      if (value.is_axis || !value.is_scalar_param() || used.count(value.name) != 0 ||
          pattern_->pin_of(value.name).is_pinned) {
        continue;
      }
      pattern_->loose_scalars.push_back(static_cast<uint16_t>(i));
    }
    pattern_->leave_out_equal(&pattern_->loose_scalars);
  }

  void compile_template() {
    size_t part_number = 0;
    for (TemplatePart& part : pattern_->name) {
      if (part.kind == TemplatePart::Kind::text) continue;
      const Mark mark = pattern_->definition.at(template_offsets_[part_number++]);
      const PatternValue* const value = pattern_->find_value(part.text);
      if (value == nullptr) {
        if (has_group(part.text)) {
          const auto index = use_capture(part.text, false, mark);
          part.kind = TemplatePart::Kind::capture;
          part.index = static_cast<uint8_t>(index.value_or(0));
          continue;
        }
        const auto known = pattern_->names();
        error(Rule::bad_template, mark,
              in_quotes(part.text) + " is no axis, integer argument or capture of the pattern",
              diagnostics_->suggestion(part.text, known));
        continue;
      }
      if (value->is_pointer || value->source.is_floating()) {
        error(Rule::bad_template, mark,
              in_quotes(part.text) + " is a " +
                  (value->is_pointer ? "pointer" : "floating-point value") +
                  "; a name takes integers");
        continue;
      }
      if (!value->expression && value->source.kind == Source::Kind::capture) {
        part.kind = TemplatePart::Kind::capture;
        part.index = static_cast<uint8_t>(value->source.index);
      }
    }
  }

  void compile_keys() {
    for (TemplatePart& part : pattern_->name) {
      if (part.kind != TemplatePart::Kind::key) continue;
      const PatternValue* const value = pattern_->find_value(part.text);
      if (value == nullptr) continue;
      CompiledValue compiled;
      if (value->expression) {
        auto result = compile_value(value->expression->expression, *pattern_);
        if (!result) continue;  // reported with the expression
        compiled = std::move(*result);
      } else {
        compiled = compile_source(value->source);
      }
      if (compiled.constant) {
        part.kind = TemplatePart::Kind::text;
        part.text = std::to_string(*compiled.constant);
        continue;
      }
      auto& names = pattern_->key_names;
      auto at = std::find(names.begin(), names.end(), part.text);
      if (at == names.end()) {
        if (names.size() == kMaxKeyParts) {
          error(Rule::limit, pattern_->definition.mark,
                "\"definition\" has more than " + std::to_string(kMaxKeyParts) +
                    " values that are known at launch only");
          return;
        }
        names.push_back(part.text);
        pattern_->keys.push_back(std::move(compiled));
        at = names.end() - 1;
      }
      part.index = static_cast<uint8_t>(at - names.begin());
    }
  }

  JsonValue root_;
  Diagnostics* diagnostics_;
  KnownTexts* known_;
  std::unique_ptr<PatternSpec> pattern_;
  bool is_rewrite_ = false;
  std::vector<size_t> template_offsets_;  // one per name in the template
};

}  // namespace

std::unique_ptr<PatternSpec> read_pattern(JsonValue root, Diagnostics* diagnostics,
                                          KnownTexts* known) {
  KnownTexts own;
  return PatternReader(root, diagnostics, known != nullptr ? known : &own).read();
}

}  // namespace fibshim
