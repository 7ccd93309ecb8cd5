#include "tools/judge/usual_values.h"

#include <string.h>

#include <algorithm>

#include "tools/judge/inputs.h"

namespace fibshim::judge {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// The tensor that `word`, a part of the name of a stride or head count, means.
const DefinitionArgument* tensor_called(const Definition& definition, std::string_view word) {
  if (const DefinitionArgument* const exact = definition.find_argument(word)) return exact;
  if (word.empty() || word == "in" || word == "input") return first_tensor(definition, false);
  if (word == "out" || word == "output") return first_tensor(definition, true);
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"q", "query"},         {"k", "key"},         {"kv", "key"},      {"kv", "k"},
      {"q_out", "query_out"}, {"k_out", "key_out"}, {"res", "residual"}};
  for (const auto& [brief, name] : kShort) {
    if (word != brief) continue;
    if (const DefinitionArgument* const found = definition.find_argument(name)) return found;
  }
  return nullptr;
}

int64_t width_of(const DefinitionArgument& tensor, const AxisValues& axes) {
  int64_t width = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) width *= axes.at(tensor.shape[i]);
  return width;
}

std::optional<int64_t> head_size_of(const AxisValues& axes) {
  for (const char* const name : {"head_size", "head_dim"}) {
    if (const auto axis = axes.find(name); axis != axes.end()) return axis->second;
  }
  return std::nullopt;
}

class AxisScope : public Scope {
 public:
  explicit AxisScope(const AxisValues& axes) : axes_(axes) {}
  std::optional<Meaning> find(std::string_view name) const override {
    const auto axis = axes_.find(std::string(name));
    if (axis == axes_.end()) return std::nullopt;
    Source source;
    source.integer = axis->second;
    return Meaning{source, nullptr, nullptr};
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  const AxisValues& axes_;
};

}  // namespace

bool is_floating_name(std::string_view name) {
  static constexpr std::string_view kFloating[] = {"eps",         "epsilon", "scale", "weight_bias",
                                                   "temperature", "top_p",   "min_p"};
  return std::find(std::begin(kFloating), std::end(kFloating), name) != std::end(kFloating);
}

const DefinitionArgument* first_tensor(const Definition& definition, bool is_output) {
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.is_output == is_output && !argument.is_scalar) return &argument;
  }
  return nullptr;
}

std::optional<double> usual_value(const std::string& name, const Subject& subject,
                                  const AxisValues& axes, int run) {
  const Definition& definition = *subject.definition;
  if (name == "eps" || name == "epsilon") return eps_of(definition);
  if (name == "weight_bias") return subject.op.find("gemma") != std::string::npos ? 1 : 0;
  if (name == "rounds_before_weight") return ends_with(subject.op, "_vllm") ? 1 : 0;
  if (name == "num_heads" || name == "heads") return 1;  // rows, each a token with one head
  if (name == "temperature" || name == "top_p") return 1;
  if (ends_with(name, "seed")) return 0x5eed + run;
  if (ends_with(name, "offset") || name == "philox_offset") return 4096.0 * run;
  const auto head_size = head_size_of(axes);
  if (ends_with(name, "_heads") && name.rfind("num_", 0) == 0 && head_size) {
    const std::string_view word = std::string_view(name).substr(4, name.size() - 10);
    const DefinitionArgument* const tensor = tensor_called(definition, word);
    if (tensor != nullptr) return static_cast<double>(width_of(*tensor, axes) / *head_size);
  }
  if (!ends_with(name, "stride")) return std::nullopt;
  std::string_view word = std::string_view(name).substr(0, name.size() - strlen("stride"));
  const auto cut = [&](std::string_view end) {
    if (!word.empty() && word.back() == '_') word.remove_suffix(1);
    if (!ends_with(word, end)) return false;
    word.remove_suffix(end.size());
    return true;
  };
  if (cut("head")) {
    cut("");
    return static_cast<double>(head_size.value_or(0));
  }
  const bool is_of_rows = cut("token") || cut("row");
  cut("");
  const DefinitionArgument* const tensor = tensor_called(definition, word);
  if (tensor == nullptr) return std::nullopt;
  // All rows share one weight: its stride is 0.
  if (is_of_rows && tensor->shape.size() == 1 && definition.find_axis(tensor->shape[0])->is_const) {
    return 0;
  }
  return static_cast<double>(width_of(*tensor, axes));
}

std::optional<Expression> implied_size(const Definition& definition, std::string_view axis) {
  for (const std::string& constraint : definition.constraints) {
    const auto expression = Expression::parse(constraint);
    if (!expression) continue;
    const Expression::Node& root = expression->node(expression->root());
    if (root.kind != Expression::Kind::binary || root.op != fibshim::Op::eq) continue;
    const Expression::Node& left = expression->node(root.left);
    if (left.kind != Expression::Kind::name || left.name != axis) continue;
    auto size = Expression::parse(std::string_view(constraint).substr(root.offset + strlen("==")));
    if (size) return std::move(*size);
  }
  return std::nullopt;
}

bool meets_constraints(const Definition& definition, const AxisValues& axes) {
  for (const std::string& constraint : definition.constraints) {
    const auto expression = Expression::parse(constraint);
    if (!expression) continue;  // Python that this language lacks, for other readers
    const auto value = evaluate(*expression, axes);
    if (value && *value == 0) return false;
  }
  return true;
}

Result<int64_t> evaluate(const Expression& expression, const AxisValues& axes) {
  return evaluate(expression, AxisScope(axes));
}

Result<int64_t> evaluate(const Expression& expression, const Scope& scope) {
  const auto compiled = compile_value(expression, scope);
  if (!compiled) return fail(ErrorCode::invalid_value, compiled.error().message);
  if (!compiled->constant) return fail(ErrorCode::invalid_value, "not an integer that is known");
  return *compiled->constant;
}

int64_t bytes_of(const Definition& definition, const AxisValues& axes) {
  int64_t total = 0;
  for (const DefinitionArgument& argument : definition.arguments) {
    const ElementType* const type = element_type_of(argument.dtype);
    int64_t bytes = type == nullptr ? 1 : type->bytes;
    for (const int64_t extent : shape_of(argument.shape, axes)) {
      if (__builtin_mul_overflow(bytes, extent, &bytes)) return INT64_MAX;
    }
    if (__builtin_add_overflow(total, bytes, &total)) return INT64_MAX;
  }
  return total;
}

}  // namespace fibshim::judge
