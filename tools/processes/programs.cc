#include "tools/processes/programs.h"

#include <gelf.h>
#include <libelf.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/xattr.h>

#include <memory>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "tools/base/file_descriptor.h"

namespace fibshim::tools {
namespace {

#if defined(__x86_64__)
constexpr GElf_Half kOwnMachine = EM_X86_64;
constexpr char kOwnMachineName[] = "x86-64";
#elif defined(__aarch64__)
constexpr GElf_Half kOwnMachine = EM_AARCH64;
constexpr char kOwnMachineName[] = "aarch64";
#else
#error "fibshim is built for x86-64 and aarch64"
#endif

// The kernel follows this many "#!" lines.
constexpr int kMaxInterpreters = 5;

struct ElfCloser {
  void operator()(Elf* elf) const { elf_end(elf); }
};
using ElfPtr = std::unique_ptr<Elf, ElfCloser>;

ElfPtr open_elf(const FileDescriptor& file) {
  elf_version(EV_CURRENT);
  ElfPtr elf(elf_begin(file.get(), ELF_C_READ, nullptr));
  if (elf != nullptr && elf_kind(elf.get()) != ELF_K_ELF) elf.reset();
  return elf;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_executable_file(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

// The program that a "#!" line starts, given the line without "#!". For env(1), the program that
// env will search; empty if that is not clear.
std::string interpreter_of(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  if (!(words >> word)) return "";
  if (base_name(word) != "env") return word;
  while (words >> word) {
    if (word[0] == '-' || word.find('=') != std::string::npos) continue;
    return find_program(word);
  }
  return "";
}

// True if the file runs as another user or with more rights: LD_PRELOAD is ignored (AT_SECURE).
bool changes_identity(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if ((status.st_mode & S_ISUID) != 0 && status.st_uid != getuid()) return true;
  if ((status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0 &&
      status.st_gid != getgid()) {
    return true;
  }
  // Root has all capabilities already, so they change nothing.
  return getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

// The dynamic linker that the program names; "" if the name cannot be read; nothing if none.
std::optional<std::string> elf_interpreter(Elf* elf) {
  size_t count = 0, file_bytes = 0;
  if (elf_getphdrnum(elf, &count) != 0) return std::nullopt;
  const char* const file = elf_rawfile(elf, &file_bytes);
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr header;
    if (gelf_getphdr(elf, static_cast<int>(i), &header) == nullptr || header.p_type != PT_INTERP) {
      continue;
    }
    if (file == nullptr || header.p_offset > file_bytes ||
        header.p_filesz > file_bytes - header.p_offset) {
      return "";
    }
    return std::string(file + header.p_offset, strnlen(file + header.p_offset, header.p_filesz));
  }
  return std::nullopt;
}

ProgramInfo judge_elf(Elf* elf, const std::string& path) {
  GElf_Ehdr header;
  if (gelf_getehdr(elf, &header) == nullptr) return {ProgramVerdict::unknown, path, ""};
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    return {ProgramVerdict::other_class, path,
            fmt::format("{} is a 32-bit program; libfibshim.so and CUDA are 64-bit, so the linker "
                        "would print an error and run it without the shim",
                        path)};
  }
  if (header.e_machine != kOwnMachine) {
    return {ProgramVerdict::other_machine, path,
            fmt::format("{} is a program for another machine (ELF machine {}); this fibshim is for "
                        "{}",
                        path, header.e_machine, kOwnMachineName)};
  }
  // The dynamic linker run as a program ("ld-linux-x86-64.so.2 PROGRAM") honours LD_PRELOAD itself.
  if (base_name(path).rfind("ld-linux", 0) == 0) return {ProgramVerdict::preloadable, path, ""};
  const std::optional<std::string> interpreter = elf_interpreter(elf);
  if (!interpreter) {
    return {ProgramVerdict::static_linked, path,
            fmt::format("{} is statically linked: no dynamic linker runs, so nothing can be "
                        "preloaded into it. Programs that it starts can be",
                        path)};
  }
  if (interpreter->find("ld-musl") != std::string::npos ||
      interpreter->find("/system/bin/linker") != std::string::npos) {
    return {ProgramVerdict::other_libc, path,
            fmt::format("{} does not run on glibc (its dynamic linker is {}); libfibshim.so needs "
                        "glibc, as CUDA does",
                        path, *interpreter)};
  }
  if (changes_identity(path)) {
    return {ProgramVerdict::privileged, path,
            fmt::format("{} is setuid, setgid or has file capabilities: the dynamic linker ignores "
                        "LD_PRELOAD for it. Run the shim inside instead: 'sudo fibshim run ...', "
                        "not 'fibshim run ... sudo'",
                        path)};
  }
  return {ProgramVerdict::preloadable, path, ""};
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) return name;
  const char* const path = getenv("PATH");
  // execvp's default if PATH is unset.
  std::istringstream folders(path == nullptr ? "/bin:/usr/bin" : path);
  std::string folder;
  while (std::getline(folders, folder, ':')) {
    std::string candidate = folder.empty() ? "." : folder;
    candidate += "/" + name;
    if (is_executable_file(candidate)) return candidate;
  }
  return "";
}

ProgramInfo judge_program(const std::string& path) {
  std::string at = path;
  for (int depth = 0; depth < kMaxInterpreters; ++depth) {
    const FileDescriptor file(open(at.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status;
    if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) break;
    if (const ElfPtr elf = open_elf(file); elf != nullptr) return judge_elf(elf.get(), at);
    char head[512];
    const ssize_t got = pread(file.get(), head, sizeof head, 0);
    if (got < 2 || head[0] != '#' || head[1] != '!') break;
    const std::string text(head + 2, static_cast<size_t>(got) - 2);
    std::string next = interpreter_of(text.substr(0, text.find('\n')));
    if (next.empty()) break;
    at = std::move(next);
  }
  return {ProgramVerdict::unknown, at, ""};
}

DynamicSection read_dynamic_section(const std::string& path) {
  DynamicSection out;
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    out.fault = strerror(errno);
    return out;
  }
  const ElfPtr elf = open_elf(file);
  GElf_Ehdr header;
  if (elf == nullptr || gelf_getehdr(elf.get(), &header) == nullptr) {
    out.fault = "it is not an ELF file";
    return out;
  }
  if (header.e_machine != kOwnMachine) {
    out.fault = fmt::format("it is not for {}", kOwnMachineName);
    return out;
  }
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr section_header;
    if (gelf_getshdr(section, &section_header) == nullptr ||
        section_header.sh_type != SHT_DYNAMIC || section_header.sh_entsize == 0) {
      continue;
    }
    Elf_Data* const data = elf_getdata(section, nullptr);
    if (data == nullptr) continue;
    const size_t count = section_header.sh_size / section_header.sh_entsize;
    for (size_t i = 0; i < count; ++i) {
      GElf_Dyn entry;
      if (gelf_getdyn(data, static_cast<int>(i), &entry) == nullptr || entry.d_tag == DT_NULL) {
        break;
      }
      if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME) continue;
      const char* const name = elf_strptr(elf.get(), section_header.sh_link, entry.d_un.d_val);
      if (name == nullptr) continue;
      if (entry.d_tag == DT_NEEDED) {
        out.needed.emplace_back(name);
      } else {
        out.soname = name;
      }
    }
  }
  return out;
}

}  // namespace fibshim::tools
