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

// The place of an anonymous namespace's name in a symbol. nvcc puts hashes of the build into it.
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

// The symbol as a pattern writes it, without the hashes of a build.
std::string symbol_pattern(const std::string& symbol) {
  std::string pattern = symbol;
  if (const auto name = find_anonymous_name(symbol)) {
    pattern = "re:" + escaped_regex(symbol.substr(0, name->begin)) + "\\d+_GLOBAL__N__[0-9a-f]+_" +
              name->file + "_cu_[0-9a-f]{8}(_\\d+)?" + escaped_regex(symbol.substr(name->end));
  }
  if (SymbolPattern::parse(pattern)) return pattern;
  // Not a C++ symbol. An exact pattern has no blanks or brackets, and a limited length.
  pattern = "re:" + escaped_regex(symbol);
  if (SymbolPattern::parse(pattern)) return pattern;
  return "re:" + escaped_regex(symbol.substr(0, kMaxSymbolPatternLength / 4)) + ".*";
}

// The name from a just-in-time compiler without its counter: "triton_poi_fused_mul_3" may be
// "..._4" in the next process. The hash of the code identifies the kernel.
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

// The suffix of a definition's name for a dtype. A name without a suffix means bfloat16.
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
# Compiles kernel.cu and writes the solution that launches it: sh build.sh [ARCH...] (default sm_90).
# Images that were built for other architectures stay in the solution.
set -eu
cd "$(dirname "$0")"
name=@name@ images=
[ $# -gt 0 ] || set -- sm_90
for arch; do
  "${NVCC:-nvcc}" -O3 -cubin -arch="$arch" -o "$name.$arch.cubin" kernel.cu
done
for image in "$name".*.cubin; do
  [ ! kernel.cu -nt "$image" ] || echo "$0: $image is older than kernel.cu: build it again" >&2
  sha256=$(sha256sum "$image" | cut -c 1-64)
  images="$images${images:+, }{\"path\": \"$image\", \"sha256\": \"$sha256\"}"
done
# The source as the inside of a JSON string, on one line.
tab=$(printf '\t')
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" -e 's/$/\\n/' kernel.cu | tr -d '\n' |
  awk -v images="[$images]" '
    function replace(text, from, to,   at) {
      at = index(text, from)
      return at == 0 ? text : substr(text, 1, at - 1) to substr(text, at + length(from))
    }
    NR == FNR { source = $0; next }
    { print replace(replace($0, "\"@images@\"", images), "@source@", source) }
  ' - solution.json.in >"$name.json"
echo "wrote $(pwd)/$name.json"
)sh";

class Suggester {
 public:
  Suggester(const Recording& recording, const KernelRecord& kernel, const std::string& name,
            unsigned number)
      : recording_(recording), kernel_(kernel), types_(kernel.param_types()) {
    std::string base = identifier(name.empty() ? short_name(kernel.symbol) : name);
    if (name.empty() && base.size() > 7 && base.ends_with("_kernel")) base.resize(base.size() - 7);
    base_ = number < 2 ? base : fmt::format("{}_{}", base, number);
  }

  Suggestion make() {
    axes_ = nlohmann::ordered_json::object();
    definition_axes_ = axes_;
    arguments_ = axes_;
    inputs_ = axes_;
    outputs_ = axes_;
    add_grid();
    // Parameters first: their types are more certain than those of fields of structs.
    for (size_t i = 0; i < kernel_.params.size(); ++i) {
      if (!types_[i].name.empty()) add_value({i, {}}, kernel_.params[i], types_[i]);
    }
    for (size_t i = 0; i < kernel_.params.size(); ++i) {
      if (types_[i].name.empty()) add_struct(i);
    }
    if (outputs_.empty()) add_note("no parameter is known to be written: name the outputs");
    if (!of_unknown_type_.empty()) {
      add_note(
          fmt::format("what these point to is not known: {}", fmt::join(of_unknown_type_, ", ")));
    }
    if (!of_unknown_use_.empty()) {
      add_note(
          fmt::format("whether these are read or written is not known; they count as written: {}",
                      fmt::join(of_unknown_use_, ", ")));
    }
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
    const Geometry* const commonest = kernel_.commonest_geometry();
    return commonest == nullptr ? kNone : *commonest;
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

  // A parameter, or a field of one.
  struct Place {
    size_t index;
    std::optional<uint32_t> offset;

    std::string name(const char* stem) const {
      return offset ? fmt::format("{}{}_{}", stem, index, *offset)
                    : fmt::format("{}{}", stem, index);
    }
    nlohmann::ordered_json json(const char* key, const std::string& type) const {
      nlohmann::ordered_json out = {{"arg", index}};
      if (offset) out["offset"] = *offset;
      out[key] = type;
      return out;
    }
  };

  void add_value(const Place& place, const ParamRecord& record, const ParamType& type) {
    if (type.is_pointer()) return add_pointer(place, record, type);
    if (type.is_floating()) return add_scalar(place, type, true);
    add_integer(place, record, type);
  }

  void add_struct(size_t index) {
    const ParamRecord& param = kernel_.params[index];
    uint32_t known_bytes = 0;
    for (const Field& field : fields_of_struct(param)) {
      add_value({index, field.record.offset}, field.record, field.type);
      known_bytes = field.record.offset + field.record.size;
    }
    if (known_bytes != 0) {
      add_note(
          fmt::format("parameter {} is a struct of {} bytes: its fields are a guess from the "
                      "values that it had",
                      index, param.size));
    }
    if (known_bytes < param.size) {
      add_note(fmt::format(
          "parameter {}, a struct of {} bytes: those from {} on are not in the "
          "recording; read with \"offset\" what the kernel writes and the solution needs",
          index, param.size, known_bytes));
    }
  }

  void add_pointer(const Place& place, const ParamRecord& param, const ParamType& type) {
    const std::string dtype = type.element.empty() ? "unknown" : type.element;
    if (param.bits == 0) {
      const std::string name = place.name("null");
      arguments_[name] = place.json("dtype", dtype);
      where_.push_back(name + " == 0");
      return;
    }
    // A buffer that the kernel may write counts as written: then a solution must take it.
    const bool is_read_only = type.is_const && type.source == ParamSource::signature;
    const std::string name = place.name(is_read_only ? "input" : "output");
    arguments_[name] = place.json("dtype", dtype);
    if (param.values.count(0) != 0) {
      add_note(fmt::format("{} is null in some launches", name));
    } else {
      where_.push_back(fmt::format("{} != 0", name));
    }
    if (dtype == "unknown") of_unknown_type_.push_back(name);
    if (type.source != ParamSource::signature) of_unknown_use_.push_back(name);
    (is_read_only ? inputs_ : outputs_)[name] = {{"shape", nullptr}, {"dtype", dtype}};
    if (!is_read_only) writes_.push_back(name);
    if (!has_suffix_ && dtype != "unknown") {
      suffix_ = dtype_suffix(dtype);
      has_suffix_ = true;
    }
    taken_.push_back(
        {name, fmt::format("{}{}*", is_read_only ? "const " : "", cxx_element(dtype))});
  }

  void add_scalar(const Place& place, const ParamType& type, bool is_input) {
    const std::string name = place.name("arg");
    arguments_[name] = place.json("type", type.name);
    if (is_input) inputs_[name] = {{"shape", nullptr}, {"dtype", type.name}};
    taken_.push_back({name, cxx_element(type.name)});
  }

  void add_integer(const Place& place, const ParamRecord& param, const ParamType& type) {
    const std::string name = place.name("arg");
    if (param.values.size() != 1 || param.others != 0) {
      const bool is_negative = std::ranges::any_of(param.values, [&](const auto& entry) {
        return integer_value(type, param.size, entry.first) < 0;
      });
      if (is_negative) return add_scalar(place, type, false);
      axes_[name] = place.json("type", type.name);
      definition_axes_[name] = {{"type", "var"}};
      taken_.push_back({name, cxx_element(type.name)});
      return;
    }
    const int64_t value = integer_value(type, param.size, param.values.begin()->first);
    const auto known =
        std::ranges::find(constants_, value, &std::pair<std::string, int64_t>::second);
    if (known != constants_.end() || value < kLeastAxis ||
        constants_.size() == std::size(kConstAxes)) {
      arguments_[name] = place.json("type", type.name);
      where_.push_back(known != constants_.end() ? fmt::format("{} == {}", name, known->first)
                                                 : fmt::format("{} == {}", name, value));
      return;
    }
    const std::string axis = kConstAxes[constants_.size()];
    axes_[axis] = place.json("type", type.name);
    definition_axes_[axis] = {{"type", "const"}, {"value", value}};
    name_values_ += fmt::format("_{}{}", axis, value);
    name_template_ += fmt::format("_{}{{{}}}", axis, axis);
    name_letters_ += "_" + axis;
    constants_.emplace_back(axis, value);
    shape_.push_back(axis);
  }

  // Another kernel of the recording with the same symbol and the same sizes of parameters.
  const KernelRecord* find_twin() const {
    const std::string pattern = symbol_pattern(kernel_.symbol);
    const auto twin = std::ranges::find_if(recording_.kernels, [&](const KernelRecord& other) {
      const bool is_other_image = kernel_.code.empty() || other.code.empty()
                                      ? other.image != kernel_.image
                                      : other.code != kernel_.code;
      return &other != &kernel_ && is_other_image && other.sm == kernel_.sm &&
             std::ranges::equal(other.params, kernel_.params, {}, &ParamRecord::size,
                                &ParamRecord::size) &&
             symbol_pattern(other.symbol) == pattern;
    });
    return twin == recording_.kernels.end() ? nullptr : &*twin;
  }

  nlohmann::ordered_json make_pattern() {
    nlohmann::ordered_json pattern;
    pattern["label"] = out_.label;
    pattern["benefit"] = 1;
    pattern["description"] = demangled(kernel_.symbol);
    const bool is_cpp = demangled(kernel_.symbol) != kernel_.symbol;
    const bool has_code = !kernel_.code.empty();
    pattern["match"]["symbol"] =
        !is_cpp && has_code ? without_counter(kernel_.symbol) : symbol_pattern(kernel_.symbol);
    if (kernel_.has_params) {
      pattern["match"]["params"] = nlohmann::ordered_json::array();
      for (const ParamRecord& param : kernel_.params)
        pattern["match"]["params"].push_back(param.size);
    }
    // Other names than C++ symbols are not enough: Triton and others reuse them for other code.
    const bool has_twin = is_cpp && find_twin() != nullptr;
    if ((!is_cpp || has_twin) && !kernel_.image.empty()) {
      pattern["match"]["image"] = {has_code ? kernel_.code : kernel_.image};
      add_note(fmt::format("the pattern asks for this very {}: {}", has_code ? "code" : "image",
                           has_twin ? "another kernel has the same name and parameters"
                                    : "its name alone says too little"));
    } else if (has_twin) {
      add_note("another kernel has the same name and parameters, and nothing tells the two apart");
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

  // The solution's template, with @...@ where build.sh fills something in.
  nlohmann::ordered_json make_solution() {
    const Geometry& geometry = commonest_geometry();
    nlohmann::ordered_json launch;
    launch["kernel"] = out_.definition_name;
    launch["images"] = "@images@";
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
        "{}\n"
        "}}\n",
        demangled(kernel_.symbol), geometry[0], geometry[1], geometry[2], geometry[3], geometry[4],
        geometry[5], geometry[9], constants, constants.empty() ? "" : "\n", out_.definition_name,
        parameters, kUnwrittenKernel);
  }

  const Recording& recording_;
  const KernelRecord& kernel_;
  std::vector<ParamType> types_;
  std::string base_;
  std::string suffix_;
  bool has_suffix_ = false;
  std::string name_values_;    // "_n4096"
  std::string name_template_;  // "_n{n}"
  std::string name_letters_;   // "_n"
  nlohmann::ordered_json axes_, definition_axes_, arguments_, inputs_, outputs_;
  std::vector<std::string> where_, writes_, shape_, of_unknown_type_, of_unknown_use_;
  std::vector<std::pair<std::string, int64_t>> constants_;
  const char* grid_[3] = {};
  std::vector<Argument> taken_;  // by the solution, in its order
  Suggestion out_;
};

}  // namespace

Suggestion suggest(const Recording& recording, const KernelRecord& kernel, const std::string& name,
                   unsigned number) {
  return Suggester(recording, kernel, name, number).make();
}

}  // namespace fibshim::tools
