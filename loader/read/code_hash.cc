#include "loader/read/code_hash.h"

#include <elf.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fibshim {
namespace {

constexpr uint16_t kCudaMachine = 190;
constexpr uint32_t kGpuFlags = 0xffff;  // the others tell of debug sections
// Kept in the upper byte of a code section's sh_info.
constexpr uint32_t kRegisterShift = 24;

// Sections whose names begin so, up to the kernel's name.
constexpr std::string_view kHashed[] = {".text.",      ".nv.constant", ".nv.global",
                                        ".nv.shared.", ".nv.local.",   ".nv.info."};
constexpr int kCode = 0, kAttributes = 5;  // indexes into it

class Reader {
 public:
  explicit Reader(std::string_view image) : image_(image) {}

  template <class T>
  bool read(uint64_t offset, T* out) const {
    if (offset > image_.size() || image_.size() - offset < sizeof *out) return false;
    memcpy(static_cast<void*>(out), image_.data() + offset, sizeof *out);
    return true;
  }

  // Nothing where it does not lie within the image.
  std::optional<std::string_view> bytes_of(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return std::string_view();
    if (section.sh_offset > image_.size() || image_.size() - section.sh_offset < section.sh_size) {
      return std::nullopt;
    }
    return image_.substr(section.sh_offset, section.sh_size);
  }

 private:
  std::string_view image_;
};

std::string_view text_at(std::string_view table, uint64_t offset) {
  if (offset >= table.size()) return {};
  const std::string_view rest = table.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

// Index into kHashed; -1: not hashed.
int kind_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kHashed); ++i) {
    if (name.substr(0, kHashed[i].size()) == kHashed[i]) return static_cast<int>(i);
  }
  return -1;
}

template <class T>
void append(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

ImageHash hash_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

// The attributes of a kernel without places of symbols in the table.
bool append_attributes(std::string_view bytes, std::string* out) {
  constexpr uint8_t kHasSizedValue = 4;  // else the value is the two bytes in the size's place
  constexpr uint8_t kParamBank = 0x0a, kExterns = 0x0f;
  struct Head {
    uint8_t format, attribute;
    uint16_t size;
  };
  while (!bytes.empty()) {
    Head head;
    if (bytes.size() < sizeof head) return false;
    memcpy(&head, bytes.data(), sizeof head);
    bytes.remove_prefix(sizeof head);
    std::string_view value;
    if (head.format == kHasSizedValue) {
      if (bytes.size() < head.size) return false;
      value = bytes.substr(0, head.size);
      bytes.remove_prefix(head.size);
    }
    if (head.attribute == kExterns) continue;
    if (head.attribute == kParamBank) value = value.substr(std::min<size_t>(4, value.size()));
    append(out, head);
    out->append(value);
  }
  return true;
}

// The relocations without the places of their symbols in the table, which debug sections move.
bool append_relocations(const Reader& reader, const Elf64_Shdr& section, const Elf64_Shdr& symbols,
                        std::string* out) {
  const bool has_addend = section.sh_type == SHT_RELA;
  const uint64_t size = has_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  if (!reader.bytes_of(section) || !reader.bytes_of(symbols)) return false;
  for (uint64_t at = 0; at + size <= section.sh_size; at += size) {
    Elf64_Rela relocation = {};
    Elf64_Rel plain;
    if (!reader.read(section.sh_offset + at, &plain)) return false;
    relocation.r_offset = plain.r_offset;
    relocation.r_info = plain.r_info;
    if (has_addend && !reader.read(section.sh_offset + at, &relocation)) return false;
    const uint64_t symbol_at = ELF64_R_SYM(relocation.r_info) * sizeof(Elf64_Sym);
    Elf64_Sym symbol;
    if (symbol_at >= symbols.sh_size || !reader.read(symbols.sh_offset + symbol_at, &symbol)) {
      return false;
    }
    append(out, relocation.r_offset);
    append(out, ELF64_R_TYPE(relocation.r_info));
    append(out, relocation.r_addend);
    append(out, symbol.st_value);
    append(out, symbol.st_size);
  }
  return true;
}

}  // namespace

std::optional<ImageHash> hash_code(std::string_view image) {
  const Reader reader(image);
  Elf64_Ehdr header;
  if (!reader.read(0, &header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_machine != kCudaMachine) {
    return std::nullopt;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (size_t i = 0; i < sections.size(); ++i) {
    if (!reader.read(header.e_shoff + i * sizeof(Elf64_Shdr), &sections[i])) return std::nullopt;
  }
  if (header.e_shstrndx >= sections.size()) return std::nullopt;
  const auto names = reader.bytes_of(sections[header.e_shstrndx]);
  if (!names) return std::nullopt;

  bool has_code = false;
  std::vector<ImageHash> hashes;
  std::string digest;
  for (const Elf64_Shdr& section : sections) {
    const bool is_relocations = section.sh_type == SHT_REL || section.sh_type == SHT_RELA;
    const Elf64_Shdr* const target = !is_relocations ? &section
                                     : section.sh_info < sections.size()
                                         ? &sections[section.sh_info]
                                         : nullptr;
    const int kind = target == nullptr ? -1 : kind_of(text_at(*names, target->sh_name));
    if (kind < 0) continue;
    digest.clear();
    append(&digest, kind);
    append(&digest, is_relocations);
    if (is_relocations) {
      if (section.sh_link >= sections.size() ||
          !append_relocations(reader, section, sections[section.sh_link], &digest)) {
        return std::nullopt;
      }
    } else {
      const auto bytes = reader.bytes_of(section);
      if (!bytes) return std::nullopt;
      const bool is_code = kind == kCode;
      has_code |= is_code;
      append(&digest, is_code ? section.sh_info >> kRegisterShift : 0);
      append(&digest, section.sh_size);
      if (kind != kAttributes) {
        append(&digest, hash_of(*bytes));
      } else if (!append_attributes(*bytes, &digest)) {
        return std::nullopt;
      }
    }
    hashes.push_back(hash_of(digest));
  }
  if (!has_code) return std::nullopt;
  std::sort(hashes.begin(), hashes.end(), [](const ImageHash& a, const ImageHash& b) {
    return a.high != b.high ? a.high < b.high : a.low < b.low;
  });
  digest.clear();
  append(&digest, header.e_flags & kGpuFlags);
  append(&digest, header.e_ident[EI_OSABI]);
  for (const ImageHash& hash : hashes) append(&digest, hash);
  return hash_of(digest);
}

}  // namespace fibshim
