// A config folder with an image, as small as can be: what the targets of folders and indexes begin with.
#pragma once

#include <elf.h>

#include <string>
#include <string_view>
#include <vector>

#include "shim/abi/program.h"
#include "loader/read/sha256.h"
#include "shim/abi/snapshot.h"
#include "tests/fuzz/fuzz.h"

namespace fibshim::fuzz {

// A cubin for sm_90 with the kernel "scale", whose parameters have 8, 8, 4 and 4 bytes. Nothing runs it.
inline std::string small_cubin() {
  const auto bytes_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  constexpr uint32_t kParams[][2] = {{0, 8}, {8, 8}, {16, 4}, {20, 4}};  // offset, size
  std::string info;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint16_t head[] = {0x1704, 12};
    const uint32_t record[] = {0, i | kParams[i][0] << 16, kParams[i][1] << 18};
    info += bytes_of(head) + bytes_of(record);
  }
  const uint16_t param_bytes[] = {0x1903, 24};
  info += bytes_of(param_bytes);
  const std::string names("\0.names\0.symtab\0.text.scale\0.nv.info.scale\0", 43);
  Elf64_Sym symbol{};
  symbol.st_name = 22;  // the end of .text.scale
  symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  symbol.st_other = 0x10;
  symbol.st_shndx = 3;
  symbol.st_size = 16;
  const std::string contents[] = {"", names, bytes_of(Elf64_Sym{}) + bytes_of(symbol),
                                  std::string(16, '\0'), info};
  const uint32_t kTypes[] = {SHT_NULL, SHT_STRTAB, SHT_SYMTAB, SHT_PROGBITS, 0x70000000};
  const uint32_t kNames[] = {0, 1, 8, 16, 28};

  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_OSABI] = 0x41;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_type = ET_EXEC;
  header.e_machine = 190;
  header.e_version = EV_CURRENT;
  header.e_flags = 90 << 8 | 4;
  header.e_ehsize = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 5;
  header.e_shstrndx = 1;
  std::string body;
  std::string table;
  for (size_t i = 0; i < 5; ++i) {
    Elf64_Shdr section{};
    section.sh_name = kNames[i];
    section.sh_type = kTypes[i];
    section.sh_offset = sizeof header + body.size();
    section.sh_size = contents[i].size();
    section.sh_addralign = 8;
    if (kTypes[i] == SHT_SYMTAB) {
      section.sh_link = 1;
      section.sh_entsize = sizeof(Elf64_Sym);
    }
    body += contents[i];
    body.resize((body.size() + 7) / 8 * 8);
    table += bytes_of(section);
  }
  header.e_shoff = sizeof header + body.size();
  return bytes_of(header) + body + table;
}

inline constexpr char kSmallPtx[] =
    ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry scale(){ ret; }\n";

// "@cubin@" and "@ptx@" in the text become the SHA-256 of these.
inline std::string with_hashes(std::string text) {
  static const std::string cubin = sha256_hex(sha256(small_cubin()));
  static const std::string ptx = sha256_hex(sha256(std::string_view(kSmallPtx)));
  for (const auto& [mark, hash] : {std::pair<std::string_view, std::string_view>{"@cubin@", cubin},
                                   std::pair<std::string_view, std::string_view>{"@ptx@", ptx}}) {
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += hash.size()) {
      text.replace(at, mark.size(), hash);
    }
  }
  return text;
}

// Runs every program of a snapshot on a launch with parameters of exactly the bytes that the pattern
// asks for, or, where it asks for none, of the most that a kernel can have.
inline void run_programs(const Snapshot& snapshot) {
  static const std::vector<char> most(size_t{1} << 17);
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    const Pattern& pattern = snapshot.begin(snapshot.patterns)[i];
    std::vector<std::vector<char>> bytes;
    std::vector<void*> params;
    const uint32_t known = pattern.has_params == 0 ? 0 : pattern.param_sizes.count;
    for (uint32_t k = 0; k < known; ++k) {
      bytes.emplace_back(snapshot.begin(pattern.param_sizes)[k], '\x11');
    }
    for (auto& param : bytes) params.push_back(param.data());
    while (params.size() < kMaxParams) params.push_back(const_cast<char*>(most.data()));
    // As the shim does before it takes a pattern (shim/plan/fit.cc).
    const auto fits = [&](Program program) {
      const Step* const steps = snapshot.begin(program);
      return std::all_of(steps, steps + program.count, [&](const Step& step) {
        return reads_existing_params(step, [&](uint32_t index, uint32_t offset, uint32_t size) {
          return index < kMaxParams &&
                 offset + size <= (index < known ? bytes[index].size() : most.size());
        });
      });
    };
    const int64_t captures[kMaxCaptures] = {1, 2, 3};
    const LaunchView launch{params.data(), captures, {7, 1, 1, 256, 1, 1, 1, 1, 1, 0}};
    const auto run = [&](Program program) {
      int64_t result = 0;
      if (fits(program)) {
        (void)run_program(snapshot.begin(program), program.count, launch,
                          program.count == 0 ? nullptr : &result);
      }
    };
    run(pattern.where);
    for (uint32_t k = 0; k < pattern.key.count; ++k) {
      run(snapshot.begin(pattern.key)[k].program);
    }
    for (uint32_t k = 0; k < snapshot.bindings.count; ++k) {
      const Binding& binding = snapshot.begin(snapshot.bindings)[k];
      if (binding.pattern != i) continue;
      run(binding.where);
      for (const GeometryMap& geometry : binding.geometry) {
        if (geometry.kind == GeometryMap::Kind::program) run(geometry.program);
      }
      for (uint32_t a = 0; a < binding.arguments.count; ++a) {
        const ArgumentMap& argument = snapshot.begin(binding.arguments)[a];
        if (argument.kind != ArgumentMap::Kind::pass) run(argument.program);
      }
    }
  }
}

}  // namespace fibshim::fuzz
