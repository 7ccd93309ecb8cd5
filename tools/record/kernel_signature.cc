#include "tools/record/kernel_signature.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <bit>

#include "loader/read/demangle.h"
#include "tools/base/terminal.h"
#include "tools/counters/counters_files.h"

namespace fibshim::tools {
namespace {

constexpr size_t kLongestSymbol = 16384;  // the demangler's time grows faster than its input

struct ScalarName {
  const char* cxx;
  const char* name;  // as a pattern's type
  uint32_t size;
  const char* element;  // as a definition's dtype
};
// The C++ names are spelled as the demangler writes them.
constexpr ScalarName kScalarNames[] = {
    {"bool", "bool", 1, "bool"},
    {"char", "int8", 1, "int8"},
    {"signed char", "int8", 1, "int8"},
    {"unsigned char", "uint8", 1, "uint8"},
    {"short", "int16", 2, "int16"},
    {"unsigned short", "uint16", 2, "uint16"},
    {"int", "int32", 4, "int32"},
    {"unsigned int", "uint32", 4, "uint32"},
    {"long", "int64", 8, "int64"},
    {"unsigned long", "uint64", 8, "uint64"},
    {"long long", "int64", 8, "int64"},
    {"unsigned long long", "uint64", 8, "uint64"},
    {"float", "float32", 4, "float32"},
    {"double", "float64", 8, "float64"},
    {"__half", "", 2, "float16"},
    {"c10::Half", "", 2, "float16"},
    {"cutlass::half_t", "", 2, "float16"},
    {"__nv_bfloat16", "", 2, "bfloat16"},
    {"c10::BFloat16", "", 2, "bfloat16"},
    {"cutlass::bfloat16_t", "", 2, "bfloat16"},
    {"__nv_fp8_e4m3", "", 1, "float8_e4m3fn"},
    {"c10::Float8_e4m3fn", "", 1, "float8_e4m3fn"},
    {"cutlass::float_e4m3_t", "", 1, "float8_e4m3fn"},
    {"__nv_fp8_e5m2", "", 1, "float8_e5m2"},
    {"c10::Float8_e5m2", "", 1, "float8_e5m2"},
    {"cutlass::float_e5m2_t", "", 1, "float8_e5m2"},
};

const ScalarName* find_scalar(std::string_view text) {
  return find_row(kScalarNames, &ScalarName::cxx, text);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool strip_suffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  *text = trimmed(*text);
  return true;
}

// The number of brackets around each character of a readable name; a bracket itself counts as
// outside. '<' and '>' are brackets around a template's arguments, and operators elsewhere:
// "operator<", "->", "((3)>(2))".
std::vector<size_t> bracket_depths(std::string_view text) {
  constexpr std::string_view kOperator = "operator";
  // Longer operators first.
  constexpr std::string_view kSymbols[] = {"<=>", "<<=", ">>=", "->*", "()", "[]", "<<",
                                           ">>",  "<=",  ">=",  "->",  "<",  ">"};
  constexpr std::string_view kOpening = "([{<", kClosing = ")]}>";
  std::vector<size_t> depths(text.size());
  std::string open;
  for (size_t i = 0; i < text.size(); ++i) {
    depths[i] = open.size();
    const char before = i == 0 ? ' ' : text[i - 1];
    if (text.substr(i).starts_with(kOperator) && isalnum(static_cast<unsigned char>(before)) == 0 &&
        before != '_') {
      size_t end = i + kOperator.size();
      for (const std::string_view symbol : kSymbols) {
        if (!text.substr(end).starts_with(symbol)) continue;
        end += symbol.size();
        break;
      }
      for (; i + 1 < end; ++i) depths[i + 1] = open.size();
      continue;
    }
    // Operators of an expression: "(a)<(b)", "(a)<<(b)", "(a)>>(b)". Closing template brackets have
    // a blank between them. After "operator()", '<' begins template arguments.
    const bool follows_call = text.substr(0, i).ends_with("operator()");
    if (text[i] == '<' && (before == '<' || (before == ')' && !follows_call))) continue;
    if (before == ')' && text.substr(i).starts_with(">>(")) {
      depths[++i] = open.size();
      continue;
    }
    if (kOpening.find(text[i]) != kOpening.npos) {
      open += text[i];
      continue;
    }
    const size_t kind = kClosing.find(text[i]);
    if (kind == kClosing.npos) continue;
    const size_t from = open.find_last_of(kOpening[kind]);
    if (from == std::string::npos ||
        (text[i] == '>' && (from + 1 != open.size() || before == '-'))) {
      continue;
    }
    open.resize(from);
    depths[i] = open.size();
  }
  return depths;
}

// Where the function's parameter list begins; npos if there is none.
size_t parameter_list(std::string_view text) {
  while (text.ends_with(" const")) text.remove_suffix(6);
  if (text.find("[clone") != std::string_view::npos) {
    text = trimmed(text.substr(0, text.find("[clone")));
  }
  if (!text.ends_with(')')) return std::string_view::npos;
  const std::vector<size_t> depths = bracket_depths(text);
  for (size_t i = text.size(); i-- > 0;) {
    if (text[i] == '(' && depths[i] == 0) return i;
  }
  return std::string_view::npos;
}

std::vector<std::string_view> split_parameters(std::string_view text) {
  std::vector<std::string_view> out;
  const std::vector<size_t> depths = bracket_depths(text);
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] != ',' || depths[i] != 0)) continue;
    const std::string_view part = trimmed(text.substr(begin, i - begin));
    if (!part.empty() && part != "void") out.push_back(part);
    begin = i + 1;
  }
  return out;
}

ParamType read_type(std::string_view text) {
  ParamType type;
  type.source = ParamSource::signature;
  while (strip_suffix(&text, "const") || strip_suffix(&text, "__restrict__") ||
         strip_suffix(&text, "restrict")) {
  }
  if (strip_suffix(&text, "*")) {
    type.name = "pointer";
    type.is_const = strip_suffix(&text, "const");
    if (const ScalarName* scalar = find_scalar(text)) type.element = scalar->element;
    return type;
  }
  if (const ScalarName* scalar = find_scalar(text)) type.name = scalar->name;
  return type;
}

bool is_of_size(std::string_view text, const ParamType& type, uint32_t size) {
  if (type.is_pointer()) return size == 8;
  if (const ScalarName* scalar = find_scalar(trimmed(text))) return scalar->size == size;
  // The type was read from a longer text, such as "char const".
  for (const ScalarName& scalar : kScalarNames) {
    if (!type.name.empty() && type.name == scalar.name) return scalar.size == size;
  }
  return true;
}

bool is_like_float(uint32_t value) {
  const auto number = std::bit_cast<float>(value);
  return isfinite(number) && fabsf(number) >= 1e-12F && fabsf(number) <= 1e12F;
}

bool is_like_double(uint64_t value) {
  const auto number = std::bit_cast<double>(value);
  return isfinite(number) && fabs(number) >= 1e-30 && fabs(number) <= 1e30;
}

template <class IsLike>
bool are_all(const ParamRecord& param, const IsLike& is_like) {
  bool has_any = false;
  for (const auto& [value, count] : param.values) {
    if (value == 0) continue;
    if (!is_like(value)) return false;
    has_any = true;
  }
  return has_any;
}

ParamType guess(const ParamRecord& param) {
  ParamType type;
  type.source = param.values.empty() ? ParamSource::size : ParamSource::values;
  const bool has_address =
      std::ranges::any_of(param.values, [](const auto& v) { return is_like_address(v.first); });
  switch (param.size) {
    case 1: type.name = "uint8"; break;
    case 2: type.name = "int16"; break;
    case 4:
      type.name = are_all(param, [](uint64_t v) { return is_like_float(static_cast<uint32_t>(v)); })
                      ? "float32"
                      : "int32";
      break;
    case 8:
      type.name = has_address ? "pointer" : are_all(param, is_like_double) ? "float64" : "int64";
      break;
    default: break;
  }
  return type;
}

// One half of a word of 8 bytes.
ParamRecord half_of(const ParamRecord& word, uint32_t shift) {
  const auto cut = [&](uint64_t value) { return (value >> shift) & UINT32_MAX; };
  ParamRecord half;
  half.offset = word.offset + shift / 8;
  half.size = 4;
  half.bits = cut(word.bits);
  half.others = word.others;
  for (const auto& [value, count] : word.values) {
    uint64_t& sum = half.values[cut(value)];
    sum = saturating_add(sum, count);
  }
  return half;
}

}  // namespace

std::optional<uint64_t> ParamRecord::commonest_value() const {
  const auto at = std::ranges::max_element(values, {}, [](const auto& one) { return one.second; });
  return at == values.end() ? std::nullopt : std::optional(at->first);
}

ParamType type_of_word(const ParamRecord& word) {
  ParamType type = guess(word);
  if (word.size == 8 && word.memory != RecordedMemory::unknown) {
    const bool is_pointer = word.memory == RecordedMemory::some;
    if (is_pointer != type.is_pointer()) type.name = is_pointer ? "pointer" : "int64";
  }
  return type;
}

std::vector<Field> fields_of_struct(const ParamRecord& param) {
  std::vector<Field> out;
  // Leaves out records without a type: no scalar has three, five, six or seven bytes.
  const auto append = [&](const ParamRecord& record) {
    const ParamType type = type_of_word(record);
    if (!type.name.empty()) out.push_back({record, type});
  };
  // A struct of 8 bytes or fewer is its own word.
  std::vector<ParamRecord> words = param.words;
  if (words.empty() && !param.values.empty()) {
    words.push_back(param);
    words[0].offset = 0;
  }
  for (const ParamRecord& word : words) {
    const bool has_halves = word.size == 8 && word.bits >> 32 != 0;
    if (!has_halves || type_of_word(word).is_pointer()) {
      append(word);
      continue;
    }
    const ParamRecord low = half_of(word, 0);
    const ParamRecord high = half_of(word, 32);
    // As a float64, 1.0 has a lower half of 0; the lower half of 0.1 is not a plausible float32.
    if (type_of_word(word).is_floating() &&
        (low.bits == 0 || guess(low).name != "float32" || guess(high).name != "float32")) {
      append(word);
    } else {
      append(low);
      append(high);
    }
  }
  return out;
}

std::string demangled(const std::string& symbol) {
  if (symbol.size() > kLongestSymbol) return symbol;
  std::string text = demangle(symbol);
  return text.empty() ? symbol : text;
}

std::string function_name(const std::string& symbol) {
  const std::string text = demangled(symbol);
  if (text == symbol) return symbol;
  const std::string_view whole =
      std::string_view(text).substr(0, std::min(parameter_list(text), text.size()));
  // The return type ends at the last blank outside all brackets.
  const std::vector<size_t> depths = bracket_depths(whole);
  size_t begin = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] == ' ' && depths[i] == 0) begin = i + 1;
  }
  return std::string(whole.substr(begin));
}

std::string short_name(const std::string& symbol) {
  const std::string name = function_name(symbol);
  const std::vector<size_t> depths = bracket_depths(name);
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    if (depths[i] != 0) continue;
    if (name[i] == ':') out.clear();
    if (isalnum(static_cast<unsigned char>(name[i])) != 0 || name[i] == '_') out += name[i];
  }
  return out.empty() ? symbol : out;
}

std::vector<ParamType> types_of_params(const std::string& symbol,
                                       const std::vector<ParamRecord>& params) {
  std::vector<ParamType> out;
  const std::string text = demangled(symbol);
  const size_t open = text == symbol ? std::string::npos : parameter_list(text);
  if (open != std::string::npos) {
    const size_t close = text.rfind(')');
    const auto parts = split_parameters(std::string_view(text).substr(open + 1, close - open - 1));
    bool fits = parts.size() == params.size();
    for (size_t i = 0; fits && i < parts.size(); ++i) {
      out.push_back(read_type(parts[i]));
      fits = is_of_size(parts[i], out.back(), params[i].size);
    }
    if (!fits) out.clear();
  }
  const bool has_signature = !params.empty() && out.size() == params.size();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!has_signature) {
      out.push_back(guess(params[i]));
    } else if (out[i].name.empty() && params[i].size <= 8) {
      // A type whose name tells nothing: an enumeration, a small struct.
      const ParamType type = guess(params[i]);
      if (!type.is_pointer()) out[i] = type;
    }
  }
  return out;
}

int64_t integer_value(const ParamType& type, uint32_t size, uint64_t value) {
  if (type.name.rfind("int", 0) != 0 || size >= 8) return static_cast<int64_t>(value);
  const int shift = 64 - static_cast<int>(size) * 8;
  return static_cast<int64_t>(value << shift) >> shift;
}

std::optional<double> floating_value(const ParamType& type, uint64_t value) {
  if (type.name == "float32") return std::bit_cast<float>(static_cast<uint32_t>(value));
  if (type.name == "float64") return std::bit_cast<double>(value);
  return std::nullopt;
}

std::string value_text(const ParamType& type, uint32_t size, uint64_t value) {
  if (type.name == "float32") {
    return fmt::format("{}", std::bit_cast<float>(static_cast<uint32_t>(value)));
  }
  if (const auto number = floating_value(type, value)) return fmt::format("{}", *number);
  if (type.name == "uint64") return fmt::format("{}", value);
  if (type.is_integer()) return fmt::format("{}", integer_value(type, size, value));
  return fmt::format("{:#x}", value);
}

}  // namespace fibshim::tools
