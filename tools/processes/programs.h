// Can a program be preloaded? The dynamic linker of a dynamically linked 64-bit glibc program
// honours LD_PRELOAD; a static, setuid, 32-bit or musl program ignores it or fails, silently or
// with a message about a file that is there. Better said before the program starts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fibshim::tools {

// Where execvp would find `name`: itself when it holds a slash, else the first executable of that
// name on PATH. Empty when there is none.
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
  std::string path;         // of the ELF file that was judged: the script's interpreter, if any
  std::string explanation;  // why it cannot be preloaded, and what to do; empty if it can
};

// Judges the program at `path`. Follows "#!" lines, through /usr/bin/env too, as the kernel does.
ProgramInfo judge_program(const std::string& path);

// The dynamic section of a program or library. Empty `fault` means that it could be read, and is a
// 64-bit file for this machine.
struct DynamicSection {
  std::string fault;
  std::string soname;
  std::vector<std::string> needed;
};
DynamicSection read_dynamic_section(const std::string& path);

}  // namespace fibshim::tools
