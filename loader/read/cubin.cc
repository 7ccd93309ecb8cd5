#include "loader/read/cubin.h"

#include <gelf.h>
#include <libelf.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "loader/read/image_reading.h"

namespace fibshim {
namespace {

constexpr uint16_t kMachineCuda = 190;  // EM_CUDA
constexpr uint8_t kOsAbiBefore13 = 0x33;
constexpr uint8_t kOsAbiSince13 = 0x41;
constexpr uint32_t kSectionInfo = 0x70000000;    // SHT_CUDA_INFO
constexpr uint32_t kSectionCompat = 0x70000086;  // .nv.compat
// Sections of relocatable cubins that reserve memory and have no bytes in the file, as SHT_NOBITS.
constexpr uint32_t kSectionGlobal = 0x70000007;  // .nv.global
constexpr uint32_t kSectionLocal = 0x70000009;
constexpr uint32_t kSectionShared = 0x7000000a;  // .nv.shared
constexpr uint8_t kSymbolIsEntry = 0x10;         // STO_CUDA_ENTRY in st_other
constexpr size_t kMaxKernelParams = 4096;        // CUDA itself accepts 32764 bytes of them
// Bounds the summed length of section names, and of kernel names, in multiples of the file's size.
// Compilers let names share bytes of a string table. If thousands of names shared one long tail,
// the work would grow with the square of the file's size.
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

// One record of a .nv.info section. Format 4 carries `value` bytes in `data`; the others carry the
// 16-bit `value` itself.
struct InfoRecord {
  uint8_t format;
  uint8_t attribute;
  uint16_t value;
  std::string_view data;
};

// Passes every record to `use`, which returns a Result<void>.
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
  std::string_view bytes;  // empty if !has_bytes()
};

bool has_bytes(uint32_t section_type) {
  return section_type != SHT_NOBITS && section_type != SHT_NULL && section_type != kSectionGlobal &&
         section_type != kSectionLocal && section_type != kSectionShared;
}

// Runs before libelf sees the bytes, so that libelf never works on a section table that is not
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

// Charges the bytes of a name to the budget. Returns false if the budget is exhausted.
bool can_afford(const char* name, size_t* budget) {
  const size_t length = strnlen(name, *budget + 1);
  if (length > *budget) return false;
  *budget -= length;
  return true;
}

// True for the sections that read_cubin() reads record by record.
bool is_parsed(const GElf_Shdr& header, std::string_view name) {
  return header.sh_type == SHT_SYMTAB || header.sh_type == kSectionInfo ||
         header.sh_type == kSectionCompat || name == ".nv.compat" || name.starts_with(".text.");
}

// Requires that `bytes` passed check_header(). Returns only sections that lie within `bytes`. From
// sm_100 on, sections share bytes: those of Mercury (.nv.merc.*) are second names of constants and
// tables. Sections that are parsed must not share bytes: a thousand sections with the same records
// would be endless work.
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

// True if the code contains griddepcontrol.wait. On sm_90, sm_100 and sm_120 an instruction has 16
// bytes, with its opcode in the low twelve bits. .nv.info does not record it.
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
  // libelf takes a writable pointer but only reads memory that was opened this way.
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
    } else if (section.header.sh_type == kSectionInfo && name.starts_with(".nv.info.")) {
      if (CubinKernel* const kernel = find(name.substr(9))) {
        auto applied = apply_kernel_info(section.bytes, kernel);
        if (!applied) return tl::unexpected<Error>(applied.error());
      }
    } else if (name.starts_with(".nv.shared.")) {
      if (CubinKernel* const kernel = find(name.substr(11))) {
        kernel->static_shared_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(section.header.sh_size, UINT32_MAX));
      }
    } else if (name.starts_with(".text.")) {
      if (CubinKernel* const kernel = find(name.substr(6))) {
        kernel->code_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(section.header.sh_size, UINT32_MAX));
        kernel->has_wait = has_wait(section.bytes);
        // If .nv.info has no REGCOUNT, the code section's sh_info holds the count.
        if (kernel->registers == 0) kernel->registers = section.header.sh_info >> 24;
      }
    }
  }
  info.is_arch_specific = info.scope == ArchScope::arch_specific;
  std::ranges::sort(info.kernels, {}, &CubinKernel::name);
  return info;
}

}  // namespace fibshim
