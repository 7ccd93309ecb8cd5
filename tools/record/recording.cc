#include "tools/record/recording.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "loader/read/file.h"
#include "shim/abi/outcomes.h"
#include "shim/abi/settings.h"
#include "tools/counters/counters_files.h"
#include "tools/base/json_input.h"

namespace fibshim::tools {
namespace {

// What one file may make the reader read: above what any limit that makes sense lets a shim write.
constexpr uint64_t kMaxRecordingBytes = uint64_t{4} << 30;
constexpr uint32_t kMaxRecordedParams = 4096;
constexpr uint32_t kMaxRecordedParamBytes = 32764;  // CUDA's bound of all parameters of one kernel

bool is_param(const ParamRecord& param) {
  return param.size != 0 && param.size <= kMaxRecordedParamBytes &&
         param.offset <= kMaxRecordedParamBytes;
}

void add_to(uint64_t* sum, uint64_t value) { *sum = saturating_add(*sum, value); }

Times times_of(const RecordedTimes& times) {
  return {times.count, times.sum_ns, times.shortest_ns, times.longest_ns};
}

void add_counts(GeometryCounts* to, const GeometryCounts& from) {
  add_to(&to->launches, from.launches);
  add_to(&to->nodes, from.nodes);
  to->times.add(from.times);
}

// Adds what another process, or another handle, did with the same kernel.
void add_kernel(KernelRecord* to, const KernelRecord& from) {
  add_to(&to->launches, from.launches);
  add_to(&to->nodes, from.nodes);
  add_to(&to->failed, from.failed);
  add_counts(&to->other, from.other);
  for (const auto& [geometry, counts] : from.geometries) {
    add_counts(&to->geometries[geometry], counts);
  }
  for (const auto& [outcome, count] : from.outcomes) add_to(&to->outcomes[outcome], count);
  for (size_t i = 0; i < to->params.size(); ++i) {
    to->params[i].bits |= from.params[i].bits;
    add_to(&to->params[i].others, from.params[i].others);
    for (const auto& [value, count] : from.params[i].values) {
      add_to(&to->params[i].values[value], count);
    }
  }
}

template <size_t size>
std::string text_of(const char (&field)[size]) {
  return std::string(field, strnlen(field, size));
}

std::string mode_name(uint32_t mode) {
  const SettingInfo& setting = kSettings[static_cast<size_t>(SettingId::mode)];
  return mode < std::size(setting.choices) && setting.choices[mode] != nullptr
             ? setting.choices[mode]
             : fmt::format("mode_{}", mode);
}

// Reads one file's blocks. Every block lies within the bytes, and everything in it within the block.
class BlockReader {
 public:
  explicit BlockReader(std::string_view bytes) : bytes_(bytes) {}

  // Why the file is damaged; empty when it is not.
  std::string read(const RecordingHeader& header) {
    uint64_t at = sizeof(RecordingHeader);
    while (at < header.used_bytes) {
      RecordedBlock block;
      if (header.used_bytes - at < sizeof block) return "a block is cut off";
      copy(&block, at);
      if (block.bytes < sizeof block || block.bytes % 8 != 0 ||
          block.bytes > header.used_bytes - at) {
        return fmt::format("the block at {} claims {} bytes", at, block.bytes);
      }
      const bool is_fine = block.kind == RecordedKind::kernel     ? read_kernel(at, block.bytes)
                           : block.kind == RecordedKind::geometry ? read_geometry(at, block.bytes)
                                                                  : false;
      if (!is_fine) return fmt::format("the block at {} makes no sense", at);
      at += block.bytes;
    }
    return "";
  }

  std::vector<KernelRecord> take_kernels() { return std::move(kernels_); }

 private:
  template <class T>
  void copy(T* out, uint64_t at) const {
    memcpy(out, bytes_.data() + at, sizeof *out);
  }

  bool read_kernel(uint64_t at, uint64_t block_bytes) {
    RecordedKernel raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    const uint64_t params_bytes = uint64_t{raw.param_count} * sizeof(RecordedParam);
    const uint64_t values_bytes = uint64_t{raw.value_count} * sizeof(RecordedValue);
    if (raw.param_count > kMaxRecordedParams || raw.symbol_bytes == 0 ||
        raw.value_count > raw.param_count * kRecordedValues ||
        sizeof raw + params_bytes + values_bytes + raw.symbol_bytes > block_bytes) {
      return false;
    }
    KernelRecord kernel;
    const uint64_t params_at = at + sizeof raw;
    const uint64_t values_at = params_at + params_bytes;
    const char* const symbol = bytes_.data() + values_at + values_bytes;
    kernel.symbol.assign(symbol, strnlen(symbol, raw.symbol_bytes));
    if (kernel.symbol.empty()) return false;
    kernel.image_kind =
        raw.image_kind <= RecordedImage::ptx ? raw.image_kind : RecordedImage::unknown;
    if (raw.image_high != 0 || raw.image_low != 0) {
      kernel.image = fmt::format("xxh128:{:016x}{:016x}", raw.image_high, raw.image_low);
    }
    kernel.sm = raw.sm;
    kernel.has_params = raw.has_params != 0;
    kernel.launches = raw.launches;
    kernel.nodes = raw.nodes;
    kernel.failed = raw.failed;
    kernel.other = {raw.other_launches, raw.other_nodes, times_of(raw.other_times)};
    for (uint32_t i = 0; i < kRecordedOutcomeSlots; ++i) {
      if (raw.outcomes[i] != 0) kernel.outcomes[i] = raw.outcomes[i];
    }
    for (uint32_t i = 0; i < raw.param_count; ++i) {
      RecordedParam raw_param;
      copy(&raw_param, params_at + i * sizeof raw_param);
      ParamRecord param{raw_param.offset, raw_param.size, raw_param.bits, raw_param.others, {}};
      if (raw_param.first_value != UINT32_MAX) {
        if (uint64_t{raw_param.first_value} + kRecordedValues > raw.value_count) return false;
        for (uint32_t k = 0; k < kRecordedValues; ++k) {
          RecordedValue value;
          copy(&value, values_at + (raw_param.first_value + k) * sizeof value);
          if (value.count == 0) break;
          add_to(&param.values[value.value], value.count);
        }
      }
      if (!is_param(param)) return false;
      kernel.params.push_back(std::move(param));
    }
    index_.emplace(at, kernels_.size());
    kernels_.push_back(std::move(kernel));
    return true;
  }

  bool read_geometry(uint64_t at, uint64_t block_bytes) {
    RecordedGeometry raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    const auto kernel = index_.find(raw.kernel_at);  // it comes before its geometries
    if (kernel == index_.end()) return false;
    Geometry geometry;
    std::copy(std::begin(raw.geometry), std::end(raw.geometry), geometry.begin());
    add_counts(&kernels_[kernel->second].geometries[geometry],
               {raw.launches, raw.nodes, times_of(raw.times)});
    return true;
  }

  std::string_view bytes_;
  std::vector<KernelRecord> kernels_;
  std::unordered_map<uint64_t, size_t> index_;  // by the block's place
};

// The error says why the file is refused.
tl::expected<void, std::string> read_file_into(const std::string& file, std::string_view bytes,
                                               Recording* recording,
                                               std::vector<KernelRecord>* kernels) {
  RecordingHeader header = {};
  constexpr char kZeros[sizeof header.magic] = {};
  memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof header));
  if (memcmp(header.magic, kZeros, sizeof kZeros) == 0) return {};  // its magic is written last
  if (memcmp(header.magic, kRecordingMagic, sizeof kRecordingMagic) != 0) {
    return tl::unexpected(std::string("not a recording: it does not begin with 'FIBRECD'"));
  }
  if (header.version != kRecordingVersion || header.header_bytes != sizeof header) {
    return tl::unexpected(fmt::format(
        "format version {}; this fibshim reads version {}: use the fibshim that came with the shim "
        "that wrote it",
        header.version, kRecordingVersion));
  }
  if (header.used_bytes < sizeof header || header.used_bytes > bytes.size()) {
    return tl::unexpected(
        fmt::format("damaged: it claims {} of its {} bytes", header.used_bytes, bytes.size()));
  }
  BlockReader reader(bytes);
  if (std::string fault = reader.read(header); !fault.empty()) {
    return tl::unexpected("damaged: " + std::move(fault));
  }
  RecordedProcess process;
  process.file = file;
  process.pid = header.pid;
  process.start_time = header.start_time;
  process.created_unix_ns = header.created_unix_ns;
  process.is_alive = is_process_alive(header.pid, header.start_time);
  process.mode = mode_name(header.mode);
  process.executable = text_of(header.executable);
  process.command = text_of(header.command);
  process.config = text_of(header.config);
  process.unknown_launches = header.unknown_launches;
  process.dropped_launches = header.dropped_launches;
  process.dropped_kernels = header.dropped_kernels;
  process.bytes = header.used_bytes;
  recording->processes.push_back(std::move(process));
  for (KernelRecord& kernel : reader.take_kernels()) kernels->push_back(std::move(kernel));
  return {};
}

// What makes two records one kernel.
std::string kernel_key(const KernelRecord& kernel) {
  std::string key = fmt::format("{}\n{}\n{}\n", kernel.symbol, kernel.image, kernel.sm);
  for (const ParamRecord& param : kernel.params) {
    key += fmt::format("{}:{} ", param.offset, param.size);
  }
  return key;
}

void merge(std::vector<KernelRecord> kernels, Recording* recording) {
  std::unordered_map<std::string, size_t> known;
  for (KernelRecord& kernel : kernels) {
    const auto [at, is_new] = known.emplace(kernel_key(kernel), recording->kernels.size());
    if (is_new) {
      recording->kernels.push_back(std::move(kernel));
    } else {
      add_kernel(&recording->kernels[at->second], kernel);
    }
  }
}

void sort_kernels(Recording* recording) {
  std::sort(recording->kernels.begin(), recording->kernels.end(),
            [](const KernelRecord& a, const KernelRecord& b) {
              return std::make_tuple(-a.estimated_ns(), ~(a.launches + a.nodes), a.symbol,
                                     a.image) <
                     std::make_tuple(-b.estimated_ns(), ~(b.launches + b.nodes), b.symbol, b.image);
            });
}

void add_file(const std::string& name, std::string_view bytes, Recording* out,
              std::vector<KernelRecord>* kernels) {
  const auto read = read_file_into(name, bytes, out, kernels);
  if (!read) out->refused.push_back({name, read.error()});
}

void finish(std::vector<KernelRecord> kernels, Recording* out) {
  merge(std::move(kernels), out);
  sort_kernels(out);
}

}  // namespace

void Times::add(const Times& other) {
  add_to(&count, other.count);
  add_to(&sum_ns, other.sum_ns);
  if (other.shortest_ns != 0 && (shortest_ns == 0 || other.shortest_ns < shortest_ns)) {
    shortest_ns = other.shortest_ns;
  }
  longest_ns = std::max(longest_ns, other.longest_ns);
}

Times KernelRecord::times() const {
  Times all = other.times;
  for (const auto& [geometry, counts] : geometries) all.add(counts.times);
  return all;
}

double KernelRecord::estimated_ns() const {
  const Times all = times();
  if (all.count == 0) return 0;
  const auto estimate = [&](const GeometryCounts& counts) {
    const Times& times = counts.times.count != 0 ? counts.times : all;
    return static_cast<double>(times.sum_ns) / static_cast<double>(times.count) *
           static_cast<double>(counts.launches);
  };
  double sum = estimate(other);
  for (const auto& [geometry, counts] : geometries) sum += estimate(counts);
  return sum;
}

std::vector<ParamType> KernelRecord::param_types() const { return types_of_params(symbol, params); }

uint64_t Recording::launches() const {
  return std::accumulate(kernels.begin(), kernels.end(), uint64_t{0},
                         [](uint64_t sum, const KernelRecord& kernel) {
                           return saturating_add(sum, kernel.launches);
                         });
}

uint64_t Recording::nodes() const {
  return std::accumulate(
      kernels.begin(), kernels.end(), uint64_t{0},
      [](uint64_t sum, const KernelRecord& kernel) { return saturating_add(sum, kernel.nodes); });
}

double Recording::estimated_ns() const {
  return std::accumulate(
      kernels.begin(), kernels.end(), 0.0,
      [](double sum, const KernelRecord& kernel) { return sum + kernel.estimated_ns(); });
}

tl::expected<Recording, std::string> read_recording_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  Recording out;
  std::error_code error;
  std::vector<std::string> paths;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == kRecordingSuffix) paths.push_back(at->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return tl::unexpected(fmt::format("cannot read the folder: {}", error.message()));
  }
  std::sort(paths.begin(), paths.end());
  std::vector<KernelRecord> kernels;
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).filename().string();
    const auto bytes = read_file(path, kMaxRecordingBytes);
    if (!bytes) {
      out.refused.push_back({name, bytes.error().message});
    } else {
      add_file(name, *bytes, &out, &kernels);
    }
  }
  finish(std::move(kernels), &out);
  return out;
}

Recording read_recording_file(const std::string& name, std::string_view bytes) {
  Recording out;
  std::vector<KernelRecord> kernels;
  add_file(name, bytes, &out, &kernels);
  finish(std::move(kernels), &out);
  return out;
}

// ---- JSON Lines

namespace {

constexpr int kJsonVersion = 1;
constexpr const char* kImageKinds[] = {"unknown", "cubin", "fatbin", "ptx"};
constexpr size_t kJsonGeometries = 64;  // of one kernel; the rest is added up

nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

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
    // Of all addresses: 0 where all were null.
    out["alignment"] = param.bits == 0 ? 0 : param.bits & (~param.bits + 1);
    const auto null = param.values.find(0);
    out["null"] = null == param.values.end() ? 0 : null->second;
    return out;
  }
  if (param.values.empty()) return out;
  std::vector<std::pair<uint64_t, uint64_t>> values(param.values.begin(), param.values.end());
  std::stable_sort(values.begin(), values.end(),
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
  nlohmann::ordered_json out;
  out["grid"] = dim(0);
  out["block"] = dim(3);
  out["cluster"] = dim(6);
  out["shared_mem"] = geometry[9];
  out["launches"] = counts.launches;
  out["in_graph"] = counts.nodes;
  out["times"] = times_to_json(counts.times);
  return out;
}

// The reader's half. A member that is missing or of another kind throws, and the line is refused.
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

ParamRecord param_from_json(const nlohmann::json& value) {
  ParamRecord param;
  param.offset = integer_of<uint32_t>(value.at("offset"));
  param.size = integer_of<uint32_t>(value.at("size"));
  if (!is_param(param)) throw std::range_error("no kernel has such a parameter");
  if (value.at("type") == "pointer") {
    // The addresses are not kept: one that stands for them, so that the type is found again.
    param.bits = integer_of<uint64_t>(value.at("alignment"));
    if (const auto null = integer_of<uint64_t>(value.at("null"))) param.values[0] = null;
    if (param.bits != 0) param.values[kLowestAddress | param.bits] = 1;
    return param;
  }
  const uint64_t mask = param.size >= 8 ? UINT64_MAX : (uint64_t{1} << param.size * 8) - 1;
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
    add_to(&param.values[bits & mask], integer_of<uint64_t>(one.at("count")));
    param.bits |= bits & mask;
  }
  param.others = integer_of<uint64_t>(value.at("other_values"));
  return param;
}

// "xxh128:" and 32 digits, as patterns have it.
bool is_image_hash(std::string_view text) {
  constexpr std::string_view kPrefix = "xxh128:";
  return text.size() == kPrefix.size() + 32 && text.substr(0, kPrefix.size()) == kPrefix &&
         text.find_first_not_of("0123456789abcdefABCDEF", kPrefix.size()) == std::string_view::npos;
}

KernelRecord kernel_from_json(const nlohmann::json& value) {
  KernelRecord kernel;
  kernel.symbol = value.at("symbol").get<std::string>();
  if (kernel.symbol.empty() || kernel.symbol.find('\0') != std::string::npos) {
    throw std::range_error("no kernel has such a name");
  }
  const nlohmann::json& image = value.at("image");
  if (image.at("hash").is_string()) kernel.image = image.at("hash").get<std::string>();
  if (!kernel.image.empty() && !is_image_hash(kernel.image)) {
    throw std::range_error("no image has such a hash");
  }
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
    Geometry key = {};
    for (size_t i = 0; i < 9; ++i) {
      const char* const names[] = {"grid", "block", "cluster"};
      key[i] = integer_of<uint32_t>(geometry.at(names[i / 3]).at(i % 3));
    }
    key[9] = integer_of<uint32_t>(geometry.at("shared_mem"));
    add_counts(&kernel.geometries[key], counts_from_json(geometry));
  }
  kernel.other = counts_from_json(value.at("other_geometries"));
  for (const auto& [name, count] : value.at("outcomes").items()) {
    for (const OutcomeInfo& outcome : kOutcomes) {
      if (name == outcome.name) {
        kernel.outcomes[static_cast<uint32_t>(outcome.outcome)] = integer_of<uint64_t>(count);
      }
    }
  }
  return kernel;
}

RecordedProcess process_from_json(const nlohmann::json& value) {
  RecordedProcess process;
  process.pid = integer_of<uint64_t>(value.at("pid"));
  process.start_time = integer_of<uint64_t>(value.at("start_time"));
  process.created_unix_ns = integer_of<uint64_t>(value.at("created_unix_ns"));
  process.mode = value.at("mode").get<std::string>();
  process.executable = value.at("executable").get<std::string>();
  process.command = value.at("command").get<std::string>();
  if (value.at("config").is_string()) process.config = value.at("config").get<std::string>();
  process.unknown_launches = integer_of<uint64_t>(value.at("unknown_launches"));
  process.dropped_launches = integer_of<uint64_t>(value.at("dropped_launches"));
  process.dropped_kernels = integer_of<uint64_t>(value.at("dropped_kernels"));
  return process;
}

std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

nlohmann::ordered_json kernel_to_json(const KernelRecord& kernel, double share) {
  nlohmann::ordered_json out;
  out["type"] = "kernel";
  out["symbol"] = kernel.symbol;
  out["demangled"] = demangled(kernel.symbol);
  out["image"] = {{"hash", or_null(kernel.image)},
                  {"kind", kImageKinds[static_cast<size_t>(kernel.image_kind)]}};
  out["sm"] = kernel.sm;
  out["launches"] = kernel.launches;
  out["in_graph"] = kernel.nodes;
  out["failed"] = kernel.failed;
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
  std::stable_sort(geometries.begin(), geometries.end(), [](const auto& a, const auto& b) {
    return a.second.launches + a.second.nodes > b.second.launches + b.second.nodes;
  });
  GeometryCounts other = kernel.other;
  out["geometries"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < geometries.size(); ++i) {
    if (i < kJsonGeometries) {
      out["geometries"].push_back(geometry_to_json(geometries[i].first, geometries[i].second));
    } else {
      add_counts(&other, geometries[i].second);
    }
  }
  out["other_geometries"] = {{"launches", other.launches},
                             {"in_graph", other.nodes},
                             {"times", times_to_json(other.times)}};
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
    one["pid"] = process.pid;
    one["start_time"] = process.start_time;
    one["created_unix_ns"] = process.created_unix_ns;
    one["mode"] = process.mode;
    one["executable"] = process.executable;
    one["command"] = process.command;
    one["config"] = or_null(process.config);
    one["unknown_launches"] = process.unknown_launches;
    one["dropped_launches"] = process.dropped_launches;
    one["dropped_kernels"] = process.dropped_kernels;
    out.push_back(std::move(one));
  }
  return out;
}

JsonLines to_json_lines(const Recording& recording, uint64_t limit) {
  const double all_ns = recording.estimated_ns();
  const auto head = [&](uint64_t left_out) {
    nlohmann::ordered_json line;
    line["type"] = "recording";
    line["version"] = kJsonVersion;
    line["timed_every"] = kTimedEvery;
    line["kernels"] = recording.kernels.size();
    line["kernels_left_out"] = left_out;
    line["launches"] = recording.launches();
    line["in_graph"] = recording.nodes();
    line["processes"] = processes_to_json(recording.processes);
    return dump(line);
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
  if (std::filesystem::is_directory(path)) return read_recording_folder(path);
  const auto bytes = read_file(path, kMaxRecordingBytes);
  if (!bytes) return tl::unexpected(bytes.error().message);
  return parse_json_lines(*bytes);
}

tl::expected<Recording, std::string> parse_json_lines(std::string_view text) {
  Recording out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const nlohmann::json value = parse_json(line);
    try {
      if (value.is_discarded())
        return tl::unexpected(fmt::format("line {} is no JSON", number + 1));
      const std::string type = value.at("type").get<std::string>();
      if (number == 0 && (type != "recording" || value.at("version") != kJsonVersion)) {
        return tl::unexpected(fmt::format("it is no recording of version {}", kJsonVersion));
      }
      if (type == "kernel") out.kernels.push_back(kernel_from_json(value));
      if (type == "recording") {
        out.kernels_left_out = integer_of<uint64_t>(value.at("kernels_left_out"));
        for (const nlohmann::json& process : value.at("processes")) {
          out.processes.push_back(process_from_json(process));
        }
      }
    } catch (const std::exception& error) {
      return tl::unexpected(fmt::format("line {}: {}", number + 1, error.what()));
    }
  }
  if (number == 0) return tl::unexpected(std::string("it is empty"));
  sort_kernels(&out);
  return out;
}

}  // namespace fibshim::tools
