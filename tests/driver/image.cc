// See image.h.
#include "tests/driver/image.h"

#include <elf.h>
#include <libelf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>

#include "tests/driver/records.h"

#ifndef EM_CUDA
#define EM_CUDA 190
#endif

namespace simcuda {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kRegionMagic = 0xba55ed50;
constexpr size_t kMaxImageBytes = size_t{1} << 32;
constexpr uint8_t kEntryOther = 0x10;  // st_other of a kernel's symbol
constexpr uint32_t kSharedReserve = 1024;

// True if [data, data + size) can be read. If not, write() fails with EFAULT, while a load would be
// a SIGSEGV in the host.
bool is_readable(const uint8_t* data, size_t size) {
  const int fd = memfd_create("simcuda", MFD_CLOEXEC);
  if (fd < 0) return true;  // cannot check: trust the caller, as the real driver does
  bool is_fine = true;
  while (size > 0 && is_fine) {
    const ssize_t written = write(fd, data, size);
    is_fine = written > 0;
    if (is_fine) {
      data += written;
      size -= static_cast<size_t>(written);
    }
  }
  close(fd);
  return is_fine;
}

template <class T>
T load(const uint8_t* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// The caller's bytes, with or without a known end.
struct Window {
  const uint8_t* data;
  size_t limit;  // 0: unknown

  bool has(size_t offset, size_t size) const {
    if (offset > kMaxImageBytes || size > kMaxImageBytes) return false;
    return limit != 0 ? offset + size <= limit : is_readable(data + offset, size);
  }
};

CUresult copy_elf(const Window& window, std::vector<uint8_t>* bytes) {
  if (!window.has(0, sizeof(Elf64_Ehdr))) return CUDA_ERROR_INVALID_IMAGE;
  const auto header = load<Elf64_Ehdr>(window.data);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shnum == 0)
    return CUDA_ERROR_INVALID_IMAGE;
  const size_t table_size = size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  if (!window.has(header.e_shoff, table_size)) return CUDA_ERROR_INVALID_IMAGE;
  size_t end = std::max<size_t>(header.e_shoff + table_size, sizeof(Elf64_Ehdr));
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const auto section = load<Elf64_Shdr>(window.data + header.e_shoff + i * sizeof(Elf64_Shdr));
    if (i == 0 && section.sh_type != SHT_NULL) return CUDA_ERROR_INVALID_IMAGE;
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (section.sh_offset > kMaxImageBytes || section.sh_size > kMaxImageBytes)
      return CUDA_ERROR_INVALID_IMAGE;
    end = std::max<size_t>(end, section.sh_offset + section.sh_size);
  }
  if (header.e_phnum != 0)
    end = std::max<size_t>(end, header.e_phoff + size_t{header.e_phnum} * header.e_phentsize);
  if (!window.has(0, end)) return CUDA_ERROR_INVALID_IMAGE;
  bytes->assign(window.data, window.data + end);
  return CUDA_SUCCESS;
}

CUresult copy_fatbin(const Window& window, std::vector<uint8_t>* bytes) {
  if (!window.has(0, 16)) return CUDA_ERROR_INVALID_IMAGE;
  const size_t end = load<uint16_t>(window.data + 6) + load<uint64_t>(window.data + 8);
  if (!window.has(0, end)) return CUDA_ERROR_INVALID_IMAGE;
  bytes->assign(window.data, window.data + end);
  return CUDA_SUCCESS;
}

CUresult copy_text(const Window& window, std::vector<uint8_t>* bytes) {
  size_t size = 0;
  if (window.limit != 0) {
    size = strnlen(reinterpret_cast<const char*>(window.data), window.limit);
  } else {
    size = strlen(reinterpret_cast<const char*>(window.data));
  }
  bytes->assign(window.data, window.data + size);
  return CUDA_SUCCESS;
}

bool runs_on(int image_sm, bool is_arch_specific, int device_sm) {
  if (is_arch_specific) return image_sm == device_sm;
  return image_sm / 10 == device_sm / 10 && image_sm <= device_sm;
}

// Closes an Elf at the end of its scope.
struct ElfCloser {
  void operator()(Elf* elf) const { elf_end(elf); }
};

// Visits the records of a .nv.info section: u8 format, u8 attribute, u16 value or size.
template <class Visit>
bool visit_info(const uint8_t* data, size_t size, Visit visit) {
  size_t at = 0;
  while (at + 4 <= size) {
    const uint8_t format = data[at], attribute = data[at + 1];
    const uint16_t value = load<uint16_t>(data + at + 2);
    at += 4;
    if (format == 4) {
      if (at + value > size) return false;
      visit(attribute, data + at, size_t{value}, uint16_t{0});
      at += value;
    } else {
      visit(attribute, nullptr, size_t{0}, value);
    }
  }
  return true;
}

// Returns the one object for all equal descriptions of a kernel.
const KernelInfo* intern(KernelInfo info) {
  using Key = std::tuple<std::string, std::vector<uint32_t>>;
  static auto* lock = new std::mutex;
  static auto* known = new std::map<Key, const KernelInfo*>;  // never freed: launches point here
  std::vector<uint32_t> numbers = {
      info.param_bytes, info.register_count, info.static_shared_mem,
      info.const_bytes, info.max_threads,    info.cluster[0],
      info.cluster[1],  info.cluster[2],     static_cast<uint32_t>(info.sm)};
  for (const Param& param : info.params) {
    numbers.push_back(param.offset);
    numbers.push_back(param.size);
  }
  const std::lock_guard guard(*lock);
  const KernelInfo*& place = (*known)[Key(info.name, std::move(numbers))];
  if (place == nullptr) {
    info.name_id = intern_name(info.name);
    info.emulate = find_host_kernel(info);
    info.waits = waits_by_itself(info);
    place = new KernelInfo(std::move(info));
  }
  return place;
}

CUresult read_cubin(const uint8_t* data, size_t size, int device_sm, Image* image) {
  static const bool has_libelf = elf_version(EV_CURRENT) != EV_NONE;
  if (!has_libelf || size < sizeof(Elf64_Ehdr)) return CUDA_ERROR_INVALID_IMAGE;
  // libelf needs memory that it may write to.
  std::vector<char> copy(data, data + size);
  const std::unique_ptr<Elf, ElfCloser> elf(elf_memory(copy.data(), copy.size()));
  const Elf64_Ehdr* header = elf ? elf64_getehdr(elf.get()) : nullptr;
  size_t names_index = 0;
  if (header == nullptr || header->e_machine != EM_CUDA ||
      elf_getshdrstrndx(elf.get(), &names_index) != 0)
    return CUDA_ERROR_INVALID_IMAGE;
  const bool is_new_abi = header->e_ident[EI_ABIVERSION] >= 8;
  const int sm = static_cast<int>((is_new_abi ? header->e_flags >> 8 : header->e_flags) & 0xff);

  struct Section {
    const Elf64_Shdr* header;
    const uint8_t* data;  // null: no bytes in the file
    size_t size;
    size_t index;
  };
  std::map<std::string, Section> sections;
  std::vector<std::string> names_by_index(1);
  const Section* symbols = nullptr;
  for (Elf_Scn* scn = elf_nextscn(elf.get(), nullptr); scn != nullptr;
       scn = elf_nextscn(elf.get(), scn)) {
    const Elf64_Shdr* section = elf64_getshdr(scn);
    const char* name = section ? elf_strptr(elf.get(), names_index, section->sh_name) : nullptr;
    if (name == nullptr) return CUDA_ERROR_INVALID_IMAGE;
    const Elf_Data* bytes = nullptr;
    if (section->sh_type != SHT_NOBITS && section->sh_size != 0) {
      bytes = elf_rawdata(scn, nullptr);
      if (bytes == nullptr || bytes->d_buf == nullptr || bytes->d_size < section->sh_size)
        return CUDA_ERROR_INVALID_IMAGE;
    }
    names_by_index.resize(elf_ndxscn(scn) + 1);
    names_by_index[elf_ndxscn(scn)] = name;
    const auto [place, is_new] = sections.insert_or_assign(
        name, Section{section, bytes ? static_cast<const uint8_t*>(bytes->d_buf) : nullptr,
                      section->sh_size, elf_ndxscn(scn)});
    if (section->sh_type == SHT_SYMTAB) symbols = &place->second;
  }
  if (symbols == nullptr || symbols->data == nullptr) return CUDA_ERROR_INVALID_IMAGE;

  bool is_arch_specific = false;
  if (const auto compat = sections.find(".nv.compat");
      compat != sections.end() && compat->second.data != nullptr) {
    visit_info(compat->second.data, compat->second.size,
               [&](uint8_t attribute, const uint8_t*, size_t, uint16_t value) {
                 if (attribute == 0x09 && value == 1) is_arch_specific = true;
               });
  }
  if (!runs_on(sm, is_arch_specific, device_sm)) return CUDA_ERROR_NO_BINARY_FOR_GPU;

  std::map<uint32_t, uint32_t> registers_by_symbol;
  if (const auto info = sections.find(".nv.info");
      info != sections.end() && info->second.data != nullptr) {
    const bool is_whole =
        visit_info(info->second.data, info->second.size,
                   [&](uint8_t attribute, const uint8_t* at, size_t length, uint16_t) {
                     if (attribute == 0x2f && length == 8)
                       registers_by_symbol[load<uint32_t>(at)] = load<uint32_t>(at + 4);
                   });
    if (!is_whole) return CUDA_ERROR_INVALID_IMAGE;
  }

  const size_t symbol_count = symbols->size / sizeof(Elf64_Sym);
  for (size_t i = 1; i < symbol_count; ++i) {
    const auto symbol = load<Elf64_Sym>(symbols->data + i * sizeof(Elf64_Sym));
    const char* name = elf_strptr(elf.get(), symbols->header->sh_link, symbol.st_name);
    if (name == nullptr) return CUDA_ERROR_INVALID_IMAGE;
    const int type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_OBJECT && symbol.st_shndx < names_by_index.size() && symbol.st_size > 0) {
      const std::string& where = names_by_index[symbol.st_shndx];
      const Section& section = sections[where];
      if (where != ".nv.global" && where != ".nv.global.init" && where != ".nv.constant3") continue;
      Global global{name, symbol.st_size, {}};
      if (section.data != nullptr && symbol.st_value + symbol.st_size <= section.size)
        global.initial.assign(section.data + symbol.st_value,
                              section.data + symbol.st_value + symbol.st_size);
      image->globals.push_back(std::move(global));
    }
    if (type != STT_FUNC || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL ||
        (symbol.st_other & kEntryOther) == 0 || sections.count(std::string(".text.") + name) == 0)
      continue;
    KernelInfo kernel;
    kernel.name = name;
    kernel.sm = sm;
    kernel.register_count = registers_by_symbol[static_cast<uint32_t>(i)] & 0xffff;
    if (const auto shared = sections.find(std::string(".nv.shared.") + name);
        shared != sections.end()) {
      const auto bytes = static_cast<uint32_t>(shared->second.size);
      kernel.static_shared_mem =
          sm >= 90 && bytes >= kSharedReserve ? bytes - kSharedReserve : bytes;
    }
    std::map<uint32_t, Param> params;  // by ordinal, since the last record comes first
    if (const auto info = sections.find(std::string(".nv.info.") + name);
        info != sections.end() && info->second.data != nullptr) {
      const bool is_whole = visit_info(
          info->second.data, info->second.size,
          [&](uint8_t attribute, const uint8_t* at, size_t length, uint16_t value) {
            if (attribute == 0x17 && length >= 12)
              params[load<uint16_t>(at + 4)] = {load<uint16_t>(at + 6),
                                                load<uint32_t>(at + 8) >> 18};
            else if (attribute == 0x45 && length >= 10)
              params[load<uint16_t>(at + 4)] = {load<uint16_t>(at + 6), load<uint16_t>(at + 8)};
            else if (attribute == 0x19)
              kernel.param_bytes = value;
            else if ((attribute == 0x05 || attribute == 0x10) && length >= 12)
              kernel.max_threads =
                  load<uint32_t>(at) * load<uint32_t>(at + 4) * load<uint32_t>(at + 8);
            else if (attribute == 0x3d && length >= 12)
              memcpy(kernel.cluster, at, 12);
          });
      if (!is_whole) return CUDA_ERROR_INVALID_IMAGE;
    }
    for (const auto& [ordinal, param] : params) {
      if (ordinal != kernel.params.size()) return CUDA_ERROR_INVALID_IMAGE;
      kernel.params.push_back(param);
      kernel.param_bytes = std::max(kernel.param_bytes, param.offset + param.size);
    }
    image->kernels.push_back(intern(std::move(kernel)));
  }
  return CUDA_SUCCESS;
}

// Reads the kernels of PTX text. A simulated device does not need its instructions: names and
// parameter declarations are enough for a launch.
CUresult read_ptx(const std::string& text, int device_sm, Image* image) {
  const size_t target = text.find(".target");
  const size_t number = target == std::string::npos ? target : text.find("sm_", target);
  if (number == std::string::npos) return CUDA_ERROR_INVALID_PTX;
  const int sm = atoi(text.c_str() + number + 3);
  const size_t after_number = text.find_first_not_of("0123456789", number + 3);
  const bool is_arch_specific = after_number != std::string::npos && text[after_number] == 'a';
  if (is_arch_specific ? sm != device_sm : sm > device_sm) return CUDA_ERROR_NO_BINARY_FOR_GPU;

  for (size_t at = text.find(".entry"); at != std::string::npos; at = text.find(".entry", at)) {
    at += strlen(".entry");
    std::istringstream words(text.substr(at, text.find_first_of("({", at) - at));
    KernelInfo kernel;
    kernel.sm = device_sm;
    if (!(words >> kernel.name)) return CUDA_ERROR_INVALID_PTX;
    const size_t open = text.find_first_of("({", at);
    if (open == std::string::npos) return CUDA_ERROR_INVALID_PTX;
    if (text[open] == '(') {
      const size_t close = text.find(')', open);
      if (close == std::string::npos) return CUDA_ERROR_INVALID_PTX;
      std::string declaration;
      std::istringstream list(text.substr(open + 1, close - open - 1));
      while (std::getline(list, declaration, ',')) {
        std::istringstream parts(declaration);
        std::string part;
        uint32_t element = 0, alignment = 0, count = 1;
        bool wants_alignment = false;
        while (parts >> part) {
          if (wants_alignment) {
            alignment = static_cast<uint32_t>(strtoul(part.c_str(), nullptr, 10));
            wants_alignment = false;
          } else if (part == ".align") {
            wants_alignment = true;
          } else if (part.size() >= 2 && part[0] == '.' && strchr("bsuf", part[1]) != nullptr &&
                     isdigit(static_cast<unsigned char>(part[2]))) {
            element = static_cast<uint32_t>(strtoul(part.c_str() + 2, nullptr, 10) / 8);
          } else if (const size_t bracket = part.find('['); bracket != std::string::npos) {
            count = static_cast<uint32_t>(strtoul(part.c_str() + bracket + 1, nullptr, 10));
          }
        }
        if (element == 0) continue;  // an empty list
        alignment = std::max(alignment, element);
        const uint32_t offset = (kernel.param_bytes + alignment - 1) / alignment * alignment;
        kernel.params.push_back({offset, element * count});
        kernel.param_bytes = offset + element * count;
      }
    }
    image->kernels.push_back(intern(std::move(kernel)));
  }
  return image->kernels.empty() ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

// Reads the best entry of a fatbin: the nearest SM of the device's major version, else the newest
// PTX.
CUresult read_fatbin(const uint8_t* data, size_t size, int device_sm, Image* image) {
  if (size < 16) return CUDA_ERROR_INVALID_IMAGE;
  const size_t header_size = load<uint16_t>(data + 6);
  const size_t end = std::min<size_t>(size, header_size + load<uint64_t>(data + 8));
  struct Entry {
    const uint8_t* data;
    size_t size;
    int sm;
  } best{nullptr, 0, -1}, best_ptx{nullptr, 0, -1};
  for (size_t at = header_size; at + 64 <= end;) {
    const uint8_t* entry = data + at;
    const auto kind = load<uint16_t>(entry);
    const auto entry_header = load<uint32_t>(entry + 4);
    const auto padded = load<uint64_t>(entry + 8);
    const auto sm = static_cast<int>(load<uint32_t>(entry + 28));
    const auto flags = load<uint64_t>(entry + 40);
    if (entry_header < 64 || padded > end || at + entry_header + padded > end)
      return CUDA_ERROR_INVALID_IMAGE;
    const bool is_compressed = (flags & (0x2000 | 0x8000)) != 0;
    if (kind == 2 && !is_compressed && runs_on(sm, false, device_sm) && sm > best.sm)
      best = {entry + entry_header, padded, sm};
    if (kind == 1 && !is_compressed && sm <= device_sm && sm > best_ptx.sm)
      best_ptx = {entry + entry_header, padded, sm};
    at += entry_header + padded;
  }
  if (best.data != nullptr) return read_cubin(best.data, best.size, device_sm, image);
  if (best_ptx.data != nullptr) {
    const auto* text = reinterpret_cast<const char*>(best_ptx.data);
    return read_ptx(std::string(text, strnlen(text, best_ptx.size)), device_sm, image);
  }
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

}  // namespace

const KernelInfo* Image::find(const std::string& name) const {
  for (const KernelInfo* kernel : kernels)
    if (kernel->name == name) return kernel;
  return nullptr;
}

ImageFormat format_of(const void* image, size_t limit) {
  const Window window{static_cast<const uint8_t*>(image), limit};
  if (image == nullptr || !window.has(0, 8)) return ImageFormat::unknown;
  const auto magic = load<uint32_t>(window.data);
  if (magic == kWrapperMagic) return ImageFormat::fatbin_wrapper;
  if (magic == kRegionMagic) return ImageFormat::fatbin;
  if (memcmp(window.data, ELFMAG, SELFMAG) == 0) return ImageFormat::elf;
  // PTX begins with a comment, white space or a directive.
  const char first = static_cast<char>(window.data[0]);
  return first != 0 && strchr("/. \t\r\n", first) != nullptr ? ImageFormat::ptx
                                                             : ImageFormat::unknown;
}

bool is_truncated_elf(const std::vector<uint8_t>& bytes) {
  if (format_of(bytes.data(), bytes.size()) != ImageFormat::elf) return false;
  if (bytes.size() < sizeof(Elf64_Ehdr)) return true;
  const auto header = load<Elf64_Ehdr>(bytes.data());
  const size_t table_size = size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const Window window{bytes.data(), bytes.size()};
  if (!window.has(header.e_shoff, table_size)) return true;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const auto section = load<Elf64_Shdr>(bytes.data() + header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
        !window.has(section.sh_offset, section.sh_size))
      return true;
  }
  return false;
}

CUresult copy_image(const void* image, size_t limit, std::vector<uint8_t>* bytes) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Window window{static_cast<const uint8_t*>(image), limit};
  switch (format_of(image, limit)) {
    case ImageFormat::fatbin_wrapper: {
      if (!window.has(0, 24)) return CUDA_ERROR_INVALID_IMAGE;
      const auto* region = load<const uint8_t*>(window.data + 8);
      return region == nullptr ? CUDA_ERROR_INVALID_IMAGE : copy_fatbin({region, 0}, bytes);
    }
    case ImageFormat::fatbin: return copy_fatbin(window, bytes);
    case ImageFormat::elf: return copy_elf(window, bytes);
    case ImageFormat::ptx: return copy_text(window, bytes);
    case ImageFormat::unknown: break;
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

CUresult read_image(const std::vector<uint8_t>& bytes, int device_sm, Image* image) {
  if (bytes.size() < 8) return CUDA_ERROR_INVALID_IMAGE;
  if (load<uint32_t>(bytes.data()) == kRegionMagic)
    return read_fatbin(bytes.data(), bytes.size(), device_sm, image);
  if (memcmp(bytes.data(), ELFMAG, SELFMAG) == 0)
    return read_cubin(bytes.data(), bytes.size(), device_sm, image);
  return read_ptx(std::string(bytes.begin(), bytes.end()), device_sm, image);
}

}  // namespace simcuda
