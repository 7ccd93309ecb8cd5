#include "tools/base/files.h"

#include <limits.h>

#include <algorithm>
#include <filesystem>

#include "tools/base/file_descriptor.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

std::string write_into(const std::string& path, std::string_view text, mode_t mode) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  return file && write_all(file.get(), text) ? "" : strerror(errno);
}

// The mode of the file at `path`, or that of a new one.
mode_t mode_for(const std::string& path, mode_t of_new) {
  struct stat status;
  if (lstat(path.c_str(), &status) == 0) return status.st_mode & 0777;
  const mode_t mask = umask(0);
  umask(mask);
  return of_new & ~mask;
}

// Writes ".<name>.<random>" beside `path`, and renames it to `path`.
std::string replace_file(const std::string& path, std::string_view text, mode_t mode) {
  constexpr size_t kMostOfName = NAME_MAX - std::string_view("..XXXXXX").size();
  const size_t name_at = path.rfind('/') + 1;  // npos + 1 is 0
  std::string temporary =
      path.substr(0, name_at) + "." + path.substr(name_at, kMostOfName) + ".XXXXXX";
  const FileDescriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) return strerror(errno);
  // fsync before the rename: otherwise a power failure could leave an empty file of that name.
  if (write_all(file.get(), text) && fchmod(file.get(), mode_for(path, mode)) == 0 &&
      fsync(file.get()) == 0 && rename(temporary.c_str(), path.c_str()) == 0) {
    return "";
  }
  std::string reason = strerror(errno);
  (void)unlink(temporary.c_str());
  return reason;
}

}  // namespace

std::string read_small_file(const std::string& path) {
  constexpr size_t kMostBytes = 8 << 20;
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string out;
  char part[16 << 10];
  while (file && out.size() < kMostBytes) {
    const ssize_t got = read(file.get(), part, sizeof part);
    if (got <= 0) break;
    out.append(part, static_cast<size_t>(got));
  }
  return out;
}

std::vector<std::string> paths_below(const std::string& folder, std::vector<std::string>* faults) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  std::vector<std::string> open = {folder};
  while (!open.empty()) {
    const std::string path = std::move(open.back());
    open.pop_back();
    std::error_code error;
    fs::directory_iterator at(path, error);
    for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
      out.push_back(at->path().string());
      std::error_code ignored;
      if (fs::is_directory(at->symlink_status(ignored))) open.push_back(out.back());
    }
    if (error)
      faults->push_back(fmt::format("{}: cannot read the folder: {}", path, error.message()));
  }
  std::ranges::sort(out);
  return out;
}

bool is_replaceable(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

std::string write_file(const std::string& path, std::string_view text, mode_t mode) {
  return is_replaceable(path) ? replace_file(path, text, mode) : write_into(path, text, mode);
}

bool write_output(std::string_view command, const std::string& path, std::string_view text,
                  mode_t mode) {
  if (path.empty()) return print_data(text);
  const std::string reason = write_file(path, text, mode);
  if (reason.empty()) end_expecting_json();
  if (reason.empty()) return true;
  print_message(command, "{}: cannot write it: {}", printable(path), reason);
  return false;
}

}  // namespace fibshim::tools
