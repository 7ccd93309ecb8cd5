#include "tools/counters/counters_files.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "shim/abi/outcomes.h"
#include "shim/abi/writers.h"
#include "tools/base/files.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

// Limit for one file, far above what a shim writes.
constexpr uint64_t kMaxCounterBytes = uint64_t{1} << 30;

// Reads exactly `size` bytes at `at`. Returns false if the file is shorter, or on an error (errno).
bool read_exactly(int fd, void* to, size_t size, uint64_t at) {
  char* out = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = pread(fd, out, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got == 0) errno = 0;
      return false;
    }
    out += got;
    size -= static_cast<size_t>(got);
    at += static_cast<uint64_t>(got);
  }
  return true;
}

std::string read_failure(std::string_view what) {
  return errno == 0 ? fmt::format("truncated: it ends within {}", what)
                    : fmt::format("cannot read {}: {}", what, strerror(errno));
}

// Why the header cannot be trusted; empty if it can. Then no sum of its numbers overflows.
std::string header_fault(const FileHeader& header, uint64_t file_bytes) {
  if (header.header_bytes != sizeof(FileHeader) || header.outcome_slots != kOutcomeSlots ||
      header.count_kinds != kCountKinds || header.series_entry_bytes != sizeof(SeriesEntry)) {
    return fmt::format(
        "its record sizes ({}, {}, {}, {}) are not those of version {} ({}, {}, {}, {})",
        header.header_bytes, header.outcome_slots, header.count_kinds, header.series_entry_bytes,
        kCountersVersion, sizeof(FileHeader), kOutcomeSlots, kCountKinds, sizeof(SeriesEntry));
  }
  if (header.series_capacity == 0 || header.series_capacity > kSeriesCapacity) {
    return fmt::format("it claims room for {} series", header.series_capacity);
  }
  if (header.series_count > header.series_capacity) {
    return fmt::format("it claims {} series with room for {}", header.series_count,
                       header.series_capacity);
  }
  if (header.control_at < sizeof(FileHeader) || header.control_at > file_bytes ||
      file_bytes - header.control_at < sizeof(ControlBlock) ||
      header.control_at % sizeof(uint64_t) != 0) {
    return "its control block lies elsewhere";
  }
  if (header.shadow_entry_bytes != sizeof(ShadowEntry) ||
      header.shadow_capacity > kShadowCapacity || header.shadow_count > header.shadow_capacity ||
      header.shadow_at < sizeof(FileHeader) || header.shadow_at > file_bytes ||
      file_bytes - header.shadow_at < uint64_t{header.shadow_capacity} * sizeof(ShadowEntry)) {
    return fmt::format("it claims {} entries of shadow checks elsewhere", header.shadow_count);
  }
  const uint64_t series_bytes = uint64_t{header.series_capacity} * sizeof(SeriesEntry);
  const uint64_t shard_bytes =
      uint64_t{header.series_capacity} * kCountersPerSeries * sizeof(uint64_t);
  if (header.series_at < sizeof(FileHeader) || header.series_at > file_bytes ||
      header.shards_at > file_bytes || header.shards_at < header.series_at + series_bytes ||
      header.shards_at % sizeof(uint64_t) != 0) {
    return fmt::format("its parts overlap or lie outside its {} bytes", file_bytes);
  }
  if (header.shard_count > 0) {
    uint64_t shards_bytes;
    if (header.shard_stride < shard_bytes || header.shard_stride % sizeof(uint64_t) != 0 ||
        __builtin_mul_overflow(header.shard_stride, uint64_t{header.shard_count}, &shards_bytes) ||
        shards_bytes > file_bytes - header.shards_at) {
      return fmt::format("its {} shards lie outside its {} bytes", header.shard_count, file_bytes);
    }
  }
  const uint64_t to_read =
      uint64_t{header.shard_count} * header.series_count * kCountersPerSeries * sizeof(uint64_t);
  if (to_read > kMaxCounterBytes) return fmt::format("it claims {} bytes of counters", to_read);
  if (header.device_count > kMaxCountedDevices || header.config_count > kMaxCountedConfigs) {
    return fmt::format("it claims {} devices and {} configs", header.device_count,
                       header.config_count);
  }
  return "";
}

// True if the process has created the file and not yet written its header, or died just then: the
// magic is written last. Such a file holds no counts.
bool is_unbegun(const FileHeader& header) {
  constexpr char kZeros[sizeof header.magic] = {};
  return memcmp(header.magic, kZeros, sizeof kZeros) == 0;
}

std::string digest_text(const uint64_t (&digest)[2]) {
  return fmt::format("{:016x}{:016x}", digest[1], digest[0]);
}

// Reads what the process says about its folder. It writes rarely and briefly. If it died during a
// write, this returns what had been written by then.
bool read_status(int fd, const FileHeader& header, ControlStatus* out) {
  constexpr int kMostAttempts = 100;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    uint32_t after = 0;
    if (!read_exactly(fd, out, sizeof *out, header.control_at) ||
        !read_exactly(fd, &after, sizeof after,
                      header.control_at + offsetof(ControlStatus, version))) {
      return false;
    }
    if (out->version % 2 == 0 && out->version == after) break;
    sched_yield();
  }
  return true;
}

FolderInForce folder_of(const ControlStatus& status, const std::vector<ConfigIdentity>& configs) {
  FolderInForce out;
  if (status.version == 0) {  // no thread has written it yet
    if (!configs.empty()) out.config = configs.back();
    return out;
  }
  out.has_watcher = status.has_watcher != 0;
  out.state = status.state;
  out.config.path = text_of(status.folder);
  if (!out.config.path.empty()) out.config.digest = digest_text(status.digest);
  out.previous = text_of(status.previous);
  out.configured = text_of(status.configured);
  out.swap_count = status.swap_count;
  out.refused_count = status.refused_count;
  out.refusal = text_of(status.refusal);
  out.job = text_of(status.job);
  out.image_count = status.image_count;
  out.image_bytes = status.image_bytes;
  out.kept_image_count = status.kept_image_count;
  out.kept_image_bytes = status.kept_image_bytes;
  return out;
}

// A number that cannot be a difference counts as 0.
double zero_unless_positive(double difference) {
  return std::isfinite(difference) && difference > 0 ? difference : 0;
}

ShadowNumbers numbers_of(const ShadowEntry& entry) {
  ShadowNumbers out{.checks = entry.checks,
                    .mismatches = entry.mismatches,
                    .elements = entry.elements,
                    .wrong_elements = entry.wrong_elements,
                    .nans = entry.nans,
                    .infinities = entry.infinities,
                    .largest_difference = zero_unless_positive(entry.largest_difference),
                    .largest_mean = zero_unless_positive(entry.largest_mean)};
  std::ranges::copy(entry.not_checked, out.not_checked);
  std::ranges::copy(entry.buckets, out.buckets);
  return out;
}

// Memory taken by the texts and counts of a process.
uint64_t kept_bytes(const ProcessCounters& process) {
  const FolderInForce& folder = process.folder;
  uint64_t out = sizeof process + process.file.size() + process.mode.size() +
                 process.executable.size() + process.command.size() + folder.config.path.size() +
                 folder.config.digest.size() + folder.previous.size() + folder.configured.size() +
                 folder.refusal.size() + folder.job.size();
  for (const DeviceIdentity& device : process.devices) out += sizeof device + device.name.size();
  for (const ConfigIdentity& config : process.configs) {
    out += sizeof config + config.path.size() + config.digest.size();
  }
  for (const Count& count : process.counts) {
    out += sizeof count + count.pattern.size() + count.definition.size() + count.solution.size();
  }
  for (const KeptNodes& kept : process.kept) {
    out += sizeof kept + kept.pattern.size() + kept.definition.size();
  }
  for (const ShadowCount& count : process.shadow) {
    out += sizeof count + count.pattern.size() + count.definition.size() + count.solution.size() +
           count.shape.size();
  }
  return out;
}

// Charges `bytes` to the budget `*left`. Returns false, and charges nothing, if too little is left.
bool spend_bytes(uint64_t bytes, uint64_t* left) {
  if (bytes > *left) return false;
  *left -= bytes;
  return true;
}

std::string left_out(std::string_view what, uint64_t most) {
  return fmt::format("left out: with it, more than {} MiB of counters would be {}", most >> 20,
                     what);
}

// True if a live process can have created a file of this user. A process that has changed users
// since then created it as root.
bool is_of_process(uint64_t pid, uid_t file_owner) {
  if (file_owner == 0) return true;
  const std::string status = read_small_file(fmt::format("/proc/{}/status", pid));
  const size_t at = status.find("\nUid:");
  if (at == std::string::npos) return true;  // the process has ended meanwhile
  const char* text = status.c_str() + at + strlen("\nUid:");
  for (int i = 0; i < 4; ++i) {  // real, effective, saved and file system user
    char* end = nullptr;
    if (strtoul(text, &end, 10) == file_owner && end != text) return true;
    text = end;
  }
  return false;
}

// The device of counts that the shim does not tell apart: known where there is only one.
int32_t only_device(const FileHeader& header) { return header.device_count == 1 ? 0 : -1; }

}  // namespace

tl::expected<FileDescriptor, std::string> open_counters_file(int folder_fd,
                                                             const std::string& name) {
  // Does not follow a link, and does not wait for the other end of a FIFO.
  FileDescriptor file(
      openat(folder_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file) return file;
  if (errno == ELOOP) return tl::unexpected(std::string("it is a symbolic link"));
  return tl::unexpected(fmt::format("cannot open it: {}", strerror(errno)));
}

tl::expected<std::optional<ProcessCounters>, std::string> read_counters_file(
    int folder_fd, const std::string& name) {
  const auto file = open_counters_file(folder_fd, name);
  if (!file) return tl::unexpected(file.error());
  return read_open_counters_file(file->get(), name);
}

tl::expected<std::optional<ProcessCounters>, std::string> read_open_counters_file(
    int fd, const std::string& name, ReadingBudget* budget) {
  struct stat status;
  if (fstat(fd, &status) != 0) {
    return tl::unexpected(fmt::format("cannot read its size: {}", strerror(errno)));
  }
  // Whether a user's counters may be read was decided for the whole folder.
  if (const char* const fault = file_fault(status, true)) {
    return tl::unexpected(std::string(fault));
  }

  // On the heap: it is 12 KB, and the compiler need not clear it.
  const auto header = std::make_unique<FileHeader>();
  if (status.st_size == 0) return std::nullopt;
  if (!read_exactly(fd, header.get(), sizeof(FileHeader), 0)) {
    return tl::unexpected(read_failure("the header"));
  }
  if (is_unbegun(*header)) return std::nullopt;
  if (memcmp(header->magic, kCountersMagic, sizeof kCountersMagic) != 0) {
    return tl::unexpected(std::string("not a counters file: it does not begin with 'FIBCNTR'"));
  }
  if (header->version != kCountersVersion) {
    return tl::unexpected(
        fmt::format("format version {}; this fibshim reads version {}: use the fibshim that came "
                    "with the shim that wrote it",
                    header->version, kCountersVersion));
  }
  // Reads the size after the header: a shard was added to the file before the header counted it.
  if (fstat(fd, &status) != 0) {
    return tl::unexpected(fmt::format("cannot read its size: {}", strerror(errno)));
  }
  if (std::string fault = header_fault(*header, static_cast<uint64_t>(status.st_size));
      !fault.empty()) {
    return tl::unexpected("damaged: " + std::move(fault));
  }

  ProcessCounters out;
  out.file = name;
  out.owner = status.st_uid;
  out.pid = header->pid;
  out.start_time = header->start_time;
  out.created_unix_ns = header->created_unix_ns;
  const bool has_process = is_process_alive(header->pid, header->start_time);
  if (has_process && !is_of_process(header->pid, status.st_uid)) {
    return tl::unexpected(
        fmt::format("it says that it is of process {}, which is another user's", header->pid));
  }
  out.is_alive = has_process || find_writer(fd) == Writer::some;
  out.mode = mode_name(header->mode);
  out.executable = text_of(header->executable);
  out.command = text_of(header->command);
  for (uint32_t i = 0; i < header->device_count; ++i) {
    out.devices.push_back({header->devices[i].sm, text_of(header->devices[i].name)});
  }
  for (uint32_t i = 0; i < header->config_count; ++i) {
    const CountedConfig& config = header->configs[i];
    out.configs.push_back({text_of(config.path), digest_text(config.digest)});
  }
  const auto status_block = std::make_unique<ControlStatus>();
  if (!read_status(fd, *header, status_block.get())) {
    return tl::unexpected(read_failure("its control block"));
  }
  out.folder = folder_of(*status_block, out.configs);

  const uint64_t shard_bytes = header->series_count * kCountersPerSeries * sizeof(uint64_t);
  if (budget != nullptr && budget->kept_left == 0) {
    return tl::unexpected(left_out("kept", ReadingBudget::kMostKeptBytes));
  }
  const uint64_t read_bytes =
      header->series_count * sizeof(SeriesEntry) + header->shard_count * shard_bytes;
  if (budget != nullptr && !spend_bytes(read_bytes, &budget->read_left)) {
    return tl::unexpected(left_out("read", ReadingBudget::kMostReadBytes));
  }
  std::vector<SeriesEntry> series(header->series_count);
  if (!read_exactly(fd, series.data(), series.size() * sizeof(SeriesEntry), header->series_at)) {
    return tl::unexpected(read_failure("its series"));
  }
  std::vector<uint64_t> sums(series.size() * kCountersPerSeries);
  std::vector<uint64_t> shard(sums.size());
  for (uint32_t i = 0; i < header->shard_count; ++i) {
    if (!read_exactly(fd, shard.data(), shard.size() * sizeof(uint64_t),
                      header->shards_at + i * header->shard_stride)) {
      return tl::unexpected(read_failure("its counters"));
    }
    for (size_t k = 0; k < sums.size(); ++k) sums[k] = saturating_add(sums[k], shard[k]);
  }
  for (size_t s = 0; s < series.size(); ++s) {
    for (uint32_t outcome = 0; outcome < kOutcomeSlots; ++outcome) {
      const uint64_t* const first = &sums[s * kCountersPerSeries + outcome];
      const auto number = [first](CountKind kind) {
        return first[static_cast<uint32_t>(kind) * kOutcomeSlots];
      };
      const int32_t device = series[s].device >= 0 ? series[s].device : only_device(*header);
      if (const uint64_t kept = number(CountKind::kept); kept != 0) {
        out.kept.push_back(
            {device, text_of(series[s].pattern), text_of(series[s].definition), outcome, kept});
      }
      const uint64_t made = number(CountKind::launch);
      const LaunchNumbers numbers = {
          saturating_add(made, number(CountKind::node)), number(CountKind::node),
          saturating_add(made, number(CountKind::node_run)), number(CountKind::body_node)};
      if (numbers == LaunchNumbers{}) continue;
      out.counts.push_back({series[s].config, device, text_of(series[s].pattern),
                            text_of(series[s].definition), text_of(series[s].solution), outcome,
                            numbers, series[s].image, std::to_array(series[s].shapes)});
    }
  }
  std::vector<ShadowEntry> entries(header->shadow_count);
  if (!read_exactly(fd, entries.data(), entries.size() * sizeof(ShadowEntry), header->shadow_at)) {
    return tl::unexpected(read_failure("its shadow checks"));
  }
  for (const ShadowEntry& entry : entries) {
    if (entry.series >= series.size()) continue;
    const SeriesEntry& of = series[entry.series];
    const int32_t device = of.device >= 0 ? of.device : only_device(*header);
    out.shadow.push_back({of.config, device, text_of(of.pattern), text_of(of.definition),
                          text_of(of.solution), text_of(entry.shape), numbers_of(entry)});
  }
  if (budget != nullptr && !spend_bytes(kept_bytes(out), &budget->kept_left)) {
    budget->kept_left = 0;  // the remaining files are not even read
    return tl::unexpected(left_out("kept", ReadingBudget::kMostKeptBytes));
  }
  return out;
}

Writer find_writer(int fd) {
  // A read lease is refused while any process has the file open for writing. The lease is released
  // at once. If a process opens the file for writing in between, it waits until then; the signal
  // that reports it is ignored.
  signal(SIGIO, SIG_IGN);
  if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return Writer::none;
  }
  return errno == EAGAIN ? Writer::some : Writer::unknown;
}

std::string mode_name(uint32_t mode) {
  const auto& choices = kSettings[static_cast<size_t>(SettingId::mode)].choices;
  return mode < std::size(choices) && choices[mode] != nullptr ? choices[mode]
                                                               : fmt::format("mode_{}", mode);
}

void LaunchNumbers::add(const LaunchNumbers& more) {
  launches = saturating_add(launches, more.launches);
  nodes = saturating_add(nodes, more.nodes);
  executions = saturating_add(executions, more.executions);
  body_nodes = saturating_add(body_nodes, more.body_nodes);
}

uint64_t saturating_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

bool is_process_alive(uint64_t pid, uint64_t start_time) {
  const FileDescriptor file(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  char buffer[2048];
  const ssize_t got = read(file.get(), buffer, sizeof buffer);
  if (got <= 0) return false;
  // "pid (name) state ...": the name may hold blanks and brackets, so count from the last ')'.
  std::string_view rest(buffer, static_cast<size_t>(got));
  const size_t bracket = rest.rfind(')');
  if (bracket == std::string_view::npos) return false;
  rest.remove_prefix(bracket + 1);
  for (int field = 3; !rest.empty(); ++field) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const std::string_view value = rest.substr(0, rest.find(' '));
    if (field == 3 && (value == "Z" || value == "X")) return false;
    if (field == 22) {
      uint64_t actual = 0;
      std::from_chars(value.data(), value.data() + value.size(), actual);
      return actual == start_time;
    }
    rest.remove_prefix(value.size());
  }
  return false;
}

std::string outcome_name(uint32_t outcome) {
  return outcome < kOutcomeCount ? kOutcomes[outcome].name : fmt::format("outcome_{}", outcome);
}

}  // namespace fibshim::tools
