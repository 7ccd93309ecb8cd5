#include "loader/read/cubin.h"

#include <gelf.h>
#include <libelf.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace fibshim {
namespace {

constexpr uint16_t kMachineCuda = 190;  // EM_CUDA
constexpr uint8_t kOsAbiBefore13 = 0x33;
constexpr uint8_t kOsAbiSince13 = 0x41;
constexpr uint32_t kSectionInfo = 0x70000000;    // SHT_CUDA_INFO
constexpr uint32_t kSectionCompat = 0x70000086;  // .nv.compat
// Memory that the image only asks for, as SHT_NOBITS: of relocatable cubins.
constexpr uint32_t kSectionGlobal = 0x70000007;  // .nv.global
constexpr uint32_t kSectionLocal = 0x70000009;
constexpr uint32_t kSectionShared = 0x7000000a;  // .nv.shared
constexpr uint8_t kSymbolIsEntry = 0x10;         // STO_CUDA_ENTRY in st_other
constexpr size_t kMaxKernelParams = 4096;        // CUDA itself takes 32764 bytes of them
// Names of sections, or of kernels, together: compilers let them share a string table's bytes, but
// a table that thousands of them share to its end would make the work the square of the file.
constexpr size_t kMaxNamesPerFile = 8;

// Attributes of .nv.info records.
enum InfoAttribute : uint8_t {
  kMaxThreads = 0x05,
  kRequiredThreads = 0x10,
  kFrameSize = 0x11,
  kMinStackSize = 0x12,
  kKparamInfo = 0x17,
  kCbankParamSize = 0x19,
  kRegisterCount = 0x2f,
  kCtaPerCluster = 0x3d,
  kExplicitCluster = 0x3e,
  kKparamInfoV2 = 0x45,
};

template <class T>
T read_at(std::string_view bytes, size_t offset) {
  T value;
  memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

tl::unexpected<Error> invalid(std::string message, size_t offset = 0) {
  return fail(ErrorCode::invalid_image, std::move(message), offset);
}

// One record of a .nv.info section. Format 4 carries `value` bytes in `data`; the others carry the
// 16-bit `value` itself.
struct InfoRecord {
  uint8_t format;
  uint8_t attribute;
  uint16_t value;
  std::string_view data;
};

// Hands every record to `use`, which returns a Result<void>.
template <class Use>
Result<void> for_each_info_record(std::string_view section, const Use& use) {
  size_t at = 0;
  while (at + 4 <= section.size()) {
    InfoRecord record{read_at<uint8_t>(section, at),
                      read_at<uint8_t>(section, at + 1),
                      read_at<uint16_t>(section, at + 2),
                      {}};
    at += 4;
    if (record.format == 4) {
      if (record.value > section.size() - at) return invalid("an .nv.info record is cut short");
      record.data = section.substr(at, record.value);
      at += record.value;
    }
    if (auto used = use(record); !used) return used;
  }
  if (at != section.size()) return invalid("an .nv.info section is cut short");
  return {};
}

Dim3 read_dim3(std::string_view data) {
  return {read_at<uint32_t>(data, 0), read_at<uint32_t>(data, 4), read_at<uint32_t>(data, 8)};
}

uint32_t saturating_product(const Dim3& dim) {
  const uint64_t area = uint64_t{dim.x} * dim.y;
  if (area > UINT32_MAX || area * dim.z > UINT32_MAX) return UINT32_MAX;
  return static_cast<uint32_t>(area * dim.z);
}

Result<void> apply_kernel_info(std::string_view section, CubinKernel* kernel) {
  Dim3 cluster;
  bool has_cluster = false;
  kernel->params.reserve(8);
  const auto read = for_each_info_record(section, [&](const InfoRecord& record) -> Result<void> {
    const std::string_view data = record.data;
    switch (record.attribute) {
      case kKparamInfo:
      case kKparamInfoV2: {
        if (data.size() < 12) return invalid("a parameter record is cut short");
        KernelParam param{read_at<uint16_t>(data, 4), read_at<uint16_t>(data, 6), 0};
        param.size = record.attribute == kKparamInfo ? read_at<uint32_t>(data, 8) >> 18
                                                     : read_at<uint16_t>(data, 8);
        if (kernel->params.size() == kMaxKernelParams) {
          return invalid("kernel " + kernel->name + " has too many parameters");
        }
        kernel->params.push_back(param);
        break;
      }
      case kCbankParamSize:
        if (record.format != 4) kernel->param_bytes = record.value;
        break;
      case kMaxThreads:
        if (data.size() >= 12) kernel->max_threads = saturating_product(read_dim3(data));
        break;
      case kRequiredThreads:
        if (data.size() >= 12) kernel->required_threads = read_dim3(data);
        break;
      case kCtaPerCluster:
        if (data.size() >= 12) cluster = read_dim3(data);
        break;
      case kExplicitCluster: has_cluster = true; break;
      default: break;
    }
    return {};
  });
  if (!read) return tl::unexpected(read.error());
  if (has_cluster) kernel->required_cluster = cluster;

  std::ranges::sort(kernel->params, {}, &KernelParam::ordinal);
  for (size_t i = 0; i < kernel->params.size(); ++i) {
    const KernelParam& param = kernel->params[i];
    if (param.ordinal != i) {
      return invalid("kernel " + kernel->name +
                     ": the parameter table lacks or repeats parameter " +
                     std::to_string(std::min<size_t>(i, param.ordinal)));
    }
    if (param.size == 0 ||
        (kernel->param_bytes != 0 && param.offset + param.size > kernel->param_bytes)) {
      return invalid("kernel " + kernel->name + ": parameter " + std::to_string(i) +
                     " lies outside its parameter block");
    }
  }
  if (kernel->param_bytes != 0 && kernel->params.empty()) {
    return invalid("kernel " + kernel->name + " takes parameters but has no parameter table");
  }
  return {};
}

struct ElfCloser {
  void operator()(Elf* elf) const { elf_end(elf); }
};

struct Section {
  std::string_view name;
  GElf_Shdr header;
  std::string_view bytes;  // empty where !has_bytes()
};

bool has_bytes(uint32_t section_type) {
  return section_type != SHT_NOBITS && section_type != SHT_NULL && section_type != kSectionGlobal &&
         section_type != kSectionLocal && section_type != kSectionShared;
}

// Checked before libelf sees the bytes, so that it never works on a section table that is not
// there.
Result<void> check_header(std::string_view bytes) {
  if (bytes.size() < sizeof(Elf64_Ehdr)) return invalid("too short for a cubin");
  if (bytes.substr(0, 4) != std::string_view(ELFMAG, 4)) {
    return invalid("not a cubin: no ELF magic");
  }
  if (static_cast<uint8_t>(bytes[EI_CLASS]) != ELFCLASS64 ||
      static_cast<uint8_t>(bytes[EI_DATA]) != ELFDATA2LSB) {
    return invalid("not a cubin: not a 64-bit little-endian ELF file");
  }
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (header.e_machine != kMachineCuda) {
    return invalid("not a cubin: an ELF file for machine " + std::to_string(header.e_machine) +
                   ", not CUDA (190)");
  }
  if (header.e_shentsize != sizeof(Elf64_Shdr)) return invalid("the section table is damaged");
  if (header.e_shoff == 0 || header.e_shoff > bytes.size() ||
      bytes.size() - header.e_shoff < sizeof(Elf64_Shdr)) {
    return invalid("cut short: the section table is past the end of the file");
  }
  uint64_t count = header.e_shnum;
  if (count == 0) count = read_at<Elf64_Shdr>(bytes, header.e_shoff).sh_size;
  if (count == 0 || count > (bytes.size() - header.e_shoff) / sizeof(Elf64_Shdr)) {
    return invalid("cut short: the section table is past the end of the file");
  }
  for (uint64_t i = 0; i < count; ++i) {
    const auto section =
        read_at<Elf64_Shdr>(bytes, header.e_shoff + static_cast<size_t>(i) * sizeof(Elf64_Shdr));
    if (!has_bytes(section.sh_type)) continue;
    if (section.sh_offset > bytes.size() || section.sh_size > bytes.size() - section.sh_offset) {
      return invalid("cut short: section " + std::to_string(i) + " is past the end of the file");
    }
  }
  if (header.e_phnum != 0 &&
      (header.e_phoff > bytes.size() ||
       header.e_phnum > (bytes.size() - header.e_phoff) / sizeof(Elf64_Phdr))) {
    return invalid("cut short: the program headers are past the end of the file");
  }
  return {};
}

// Takes off the budget what a name takes. False: there is too little.
bool can_afford(const char* name, size_t* budget) {
  const size_t length = strnlen(name, *budget + 1);
  if (length > *budget) return false;
  *budget -= length;
  return true;
}

// The sections that read_cubin() works through, byte by byte.
bool is_parsed(const GElf_Shdr& header, std::string_view name) {
  return header.sh_type == SHT_SYMTAB || header.sh_type == kSectionInfo ||
         header.sh_type == kSectionCompat || name == ".nv.compat";
}

// `bytes` passed check_header(): every section lies in them. From sm_100 on, sections share bytes:
// those of Mercury (.nv.merc.*) are second names of constants and tables. What is parsed must not:
// a thousand sections of the same records would be work without end.
Result<std::vector<Section>> read_sections(Elf* elf, std::string_view bytes) {
  size_t name_budget = bytes.size() * kMaxNamesPerFile;
  uint64_t parse_budget = bytes.size();
  size_t count = 0;
  size_t names = 0;
  if (elf_getshdrnum(elf, &count) != 0 || elf_getshdrstrndx(elf, &names) != 0) {
    return invalid(std::string("the section table is damaged: ") + elf_errmsg(-1));
  }
  std::vector<Section> sections(count);
  for (size_t i = 0; i < count; ++i) {
    Elf_Scn* const scn = elf_getscn(elf, i);
    Section& section = sections[i];
    if (scn == nullptr || gelf_getshdr(scn, &section.header) == nullptr) {
      return invalid("section " + std::to_string(i) + " is damaged: " + elf_errmsg(-1));
    }
    if (i == 0) continue;
    const char* const name = elf_strptr(elf, names, section.header.sh_name);
    if (name == nullptr) {
      return invalid("section " + std::to_string(i) + " has no name: " + elf_errmsg(-1));
    }
    if (!can_afford(name, &name_budget)) return invalid("its sections' names overlap");
    section.name = name;
    if (!has_bytes(section.header.sh_type)) continue;
    section.bytes = bytes.substr(section.header.sh_offset, section.header.sh_size);
    if (!is_parsed(section.header, section.name)) continue;
    if (section.bytes.size() > parse_budget) return invalid("its sections overlap");
    parse_budget -= section.bytes.size();
  }
  return sections;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Whether the code holds griddepcontrol.wait. An instruction has 16 bytes, its opcode in the low twelve
// bits: so on sm_90, sm_100 and sm_120. .nv.info does not tell.
bool has_wait(std::string_view code) {
  constexpr uint16_t kWait = 0x82e;
  for (size_t at = 0; at + 16 <= code.size(); at += 16) {
    if ((read_at<uint16_t>(code, at) & 0xfff) == kWait) return true;
  }
  return false;
}

}  // namespace

const CubinKernel* CubinInfo::find_kernel(std::string_view name) const {
  const auto at = std::ranges::lower_bound(kernels, name, {}, &CubinKernel::name);
  return at != kernels.end() && at->name == name ? &*at : nullptr;
}

Result<CubinInfo> read_cubin(std::string_view bytes) {
  if (auto checked = check_header(bytes); !checked) return tl::unexpected<Error>(checked.error());
  if (elf_version(EV_CURRENT) == EV_NONE) {
    return fail(ErrorCode::operating_system, "this libelf is too old");
  }
  // libelf takes a writable pointer but only reads what was opened this way.
  const std::unique_ptr<Elf, ElfCloser> elf(
      elf_memory(const_cast<char*>(bytes.data()), bytes.size()));
  if (elf == nullptr || elf_kind(elf.get()) != ELF_K_ELF) {
    return invalid(std::string("not a cubin: ") + elf_errmsg(-1));
  }

  CubinInfo info;
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  switch (static_cast<uint8_t>(bytes[EI_OSABI])) {
    case kOsAbiSince13:
      info.abi = CubinAbi::since_13;
      info.sm = (header.e_flags >> 8) & 0xff;
      break;
    case kOsAbiBefore13:
      info.abi = CubinAbi::before_13;
      info.sm = header.e_flags & 0xff;
      if ((header.e_flags & 0x800) != 0) info.scope = ArchScope::arch_specific;
      break;
    default:
      return invalid("a cubin of an unknown ABI (ELF OSABI " +
                     std::to_string(static_cast<uint8_t>(bytes[EI_OSABI])) + ")");
  }
  if (info.sm == 0) return invalid("the cubin does not say for which SM it is");

  const auto all = read_sections(elf.get(), bytes);
  if (!all) return tl::unexpected<Error>(all.error());
  const std::vector<Section>& sections = *all;

  // Kernels first: entry symbols, each with its code in .text.<name>.
  std::unordered_map<std::string_view, size_t> kernel_by_name;  // views into section names
  std::unordered_map<uint32_t, size_t> kernel_by_symbol;
  size_t name_budget = bytes.size() * kMaxNamesPerFile;
  for (const Section& section : sections) {
    if (section.header.sh_type != SHT_SYMTAB) continue;
    if (section.header.sh_link >= sections.size()) return invalid("the symbol table is damaged");
    const size_t count = section.bytes.size() / sizeof(Elf64_Sym);
    for (size_t i = 0; i < count; ++i) {
      const auto symbol = read_at<Elf64_Sym>(section.bytes, i * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || (symbol.st_other & kSymbolIsEntry) == 0 ||
          symbol.st_shndx == SHN_UNDEF) {
        continue;
      }
      const char* const name = elf_strptr(elf.get(), section.header.sh_link, symbol.st_name);
      if (name == nullptr || *name == '\0') return invalid("a kernel's symbol has no name");
      if (!can_afford(name, &name_budget)) return invalid("its kernels' names overlap");
      if (!kernel_by_name.emplace(name, info.kernels.size()).second) {
        return invalid(std::string("kernel ") + name + " is there twice");
      }
      kernel_by_symbol.emplace(static_cast<uint32_t>(i), info.kernels.size());
      CubinKernel kernel;
      kernel.name = name;
      info.kernels.push_back(std::move(kernel));
    }
  }
  const auto find = [&](std::string_view name) -> CubinKernel* {
    const auto at = kernel_by_name.find(name);
    return at == kernel_by_name.end() ? nullptr : &info.kernels[at->second];
  };

  for (const Section& section : sections) {
    const std::string_view name = section.name;
    if (section.header.sh_type == kSectionCompat || name == ".nv.compat") {
      // Records of format u8, attribute u8, value u16, as in .nv.info; attribute 9 is "sm_..a".
      const auto read = for_each_info_record(section.bytes, [&](const InfoRecord& record) {
        if (record.format == 2 && record.attribute == 9 && (record.value & 0xff) == 1) {
          info.scope = ArchScope::arch_specific;
        }
        return Result<void>();
      });
      if (!read) return tl::unexpected<Error>(read.error());
    } else if (section.header.sh_type == kSectionInfo && name == ".nv.info") {
      const auto read = for_each_info_record(section.bytes, [&](const InfoRecord& record) {
        if (record.data.size() < 8) return Result<void>();
        const auto at = kernel_by_symbol.find(read_at<uint32_t>(record.data, 0));
        if (at == kernel_by_symbol.end()) return Result<void>();
        const auto value = read_at<uint32_t>(record.data, 4);
        CubinKernel& kernel = info.kernels[at->second];
        if (record.attribute == kRegisterCount) kernel.registers = value;
        if (record.attribute == kMinStackSize || record.attribute == kFrameSize) {
          kernel.stack_bytes = std::max(kernel.stack_bytes, value);
        }
        return Result<void>();
      });
      if (!read) return tl::unexpected<Error>(read.error());
    } else if (section.header.sh_type == kSectionInfo && starts_with(name, ".nv.info.")) {
      if (CubinKernel* const kernel = find(name.substr(9))) {
        auto applied = apply_kernel_info(section.bytes, kernel);
        if (!applied) return tl::unexpected<Error>(applied.error());
      }
    } else if (starts_with(name, ".nv.shared.")) {
      if (CubinKernel* const kernel = find(name.substr(11))) {
        kernel->static_shared_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(section.header.sh_size, UINT32_MAX));
      }
    } else if (starts_with(name, ".text.")) {
      if (CubinKernel* const kernel = find(name.substr(6))) {
        kernel->code_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(section.header.sh_size, UINT32_MAX));
        kernel->has_wait = has_wait(section.bytes);
        // Where .nv.info holds no REGCOUNT, the code section's sh_info does.
        if (kernel->registers == 0) kernel->registers = section.header.sh_info >> 24;
      }
    }
  }
  info.is_arch_specific = info.scope == ArchScope::arch_specific;
  std::ranges::sort(info.kernels, {}, &CubinKernel::name);
  return info;
}

std::string arch_name(uint16_t sm, ArchScope scope) {
  std::string name = "sm_" + std::to_string(sm);
  if (scope == ArchScope::arch_specific) name += 'a';
  if (scope == ArchScope::family_specific) name += 'f';
  return name;
}

namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr size_t kFatbinHeaderBytes = 16;
constexpr size_t kFatbinEntryBytes = 64;  // the smallest header of an entry
constexpr uint64_t kFatbinIsLz4 = 0x2000;
constexpr uint64_t kFatbinIsZstd = 0x8000;

}  // namespace

size_t fatbin_region_bytes(std::string_view bytes) {
  if (bytes.size() < kFatbinHeaderBytes || read_at<uint32_t>(bytes, 0) != kFatbinMagic) return 0;
  const auto header_bytes = read_at<uint16_t>(bytes, 6);
  const auto region_bytes = read_at<uint64_t>(bytes, 8);
  if (header_bytes < kFatbinHeaderBytes || header_bytes > bytes.size() ||
      region_bytes > bytes.size() - header_bytes) {
    return 0;
  }
  return header_bytes + static_cast<size_t>(region_bytes);
}

Result<FatbinInfo> read_fatbin(std::string_view bytes) {
  FatbinInfo info;
  size_t at = 0;
  if (bytes.size() < kFatbinHeaderBytes || read_at<uint32_t>(bytes, 0) != kFatbinMagic) {
    return invalid("not a fatbin: no magic number");
  }
  while (bytes.size() - at >= kFatbinHeaderBytes && read_at<uint32_t>(bytes, at) == kFatbinMagic) {
    const auto header_bytes = read_at<uint16_t>(bytes, at + 6);
    const auto region_bytes = read_at<uint64_t>(bytes, at + 8);
    if (header_bytes < kFatbinHeaderBytes || header_bytes > bytes.size() - at) {
      return invalid("the fatbin's header is damaged", at);
    }
    at += header_bytes;
    if (region_bytes > bytes.size() - at) return invalid("cut short: the fatbin's region", at);
    const size_t end = at + static_cast<size_t>(region_bytes);
    while (at < end) {
      if (end - at < kFatbinEntryBytes) return invalid("cut short: an entry of the fatbin", at);
      const auto entry_header = read_at<uint32_t>(bytes, at + 4);
      const auto padded_bytes = read_at<uint64_t>(bytes, at + 8);
      if (entry_header < kFatbinEntryBytes || entry_header > end - at ||
          padded_bytes > end - at - entry_header) {
        return invalid("an entry of the fatbin reaches past its end", at);
      }
      FatbinEntry entry{};
      entry.kind_number = read_at<uint16_t>(bytes, at);
      entry.kind = entry.kind_number == 1   ? FatbinEntryKind::ptx
                   : entry.kind_number == 2 ? FatbinEntryKind::elf
                                            : FatbinEntryKind::other;
      entry.sm = static_cast<uint16_t>(read_at<uint32_t>(bytes, at + 28));
      const auto flags = read_at<uint64_t>(bytes, at + 40);
      entry.compression = (flags & kFatbinIsZstd) != 0  ? FatbinCompression::zstd
                          : (flags & kFatbinIsLz4) != 0 ? FatbinCompression::lz4
                                                        : FatbinCompression::none;
      const auto compressed_bytes = read_at<uint32_t>(bytes, at + 16);
      entry.stored_bytes = entry.compression != FatbinCompression::none && compressed_bytes != 0
                               ? compressed_bytes
                               : padded_bytes;
      if (entry.stored_bytes > padded_bytes) {
        return invalid("an entry of the fatbin is larger than its place", at);
      }
      const auto raw_bytes = read_at<uint64_t>(bytes, at + 56);
      entry.raw_bytes = raw_bytes != 0 ? raw_bytes : entry.stored_bytes;
      entry.payload = bytes.substr(at + entry_header, static_cast<size_t>(entry.stored_bytes));
      info.entries.push_back(entry);
      at += entry_header + static_cast<size_t>(padded_bytes);
    }
  }
  if (info.entries.empty()) return invalid("the fatbin is empty");
  return info;
}

namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%';
}

// Walks over PTX word by word. Words are runs of non-blank characters; comments are left out.
class PtxWords {
 public:
  explicit PtxWords(std::string_view text) : text_(text) {}

  std::string_view next() {
    while (at_ < text_.size()) {
      if (is_blank(text_[at_])) {
        ++at_;
      } else if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.compare(at_, 2, "/*") == 0) {
        const size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        break;
      }
    }
    const size_t begin = at_;
    while (at_ < text_.size() && !is_blank(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // The .param of the list that may follow an entry's name, whose last `back` bytes were read with it.
  uint32_t count_params(size_t back) {
    at_ -= back;
    uint32_t count = 0;
    bool is_in_list = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (!is_in_list && c != '(' && !is_blank(c)) break;
      if (c == ')') break;
      if (text_.compare(at_, 6, ".param") == 0) ++count;
      is_in_list = is_in_list || c == '(';
      ++at_;
    }
    return count;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<PtxInfo> read_ptx(std::string_view bytes) {
  // ptxas writes a final NUL into fatbins; whatever follows one is no PTX.
  bytes = bytes.substr(0, bytes.find('\0'));
  PtxInfo info;
  PtxWords words(bytes);
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    if (word == ".version" && info.version.empty()) {
      info.version = words.next();
    } else if (word == ".target" && info.sm == 0) {
      std::string_view target = words.next();
      target = target.substr(0, target.find(','));
      if (!starts_with(target, "sm_")) {
        return invalid("PTX for an unknown target " + std::string(target.substr(0, 64)));
      }
      target.remove_prefix(3);
      uint32_t sm = 0;
      while (!target.empty() && target[0] >= '0' && target[0] <= '9' && sm < 1000) {
        sm = sm * 10 + static_cast<uint32_t>(target[0] - '0');
        target.remove_prefix(1);
      }
      info.sm = static_cast<uint16_t>(sm);
      if (target == "a") info.scope = ArchScope::arch_specific;
      if (target == "f") info.scope = ArchScope::family_specific;
      if (info.sm == 0 || target.size() > 1) return invalid("PTX for an unknown target");
    } else if (word == ".entry") {
      std::string_view name = words.next();
      size_t length = 0;
      while (length < name.size() && is_word_char(name[length])) ++length;
      if (length == 0) return invalid("PTX with an .entry that has no name");
      info.kernels.emplace_back(name.substr(0, length));
      info.param_counts.push_back(words.count_params(name.size() - length));
    }
  }
  if (info.version.empty() || info.sm == 0) {
    return invalid("not PTX: no .version and .target");
  }
  return info;
}

ImageFormat detect_image_format(std::string_view bytes) {
  if (bytes.size() >= 4) {
    if (bytes.substr(0, 4) == std::string_view(ELFMAG, 4)) return ImageFormat::cubin;
    if (read_at<uint32_t>(bytes, 0) == kFatbinMagic) return ImageFormat::fatbin;
  }
  PtxWords words(bytes.substr(0, 4096));
  if (words.next() == ".version") return ImageFormat::ptx;
  return ImageFormat::unknown;
}

}  // namespace fibshim
