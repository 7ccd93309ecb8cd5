// Tells before a program starts whether libraries can be preloaded into it. The dynamic linker of a
// 64-bit glibc program honours LD_PRELOAD. A static, setuid, 32-bit or musl program ignores it or
// fails, silently or with a misleading message that an existing file is missing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fibshim::tools {

// The path at which execvp would find `name`: `name` itself if it contains a slash, else the first
// executable of that name on PATH. Empty if there is none.
std::string find_program(const std::string& name);

enum class ProgramVerdict : uint8_t {
  preloadable,
  unknown,  // not ELF and no "#!" line, or not readable: the kernel or the shell decides
  static_linked,
  other_class,  // 32-bit
  other_machine,
  other_libc,  // an interpreter that is not glibc's
  privileged,  // setuid, setgid or file capabilities that change who it runs as
};

struct ProgramInfo {
  ProgramVerdict verdict;
  std::string path;         // of the ELF file that was judged; for a script, of its interpreter
  std::string explanation;  // why it cannot be preloaded, and what to do; empty if it can
};

// Judges the program at `path`. Follows "#!" lines, through /usr/bin/env too, as the kernel does.
ProgramInfo judge_program(const std::string& path);

// The dynamic section of a program or library. An empty `fault` means that it could be read and
// that the file is a 64-bit one for this machine.
struct DynamicSection {
  std::string fault;
  std::string soname;
  std::vector<std::string> needed;
};
DynamicSection read_dynamic_section(const std::string& path);

}  // namespace fibshim::tools
