// fibshim suggest: begins a config folder for a kernel that was recorded: the pattern that recognises
// its launches, the definition that they are calls of, and what a solution needs but the kernel.
//
// What a recording cannot tell is chosen so that no launch is taken for what it is not: a value that
// never changed is asked for, every buffer that may be written counts as written.
#include <ctype.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "loader/check.h"
#include "tools/commands.h"
#include "tools/diagnostics_output.h"
#include "tools/options.h"
#include "tools/recording.h"
#include "tools/terminal.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLeastAxis = 16;  // a smaller constant is more likely a flag or a count
constexpr const char* kConstAxes[] = {"n", "m", "k", "l"};
constexpr size_t kLongestName = 64;

struct Options {
  std::string recording;
  std::string kernel;
  std::string folder;
  std::string name;
  bool is_forced = false;
  bool wants_json = false;
};

// ---- choosing the kernel

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(tolower(c)); });
  return text;
}

// By its number in the summary, its symbol, or a part of its readable name that no other has.
const KernelRecord* find_kernel(const Recording& recording, const std::string& wanted,
                                std::string* problem) {
  const auto is_number =
      std::all_of(wanted.begin(), wanted.end(), [](unsigned char c) { return isdigit(c) != 0; });
  if (is_number && wanted.size() < 10) {
    const size_t number = std::stoul(wanted);
    if (number >= 1 && number <= recording.kernels.size()) return &recording.kernels[number - 1];
    *problem = fmt::format("there is no kernel {}; the recording has {}", wanted,
                           recording.kernels.size());
    return nullptr;
  }
  std::vector<size_t> exact, partial;
  for (size_t i = 0; i < recording.kernels.size(); ++i) {
    const std::string& symbol = recording.kernels[i].symbol;
    if (symbol == wanted) exact.push_back(i);
    if (symbol.find(wanted) != std::string::npos ||
        lower_case(demangled(symbol)).find(lower_case(wanted)) != std::string::npos) {
      partial.push_back(i);
    }
  }
  const std::vector<size_t>& found = exact.empty() ? partial : exact;
  if (found.size() == 1) return &recording.kernels[found[0]];
  if (found.empty()) {
    *problem = fmt::format("no kernel is named so: {}", printable(wanted));
    return nullptr;
  }
  *problem = "several kernels are named so; say which by its number:";
  for (const size_t i : found) {
    *problem +=
        fmt::format("\n  {:>4}  {}", i + 1, printable(function_name(recording.kernels[i].symbol)));
  }
  return nullptr;
}

// ---- what is suggested

std::string identifier(const std::string& text) {
  std::string out;
  for (const char c : lower_case(text)) {
    const bool is_fine = isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_fine || (!out.empty() && out.back() != '_')) out += is_fine ? c : '_';
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

// A symbol for a pattern. nvcc puts hashes of the build into the names of anonymous namespaces.
std::string symbol_pattern(const std::string& symbol) {
  static const std::regex kAnonymous(
      "[0-9]+(_GLOBAL__N__)[0-9a-f]+_([0-9]+)_([A-Za-z0-9_]+)_cu_[0-9a-f]{8}(_[0-9]+)?");
  std::smatch match;
  if (!std::regex_search(symbol, match, kAnonymous)) return symbol;
  return "re:" + escaped_regex(match.prefix()) + "\\d+_GLOBAL__N__[0-9a-f]+_" + match[2].str() +
         "_" + match[3].str() + "_cu_[0-9a-f]{8}(_\\d+)?" + escaped_regex(match.suffix());
}

struct Argument {
  std::string name;
  std::string cxx_type;
};

struct Suggestion {
  Suggestion() noexcept(false) {}  // its documents allocate
  Suggestion(const Suggestion&) = delete;
  Suggestion& operator=(const Suggestion&) = delete;

  std::string label;
  std::string definition_name;
  nlohmann::ordered_json pattern;
  nlohmann::ordered_json definition;
  nlohmann::ordered_json solution;
  std::string source;
  std::vector<std::string> notes;
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

class Suggester {
 public:
  Suggester(const KernelRecord& kernel, const Options& options)
      : kernel_(kernel), types_(kernel.param_types()) {
    std::string base = identifier(options.name.empty() ? short_name(kernel.symbol) : options.name);
    if (options.name.empty() && base.size() > 7 && base.ends_with("_kernel"))
      base.resize(base.size() - 7);
    base_ = base;
  }

  const Suggestion& make() {
    axes_ = nlohmann::ordered_json::object();
    definition_axes_ = axes_;
    arguments_ = axes_;
    inputs_ = axes_;
    outputs_ = axes_;
    add_grid();
    for (size_t i = 0; i < kernel_.params.size(); ++i) add_param(i);
    if (outputs_.empty()) note("no parameter is known to be written: name the outputs");
    out_.definition_name = base_ + name_values_ + suffix_;
    out_.label = base_ + name_letters_ + suffix_;
    std::replace(out_.label.begin(), out_.label.end(), '_', '-');
    make_pattern();
    make_definition();
    make_solution();
    make_source();
    return out_;
  }

 private:
  void note(std::string text) { out_.notes.push_back(std::move(text)); }

  const Geometry& commonest_geometry() const {
    static constexpr Geometry kNone = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    const auto at = std::max_element(
        kernel_.geometries.begin(), kernel_.geometries.end(), [](const auto& a, const auto& b) {
          return a.second.launches + a.second.nodes < b.second.launches + b.second.nodes;
        });
    return at == kernel_.geometries.end() ? kNone : at->first;
  }

  void add_grid() {
    constexpr const char* kNames[] = {"grid_x", "grid_y", "grid_z"};
    for (size_t i = 0; i < 3; ++i) {
      const bool is_one = std::all_of(kernel_.geometries.begin(), kernel_.geometries.end(),
                                      [&](const auto& entry) { return entry.first[i] == 1; });
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
    note(
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
      note(fmt::format("{} is null in some launches", name));
    } else {
      where_.push_back(fmt::format("{} != 0", name));
    }
    if (dtype == "unknown") note(fmt::format("{}: what it points to is not known", name));
    if (type.source != ParamSource::signature) {
      note(fmt::format("{}: whether it is read or written is not known; it counts as written",
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
      const bool is_negative = std::any_of(
          param.values.begin(), param.values.end(),
          [&](const auto& entry) { return integer_value(type, param.size, entry.first) < 0; });
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

  void make_pattern() {
    nlohmann::ordered_json& pattern = out_.pattern;
    pattern["label"] = out_.label;
    pattern["benefit"] = 1;
    pattern["description"] = demangled(kernel_.symbol);
    pattern["match"]["symbol"] = symbol_pattern(kernel_.symbol);
    if (kernel_.has_params) {
      pattern["match"]["params"] = nlohmann::ordered_json::array();
      for (const ParamRecord& param : kernel_.params)
        pattern["match"]["params"].push_back(param.size);
    }
    // A name that is not C++'s says too little: Triton and others use it again for other code.
    if (demangled(kernel_.symbol) == kernel_.symbol && !kernel_.image.empty()) {
      pattern["match"]["image"] = {kernel_.image};
      note("the pattern asks for this very image: its name alone says too little");
    }
    pattern["axes"] = axes_;
    pattern["arguments"] = arguments_;
    pattern["writes"] = writes_;
    pattern["where"] = where_;
    pattern["definition"] = base_ + name_template_ + suffix_;
  }

  void make_definition() {
    for (nlohmann::ordered_json* tensors : {&inputs_, &outputs_}) {
      for (auto& [name, tensor] : tensors->items()) {
        if (arguments_[name].contains("dtype")) tensor["shape"] = shape_;
      }
    }
    note("the shapes in the definition are a guess");
    nlohmann::ordered_json& definition = out_.definition;
    definition["name"] = out_.definition_name;
    definition["op_type"] = base_;
    definition["description"] = "As " + function_name(kernel_.symbol) + ". Shapes are a guess.";
    definition["axes"] = definition_axes_;
    definition["inputs"] = inputs_;
    definition["outputs"] = outputs_;
    definition["reference"] =
        fmt::format("def run({}):\n    raise NotImplementedError\n", joined_names(inputs_));
  }

  static std::string joined_names(const nlohmann::ordered_json& object) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  // With @...@ for what build.sh fills in.
  void make_solution() {
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
    nlohmann::ordered_json& solution = out_.solution;
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
  }

  void make_source() {
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
    out_.source = fmt::format(
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

// ---- writing

struct File {
  std::string path;  // below the folder
  std::string text;
  bool is_executable;
};

std::string pretty(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<File> files_of(const Suggestion& suggestion) {
  const std::string& name = suggestion.definition_name;
  std::string script = kBuildScript;
  script.replace(script.find("@name@"), strlen("@name@"), name);
  const std::string solution = "solutions/" + name + "/";
  return {{"patterns/" + suggestion.label + ".json", pretty(suggestion.pattern), false},
          {"definitions/" + name + ".json", pretty(suggestion.definition), false},
          {solution + "solution.json.in", pretty(suggestion.solution), false},
          {solution + "kernel.cu", suggestion.source, false},
          {solution + "build.sh", script, true}};
}

// True when all were written; none is when one is there already.
bool write_files(const std::vector<File>& files, const Options& options) {
  for (const File& file : files) {
    const fs::path path = fs::path(options.folder) / file.path;
    if (options.is_forced || !fs::exists(path)) continue;
    print_message("suggest", fmt::format("{} is there already; --force replaces it",
                                         printable(path.string())));
    return false;
  }
  for (const File& file : files) {
    const fs::path path = fs::path(options.folder) / file.path;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << file.text;
    out.close();
    if (!out) {
      print_message("suggest", fmt::format("{}: cannot write it: {}", printable(path.string()),
                                           strerror(errno)));
      return false;
    }
    if (file.is_executable) {
      fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add, error);
    }
  }
  return true;
}

bool print_result(const Suggestion& suggestion, const std::vector<File>& files,
                  const Options& options) {
  const std::string build =
      fmt::format("{}/solutions/{}/build.sh", options.folder, suggestion.definition_name);
  if (options.wants_json) {
    nlohmann::ordered_json out;
    out["version"] = 1;
    out["folder"] = options.folder;
    out["label"] = suggestion.label;
    out["definition"] = suggestion.definition_name;
    out["files"] = nlohmann::ordered_json::array();
    for (const File& file : files) out["files"].push_back(file.path);
    out["notes"] = suggestion.notes;
    return print_json(out);
  }
  std::string out =
      fmt::format("pattern {}, definition {}\n", suggestion.label, suggestion.definition_name);
  for (const File& file : files) {
    out += fmt::format("  {}/{}\n", printable(options.folder), file.path);
  }
  if (!suggestion.notes.empty()) out += "to look at:\n";
  for (const std::string& text : suggestion.notes) out += fmt::format("  {}\n", printable(text));
  out += fmt::format(
      "Write kernel.cu, run {0} with the GPU's architecture (sm_90), then\n"
      "  fibshim check {1}\n"
      "  fibshim run -c {1} -- PROGRAM\n",
      shell_quoted(build), shell_quoted(options.folder));
  return print_data(out);
}

}  // namespace

int suggest_command(int argc, const char* const* argv) {
  Options options;
  CLI::App app("Begins a config folder for a kernel that was recorded", "fibshim suggest");
  app.add_option("FILE", options.recording, "what 'fibshim record' wrote")->required();
  app.add_option("KERNEL", options.kernel,
                 "its number in 'fibshim record --summary FILE', its symbol, or a part of its name")
      ->required();
  app.add_option("-o,--output", options.folder, "write into this folder")
      ->type_name("DIR")
      ->required();
  app.add_option("--name", options.name, "what the definition's name begins with")
      ->type_name("NAME");
  app.add_flag("--force", options.is_forced, "replace files that are there");
  app.add_flag("--json", options.wants_json, "print JSON");
  app.footer("Exit codes: 0 fine; 1 the recording or the folder is wrong; 2 wrong usage.");
  if (int exit_code = 0;
      !parse_options(&app, "[OPTIONS] -o DIR FILE KERNEL", argc, argv, &exit_code)) {
    return exit_code;
  }
  const auto recording = read_recording(options.recording);
  if (!recording) {
    print_message("suggest", fmt::format("{}: {}", printable(options.recording),
                                         printable(recording.error())));
    return kExitWrong;
  }
  std::string problem;
  const KernelRecord* const kernel = find_kernel(*recording, options.kernel, &problem);
  if (kernel == nullptr) {
    print_message("suggest", problem);
    return kExitWrong;
  }
  if (!kernel->has_params) {
    print_message("suggest",
                  "the driver did not tell the kernel's parameters (drivers from CUDA 12.4 on do)");
    return kExitWrong;
  }
  Suggester suggester(*kernel, options);
  const Suggestion& suggestion = suggester.make();
  const std::vector<File> files = files_of(suggestion);
  if (!write_files(files, options)) return kExitWrong;
  const CheckReport report = check_folder(options.folder);
  if (report.error_count != 0) {
    print_message("suggest", fmt::format("the folder has mistakes:\n{}", format_findings(report)));
  }
  return print_result(suggestion, files, options) && report.error_count == 0 ? kExitFine
                                                                             : kExitWrong;
}

}  // namespace fibshim::tools
