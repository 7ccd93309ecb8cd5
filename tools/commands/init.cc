// fibshim init: writes a config folder that works as it is: a definition, a pattern and a solution with its
// images, taken from the folder demo. The simulated driver computes it, so it can be tried without a GPU.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "loader/check/check.h"
#include "tools/base/files.h"
#include "tools/base/folder_list.h"
#include "tools/commands/commands.h"
#include "tools/processes/installation.h"
#include "tools/processes/programs.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;

// The files to copy from the demo folder: one definition, and all that belongs to it.
constexpr const char* kFiles[] = {
    "definitions/rmsnorm_h4096.json",
    "patterns/torch-rms-norm-bf16.json",
    "solutions/fibshim/fibshim_rmsnorm_h4096.json",
    "solutions/fibshim/rmsnorm.sm_80.cubin",
    "solutions/fibshim/rmsnorm.sm_90.cubin",
    "solutions/fibshim/rmsnorm.sm_100.cubin",
};

// Returns why the folder could not be written, or "".
std::string write_folder(const std::string& folder) {
  (void)umask(umask(0) | 022);  // files that others can write are not trusted
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) return "exists, and is not empty";
  for (const char* const file : kFiles) {
    const fs::path from = fs::path(demo_folder_path()) / file;
    if (!fs::exists(from, error))
      return fmt::format("it is made of {}, which is not there", from.string());
  }
  for (const char* const file : kFiles) {
    const fs::path from = fs::path(demo_folder_path()) / file;
    const fs::path to = fs::path(folder) / file;
    fs::create_directories(to.parent_path(), error);
    if (!error) fs::copy_file(from, to, error);
    if (error) return fmt::format("{}: {}", to.string(), error.message());
    fs::permissions(to, fs::perms(0644), error);
  }
  return write_file(folder + "/" + kSettingsFile,
                    fmt::format("{{\n  \"format\": {}\n}}\n", kFolderFormat));
}

}  // namespace

int init_command(int argc, const char* const* argv) {
  CommandLine line("init", "Writes a config folder to begin with", "[OPTIONS] DIR",
                   "0 written; 1 it cannot be written; 2 wrong usage.");
  std::vector<std::string> folders;
  line.positional("DIR", &folders, "a folder that does not exist, or is empty");
  line.check([&] { return std::string(folders.size() == 1 ? "" : "name one folder"); });
  line.check([&] {
    const std::vector<std::string> named = split_folders(absolute_path(folders[0]));
    return named.size() == 1 && path_of_folder(named[0]) == named[0]
               ? ""
               : fmt::format(
                     "DIR: no config folder can be named {}: ':' separates folders, and "
                     "'@10%' at the end is a share of launches",
                     absolute_path(folders[0]));
  });
  if (!line.parse(argc, argv)) return line.exit_code();
  const std::string folder = (folders[0][0] == '-' ? "./" : "") + folders[0];
  const std::string fault = write_folder(folder);
  if (!fault.empty()) {
    print_message("init", "{}: {}", printable(folder), printable(fault));
    return kExitWrong;
  }
  // The commands are printed so that they can be pasted, with fibshim as a shell finds it.
  std::error_code error;
  const std::string own = own_path();
  const bool is_on_path = fs::equivalent(find_program("fibshim"), own, error);
  const std::string example = example_program_path();
  const std::string text = fmt::format(
      "{0} holds RMSNorm of hidden size 4096, as PyTorch launches it. Change it, and see:\n"
      "  {1} check {0}\n"
      "  {1} run -c {0} -- {2} --demo               # on a GPU\n"
      "  {1} run --simulate -c {0} -- {2} --demo    # without one\n"
      "  {1} stats\n"
      "That program launches this kernel and checks the results{3}; so may yours.\n",
      shell_quoted(folder), is_on_path ? "fibshim" : shell_quoted(own), shell_quoted(example),
      access(example.c_str(), X_OK) == 0 ? "" : " (`make demo` builds it)");
  return print_data(text) ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
