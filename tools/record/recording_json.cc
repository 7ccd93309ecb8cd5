#include "tools/record/recording_json.h"

#include <ctype.h>
#include <math.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "loader/read/file.h"
#include "shim/abi/outcomes.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"
#include "tools/record/recording_files.h"

namespace fibshim::tools {
namespace {

constexpr int kJsonVersion = 1;
constexpr const char* kImageKinds[] = {"unknown", "cubin", "fatbin", "ptx"};
constexpr size_t kJsonGeometries = 64;  // for each kernel; the others are added up

double to_us(double ns) { return round(ns) / 1000; }

nlohmann::ordered_json times_to_json(const Times& times) {
  if (times.count == 0) return nullptr;
  return {{"timed", times.count},
          {"sum_us", to_us(static_cast<double>(times.sum_ns))},
          {"shortest_us", to_us(static_cast<double>(times.shortest_ns))},
          {"longest_us", to_us(static_cast<double>(times.longest_ns))}};
}

const char* source_name(ParamSource source) {
  switch (source) {
    case ParamSource::signature: return "signature";
    case ParamSource::values: return "values";
    case ParamSource::size: return "size";
  }
  return "";
}

nlohmann::ordered_json param_to_json(const ParamRecord& param, const ParamType& type) {
  nlohmann::ordered_json out;
  out["offset"] = param.offset;
  out["size"] = param.size;
  out["type"] = type.name.empty() ? "bytes" : type.name;
  out["type_from"] = source_name(type.source);
  if (type.is_pointer()) {
    out["to"] = or_null(type.element);
    if (type.source == ParamSource::signature) out["const"] = type.is_const;
    // The common alignment of all addresses; 0 if all were null.
    out["alignment"] = param.bits == 0 ? 0 : param.bits & (~param.bits + 1);
    const auto null = param.values.find(0);
    out["null"] = null == param.values.end() ? 0 : null->second;
    return out;
  }
  for (const ParamRecord& word : param.words) {
    out["words"].push_back(param_to_json(word, type_of_word(word)));
  }
  if (param.values.empty()) return out;
  std::vector<std::pair<uint64_t, uint64_t>> values(param.values.begin(), param.values.end());
  std::ranges::stable_sort(values,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  out["values"] = nlohmann::ordered_json::array();
  for (const auto& [value, count] : values) {
    nlohmann::ordered_json one;
    if (const auto number = floating_value(type, value)) {
      one["value"] = *number;
      one["bits"] = fmt::format("{:#x}", value);
    } else if (type.name == "uint64") {
      one["value"] = value;
    } else {
      one["value"] = integer_value(type, param.size, value);
    }
    one["count"] = count;
    out["values"].push_back(std::move(one));
  }
  out["other_values"] = param.others;
  return out;
}

nlohmann::ordered_json geometry_to_json(const Geometry& geometry, const GeometryCounts& counts) {
  const auto dim = [&](size_t at) {
    return nlohmann::ordered_json::array({geometry[at], geometry[at + 1], geometry[at + 2]});
  };
  return {{"grid", dim(0)},
          {"block", dim(3)},
          {"cluster", dim(6)},
          {"shared_mem", geometry[9]},
          {"launches", counts.launches},
          {"in_graph", counts.nodes},
          {"times", times_to_json(counts.times)}};
}

nlohmann::ordered_json runs_to_json(const KernelRecord& kernel) {
  std::vector<std::pair<RunKey, Runs>> all(kernel.runs.begin(), kernel.runs.end());
  std::ranges::stable_sort(
      all, [](const auto& a, const auto& b) { return a.second.sum_ns() > b.second.sum_ns(); });
  std::map<bool, Runs> others;  // key: whether in graphs
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const auto append = [&](const RunKey& key, const Runs& runs) {
    nlohmann::ordered_json one = geometry_to_json(key.first, {});
    for (const char* const unknown : {"launches", "in_graph", "times"}) one.erase(unknown);
    one["in_graph"] = key.second;
    one["runs"] = runs.count();
    one["warm_up"] = times_to_json(runs.warm_up);
    one["times"] = times_to_json(runs.steady);
    out.push_back(std::move(one));
  };
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < kJsonGeometries) {
      append(all[i].first, all[i].second);
    } else {
      others[all[i].first.second].add(all[i].second);
    }
  }
  for (const auto& [in_graph, runs] : others) append({Geometry{}, in_graph}, runs);
  return out;
}

// From here on: the reader. A missing member, or another type, throws: the line is refused.
Times times_from_json(const nlohmann::json& value) {
  if (value.is_null()) return {};
  const auto ns = [&](const char* key) {
    const double number = round(value.at(key).get<double>() * 1000);
    if (!(number >= 0)) throw std::range_error("a time is negative");
    return number < 0x1p64 ? static_cast<uint64_t>(number) : UINT64_MAX;
  };
  return {integer_of<uint64_t>(value.at("timed")), ns("sum_us"), ns("shortest_us"),
          ns("longest_us")};
}

GeometryCounts counts_from_json(const nlohmann::json& value) {
  return {integer_of<uint64_t>(value.at("launches")), integer_of<uint64_t>(value.at("in_graph")),
          times_from_json(value.at("times"))};
}

Geometry geometry_from_json(const nlohmann::json& value) {
  Geometry out = {};
  for (size_t i = 0; i < 9; ++i) {
    const char* const names[] = {"grid", "block", "cluster"};
    out[i] = integer_of<uint32_t>(value.at(names[i / 3]).at(i % 3));
  }
  out[9] = integer_of<uint32_t>(value.at("shared_mem"));
  return out;
}

ParamRecord param_from_json(const nlohmann::json& value) {
  ParamRecord param;
  param.offset = integer_of<uint32_t>(value.at("offset"));
  param.size = integer_of<uint32_t>(value.at("size"));
  if (!param.is_possible()) throw std::range_error("no kernel has such a parameter");
  if (value.at("type") == "pointer") {
    // The file does not have the addresses: one stands for all, so that the type is found again.
    param.bits = integer_of<uint64_t>(value.at("alignment"));
    if (const auto null = integer_of<uint64_t>(value.at("null"))) param.values[0] = null;
    if (param.bits != 0) param.values[kLowestAddress | param.bits] = 1;
    return param;
  }
  const uint64_t mask = param.size >= 8 ? UINT64_MAX : (uint64_t{1} << param.size * 8) - 1;
  if (value.contains("words")) {
    if (value.at("words").size() > kRecordedWords) {
      throw std::range_error("no struct has so many words");
    }
    for (const nlohmann::json& one : value.at("words")) {
      ParamRecord word = param_from_json(one);
      if (!has_recorded_values(word.size) || !word.words.empty() ||
          word.offset + word.size > param.size) {
        throw std::range_error("a struct has no such word");
      }
      // Restores what the driver said about a word of 8 bytes: its values alone could give another
      // type.
      if (one.at("type") == "pointer") {
        word.memory = RecordedMemory::some;
      } else if (word.size == 8) {
        word.memory = RecordedMemory::none;
      }
      param.words.push_back(std::move(word));
    }
  }
  if (!value.contains("values")) return param;
  for (const nlohmann::json& one : value.at("values")) {
    uint64_t bits;
    if (one.contains("bits")) {
      bits = std::stoull(one.at("bits").get<std::string>(), nullptr, 16);
    } else if (one.at("value").is_number_unsigned()) {
      bits = integer_of<uint64_t>(one.at("value"));
    } else {
      bits = static_cast<uint64_t>(integer_of<int64_t>(one.at("value")));
    }
    uint64_t& launches = param.values[bits & mask];
    launches = saturating_add(launches, integer_of<uint64_t>(one.at("count")));
    param.bits |= bits & mask;
  }
  param.others = integer_of<uint64_t>(value.at("other_values"));
  return param;
}

// The prefix and 32 digits, as patterns spell a hash; "" if it is null or missing.
std::string hash_from_json(const nlohmann::json& image, const char* key, std::string_view prefix) {
  const auto found = image.find(key);
  if (found == image.end() || !found->is_string()) return "";
  auto text = found->get<std::string>();
  if (text.size() != prefix.size() + 32 || text.substr(0, prefix.size()) != prefix ||
      text.find_first_not_of("0123456789abcdefABCDEF", prefix.size()) != text.npos) {
    throw std::range_error("no image has such a hash");
  }
  return text;
}

KernelRecord kernel_from_json(const nlohmann::json& value) {
  KernelRecord kernel;
  kernel.symbol = value.at("symbol").get<std::string>();
  if (kernel.symbol.empty() || kernel.symbol.find('\0') != std::string::npos) {
    throw std::range_error("no kernel has such a name");
  }
  const nlohmann::json& image = value.at("image");
  kernel.image = hash_from_json(image, "hash", "xxh128:");
  kernel.code = hash_from_json(image, "code", "code:");
  for (uint32_t i = 0; i < std::size(kImageKinds); ++i) {
    if (image.at("kind") == kImageKinds[i]) kernel.image_kind = static_cast<RecordedImage>(i);
  }
  kernel.sm = integer_of<uint32_t>(value.at("sm"));
  kernel.launches = integer_of<uint64_t>(value.at("launches"));
  kernel.nodes = integer_of<uint64_t>(value.at("in_graph"));
  kernel.failed = integer_of<uint64_t>(value.at("failed"));
  kernel.has_params = value.at("params").is_array();
  if (kernel.has_params) {
    if (value.at("params").size() > kMaxRecordedParams) {
      throw std::range_error("no kernel has so many parameters");
    }
    for (const nlohmann::json& param : value.at("params")) {
      kernel.params.push_back(param_from_json(param));
    }
  }
  for (const nlohmann::json& geometry : value.at("geometries")) {
    kernel.geometries[geometry_from_json(geometry)].add(counts_from_json(geometry));
  }
  // Files of earlier versions have no runs.
  if (const auto runs = value.find("runs"); runs != value.end()) {
    for (const nlohmann::json& one : *runs) {
      kernel.runs[{geometry_from_json(one), one.at("in_graph").get<bool>()}].add(
          {times_from_json(one.at("warm_up")), times_from_json(one.at("times"))});
    }
    kernel.shares_runs = value.at("shares_runs").get<bool>();
  }
  kernel.other = counts_from_json(value.at("other_geometries"));
  for (const auto& [name, count] : value.at("outcomes").items()) {
    if (const auto* const row = find_row(kOutcomes, &OutcomeInfo::name, std::string_view(name))) {
      kernel.outcomes[static_cast<uint32_t>(row->outcome)] = integer_of<uint64_t>(count);
    }
  }
  return kernel;
}

// The members of a process, with their names in JSON.
struct NumberMember {
  const char* name;
  uint64_t RecordedProcess::*member;
};
constexpr NumberMember kProcessNumbers[] = {
    {"pid", &RecordedProcess::pid},
    {"start_time", &RecordedProcess::start_time},
    {"created_unix_ns", &RecordedProcess::created_unix_ns},
    {"unknown_launches", &RecordedProcess::unknown_launches},
    {"dropped_launches", &RecordedProcess::dropped_launches},
    {"dropped_kernels", &RecordedProcess::dropped_kernels},
};
// Files of earlier versions lack these members.
constexpr NumberMember kTimingNumbers[] = {
    {"dropped_runs", &RecordedProcess::dropped_runs},
    {"cupti_version", &RecordedProcess::cupti_version},
};
constexpr const char* kTimings[] = {"events", "cupti", "cupti, then events"};
struct TextMember {
  const char* name;
  std::string RecordedProcess::*member;
};
constexpr TextMember kProcessTexts[] = {
    {"mode", &RecordedProcess::mode},
    {"executable", &RecordedProcess::executable},
    {"command", &RecordedProcess::command},
};

RecordedProcess process_from_json(const nlohmann::json& value) {
  RecordedProcess process;
  for (const auto& [name, member] : kProcessNumbers) {
    process.*member = integer_of<uint64_t>(value.at(name));
  }
  for (const auto& [name, member] : kProcessTexts) {
    process.*member = value.at(name).get<std::string>();
  }
  if (value.at("config").is_string()) process.config = value.at("config").get<std::string>();
  if (!value.contains("timing")) return process;
  for (uint32_t i = 0; i < std::size(kTimings); ++i) {
    if (value.at("timing") == kTimings[i]) process.timing = static_cast<RecordedTiming>(i);
  }
  process.timing_reason = value.at("timing_reason").get<std::string>();
  for (const auto& [name, member] : kTimingNumbers) {
    process.*member = integer_of<uint64_t>(value.at(name));
  }
  for (const nlohmann::json& device : value.at("devices")) {
    process.devices.push_back({integer_of<uint64_t>(device.at("device")),
                               integer_of<uint64_t>(device.at("span_ns")),
                               integer_of<uint64_t>(device.at("busy_ns"))});
  }
  return process;
}

std::string dump(const nlohmann::ordered_json& value) { return json_line(value) + "\n"; }

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(tolower(c)); });
  return text;
}

}  // namespace

nlohmann::ordered_json kernel_to_json(const KernelRecord& kernel, double share) {
  nlohmann::ordered_json out = {{"type", "kernel"},
                                {"symbol", kernel.symbol},
                                {"demangled", demangled(kernel.symbol)},
                                {"image",
                                 {{"hash", or_null(kernel.image)},
                                  {"code", or_null(kernel.code)},
                                  {"kind", kImageKinds[static_cast<size_t>(kernel.image_kind)]}}},
                                {"sm", kernel.sm},
                                {"launches", kernel.launches},
                                {"in_graph", kernel.nodes},
                                {"failed", kernel.failed}};
  nlohmann::ordered_json time = times_to_json(kernel.times());
  if (!time.is_null()) {
    time["estimated_us"] = to_us(kernel.estimated_ns());
    time["share"] = share < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(share);
  }
  out["gpu_time"] = std::move(time);
  if (kernel.has_params) {
    const std::vector<ParamType> types = kernel.param_types();
    out["params"] = nlohmann::ordered_json::array();
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      out["params"].push_back(param_to_json(kernel.params[i], types[i]));
    }
  } else {
    out["params"] = nullptr;
  }
  std::vector<std::pair<Geometry, GeometryCounts>> geometries(kernel.geometries.begin(),
                                                              kernel.geometries.end());
  std::ranges::stable_sort(geometries, [](const auto& a, const auto& b) {
    return a.second.launches + a.second.nodes > b.second.launches + b.second.nodes;
  });
  GeometryCounts other = kernel.other;
  out["geometries"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < geometries.size(); ++i) {
    if (i < kJsonGeometries) {
      out["geometries"].push_back(geometry_to_json(geometries[i].first, geometries[i].second));
    } else {
      other.add(geometries[i].second);
    }
  }
  out["other_geometries"] = {{"launches", other.launches},
                             {"in_graph", other.nodes},
                             {"times", times_to_json(other.times)}};
  out["runs"] = runs_to_json(kernel);
  out["shares_runs"] = kernel.shares_runs;
  out["outcomes"] = nlohmann::ordered_json::object();
  for (const auto& [outcome, count] : kernel.outcomes) {
    out["outcomes"][outcome_name(outcome)] = count;
  }
  return out;
}

nlohmann::ordered_json processes_to_json(const std::vector<RecordedProcess>& processes) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const RecordedProcess& process : processes) {
    nlohmann::ordered_json one;
    for (const auto& [name, member] : kProcessNumbers) one[name] = process.*member;
    for (const auto& [name, member] : kProcessTexts) one[name] = process.*member;
    one["config"] = or_null(process.config);
    one["timing"] = kTimings[static_cast<size_t>(process.timing)];
    one["timing_reason"] = process.timing_reason;
    for (const auto& [name, member] : kTimingNumbers) one[name] = process.*member;
    one["devices"] = nlohmann::ordered_json::array();
    for (const DeviceTime& device : process.devices) {
      one["devices"].push_back(
          {{"device", device.device}, {"span_ns", device.span_ns}, {"busy_ns", device.busy_ns}});
    }
    out.push_back(std::move(one));
  }
  return out;
}

JsonLines to_json_lines(const Recording& recording, uint64_t limit) {
  const double all_ns = recording.estimated_ns();
  const auto head = [&](uint64_t left_out) {
    return dump({{"type", "recording"},
                 {"version", kJsonVersion},
                 {"timed_every", kTimedEvery},
                 {"kernels", recording.kernels.size()},
                 {"kernels_left_out", left_out},
                 {"launches", recording.launches()},
                 {"in_graph", recording.nodes()},
                 {"processes", processes_to_json(recording.processes)}});
  };
  JsonLines out{"", 0};
  const uint64_t head_bytes = head(recording.kernels.size()).size();
  for (const KernelRecord& kernel : recording.kernels) {
    const std::string line =
        dump(kernel_to_json(kernel, all_ns > 0 ? kernel.estimated_ns() / all_ns : -1));
    if (head_bytes + out.text.size() + line.size() > limit) {
      ++out.kernels_left_out;
    } else {
      out.text += line;
    }
  }
  out.text.insert(0, head(out.kernels_left_out));
  return out;
}

tl::expected<Recording, std::string> read_recording(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    auto recording = read_recording_folder(path);
    if (recording && recording->processes.empty() && recording->refused.empty()) {
      return tl::unexpected(std::string("a folder without recordings"));
    }
    return recording;
  }
  if (access(path.c_str(), R_OK) != 0) return tl::unexpected(std::string(strerror(errno)));
  const auto bytes = read_file(path, kMaxRecordingBytes);
  if (!bytes) return tl::unexpected(bytes.error().message);
  return parse_json_lines(*bytes);
}

tl::expected<Recording, std::string> parse_json_lines(std::string_view text) {
  Recording out;
  size_t number = 0;
  uint64_t announced = 0;  // kernels, by all heads: files may be joined
  bool is_announced = true;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const nlohmann::json value = parse_json(line);
    try {
      if (value.is_discarded()) return tl::unexpected(fmt::format("line {} is no JSON", number));
      const std::string type = value.at("type").get<std::string>();
      if (number == 1 && (type != "recording" || value.at("version") != kJsonVersion)) {
        return tl::unexpected(fmt::format("it is no recording of version {}", kJsonVersion));
      }
      if (type == "kernel") out.kernels.push_back(kernel_from_json(value));
      if (type == "recording") {
        out.kernels_left_out = integer_of<uint64_t>(value.at("kernels_left_out"));
        is_announced = is_announced && value.contains("kernels");
        if (is_announced) {
          announced += integer_of<uint64_t>(value["kernels"]) - out.kernels_left_out;
        }
        for (const nlohmann::json& process : value.at("processes")) {
          out.processes.push_back(process_from_json(process));
        }
      }
    } catch (const std::exception& error) {
      return tl::unexpected(fmt::format("line {}: {}", number, error.what()));
    }
  }
  if (number == 0) return tl::unexpected(std::string("it is empty"));
  if (is_announced && out.kernels.size() != announced) {
    return tl::unexpected(
        fmt::format("it is not whole: it has {} of {} kernels", out.kernels.size(), announced));
  }
  out.sort_kernels();
  return out;
}

const KernelRecord* find_kernel(const Recording& recording, const std::string& wanted,
                                std::string* problem) {
  if (wanted.empty()) {
    *problem = "the kernel's name is empty";
    return nullptr;
  }
  const auto is_number =
      std::ranges::all_of(wanted, [](unsigned char c) { return isdigit(c) != 0; });
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
    *problem = fmt::format("no kernel named {}", printable(wanted));
    return nullptr;
  }
  *problem = "several kernels have this name; give the number of one:";
  std::map<std::string, unsigned> of_name;
  for (const size_t i : found) ++of_name[function_name(recording.kernels[i].symbol)];
  for (const size_t i : found) {
    const KernelRecord& kernel = recording.kernels[i];
    const std::string name = function_name(kernel.symbol);
    *problem += fmt::format("\n  {:>4}  {}", i + 1, printable(name));
    if (of_name[name] < 2) continue;
    std::vector<uint32_t> sizes;
    for (const ParamRecord& param : kernel.params) sizes.push_back(param.size);
    *problem += fmt::format(" (params [{}], {} launches, {})", fmt::join(sizes, ", "),
                            kernel.launches + kernel.nodes,
                            kernel.image.empty() ? "image not known" : kernel.image);
  }
  return nullptr;
}

}  // namespace fibshim::tools
