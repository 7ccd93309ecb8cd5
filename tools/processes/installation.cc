#include "tools/processes/installation.h"

#include <filesystem>
#include <system_error>

namespace fibshim::tools {
namespace {

// `name` in the first of these folders below the prefix where it exists, else in the first one.
std::string path_in(std::initializer_list<const char*> folders, const char* name) {
  const std::filesystem::path prefix =
      std::filesystem::path(own_path()).parent_path().parent_path();
  std::error_code error;
  for (const char* const folder : folders) {
    const std::filesystem::path found = (prefix / folder / name).lexically_normal();
    if (std::filesystem::exists(found, error)) return found;
  }
  return prefix / *folders.begin() / name;
}

// Searches the folders of the command's own rpath: any of them may be LIBDIR of `make install`.
std::string library_path(const char* name) {
  return path_in({"lib", "lib64", "lib/" FIBSHIM_MULTIARCH}, name);
}

}  // namespace

std::string own_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string shim_library_path() { return library_path("libfibshim.so"); }
std::string loader_library_path() { return library_path("libfibloader.so"); }
std::string record_library_path() { return library_path("libfibrecord.so"); }
std::string shadow_library_path() { return library_path("libfibshadow.so"); }

std::string simulator_path() {
  return path_in(
      {"lib/fibshim-sim", "lib64/fibshim-sim", "lib/" FIBSHIM_MULTIARCH "/fibshim-sim", "sim"},
      "libcuda.so.1");
}
std::string example_program_path() {
  return path_in({"lib/fibshim-sim/hosts", "lib64/fibshim-sim/hosts",
                  "lib/" FIBSHIM_MULTIARCH "/fibshim-sim/hosts", "tests/hosts"},
                 "engine");
}
std::string demo_folder_path() {
  // The Debian package's prefix is /usr/lib/fibshim, and its share /usr/share.
  return path_in({"share/fibshim/config", "config", "../../share/fibshim/config"}, "demo");
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path out = std::filesystem::absolute(path, error);
  if (error) return path;
  // "dir/" and "dir" are one folder.
  if (!out.has_filename() && out.has_parent_path()) out = out.parent_path();
  return out.string();
}

}  // namespace fibshim::tools
