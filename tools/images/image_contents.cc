#include "tools/images/image_contents.h"

#include <fnmatch.h>
#include <gelf.h>
#include <libelf.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include "loader/compile/symbol_match.h"
#include "loader/read/code_hash.h"
#include "loader/read/demangle.h"
#include "loader/read/fatbin_payload.h"
#include "loader/read/image_format.h"
#include "loader/read/ptx.h"
#include "loader/read/sha256.h"

namespace fibshim::tools {
namespace {

// Limits for the unpacked size of all compressed images of a file, since a few bytes can unpack to
// gigabytes: kMaxUnpackedBytes plus this multiple of the file's size. nvcc's images stay below 20
// times the file.
constexpr uint64_t kMaxUnpackedShare = 256;
constexpr uint64_t kMaxUnpackedBytes = uint64_t{64} << 20;
// Starts one more thread for each so many bytes to unpack. Each thread holds an image of up to
// kMaxImageBytes.
constexpr uint64_t kBytesPerThread = uint64_t{8} << 20;
constexpr uint64_t kMaxThreads = 16;

bool is_symbol_pattern(std::string_view glob) {
  return glob.starts_with("re:") || glob.starts_with("glob:") || glob.starts_with("demangled:");
}

// Which kernels of a file are wanted, and whether sums are.
class Request {
 public:
  Request(const KernelGlobs& globs, bool wants_sums)
      : takes_all_(globs.empty()), wants_sums_(wants_sums), symbols_(parse(globs)) {
    std::ranges::copy_if(globs, std::back_inserter(globs_), std::not_fn(is_symbol_pattern));
  }

  bool takes_all() const { return takes_all_; }
  bool wants_sums() const { return wants_sums_; }
  bool takes(const std::string& name) const {
    SymbolMatch match;
    if (symbols_.match(name, &match, 1) != 0) return true;
    if (globs_.empty()) return false;
    const std::string readable = demangle(name);
    return std::ranges::any_of(globs_, [&](const std::string& glob) {
      return fnmatch(glob.c_str(), name.c_str(), 0) == 0 ||
             fnmatch(glob.c_str(), readable.c_str(), 0) == 0;
    });
  }

 private:
  static std::vector<SymbolEntry> parse(const KernelGlobs& globs) {
    std::vector<SymbolEntry> entries;
    for (const std::string& glob : globs) {
      if (!is_symbol_pattern(glob)) continue;
      auto symbol = SymbolPattern::parse(glob);
      if (symbol) entries.push_back({std::make_shared<SymbolPattern>(std::move(*symbol)), {}, 0});
    }
    return entries;
  }

  const bool takes_all_;
  const bool wants_sums_;
  KernelGlobs globs_;  // those that are not read as a pattern's symbol
  SymbolMatcher symbols_;
};

// One thread's cache of a request's answers, by kernel name.
class Wanted {
 public:
  explicit Wanted(const Request& request) : request_(request) {}

  const Request& request() const { return request_; }
  bool holds(const std::string& name) {
    if (request_.takes_all()) return true;
    const auto [at, is_new] = answers_.emplace(name, false);
    if (is_new) at->second = request_.takes(name);
    return at->second;
  }

 private:
  const Request& request_;
  std::unordered_map<std::string, bool> answers_;
};

// The hash as `image` in a pattern expects it and xxhsum -H2 prints it: the high half first.
std::string image_hash_words(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("xxh128:{:016x}{:016x}", hash.high64, hash.low64);
}

Result<CodeContents> read_code(std::string_view bytes, bool is_ptx, Wanted* wanted) {
  CodeContents out;
  std::vector<CubinKernel> kernels;
  if (is_ptx) {
    auto ptx = read_ptx(bytes);
    if (!ptx) return tl::unexpected(ptx.error());
    out.arch = arch_name(ptx->sm, ptx->scope);
    out.ptx_version = std::move(ptx->version);
    kernels.resize(ptx->kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) kernels[i].name = std::move(ptx->kernels[i]);
  } else {
    auto cubin = read_cubin(bytes);
    if (!cubin) return tl::unexpected(cubin.error());
    out.arch = arch_name(cubin->sm, cubin->scope);
    out.abi = cubin->abi;
    kernels = std::move(cubin->kernels);
  }
  out.kernels_in_all = kernels.size();
  std::erase_if(kernels, [&](const CubinKernel& kernel) { return !wanted->holds(kernel.name); });
  out.kernels = std::move(kernels);
  if (is_ptx || (out.kernels.empty() && !wanted->request().takes_all())) return out;
  if (const auto code = hash_code(bytes)) {
    out.code = fmt::format("code:{:016x}{:016x}", code->high, code->low);
  }
  return out;
}

// `memory` is a buffer for the unpacked image.
void read_entry(EntryContents* entry, Wanted* wanted, std::string* memory) {
  const auto raw = unpack_payload(entry->header, memory);
  auto image = raw ? read_code(*raw, entry->header.kind == FatbinEntryKind::ptx, wanted)
                   : Result<CodeContents>(tl::unexpected(raw.error()));
  if (image) {
    entry->image = std::move(*image);
  } else {
    entry->problem = image.error().message;
  }
  const bool is_shown = wanted->request().takes_all() || !image || !entry->image->kernels.empty();
  if (raw && wanted->request().wants_sums() && is_shown) entry->sha256 = sha256_hex(sha256(*raw));
}

// Reads one file.
class Reading {
 public:
  Reading(std::string_view bytes, const KernelGlobs& globs, bool wants_sums)
      : bytes_(bytes),
        request_(globs, wants_sums),
        wanted_(request_),
        unpack_budget_(kMaxUnpackedBytes + kMaxUnpackedShare * bytes.size()) {}

  Result<ImageContents> read();

 private:
  Result<void> add_code(bool is_ptx);
  Result<void> add_fatbin(std::string_view region, const std::string& place);
  void add_fatbins(std::string_view section, const std::string& name);
  void add_packed_cubins(std::string_view section, const std::string& name);
  Result<void> add_host_elf();
  void read_entries();
  void drop_unwanted();

  struct GpuSection {
    std::string_view name;
    void (Reading::*add)(std::string_view section, const std::string& name);
  };
  static const GpuSection kGpuSections[];

  const std::string_view bytes_;
  const Request request_;
  Wanted wanted_;
  uint64_t unpack_budget_;
  uint64_t unpacked_bytes_ = 0;
  ImageContents out_;
  std::vector<std::string> places_;  // of each fatbin: the prefix of messages about its entries
};

const Reading::GpuSection Reading::kGpuSections[] = {
    {".nv_fatbin", &Reading::add_fatbins},
    {"__nv_relfatbin", &Reading::add_fatbins},
    {".cask_resource", &Reading::add_fatbins},  // cuBLASLt, cuDNN
    {".ldata", &Reading::add_packed_cubins},    // cuBLASLt
};

Result<void> Reading::add_code(bool is_ptx) {
  auto code = read_code(bytes_, is_ptx, &wanted_);
  if (!code) return tl::unexpected(code.error());
  out_.has_gpu_code = true;
  out_.code = std::move(*code);
  return {};
}

// Adds a fatbin. read_entries() reads its entries later.
Result<void> Reading::add_fatbin(std::string_view region, const std::string& place) {
  const auto fatbin = read_fatbin(region);
  if (!fatbin) return tl::unexpected(fatbin.error());
  FatbinContents contents{image_hash_words(region), {}};
  for (const FatbinEntry& header : fatbin->entries) {
    EntryContents& entry = contents.entries.emplace_back(EntryContents{header, "", {}, ""});
    if (header.kind == FatbinEntryKind::other) continue;
    const bool is_packed = header.compression != FatbinCompression::none;
    if (is_packed && header.raw_bytes > unpack_budget_) {
      entry.problem =
          fmt::format("it claims to unpack to {} bytes, too many for this file", header.raw_bytes);
      continue;
    }
    if (is_packed) unpack_budget_ -= header.raw_bytes;
    unpacked_bytes_ += header.raw_bytes;
  }
  out_.fatbins.push_back(std::move(contents));
  places_.push_back(place);
  return {};
}

// Adds a section of fatbins, one for each source file of the library. Each is a module of its own
// to the driver, and to patterns that require an image. There is padding between them.
void Reading::add_fatbins(std::string_view section, const std::string& name) {
  const std::string_view magic("\x50\xed\x55\xba");
  size_t at = 0;
  for (size_t i = 0; (at = section.find(magic, at)) != std::string_view::npos; ++i) {
    const std::string place = fmt::format("section {}: fatbin {}: ", name, i);
    const size_t bytes = fatbin_region_bytes(section.substr(at));
    if (bytes == 0) {
      out_.problems.push_back(place + "cut short");
      at += magic.size();
      continue;
    }
    if (const auto added = add_fatbin(section.substr(at, bytes), place); !added) {
      out_.problems.push_back(place + added.error().message);
    }
    at += bytes;
  }
}

// Adds cubins that cuBLASLt packed in its own way, outside of fatbins, among tables of other data.
void Reading::add_packed_cubins(std::string_view section, const std::string& name) {
  const std::string_view magic("\x28\xb5\x2f\xfd");
  for (size_t at = 0; (at = section.find(magic, at)) != std::string_view::npos;) {
    if (unpack_budget_ < kFrameProbeBytes) {
      out_.problems.push_back(fmt::format("section {}: too much is packed in it", name));
      return;
    }
    const auto frame = unpack_cubin_frame(section.substr(at), &unpack_budget_);
    if (!frame) {
      at += magic.size();
      continue;
    }
    auto code = read_code(frame->raw, false, &wanted_);
    if (!code) {
      out_.problems.push_back(
          fmt::format("section {}: packed at {:#x}: {}", name, at, code.error().message));
    } else {
      out_.has_gpu_code = true;
      if (request_.takes_all() || !code->kernels.empty()) {
        out_.cubins.push_back({image_hash_words(frame->raw), std::move(*code)});
      }
    }
    at += frame->stored_bytes;
  }
}

// Adds a host program or library: the libraries that it links, and its fatbins from nvcc.
Result<void> Reading::add_host_elf() {
  elf_version(EV_CURRENT);
  // libelf takes a pointer to non-const, but only reads memory that was opened this way.
  const std::unique_ptr<Elf, int (*)(Elf*)> elf(
      elf_memory(const_cast<char*>(bytes_.data()), bytes_.size()), elf_end);
  GElf_Ehdr header;
  size_t names = 0;
  if (elf == nullptr || elf_kind(elf.get()) != ELF_K_ELF ||
      gelf_getehdr(elf.get(), &header) == nullptr) {
    return fail(ErrorCode::invalid_image, fmt::format("damaged ELF file: {}", elf_errmsg(-1)));
  }
  const bool has_names = elf_getshdrstrndx(elf.get(), &names) == 0;
  out_.machine = header.e_machine == EM_X86_64    ? "x86-64"
                 : header.e_machine == EM_AARCH64 ? "aarch64"
                                                  : fmt::format("machine {}", header.e_machine);
  uint64_t unread_bytes = bytes_.size();
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr info;
    if (gelf_getshdr(section, &info) == nullptr) continue;
    const char* const name = has_names ? elf_strptr(elf.get(), names, info.sh_name) : nullptr;
    const GpuSection* const gpu_section =
        std::find_if(std::begin(kGpuSections), std::end(kGpuSections),
                     [&](const GpuSection& row) { return name != nullptr && row.name == name; });
    const bool is_for_gpu = gpu_section != std::end(kGpuSections);
    if (!is_for_gpu && info.sh_type != SHT_DYNAMIC && info.sh_type != SHT_DYNSYM) continue;
    // Overlapping sections could make the work endless.
    if (info.sh_type != SHT_NOBITS && info.sh_size > unread_bytes) {
      return fail(ErrorCode::invalid_image, "damaged ELF file: its sections overlap");
    }
    if (info.sh_type != SHT_NOBITS) unread_bytes -= info.sh_size;
    Elf_Data* const data = elf_getdata(section, nullptr);
    if (data == nullptr || data->d_buf == nullptr) continue;
    if (is_for_gpu) {
      (this->*gpu_section->add)({static_cast<const char*>(data->d_buf), data->d_size}, name);
      continue;
    }
    if (info.sh_entsize == 0) continue;
    const int count = static_cast<int>(info.sh_size / info.sh_entsize);
    for (int i = 0; i < count; ++i) {
      if (info.sh_type == SHT_DYNSYM) {
        GElf_Sym symbol;
        if (gelf_getsym(data, i, &symbol) == nullptr) break;
        const unsigned char binding = GELF_ST_BIND(symbol.st_info);
        if (symbol.st_shndx != SHN_UNDEF && (binding == STB_GLOBAL || binding == STB_WEAK)) {
          ++out_.exported_symbols;
        }
        continue;
      }
      GElf_Dyn entry;
      if (gelf_getdyn(data, i, &entry) == nullptr || entry.d_tag == DT_NULL) break;
      if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME) continue;
      const char* const text = elf_strptr(elf.get(), info.sh_link, entry.d_un.d_val);
      if (text == nullptr) continue;
      if (entry.d_tag == DT_NEEDED) {
        out_.needed.push_back(text);
      } else {
        out_.soname = text;
      }
    }
  }
  // Reads the entries now: libelf's copies of misaligned sections end with `elf`.
  read_entries();
  return {};
}

bool is_host_elf(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header || bytes.substr(0, SELFMAG) != ELFMAG) return false;
  memcpy(&header, bytes.data(), sizeof header);
  return header.e_machine != EM_CUDA;
}

void Reading::read_entries() {
  std::vector<EntryContents*> entries;
  for (FatbinContents& fatbin : out_.fatbins) {
    for (EntryContents& entry : fatbin.entries) {
      if (entry.header.kind != FatbinEntryKind::other && entry.problem.empty()) {
        entries.push_back(&entry);
      }
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    Wanted wanted(request_);
    std::string memory;
    for (size_t i; (i = next.fetch_add(1)) < entries.size();) {
      read_entry(entries[i], &wanted, &memory);
    }
  };
  const uint64_t threads = std::min<uint64_t>(
      {std::thread::hardware_concurrency(), unpacked_bytes_ / kBytesPerThread, kMaxThreads});
  std::vector<std::future<void>> others;
  try {
    for (uint64_t i = 1; i < threads; ++i) {
      others.push_back(std::async(std::launch::async, work));
    }
  } catch (const std::system_error&) {  // no more threads: those that run do the work
  }
  work();
  for (std::future<void>& other : others) other.get();
  drop_unwanted();
}

// Reports problems, and whether there is GPU code. Then removes entries without wanted kernels.
void Reading::drop_unwanted() {
  for (size_t i = 0; i < out_.fatbins.size(); ++i) {
    std::vector<EntryContents>& entries = out_.fatbins[i].entries;
    for (size_t j = 0; j < entries.size(); ++j) {
      out_.has_gpu_code |= entries[j].image.has_value();
      entries[j].header.payload = {};  // points into memory that ends soon
      if (entries[j].problem.empty()) continue;
      out_.problems.push_back(fmt::format("{}entry {} (sm_{}): {}", places_[i], j,
                                          entries[j].header.sm, entries[j].problem));
    }
    if (request_.takes_all()) continue;
    std::erase_if(entries, [](const EntryContents& entry) {
      return entry.problem.empty() && (!entry.image || entry.image->kernels.empty());
    });
  }
  if (request_.takes_all() || out_.kind == ContentsKind::fatbin) return;
  std::erase_if(out_.fatbins, [](const FatbinContents& one) { return one.entries.empty(); });
}

Result<ImageContents> Reading::read() {
  Result<void> added = fail(
      ErrorCode::invalid_image,
      bytes_.empty() ? "the file is empty" : "neither a cubin, a fatbin, PTX nor another ELF file");
  const ImageFormat format = detect_image_format(bytes_);
  if (format == ImageFormat::cubin && is_host_elf(bytes_)) {
    out_.kind = ContentsKind::host_elf;
    added = add_host_elf();
  } else if (format == ImageFormat::fatbin) {
    out_.kind = ContentsKind::fatbin;
    added = add_fatbin(bytes_, "");
    if (added) read_entries();
  } else if (format != ImageFormat::unknown) {
    added = add_code(format == ImageFormat::ptx);
  }
  if (!added) return tl::unexpected(added.error());
  // A library contains many images; the hash of its file is not one of theirs.
  if (out_.kind != ContentsKind::host_elf) out_.image = image_hash_words(bytes_);
  return std::move(out_);
}

}  // namespace

std::string globs_mistake(const KernelGlobs& globs) {
  for (const std::string& glob : globs) {
    if (!is_symbol_pattern(glob)) continue;
    const auto symbol = SymbolPattern::parse(glob);
    if (!symbol) return fmt::format("{}: {}", glob, symbol.error().message);
  }
  return {};
}

Result<ImageContents> read_image(std::string_view bytes, const KernelGlobs& globs,
                                 bool wants_sums) {
  return Reading(bytes, globs, wants_sums).read();
}

const std::string& ReadableNames::of(const std::string& symbol) {
  const auto [at, is_new] = names_.try_emplace(symbol);
  if (is_new) at->second = demangle(symbol);
  return at->second;
}

}  // namespace fibshim::tools
