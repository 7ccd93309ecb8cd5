#include "tools/base/files.h"

#include "tools/base/file_descriptor.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

std::string write_into(const std::string& path, std::string_view text) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  return file && write_all(file.get(), text) ? "" : strerror(errno);
}

// Writes ".<name>.<random>" beside `path`, and renames it to `path`.
std::string replace_file(const std::string& path, std::string_view text) {
  const size_t name_at = path.rfind('/') + 1;  // npos + 1 is 0
  std::string temporary = path.substr(0, name_at) + "." + path.substr(name_at) + ".XXXXXX";
  const FileDescriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) return strerror(errno);
  // fsync before the rename: otherwise a power failure could leave an empty file of that name.
  if (write_all(file.get(), text) && fchmod(file.get(), 0644) == 0 && fsync(file.get()) == 0 &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return "";
  }
  std::string reason = strerror(errno);
  (void)unlink(temporary.c_str());
  return reason;
}

}  // namespace

std::string read_small_file(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string out(file ? 64 << 10 : 0, '\0');
  size_t length = 0;
  while (length < out.size()) {
    const ssize_t got = read(file.get(), out.data() + length, out.size() - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  out.resize(length);
  return out;
}

bool is_replaceable(const std::string& path) {
  struct stat status;
  return lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

std::string write_file(const std::string& path, std::string_view text) {
  return is_replaceable(path) ? replace_file(path, text) : write_into(path, text);
}

bool write_output(std::string_view command, const std::string& path, std::string_view text) {
  if (path.empty()) return print_data(text);
  const std::string reason = write_file(path, text);
  if (reason.empty()) end_expecting_json();
  if (reason.empty()) return true;
  print_message(command, "{}: cannot write it: {}", printable(path), reason);
  return false;
}

}  // namespace fibshim::tools
