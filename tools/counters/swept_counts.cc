#include "tools/counters/swept_counts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shim/abi/counters_format.h"
#include "tools/base/atomic_file.h"
#include "tools/base/json_input.h"

namespace fibshim::tools {
namespace {

constexpr int kVersion = 1;
constexpr off_t kMaxFileBytes = 64 << 20;
// Distinct counts that are kept apart. Those of later names are added up under "(other)".
constexpr size_t kMaxCounts = 20000;
constexpr char kOther[] = "(other)";
constexpr mode_t kWriteBits = 0222;

// Whose swept.json counts. A file of another user in a shared folder does not, also for root.
bool may_keep_sums(const OpenFolder& folder, uid_t user) {
  return user == 0 || user == geteuid() || user == folder.owner;
}

tl::expected<std::string, std::string> read_text(const OpenFolder& folder, const char* name) {
  struct stat status;
  if (fstatat(folder.fd.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      !may_keep_sums(folder, status.st_uid)) {
    return std::string();
  }
  const FileDescriptor file(
      openat(folder.fd.get(), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::string();
    return tl::unexpected(errno == ELOOP ? std::string("it is a symbolic link")
                                         : std::string(strerror(errno)));
  }
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return tl::unexpected(std::string("it is not a regular file"));
  }
  if (!may_keep_sums(folder, status.st_uid)) return std::string();
  if (status.st_nlink > 1) return tl::unexpected(std::string("it has several names (hard links)"));
  if (status.st_size > kMaxFileBytes) return tl::unexpected(std::string("it is too large"));
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return tl::unexpected(std::string("it cannot be read"));
    length += static_cast<size_t>(got);
  }
  return text;
}

SweptCount count_from_json(const nlohmann::json& json) {
  SweptCount count{
      json.at("config").get<std::string>(),     integer_of<int32_t>(json.at("device")),
      json.at("pattern").get<std::string>(),    json.at("definition").get<std::string>(),
      integer_of<uint32_t>(json.at("outcome")), integer_of<uint64_t>(json.at("count"))};
  // Each outcome is a series of its own to a monitoring system.
  if (count.outcome >= kOutcomeSlots) throw std::range_error("an outcome is out of range");
  return count;
}

SweptCounts from_json(const nlohmann::json& json) {
  SweptCounts out;
  out.generation = integer_of<uint64_t>(json.at("generation"));
  out.process_count = integer_of<uint64_t>(json.at("processes"));
  for (const nlohmann::json& item : json.at("counts")) {
    if (out.counts.size() == kMaxCounts + kOutcomeSlots) throw std::range_error("too many counts");
    out.counts.push_back(count_from_json(item));
  }
  for (const nlohmann::json& item : json.at("last_files")) {
    out.last_files.push_back(item.get<std::string>());
    if (!identity_in_file_name(out.last_files.back())) {
      throw std::range_error("last_files names what is no counters file");
    }
  }
  return out;
}

std::string to_text(const SweptCounts& swept) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["generation"] = swept.generation;
  json["processes"] = swept.process_count;
  json["counts"] = nlohmann::ordered_json::array();
  for (const SweptCount& count : swept.counts) {
    json["counts"].push_back({{"config", count.config},
                              {"device", count.device},
                              {"pattern", count.pattern},
                              {"definition", count.definition},
                              {"outcome", count.outcome},
                              {"count", count.count}});
  }
  json["last_files"] = swept.last_files;
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Adds the counts of one file, in its order: what came first keeps its name when there is no room.
void add_process(const ProcessCounters& process, SweptCounts* swept) {
  using Key = std::tuple<std::string, int32_t, std::string, std::string, uint32_t>;
  std::map<Key, size_t> places;
  for (size_t i = 0; i < swept->counts.size(); ++i) {
    const SweptCount& count = swept->counts[i];
    places.emplace(Key{count.config, count.device, count.pattern, count.definition, count.outcome},
                   i);
  }
  ++swept->process_count;
  for (const Count& count : process.counts) {
    const bool has_config = !count.pattern.empty() && count.config < process.configs.size();
    Key key{has_config ? process.configs[count.config].path : "", count.device, count.pattern,
            count.definition, count.outcome};
    if (!places.contains(key) && places.size() >= kMaxCounts) {
      key = {"", -1, kOther, kOther, count.outcome};
    }
    const auto [place, is_new] = places.emplace(key, swept->counts.size());
    if (is_new) {
      const auto& [config, device, pattern, definition, outcome] = key;
      swept->counts.push_back({config, device, pattern, definition, outcome, 0});
    }
    uint64_t& sum = swept->counts[place->second].count;
    sum = saturating_add(sum, count.count);
  }
}

// The lock on the folder. Nothing when another process holds it.
bool lock_folder(const FileDescriptor& folder) {
  return flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
}

uint64_t unix_time_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

enum class Age : uint8_t { in_use, kept, due };

// Marks a file that is seen to be ended for the first time. Its writer is gone and its permission
// to write is the mark, so its time of change, set now, moves no more.
Age age_of(int fd, const struct stat& status, std::chrono::seconds keep_time) {
  if (find_writer(fd) != Writer::none) return Age::in_use;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if ((status.st_mode & kWriteBits) != 0) {
    const timespec times[2] = {now, now};
    if (futimens(fd, times) != 0 || fchmod(fd, status.st_mode & 0555) != 0) return Age::in_use;
    return keep_time.count() == 0 ? Age::due : Age::kept;
  }
  return now.tv_sec - status.st_mtim.tv_sec >= keep_time.count() ? Age::due : Age::kept;
}

// By its name, a file of a process that has ended.
bool is_of_ended_process(const std::string& name) {
  const auto identity = identity_in_file_name(name);
  return identity && !is_process_alive(identity->pid, identity->start_time);
}

// Whoever may make names in the folder can make one for any file: its rights are not ours to take.
bool is_sweepable(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_nlink == 1 && is_ours_to_change(status.st_uid);
}

// Invalid when it is not due.
FileDescriptor open_if_due(int folder_fd, const std::string& name, std::chrono::seconds keep_time) {
  FileDescriptor none(-1);
  if (!is_of_ended_process(name)) return none;
  FileDescriptor file(
      openat(folder_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0 || !is_sweepable(status)) return none;
  return age_of(file.get(), status, keep_time) == Age::due ? std::move(file) : std::move(none);
}

// What a sweep that was cut short has left: named in swept.json, and nothing else than it was.
std::vector<std::string> left_by_sweep(int folder_fd, const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    struct stat status;
    if (fstatat(folder_fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        is_sweepable(status) && is_of_ended_process(name)) {
      out.push_back(name);
    }
  }
  return out;
}

// A name of our own, whatever it is one of.
bool is_removable(int folder_fd, const char* name) {
  struct stat status;
  return fstatat(folder_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         is_ours_to_change(status.st_uid);
}

void remove_files(int folder_fd, const std::vector<std::string>& names, Removal* out) {
  for (const std::string& name : names) {
    if (unlinkat(folder_fd, name.c_str(), 0) == 0) {
      out->removed.push_back(name);
    } else if (errno != ENOENT) {
      out->kept.push_back({name, strerror(errno)});
    }
  }
}

}  // namespace

tl::expected<SweptCounts, std::string> read_swept_counts(const OpenFolder& folder) {
  const auto text = read_text(folder, kSweptFileName);
  if (!text) return tl::unexpected(text.error());
  return parse_swept_counts(*text);
}

tl::expected<SweptCounts, std::string> parse_swept_counts(std::string_view text) {
  if (text.empty()) return SweptCounts();
  const nlohmann::json json = parse_json(text);
  try {
    if (json.is_discarded()) return tl::unexpected(std::string("damaged: it is not JSON"));
    const int version = integer_of<int>(json.at("version"));
    if (version != kVersion) {
      return tl::unexpected(
          fmt::format("format version {}; this fibshim reads version {}", version, kVersion));
    }
    return from_json(json);
  } catch (const std::exception& error) {
    return tl::unexpected(fmt::format("damaged: {}", error.what()));
  }
}

tl::expected<Removal, std::string> sweep_ended_counters(const std::string& folder,
                                                        std::chrono::seconds keep_time) {
  auto opened = open_counters_folder(folder);
  if (!opened) return tl::unexpected(opened.error());
  Removal out;
  if (!opened->fd) return out;
  if (!opened->change_fault.empty()) return tl::unexpected(opened->change_fault);
  // Its swept.json is for all who keep counters there.
  if (opened->owner != geteuid()) return tl::unexpected(std::string("only its owner sweeps it"));
  if (!lock_folder(opened->fd)) return out;
  const int folder_fd = opened->fd.get();
  auto swept = read_swept_counts(*opened);
  if (!swept) return tl::unexpected(fmt::format("{}: {}", kSweptFileName, swept.error()));
  // A sweep that was cut short: these are counted already.
  remove_files(folder_fd, left_by_sweep(folder_fd, swept->last_files), &out);
  const std::set<std::string> counted(swept->last_files.begin(), swept->last_files.end());
  std::vector<std::string> due;
  for (const std::string& name : opened->names) {
    if (counted.contains(name)) continue;
    const FileDescriptor file = open_if_due(folder_fd, name, keep_time);
    if (!file) continue;
    // A damaged file has nothing to add; it stays to be seen, until it is cleared.
    const auto process = read_open_counters_file(file.get(), name);
    if (!process) continue;
    if (process->has_value()) add_process(**process, &*swept);
    due.push_back(name);
  }
  if (due.empty()) return out;
  // What could not be removed must not be counted again.
  swept->last_files = due;
  for (const RefusedFile& kept : out.kept) swept->last_files.push_back(kept.file);
  // By the clock, so that it is new after a clearing, too.
  swept->generation = std::max(swept->generation + 1, unix_time_ns());
  const std::string reason =
      write_file_atomically(folder_fd, kSweptFileName, to_text(*swept), 0644);
  if (!reason.empty()) return tl::unexpected(fmt::format("{}: {}", kSweptFileName, reason));
  remove_files(folder_fd, due, &out);
  return out;
}

tl::expected<Removal, std::string> clear_ended_counters(const std::string& folder) {
  auto opened = open_counters_folder(folder);
  if (!opened) return tl::unexpected(opened.error());
  Removal out;
  if (!opened->fd) return out;
  if (!opened->change_fault.empty()) return tl::unexpected(opened->change_fault);
  if (!lock_folder(opened->fd)) {
    return tl::unexpected(std::string("another fibshim sweeps it at this moment; try again"));
  }
  std::vector<std::string> ended;
  for (const std::string& name : opened->names) {
    if (!is_of_ended_process(name) || !is_removable(opened->fd.get(), name.c_str())) continue;
    const FileDescriptor file(
        openat(opened->fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file && find_writer(file.get()) == Writer::some) continue;
    ended.push_back(name);
  }
  remove_files(opened->fd.get(), ended, &out);
  if (out.kept.empty() && is_removable(opened->fd.get(), kSweptFileName)) {
    (void)unlinkat(opened->fd.get(), kSweptFileName, 0);
  }
  return out;
}

}  // namespace fibshim::tools
