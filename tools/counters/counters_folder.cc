#include "tools/counters/counters_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include <fmt/format.h>

#include "shim/abi/writers.h"
#include "tools/base/setting_values.h"

namespace fibshim::tools {
namespace {

bool has_counters_suffix(std::string_view name) {
  const std::string_view suffix = kCountersSuffix;
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix &&
         name[0] != '.';  // a file that is being made
}

std::string text_of_fault(const char* fault) { return fault == nullptr ? "" : fault; }

// Whose the folder is, and what follows from it. Empty, or why it is not even read.
std::string judge_folder(const std::string& path, OpenFolder* folder) {
  struct stat status;
  if (fstat(folder->fd.get(), &status) != 0) return strerror(errno);
  folder->owner = status.st_uid;
  const char* const fault = folder_fault(status);
  folder->change_fault = text_of_fault(fault != nullptr ? fault : exchange_fault(path.c_str()));
  // The default folder is where the shim counts by itself, and everybody knows its name.
  return !is_ours(status.st_uid) && path == default_stats_folder() ? folder->change_fault : "";
}

// Its descriptor is invalid where there is none.
tl::expected<FileDescriptor, std::string> open_path(const std::string& path) {
  const char* fault;
  FileDescriptor folder(open_folder(path.c_str(), &fault));
  if (fault != nullptr) return tl::unexpected(std::string(fault));
  if (folder || errno == ENOENT) return folder;
  return tl::unexpected(fmt::format("cannot read the folder: {}", strerror(errno)));
}

// Each costs memory, and whoever may write in the folder may make any number.
constexpr size_t kMostNames = 1 << 20;
constexpr size_t kMostFiles = 16384;

// Empty, or why they cannot be listed.
std::string list_files(OpenFolder* folder) {
  // fdopendir takes its descriptor over, so it gets one of its own.
  DIR* const listing = fdopendir(fcntl(folder->fd.get(), F_DUPFD_CLOEXEC, 0));
  if (listing == nullptr) return fmt::format("cannot read the folder: {}", strerror(errno));
  while (const dirent* entry = readdir(listing)) {
    if (folder->names.size() == kMostNames) break;
    if (has_counters_suffix(entry->d_name)) folder->names.emplace_back(entry->d_name);
  }
  closedir(listing);
  std::ranges::sort(folder->names);
  return "";
}

}  // namespace

std::optional<ProcessIdentity> identity_in_file_name(std::string_view name) {
  if (!has_counters_suffix(name)) return std::nullopt;
  name.remove_suffix(std::string_view(kCountersSuffix).size());
  ProcessIdentity out{};
  const char* const end = name.data() + name.size();
  const auto pid = std::from_chars(name.data(), end, out.pid);
  if (pid.ec != std::errc() || pid.ptr == end || *pid.ptr != '-') return std::nullopt;
  const auto start = std::from_chars(pid.ptr + 1, end, out.start_time);
  if (start.ec != std::errc()) return std::nullopt;
  if (start.ptr == end) return out;
  uint32_t number = 0;
  const auto program = std::from_chars(start.ptr + 1, end, number);
  if (*start.ptr != '-' || program.ec != std::errc() || program.ptr != end) return std::nullopt;
  return out;
}

tl::expected<OpenFolder, std::string> open_counters_folder(const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  auto fd = open_path(path);
  if (!fd) return tl::unexpected(fd.error());
  OpenFolder out{std::move(*fd), 0, "", {}};
  if (!out.fd) return out;
  std::string why = judge_folder(path, &out);
  if (why.empty()) why = list_files(&out);
  if (!why.empty()) return tl::unexpected(std::move(why));
  return out;
}

std::string why_no_counters(const std::string& folder) {
  const auto opened = open_counters_folder(folder);
  if (!opened) return opened.error();
  return opened->fd ? opened->change_fault : text_of_fault(exchange_fault(folder.c_str()));
}

bool OpenFolder::is_read(uid_t file_owner) const {
  return geteuid() == 0 || is_ours(file_owner) || file_owner == owner;
}

namespace {

tl::expected<std::optional<ProcessCounters>, std::string> read_file_of(const OpenFolder& folder,
                                                                       const std::string& name,
                                                                       ReadingBudget* budget) {
  const auto file = open_counters_file(folder.fd.get(), name);
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) return tl::unexpected(file.error());
  auto process = read_open_counters_file(file->get(), name, budget);
  if (process && process->has_value() && !folder.is_read((*process)->owner)) {
    return tl::unexpected(std::string("it belongs to another user"));
  }
  return process;
}

}  // namespace

tl::expected<CountersFolder, std::string> read_counters_folder(const std::string& folder) {
  const auto opened = open_counters_folder(folder);
  if (!opened) return tl::unexpected(opened.error());
  CountersFolder out{static_cast<bool>(opened->fd), {}, {}};
  out.refusal = opened->change_fault;
  out.is_anothers = opened->fd && !is_ours(opened->owner);
  ReadingBudget budget;
  size_t count = 0;
  for (const std::string& name : opened->names) {
    struct stat status;
    if (fstatat(opened->fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // deleted since it was listed
    } else if (!opened->is_read(status.st_uid)) {
      ++out.foreign_count;
      continue;
    }
    if (count++ == kMostFiles) {
      out.refused.push_back(
          {name, fmt::format("more than {} files: not read from here on, by name", kMostFiles)});
      break;
    }
    auto process = read_file_of(*opened, name, &budget);
    if (!process) {
      out.refused.push_back({name, process.error()});
    } else if (process->has_value()) {
      out.processes.push_back(std::move(**process));
    }
  }
  std::ranges::sort(out.processes, [](const ProcessCounters& a, const ProcessCounters& b) {
    return std::tie(a.pid, a.start_time, a.file) < std::tie(b.pid, b.start_time, b.file);
  });
  return out;
}

}  // namespace fibshim::tools
