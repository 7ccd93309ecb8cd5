#include "loader/read/code_hash.h"

#include <elf.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/read/fatbin_payload.h"
#include "loader/read/image_format.h"
#include "loader/read/kernel_params.h"

namespace fibshim {
namespace {

constexpr uint16_t kCudaMachine = 190;
constexpr uint32_t kGpuFlags = 0xffff;  // the other bits depend on debug sections
// The upper byte of a code section's sh_info is its register count.
constexpr uint32_t kRegisterShift = 24;

// The sections that are hashed: how their names begin, up to the kernel's name.
constexpr std::string_view kHashed[] = {".text.",      ".nv.constant", ".nv.global",
                                        ".nv.shared.", ".nv.local.",   ".nv.info."};
constexpr int kCode = 0, kAttributes = 5;  // indexes into kHashed
constexpr std::string_view kVariables = ".nv.global.init";
constexpr uint8_t kEntry = 0x10;  // in a symbol's st_other: a kernel

class Reader {
 public:
  explicit Reader(std::string_view image) : image_(image) {}

  template <class T>
  bool read(uint64_t offset, T* out) const {
    if (offset > image_.size() || image_.size() - offset < sizeof *out) return false;
    memcpy(static_cast<void*>(out), image_.data() + offset, sizeof *out);
    return true;
  }

  // Returns nothing if the section does not lie within the image.
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

// Returns the section's index into kHashed, or -1 if it is not hashed.
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

// Appends the attributes of a kernel, without the indexes of symbols in the symbol table.
bool append_attributes(std::string_view bytes, std::string* out) {
  constexpr uint8_t kHasSizedValue = 4;  // in other formats `size` itself is the value
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

// True for a text that names a file. Assertions in device code hold one, mostly in a compiler's
// cache folder.
bool is_path(std::string_view bytes) {
  return bytes.size() > 1 && bytes.front() == '/' && bytes.find('\0') == bytes.size() - 1;
}

// The cubin's sections and symbols.
class Sections {
 public:
  explicit Sections(std::string_view image) : reader_(image) {}

  // Returns false if the image is not a complete cubin.
  bool read() {
    Elf64_Ehdr& header = header_;
    if (!reader_.read(0, &header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_machine != kCudaMachine || header.e_shstrndx >= header.e_shnum) {
      return false;
    }
    all_.resize(header.e_shnum);
    for (size_t i = 0; i < all_.size(); ++i) {
      if (!reader_.read(header.e_shoff + i * sizeof(Elf64_Shdr), &all_[i])) return false;
    }
    const auto names = reader_.bytes_of(all_[header.e_shstrndx]);
    if (names) names_ = *names;
    return names.has_value();
  }

  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Elf64_Shdr>& all() const { return all_; }
  std::string_view name_of(const Elf64_Shdr& section) const {
    return text_at(names_, section.sh_name);
  }
  std::optional<std::string_view> bytes_of(const Elf64_Shdr& section) const {
    return reader_.bytes_of(section);
  }

  // Reads one symbol of the table. Returns false if the index is past its end.
  bool read_symbol(const Elf64_Shdr& table, uint64_t index, Elf64_Sym* out) const {
    return index < table.sh_size / sizeof *out &&
           reader_.read(table.sh_offset + index * sizeof *out, out);
  }

  // Returns the contents of an initialised variable, or nothing if the symbol is not one.
  std::optional<std::string_view> variable(const Elf64_Sym& symbol) const {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx >= all_.size() ||
        name_of(all_[symbol.st_shndx]) != kVariables) {
      return std::nullopt;
    }
    const auto bytes = bytes_of(all_[symbol.st_shndx]);
    if (!bytes || symbol.st_value > bytes->size() ||
        bytes->size() - symbol.st_value < symbol.st_size) {
      return std::nullopt;
    }
    return bytes->substr(symbol.st_value, symbol.st_size);
  }

  // Appends what the symbol stands for. Leaves out its index in the table, which debug sections
  // change, and a variable's offset in its section, which paths change.
  // `target`: the section that is relocated.
  bool append_symbol(const Elf64_Shdr& table, uint64_t index, uint32_t target,
                     std::string* out) const {
    Elf64_Sym symbol;
    if (!read_symbol(table, index, &symbol)) return false;
    if (const auto content = variable(symbol)) {
      if (!is_path(*content)) append(out, hash_of(*content));
    } else if (symbol.st_shndx == SHN_UNDEF && table.sh_link < all_.size()) {
      out->append(text_at(bytes_of(all_[table.sh_link]).value_or(""), symbol.st_name));
    } else {
      append(out, symbol.st_value);
      append(out, symbol.st_size);
      // Which of several functions is called: many have the same size.
      const bool is_other = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
                            symbol.st_shndx < all_.size() && symbol.st_shndx != target;
      if (is_other) append(out, code_of(symbol.st_shndx));
    }
    return true;
  }

 private:
  Reader reader_;
  Elf64_Ehdr header_;
  // Each section is hashed once, however many relocations lead to it.
  ImageHash code_of(uint16_t section) const {
    const auto [at, is_new] = codes_.emplace(section, ImageHash{});
    if (is_new) at->second = hash_of(bytes_of(all_[section]).value_or(""));
    return at->second;
  }

  std::vector<Elf64_Shdr> all_;
  std::string_view names_;
  mutable std::map<uint16_t, ImageHash> codes_;
};

bool append_relocations(const Sections& sections, const Elf64_Shdr& section, std::string* out) {
  const auto bytes = sections.bytes_of(section);
  if (!bytes || section.sh_link >= sections.all().size()) return false;
  const Elf64_Shdr& symbols = sections.all()[section.sh_link];
  const bool has_addend = section.sh_type == SHT_RELA;
  const uint64_t size = has_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  for (uint64_t at = 0; at + size <= bytes->size(); at += size) {
    Elf64_Rela relocation = {};
    memcpy(static_cast<void*>(&relocation), bytes->data() + at, size);
    append(out, relocation.r_offset);
    append(out, ELF64_R_TYPE(relocation.r_info));
    append(out, relocation.r_addend);
    if (!sections.append_symbol(symbols, ELF64_R_SYM(relocation.r_info), section.sh_info, out)) {
      return false;
    }
  }
  return true;
}

// Adds a hash of each initialised variable. The order does not count, since the offset of each
// depends on the paths among them.
void add_variables(const Sections& sections, const Elf64_Shdr& table,
                   std::vector<ImageHash>* hashes) {
  Elf64_Sym symbol;
  for (uint64_t i = 0; sections.read_symbol(table, i, &symbol); ++i) {
    const auto content = sections.variable(symbol);
    if (content && !is_path(*content)) hashes->push_back(hash_of(*content));
  }
}

// Returns false if the section is cut short.
bool append_section(const Sections& sections, const Elf64_Shdr& section, int kind,
                    std::string* out) {
  const auto bytes = sections.bytes_of(section);
  if (!bytes) return false;
  append(out, kind == kCode ? section.sh_info >> kRegisterShift : 0);
  append(out, section.sh_size);
  if (kind == kAttributes) return append_attributes(*bytes, out);
  append(out, hash_of(*bytes));
  return true;
}

// The names of all kernels but one; of all, where that is "".
std::set<std::string_view> other_kernels(const Sections& sections, std::string_view kernel) {
  std::set<std::string_view> others;
  for (const Elf64_Shdr& table : sections.all()) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.all().size()) continue;
    const auto names = sections.bytes_of(sections.all()[table.sh_link]);
    Elf64_Sym symbol;
    for (uint64_t i = 0; names && sections.read_symbol(table, i, &symbol); ++i) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || (symbol.st_other & kEntry) == 0) continue;
      const std::string_view name = text_at(*names, symbol.st_name);
      if (name != kernel) others.insert(name);
    }
  }
  return others;
}

// Whose section it is, such as ".nv.constant0.f": "f".
std::string_view owner_of(std::string_view section, int kind) {
  section.remove_prefix(kHashed[kind].size());
  if (kHashed[kind].back() == '.') return section;
  const size_t dot = section.find('.');
  return dot == std::string_view::npos ? std::string_view() : section.substr(dot + 1);
}

// Of `kernel` alone, where it is one's name; "": of all.
std::optional<ImageHash> hash_cubin(std::string_view image, std::string_view kernel) {
  Sections sections(image);
  if (!sections.read()) return std::nullopt;
  const auto others = other_kernels(sections, kernel);  // of no kernel: all
  // One kernel's name may change; of several, the names say whose code is which.
  const bool has_names = kernel.empty() && others.size() > 1;
  bool has_code = false;
  std::vector<ImageHash> hashes;
  std::string digest;
  for (const Elf64_Shdr& section : sections.all()) {
    if (section.sh_type == SHT_SYMTAB) add_variables(sections, section, &hashes);
    const bool is_relocations = section.sh_type == SHT_REL || section.sh_type == SHT_RELA;
    if (is_relocations && section.sh_info >= sections.all().size()) return std::nullopt;
    const Elf64_Shdr& target = is_relocations ? sections.all()[section.sh_info] : section;
    const std::string_view name = sections.name_of(target);
    const int kind = kind_of(name);
    if (kind < 0 || (name == kVariables && !is_relocations)) continue;
    if (!kernel.empty() && others.count(owner_of(name, kind)) != 0) continue;
    has_code |= kind == kCode && (kernel.empty() || owner_of(name, kind) == kernel);
    digest.clear();
    append(&digest, kind);
    append(&digest, is_relocations);
    if (has_names && others.count(owner_of(name, kind)) != 0) digest += owner_of(name, kind);
    const bool is_whole = is_relocations ? append_relocations(sections, section, &digest)
                                         : append_section(sections, section, kind, &digest);
    if (!is_whole) return std::nullopt;
    hashes.push_back(hash_of(digest));
  }
  if (!has_code) return std::nullopt;
  std::ranges::sort(hashes, {}, [](const ImageHash& one) { return std::pair(one.high, one.low); });
  digest.clear();
  append(&digest, sections.header().e_flags & kGpuFlags);
  append(&digest, sections.header().e_ident[EI_OSABI]);
  for (const ImageHash& hash : hashes) append(&digest, hash);
  return hash_of(digest);
}

}  // namespace

std::optional<ImageHash> hash_code(std::string_view image) {
  if (detect_image_format(image) != ImageFormat::fatbin) return hash_cubin(image, "");
  const auto fatbin = read_fatbin(image);
  if (!fatbin || fatbin->entries.size() != 1) return std::nullopt;
  const FatbinEntry& entry = fatbin->entries.front();
  if (entry.kind != FatbinEntryKind::elf || entry.raw_bytes > kMaxListedBytes) return std::nullopt;
  std::string memory;
  const auto cubin = unpack_payload(entry, &memory);
  return cubin ? hash_cubin(*cubin, "") : std::nullopt;
}

std::optional<ImageHash> hash_kernel(std::string_view cubin, std::string_view kernel) {
  return kernel.empty() ? std::nullopt : hash_cubin(cubin, kernel);
}

}  // namespace fibshim
