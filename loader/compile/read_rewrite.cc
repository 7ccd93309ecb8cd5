#include "loader/compile/read_rewrite.h"

#include <algorithm>

#include "loader/compile/read_pointer.h"

namespace fibshim {
namespace {

constexpr std::string_view kToTheEnd = "*";  // in place of an expression

// Returns the alphabetically first of the names that `where` requires to equal this one.
std::string_view same_value(const PatternSpec& pattern, std::string_view name) {
  std::vector<std::string_view> same = {name};
  for (size_t i = 0; i < same.size(); ++i) {
    for (const MarkedExpression& clause : pattern.where) {
      for (const auto& [left, right] : clause.expression.equal_names()) {
        if (left != same[i] && right != same[i]) continue;
        const std::string& other = left == same[i] ? right : left;
        if (std::ranges::find(same, other) == same.end()) same.push_back(other);
      }
    }
  }
  return *std::ranges::min_element(same);
}

// Returns false after reporting it if another pattern has a key that only a rewrite may have.
bool check_keys(JsonValue object, std::initializer_list<std::string_view> keys, const What& what,
                bool is_rewrite, Diagnostics* diagnostics) {
  for (const std::string_view key : keys) {
    if (is_rewrite || !object.find(key)) continue;
    diagnostics->add(Rule::bad_rewrite, object.find(key).mark(),
                     in_quotes(key) + " of " + what.words() + " is for rewrite patterns",
                     "a rewrite's \"match\" is a list of kernels");
    return false;
  }
  return true;
}

// Reads the list under `key`, whose names must be in "writes".
void read_written(JsonValue root, const char* key, const PatternSpec& pattern,
                  std::vector<MarkedName>* names, Diagnostics* diagnostics) {
  const JsonValue list = root.find(key);
  if (!expect_kind(list, JsonKind::array, in_quotes(key), diagnostics) ||
      !check_entry_count(list, in_quotes(key), diagnostics)) {
    return;
  }
  for (const JsonValue element : list.elements()) {
    const auto name = read_name(element, "an entry of " + in_quotes(key), diagnostics);
    if (!name) continue;
    if (!has_name(pattern.writes, name->name)) {
      diagnostics->add(
          Rule::bad_rewrite, name->mark,
          in_quotes(key) + " names " + in_quotes(name->name) + ", which is not in \"writes\"");
    } else if (has_name(*names, name->name)) {
      diagnostics->add(Rule::duplicate_name, name->mark,
                       in_quotes(name->name) + " is twice in " + in_quotes(key));
    } else {
      names->push_back(*name);
    }
  }
}

// Returns false after reporting it if "bytes" is missing or cannot be compiled.
bool compile_bytes(const PatternValue& value, const PatternSpec& pattern, BufferSpec* buffer,
                   Diagnostics* diagnostics) {
  if (!value.bytes) {
    diagnostics->add(Rule::bad_rewrite, value.mark,
                     "argument " + in_quotes(value.name) + " has no \"bytes\"",
                     "say how much the kernel reads or writes there, such as \"2 * M * K\"; \"*\": "
                     "up to the end of its allocation");
    return false;
  }
  auto compiled = compile_value(value.bytes->expression, pattern);
  if (!compiled) {
    report(compiled.error(), *value.bytes, diagnostics);
    return false;
  }
  if (compiled->is_floating) {
    diagnostics->add(Rule::expression_type, value.bytes->text.mark,
                     "\"bytes\" of " + in_quotes(value.name) + " is a floating-point value");
    return false;
  }
  buffer->steps = std::move(compiled->steps);
  return true;
}

}  // namespace

bool is_one_buffer(const PatternSpec& pattern, const std::string& one, const std::string& other) {
  return same_value(pattern, one) == same_value(pattern, other);
}

void read_members(JsonValue match, PatternSpec* pattern, KnownTexts* known,
                  Diagnostics* diagnostics) {
  const std::vector<JsonValue> kernels = match.elements();
  if (kernels.size() < 2 || kernels.size() > kMaxRewriteKernels) {
    diagnostics->add(Rule::bad_rewrite, match.mark(),
                     "\"match\" lists " + std::to_string(kernels.size()) +
                         " kernels; a rewrite has 2 to " + std::to_string(kMaxRewriteKernels));
    return;
  }
  pattern->has_params = true;
  std::vector<uint16_t>& params = pattern->params;
  for (const JsonValue kernel : kernels) {
    const std::string what = "kernel " + std::to_string(pattern->members.size()) + " of \"match\"";
    MemberSpec member{read_match(kernel, what, known, diagnostics)};
    member.first_param = static_cast<uint16_t>(params.size());
    if (!member.has_params && kernel.kind() == JsonKind::object) {
      diagnostics->add(Rule::bad_rewrite, kernel.mark(), what + " has no \"params\"",
                       "give the sizes of its parameters in bytes");
    }
    params.insert(params.end(), member.params.begin(), member.params.end());
    if (!pattern->members.empty()) params.insert(params.end(), kGeometryCount, 4);
    pattern->members.push_back(std::move(member));
  }
  if (params.size() <= kMaxParams) return;
  diagnostics->add(Rule::limit, match.mark(),
                   "the kernels have " + std::to_string(params.size()) + " parameters, with " +
                       std::to_string(kGeometryCount) +
                       " for the geometry of each after the first; at most " +
                       std::to_string(kMaxParams) + " are accepted");
}

bool read_value_of_rewrite(JsonValue object, const What& what, bool is_rewrite,
                           const PatternSpec& pattern, PatternValue* value, KnownTexts* known,
                           Diagnostics* diagnostics) {
  if (!check_keys(object, {"kernel", "bytes"}, what, is_rewrite, diagnostics)) return false;
  const JsonValue kernel = object.find("kernel");
  const JsonValue bytes = object.find("bytes");
  const JsonValue capture = object.find("capture");
  if (kernel) {
    const auto most = static_cast<int64_t>(std::max<size_t>(pattern.members.size(), 1)) - 1;
    const auto index = read_integer(kernel, 0, most, "\"kernel\" of " + what, diagnostics);
    if (!index) return false;
    value->kernel = static_cast<uint8_t>(*index);
    if (object.find("value") || object.find("expr")) {
      diagnostics->add(Rule::value_source, kernel.mark(),
                       what + ": \"kernel\" goes with what is read of a launch only");
    }
  }
  value->reaches_end = bytes && bytes.kind() == JsonKind::string && bytes.string() == kToTheEnd;
  if (bytes && !value->reaches_end) {
    value->bytes = boxed(read_expression(bytes, true, "\"bytes\" of " + what, diagnostics, known));
  }
  if (is_rewrite && capture) {
    diagnostics->add(Rule::bad_rewrite, capture.mark(),
                     what + ": a rewrite pattern has no captures",
                     "write a pattern for each value, or read it from an argument");
  }
  return true;
}

void read_rewrite_keys(JsonValue root, bool is_rewrite, PatternSpec* pattern,
                       Diagnostics* diagnostics) {
  if (!check_keys(root, {"dead", "written_first", "analysis"}, "the pattern", is_rewrite,
                  diagnostics)) {
    return;
  }
  pattern->is_analysis =
      read_boolean(root.find("analysis"), "\"analysis\"", diagnostics).value_or(false);
  read_written(root, "dead", *pattern, &pattern->dead, diagnostics);
  read_written(root, "written_first", *pattern, &pattern->written_first, diagnostics);
}

void compile_buffers(PatternSpec* pattern, Diagnostics* diagnostics) {
  std::map<std::string, uint8_t> groups;
  for (const PatternValue& value : pattern->values) {
    if (!value.is_pointer) {
      if (value.bytes || value.reaches_end) {
        diagnostics->add(Rule::bad_rewrite, value.mark,
                         in_quotes(value.name) + " has \"bytes\", and is no pointer");
      }
      continue;
    }
    BufferSpec buffer{};
    buffer.is_dead = has_name(pattern->dead, value.name);
    if (buffer.is_dead && value.shift) {
      diagnostics->add(Rule::bad_rewrite, value.shift->text.mark,
                       "\"dead\" names " + in_quotes(value.name) + ", which has a \"shift\"",
                       "who else may read a dead buffer is found by the address that is passed");
      continue;
    }
    buffer.reaches_end = value.reaches_end;
    if (!value.reaches_end && !compile_bytes(value, *pattern, &buffer, diagnostics)) continue;
    buffer.param = value.source.index;
    buffer.offset = value.source.offset;
    buffer.shift_steps = shift_steps(value, *pattern);
    buffer.member = value.kernel;
    buffer.is_written = has_name(pattern->writes, value.name);
    buffer.is_written_first = has_name(pattern->written_first, value.name);
    buffer.group =
        groups.emplace(same_value(*pattern, value.name), static_cast<uint8_t>(groups.size()))
            .first->second;
    pattern->buffers.push_back(std::move(buffer));
  }
}

}  // namespace fibshim
