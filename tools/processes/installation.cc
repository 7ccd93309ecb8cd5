#include "tools/processes/installation.h"

#include <filesystem>
#include <system_error>

namespace fibshim::tools {
namespace {

std::string library_path(const char* name) {
  const std::filesystem::path own = own_path();
  return (own.parent_path().parent_path() / "lib" / name).string();
}

}  // namespace

std::string own_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string shim_library_path() { return library_path("libfibshim.so"); }
std::string loader_library_path() { return library_path("libfibloader.so"); }
std::string record_library_path() { return library_path("libfibrecord.so"); }

std::string absolute_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path out = std::filesystem::absolute(path, error);
  if (error) return path;
  // "dir/" and "dir" are one folder.
  if (!out.has_filename() && out.has_parent_path()) out = out.parent_path();
  return out.string();
}

}  // namespace fibshim::tools
