#include "tools/record/suggestion.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "loader/compile/symbol_match.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

constexpr int64_t kLeastAxis = 16;  // a smaller constant is more likely a flag or a count
constexpr const char* kConstAxes[] = {"n", "m", "k", "l"};
constexpr size_t kLongestName = 64;

std::string identifier(const std::string& text) {
  std::string out;
  for (const unsigned char c : text) {
    const bool is_fine = isalnum(c) != 0;
    if (is_fine || (!out.empty() && out.back() != '_')) {
      out += is_fine ? static_cast<char>(tolower(c)) : '_';
    }
  }
  while (!out.empty() && out.back() == '_') out.pop_back();
  if (out.size() > kLongestName) out.resize(kLongestName);
  if (out.empty() || isdigit(static_cast<unsigned char>(out[0])) != 0) out.insert(0, "kernel_");
  return out;
}

std::string escaped_regex(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (strchr("\\^$.|?*+()[]{}", c) != nullptr) out += '\\';
    out += c;
  }
  return out;
}

// Where an anonymous namespace's name stands in a symbol; nvcc puts hashes of the build into it.
struct AnonymousName {
  size_t begin, end;
  std::string file;  // "20_layer_norm_kernel"
};

std::optional<AnonymousName> find_anonymous_name(const std::string& symbol) {
  static pcre2_code* const code = [] {
    constexpr std::string_view kRegex =
        "[0-9]+_GLOBAL__N__[0-9a-f]+_([0-9]+_[A-Za-z0-9_]+)_cu_[0-9a-f]{8}(_[0-9]+)?";
    int error = 0;
    PCRE2_SIZE offset = 0;
    return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kRegex.data()), kRegex.size(), 0, &error,
                         &offset, nullptr);
  }();
  if (code == nullptr) return std::nullopt;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  if (data == nullptr || pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(symbol.data()),
                                     symbol.size(), 0, 0, data.get(), nullptr) < 0) {
    return std::nullopt;
  }
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data.get());
  return AnonymousName{bounds[0], bounds[1], symbol.substr(bounds[2], bounds[3] - bounds[2])};
}

// A symbol for a pattern.
std::string symbol_pattern(const std::string& symbol) {
  std::string pattern = symbol;
  if (const auto name = find_anonymous_name(symbol)) {
    pattern = "re:" + escaped_regex(symbol.substr(0, name->begin)) + "\\d+_GLOBAL__N__[0-9a-f]+_" +
              name->file + "_cu_[0-9a-f]{8}(_\\d+)?" + escaped_regex(symbol.substr(name->end));
  }
  if (SymbolPattern::parse(pattern)) return pattern;
  // No C++ symbol: an exact one holds no blanks and brackets, and none is longer than a pattern.
  pattern = "re:" + escaped_regex(symbol);
  if (SymbolPattern::parse(pattern)) return pattern;
  return "re:" + escaped_regex(symbol.substr(0, kMaxSymbolPatternLength / 4)) + ".*";
}

// A just-in-time compiler's name without the number that it counts up: "triton_poi_fused_mul_3" may be "..._4" in the
// next process. The code tells the kernel.
std::string without_counter(const std::string& symbol) {
  const size_t stem = symbol.find_last_not_of("0123456789") + 1;
  const bool is_counted = stem < symbol.size() && stem > 1 && symbol[stem - 1] == '_';
  return is_counted ? "re:" + escaped_regex(symbol.substr(0, stem)) + "\\d+"
                    : symbol_pattern(symbol);
}

struct Argument {
  std::string name;
  std::string cxx_type;
};

const char* cxx_element(const std::string& dtype) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"float64", "double"},
      {"float32", "float"},
      {"float16", "__half"},
      {"bfloat16", "__nv_bfloat16"},
      {"float8_e4m3fn", "__nv_fp8_e4m3"},
      {"float8_e5m2", "__nv_fp8_e5m2"},
      {"int64", "int64_t"},
      {"int32", "int32_t"},
      {"int16", "int16_t"},
      {"int8", "int8_t"},
      {"uint64", "uint64_t"},
      {"uint32", "uint32_t"},
      {"uint16", "uint16_t"},
      {"uint8", "uint8_t"},
      {"bool", "bool"}};
  for (const auto& [name, cxx] : kNames) {
    if (dtype == name) return cxx;
  }
  return "void";
}

// A name stands for one set of dtypes, the bare one for bfloat16.
std::string dtype_suffix(const std::string& dtype) {
  if (dtype == "float16") return "_fp16";
  if (dtype == "float32") return "_fp32";
  if (dtype == "float64") return "_fp64";
  if (dtype == "float8_e4m3fn") return "_fp8e4m3";
  if (dtype == "float8_e5m2") return "_fp8e5m2";
  return "";
}

// Compiles the kernel, and makes the solution of its template.
constexpr char kBuildScript[] = R"sh(#!/bin/sh
# Compiles kernel.cu and writes the solution that launches it: sh build.sh [ARCH] (default sm_90).
set -eu
cd "$(dirname "$0")"
arch=${1:-sm_90} name=@name@
image=$name.$arch.cubin
"${NVCC:-nvcc}" -O3 -cubin -arch="$arch" -o "$image" kernel.cu
sha256=$(sha256sum "$image" | cut -c 1-64)
# The source as the inside of a JSON string, on one line.
tab=$(printf '\t')
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" -e 's/$/\\n/' kernel.cu | tr -d '\n' |
  awk -v image="$image" -v sha256="$sha256" '
    function replace(text, from, to,   at) {
      at = index(text, from)
      return at == 0 ? text : substr(text, 1, at - 1) to substr(text, at + length(from))
    }
    NR == FNR { source = $0; next }
    { print replace(replace(replace($0, "@image@", image), "@sha256@", sha256), "@source@", source) }
  ' - solution.json.in >"$name.json"
echo "wrote $(pwd)/$name.json"
)sh";

class Suggester {
 public:
  Suggester(const KernelRecord& kernel, const std::string& name)
      : kernel_(kernel), types_(kernel.param_types()) {
    std::string base = identifier(name.empty() ? short_name(kernel.symbol) : name);
    if (name.empty() && base.size() > 7 && base.ends_with("_kernel")) base.resize(base.size() - 7);
    base_ = base;
  }

  Suggestion make() {
    axes_ = nlohmann::ordered_json::object();
    definition_axes_ = axes_;
    arguments_ = axes_;
    inputs_ = axes_;
    outputs_ = axes_;
    add_grid();
    for (size_t i = 0; i < kernel_.params.size(); ++i) add_param(i);
    if (outputs_.empty()) add_note("no parameter is known to be written: name the outputs");
    out_.definition_name = base_ + name_values_ + suffix_;
    out_.label = base_ + name_letters_ + suffix_;
    std::ranges::replace(out_.label, '_', '-');
    add_files();
    return std::move(out_);
  }

 private:
  void add_files() {
    const std::string& name = out_.definition_name;
    std::string script = kBuildScript;
    script.replace(script.find("@name@"), strlen("@name@"), name);
    const std::string solution = "solutions/" + name + "/";
    out_.files = {{"patterns/" + out_.label + ".json", json_text(make_pattern()), false},
                  {"definitions/" + name + ".json", json_text(make_definition()), false},
                  {solution + "solution.json.in", json_text(make_solution()), false},
                  {solution + "kernel.cu", make_source(), false},
                  {solution + "build.sh", script, true}};
  }

  void add_note(std::string text) { out_.notes.push_back(std::move(text)); }

  const Geometry& commonest_geometry() const {
    static constexpr Geometry kNone = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    const auto at = std::ranges::max_element(kernel_.geometries, [](const auto& a, const auto& b) {
      return a.second.launches + a.second.nodes < b.second.launches + b.second.nodes;
    });
    return at == kernel_.geometries.end() ? kNone : at->first;
  }

  void add_grid() {
    constexpr const char* kNames[] = {"grid_x", "grid_y", "grid_z"};
    for (size_t i = 0; i < 3; ++i) {
      const bool is_one = std::ranges::all_of(
          kernel_.geometries, [&](const auto& entry) { return entry.first[i] == 1; });
      if (i > 0 && is_one) continue;
      axes_[kNames[i]] = {{"grid", std::string(1, "xyz"[i])}};
      definition_axes_[kNames[i]] = {{"type", "var"}};
      grid_[i] = kNames[i];
      shape_.push_back(kNames[i]);
    }
  }

  void add_param(size_t index) {
    const ParamRecord& param = kernel_.params[index];
    const ParamType& type = types_[index];
    if (type.is_pointer()) return add_pointer(index, param, type);
    if (type.is_floating()) return add_scalar(index, type, true);
    if (type.is_integer()) return add_integer(index, param, type);
    add_note(
        fmt::format("parameter {} is a struct of {} bytes: read what the solution needs with "
                    "\"offset\", and ask for the rest in \"where\"",
                    index, param.size));
  }

  void add_pointer(size_t index, const ParamRecord& param, const ParamType& type) {
    const std::string dtype = type.element.empty() ? "unknown" : type.element;
    // A buffer of unknown use counts as written: a solution must then take it.
    const bool is_read_only = type.is_const && type.source == ParamSource::signature;
    const std::string name = fmt::format("{}{}", is_read_only ? "input" : "output", index);
    nlohmann::ordered_json argument = {{"arg", index}, {"dtype", dtype}};
    if (param.bits == 0) {
      argument["dtype"] = dtype;
      arguments_[fmt::format("null{}", index)] = std::move(argument);
      where_.push_back(fmt::format("null{} == 0", index));
      return;
    }
    arguments_[name] = std::move(argument);
    if (param.values.count(0) != 0) {
      add_note(fmt::format("{} is null in some launches", name));
    } else {
      where_.push_back(fmt::format("{} != 0", name));
    }
    if (dtype == "unknown") add_note(fmt::format("{}: what it points to is not known", name));
    if (type.source != ParamSource::signature) {
      add_note(fmt::format("{}: whether it is read or written is not known; it counts as written",
                           name));
    }
    (is_read_only ? inputs_ : outputs_)[name] = {{"shape", nullptr}, {"dtype", dtype}};
    if (!is_read_only) writes_.push_back(name);
    if (!has_suffix_ && dtype != "unknown") {
      suffix_ = dtype_suffix(dtype);
      has_suffix_ = true;
    }
    taken_.push_back(
        {name, fmt::format("{}{}*", is_read_only ? "const " : "", cxx_element(dtype))});
  }

  void add_scalar(size_t index, const ParamType& type, bool is_input) {
    const std::string name = fmt::format("arg{}", index);
    arguments_[name] = {{"arg", index}, {"type", type.name}};
    if (is_input) inputs_[name] = {{"shape", nullptr}, {"dtype", type.name}};
    taken_.push_back({name, cxx_element(type.name)});
  }

  void add_integer(size_t index, const ParamRecord& param, const ParamType& type) {
    const bool is_constant = param.values.size() == 1 && param.others == 0;
    std::string name = fmt::format("arg{}", index);
    if (!is_constant) {
      const bool is_negative = std::ranges::any_of(param.values, [&](const auto& entry) {
        return integer_value(type, param.size, entry.first) < 0;
      });
      if (is_negative) return add_scalar(index, type, false);
      axes_[name] = {{"arg", index}, {"type", type.name}};
      definition_axes_[name] = {{"type", "var"}};
      taken_.push_back({name, cxx_element(type.name)});
      return;
    }
    const int64_t value = integer_value(type, param.size, param.values.begin()->first);
    if (value < kLeastAxis || const_count_ == std::size(kConstAxes)) {
      arguments_[name] = {{"arg", index}, {"type", type.name}};
      where_.push_back(fmt::format("{} == {}", name, value));
      return;
    }
    name = kConstAxes[const_count_++];
    axes_[name] = {{"arg", index}, {"type", type.name}};
    definition_axes_[name] = {{"type", "const"}, {"value", value}};
    name_values_ += fmt::format("_{}{}", name, value);
    name_template_ += fmt::format("_{}{{{}}}", name, name);
    name_letters_ += "_" + name;
    constants_.emplace_back(name, value);
    shape_.push_back(name);
  }

  nlohmann::ordered_json make_pattern() {
    nlohmann::ordered_json pattern;
    pattern["label"] = out_.label;
    pattern["benefit"] = 1;
    pattern["description"] = demangled(kernel_.symbol);
    const bool is_cpp = demangled(kernel_.symbol) != kernel_.symbol;
    const bool has_code = !is_cpp && !kernel_.code.empty();
    pattern["match"]["symbol"] =
        has_code ? without_counter(kernel_.symbol) : symbol_pattern(kernel_.symbol);
    if (kernel_.has_params) {
      pattern["match"]["params"] = nlohmann::ordered_json::array();
      for (const ParamRecord& param : kernel_.params)
        pattern["match"]["params"].push_back(param.size);
    }
    // A name that is not C++'s says too little: Triton and others use it again for other code.
    if (!is_cpp && !kernel_.image.empty()) {
      pattern["match"]["image"] = {has_code ? kernel_.code : kernel_.image};
      add_note(fmt::format("the pattern asks for this very {}: its name alone says too little",
                           has_code ? "code" : "image"));
    }
    pattern["axes"] = axes_;
    pattern["arguments"] = arguments_;
    pattern["writes"] = writes_;
    pattern["where"] = where_;
    pattern["definition"] = base_ + name_template_ + suffix_;
    return pattern;
  }

  nlohmann::ordered_json make_definition() {
    for (nlohmann::ordered_json* tensors : {&inputs_, &outputs_}) {
      for (auto& [name, tensor] : tensors->items()) {
        if (arguments_[name].contains("dtype")) tensor["shape"] = shape_;
      }
    }
    add_note("the shapes in the definition are a guess");
    nlohmann::ordered_json definition;
    definition["name"] = out_.definition_name;
    definition["op_type"] = base_;
    definition["description"] = "As " + function_name(kernel_.symbol) + ". Shapes are a guess.";
    definition["axes"] = definition_axes_;
    definition["inputs"] = inputs_;
    definition["outputs"] = outputs_;
    definition["reference"] =
        fmt::format("def run({}):\n    raise NotImplementedError\n", joined_names(inputs_));
    return definition;
  }

  static std::string joined_names(const nlohmann::ordered_json& object) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  // With @...@ for what build.sh fills in.
  nlohmann::ordered_json make_solution() {
    const Geometry& geometry = commonest_geometry();
    nlohmann::ordered_json launch;
    launch["kernel"] = out_.definition_name;
    launch["images"] = {{{"path", "@image@"}, {"sha256", "@sha256@"}}};
    launch["grid"] = nlohmann::ordered_json::array();
    for (const char* name : grid_) {
      launch["grid"].push_back(name == nullptr ? nlohmann::ordered_json(1)
                                               : nlohmann::ordered_json(name));
    }
    launch["block"] = {geometry[3], geometry[4], geometry[5]};
    launch["cluster"] = {1, 1, 1};
    launch["shared_mem"] = 0;
    launch["arguments"] = nlohmann::ordered_json::array();
    for (const Argument& argument : taken_) launch["arguments"].push_back(argument.name);
    launch["where"] = nlohmann::ordered_json::array();
    launch["pdl"] = false;
    nlohmann::ordered_json solution;
    solution["name"] = out_.definition_name + "_by_hand";
    solution["definition"] = out_.definition_name;
    solution["author"] = "";
    solution["spec"] = {{"language", "cuda"},
                        {"target_hardware", {"NVIDIA GPU"}},
                        {"entry_point", "kernel.cu::" + out_.definition_name},
                        {"dependencies", nlohmann::ordered_json::array()},
                        {"destination_passing_style", true}};
    solution["sources"] = {{{"path", "kernel.cu"}, {"content", "@source@"}}};
    solution["launch"] = std::move(launch);
    return solution;
  }

  std::string make_source() const {
    const Geometry& geometry = commonest_geometry();
    std::string parameters;
    for (const Argument& argument : taken_) {
      parameters +=
          fmt::format("{}{} {}", parameters.empty() ? "" : ", ", argument.cxx_type, argument.name);
    }
    std::string constants;
    for (const auto& [name, value] : constants_) {
      constants += fmt::format("constexpr int64_t {} = {};\n", name, value);
    }
    return fmt::format(
        "// Takes the place of {}.\n"
        "//\n"
        "// Launched as solution.json.in says; the original's commonest geometry was a grid of {} "
        "x {} x "
        "{}\n"
        "// blocks of {} x {} x {} threads with {} bytes of dynamic shared memory.\n"
        "#include <cuda_bf16.h>\n"
        "#include <cuda_fp16.h>\n"
        "#include <cuda_fp8.h>\n"
        "#include <stdint.h>\n"
        "\n"
        "{}{}extern \"C\" __global__ void {}({}) {{\n"
        "#error \"write the kernel here\"\n"
        "}}\n",
        demangled(kernel_.symbol), geometry[0], geometry[1], geometry[2], geometry[3], geometry[4],
        geometry[5], geometry[9], constants, constants.empty() ? "" : "\n", out_.definition_name,
        parameters);
  }

  const KernelRecord& kernel_;
  std::vector<ParamType> types_;
  std::string base_;
  std::string suffix_;
  bool has_suffix_ = false;
  std::string name_values_;    // "_n4096"
  std::string name_template_;  // "_n{n}"
  std::string name_letters_;   // "_n"
  size_t const_count_ = 0;
  nlohmann::ordered_json axes_, definition_axes_, arguments_, inputs_, outputs_;
  std::vector<std::string> where_, writes_, shape_;
  std::vector<std::pair<std::string, int64_t>> constants_;
  const char* grid_[3] = {};
  std::vector<Argument> taken_;  // by the solution, in its order
  Suggestion out_;
};

}  // namespace

Suggestion suggest(const KernelRecord& kernel, const std::string& name) {
  return Suggester(kernel, name).make();
}

}  // namespace fibshim::tools
