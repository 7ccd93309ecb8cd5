#include "tools/record/recording_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "loader/read/file.h"

namespace fibshim::tools {
namespace {

Times times_of(const RecordedTimes& times) {
  return {times.count, times.sum_ns, times.shortest_ns, times.longest_ns};
}

// Adds up the parameters of two records with the same layout.
void add_params(std::vector<ParamRecord>* to, const std::vector<ParamRecord>& from) {
  for (size_t i = 0; i < std::min(to->size(), from.size()); ++i) {
    ParamRecord& param = (*to)[i];
    param.bits |= from[i].bits;
    add_to(&param.others, from[i].others);
    for (const auto& [value, count] : from[i].values) add_to(&param.values[value], count);
    param.memory = std::max(param.memory, from[i].memory);
    add_params(&param.words, from[i].words);
  }
}

// Adds the record of another process, or of another handle, for the same kernel.
void add_kernel(KernelRecord* to, const KernelRecord& from) {
  add_to(&to->launches, from.launches);
  add_to(&to->nodes, from.nodes);
  add_to(&to->failed, from.failed);
  to->other.add(from.other);
  for (const auto& [geometry, counts] : from.geometries) {
    to->geometries[geometry].add(counts);
  }
  for (const auto& [key, runs] : from.runs) to->runs[key].add(runs);
  to->shares_runs |= from.shares_runs;
  for (const auto& [outcome, count] : from.outcomes) add_to(&to->outcomes[outcome], count);
  add_params(&to->params, from.params);
}

// Reads one file's blocks. Every block must be within the bytes, and all its contents within the
// block.
class BlockReader {
 public:
  explicit BlockReader(std::string_view bytes) : bytes_(bytes) {}

  // Why the file is damaged; empty if it is not.
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
      if (!read_block(block, at)) return fmt::format("the block at {} makes no sense", at);
      at += block.bytes;
    }
    assign_runs();
    return "";
  }

  std::vector<KernelRecord> move_kernels() { return std::move(kernels_); }
  std::vector<DeviceTime> move_devices() { return std::move(devices_); }

 private:
  template <class T>
  void copy(T* out, uint64_t at) const {
    memcpy(out, bytes_.data() + at, sizeof *out);
  }

  bool read_block(const RecordedBlock& block, uint64_t at) {
    switch (block.kind) {
      case RecordedKind::kernel: return read_kernel(at, block.bytes);
      case RecordedKind::geometry: return read_geometry(at, block.bytes);
      case RecordedKind::name: return read_name(at, block.bytes);
      case RecordedKind::runs: return read_runs(at, block.bytes);
      case RecordedKind::device: return read_device(at, block.bytes);
    }
    return false;
  }

  bool read_kernel(uint64_t at, uint64_t block_bytes) {
    RecordedKernel raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    const uint64_t params_bytes =
        (uint64_t{raw.param_count} + raw.word_count) * sizeof(RecordedParam);
    const uint64_t values_bytes = uint64_t{raw.value_count} * sizeof(RecordedValue);
    if (raw.param_count > kMaxRecordedParams || raw.word_count > kRecordedWords ||
        raw.symbol_bytes == 0 ||
        raw.value_count > (raw.param_count + raw.word_count) * kRecordedValues ||
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
    if (raw.code_high != 0 || raw.code_low != 0) {
      kernel.code = fmt::format("code:{:016x}{:016x}", raw.code_high, raw.code_low);
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
    for (uint32_t i = 0; i < raw.param_count + raw.word_count; ++i) {
      RecordedParam raw_param;
      copy(&raw_param, params_at + i * sizeof raw_param);
      ParamRecord param{raw_param.offset, raw_param.size, raw_param.bits, raw_param.others, {}};
      if (raw_param.memory <= RecordedMemory::some) param.memory = raw_param.memory;
      if (raw_param.first_value != UINT32_MAX) {
        if (uint64_t{raw_param.first_value} + kRecordedValues > raw.value_count) return false;
        for (uint32_t k = 0; k < kRecordedValues; ++k) {
          RecordedValue value;
          copy(&value, values_at + (raw_param.first_value + k) * sizeof value);
          if (value.count == 0) break;
          add_to(&param.values[value.value], value.count);
        }
      }
      if (!param.is_possible()) return false;
      if (i < raw.param_count) {
        kernel.params.push_back(std::move(param));
      } else if (!add_word(std::move(param), &kernel.params)) {
        return false;
      }
    }
    index_.emplace(at, kernels_.size());
    kernels_.push_back(std::move(kernel));
    return true;
  }

  // Adds a word to the struct that contains it. Returns false if there is none.
  static bool add_word(ParamRecord word, std::vector<ParamRecord>* params) {
    const auto found = std::ranges::find_if(*params, [&](const ParamRecord& param) {
      return !has_recorded_values(param.size) && word.offset >= param.offset &&
             word.offset + word.size <= param.offset + param.size;
    });
    if (found == params->end() || !has_recorded_values(word.size)) return false;
    word.offset -= found->offset;
    if (!found->words.empty() &&
        word.offset < found->words.back().offset + found->words.back().size) {
      return false;
    }
    found->words.push_back(std::move(word));
    return true;
  }

  bool read_geometry(uint64_t at, uint64_t block_bytes) {
    RecordedGeometry raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    const auto kernel = index_.find(raw.kernel_at);  // a kernel comes before its geometries
    if (kernel == index_.end()) return false;
    Geometry geometry;
    std::copy(std::begin(raw.geometry), std::end(raw.geometry), geometry.begin());
    kernels_[kernel->second].geometries[geometry].add(
        {raw.launches, raw.nodes, times_of(raw.times)});
    return true;
  }

  bool read_name(uint64_t at, uint64_t block_bytes) {
    RecordedName raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    if (raw.symbol_bytes == 0 || raw.symbol_bytes > block_bytes - sizeof raw) return false;
    const char* const symbol = bytes_.data() + at + sizeof raw;
    names_[at].symbol.assign(symbol, strnlen(symbol, raw.symbol_bytes));
    return !names_[at].symbol.empty();
  }

  bool read_runs(uint64_t at, uint64_t block_bytes) {
    RecordedRuns raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    const auto name = names_.find(raw.name_at);  // a name comes before its runs
    if (name == names_.end()) return false;
    Geometry geometry;
    std::copy(std::begin(raw.geometry), std::end(raw.geometry), geometry.begin());
    name->second.runs[{geometry, raw.is_in_graph != 0}].add(
        {times_of(raw.warm_up), times_of(raw.times)});
    return true;
  }

  bool read_device(uint64_t at, uint64_t block_bytes) {
    RecordedDevice raw;
    if (block_bytes < sizeof raw) return false;
    copy(&raw, at);
    // The shim may be writing the block now, so that its numbers do not belong together.
    const uint64_t span_ns = raw.last_ns - std::min(raw.first_ns, raw.last_ns);
    devices_.push_back({raw.device, span_ns, std::min(raw.busy_ns, span_ns)});
    return true;
  }

  // CUPTI reports names and geometries, not images: of kernels with the same, the first gets the
  // runs.
  void assign_runs() {
    std::unordered_map<std::string_view, std::vector<size_t>> of_symbol;
    const size_t launched = kernels_.size();
    for (size_t i = 0; i < launched; ++i) of_symbol[kernels_[i].symbol].push_back(i);
    std::vector<KernelRecord> others;
    for (auto& [at, name] : names_) {
      const auto found = of_symbol.find(name.symbol);
      if (found == of_symbol.end()) {
        others.push_back(std::move(name));
      } else {
        for (const auto& [key, runs] : name.runs) assign(key, runs, found->second);
      }
    }
    std::ranges::move(others, std::back_inserter(kernels_));
  }

  void assign(const RunKey& key, const Runs& runs, const std::vector<size_t>& of_name) {
    std::vector<size_t> candidates;
    for (const size_t i : of_name) {
      if (has_geometry(kernels_[i], key.first)) candidates.push_back(i);
    }
    if (candidates.empty()) candidates = of_name;
    kernels_[candidates.front()].runs[key].add(runs);
    for (const size_t i : candidates) kernels_[i].shares_runs |= candidates.size() > 1;
  }

  // Compares all but the cluster: a kernel may be compiled with one, which no launch states.
  static bool has_geometry(const KernelRecord& kernel, const Geometry& wanted) {
    return std::ranges::any_of(kernel.geometries, [&](const auto& one) {
      const Geometry& geometry = one.first;
      return std::equal(wanted.begin(), wanted.begin() + 6, geometry.begin()) &&
             wanted[9] == geometry[9];
    });
  }

  std::string_view bytes_;
  std::vector<KernelRecord> kernels_;
  std::vector<DeviceTime> devices_;
  std::unordered_map<uint64_t, size_t> index_;  // by the block's place
  std::map<uint64_t, KernelRecord> names_;      // records that have only runs
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
  process.dropped_runs = header.dropped_runs;
  process.cupti_version = header.cupti_version;
  process.timing =
      header.timing <= RecordedTiming::taken_over ? header.timing : RecordedTiming::events;
  process.timing_reason = text_of(header.timing_reason);
  process.devices = reader.move_devices();
  process.bytes = header.used_bytes;
  recording->processes.push_back(std::move(process));
  for (KernelRecord& kernel : reader.move_kernels()) kernels->push_back(std::move(kernel));
  return {};
}

// Records with equal keys are of the same kernel.
std::string kernel_key(const KernelRecord& kernel) {
  std::string key = fmt::format("{}\n{}\n{}\n", kernel.symbol, kernel.image, kernel.sm);
  for (const ParamRecord& param : kernel.params) {
    key += fmt::format("{}:{} ", param.offset, param.size);
  }
  return key;
}

// Adds the kernels to the recording; records of the same kernel are added up.
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
  recording->sort_kernels();
}

void add_file(const std::string& name, std::string_view bytes, Recording* out,
              std::vector<KernelRecord>* kernels) {
  const auto read = read_file_into(name, bytes, out, kernels);
  if (!read) out->refused.push_back({name, read.error()});
}

}  // namespace

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
  std::ranges::sort(paths);
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
  merge(std::move(kernels), &out);
  return out;
}

Recording read_recording_file(const std::string& name, std::string_view bytes) {
  Recording out;
  std::vector<KernelRecord> kernels;
  add_file(name, bytes, &out, &kernels);
  merge(std::move(kernels), &out);
  return out;
}

}  // namespace fibshim::tools
