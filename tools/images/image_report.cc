#include "tools/images/image_report.h"

#include <fnmatch.h>
#include <gelf.h>
#include <libelf.h>
#include <limits.h>
#include <string.h>

#include <algorithm>
#include <memory>

#include <lz4.h>
#include <zstd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "loader/read/code_hash.h"
#include "loader/read/demangle.h"
#include "loader/read/file.h"
#include "loader/read/sha256.h"
#include "loader/read/fatbin_payload.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Dim3& dim) {
  if (dim.x == 0) return nullptr;
  return Json::array({dim.x, dim.y, dim.z});
}

Json or_null(uint32_t value) { return value == 0 ? Json() : Json(value); }

Json to_json(const CubinKernel& kernel) {
  Json out;
  out["name"] = kernel.name;
  const std::string readable = demangle(kernel.name);
  out["demangled"] = readable.empty() ? Json() : Json(readable);
  out["registers"] = kernel.registers;
  out["static_shared_bytes"] = kernel.static_shared_bytes;
  out["stack_bytes"] = kernel.stack_bytes;
  out["code_bytes"] = kernel.code_bytes;
  out["max_threads"] = or_null(kernel.max_threads);
  out["required_block"] = to_json(kernel.required_threads);
  out["required_cluster"] = to_json(kernel.required_cluster);
  out["param_bytes"] = kernel.param_bytes;
  out["params"] = Json::array();
  for (const KernelParam& param : kernel.params) {
    out["params"].push_back(
        {{"ordinal", param.ordinal}, {"offset", param.offset}, {"size", param.size}});
  }
  return out;
}

// What compressed images of one file may unpack to together, beside what any file may: a few bytes can
// stand for gigabytes. nvcc's stay below 20 times the file.
constexpr uint64_t kMaxUnpackedShare = 256;
constexpr uint64_t kMaxUnpackedBytes = uint64_t{64} << 20;

// One file's report. What cannot be read is a problem, and hides nothing else.
struct Report {
  const KernelGlobs& globs;
  uint64_t unpack_budget;
  Json problems = Json::array();
  bool has_gpu_code = false;  // whether the globs want any of it or not
};

bool is_wanted(const std::string& name, const KernelGlobs& globs) {
  if (globs.empty()) return true;
  const std::string readable = demangle(name);
  return std::ranges::any_of(globs, [&](const std::string& glob) {
    return fnmatch(glob.c_str(), name.c_str(), 0) == 0 ||
           fnmatch(glob.c_str(), readable.c_str(), 0) == 0;
  });
}

Result<Json> cubin_json(std::string_view bytes, Report* report) {
  const auto cubin = read_cubin(bytes);
  if (!cubin) return tl::unexpected(cubin.error());
  Json out;
  out["format"] = "cubin";
  out["arch"] = arch_name(cubin->sm, cubin->scope);
  if (const auto code = hash_code(bytes)) {
    out["code"] = fmt::format("code:{:016x}{:016x}", code->high, code->low);
  }
  out["abi"] = cubin->abi == CubinAbi::since_13 ? "CUDA 13 and later" : "before CUDA 13";
  report->has_gpu_code = true;
  out["kernels_in_all"] = cubin->kernels.size();
  out["kernels"] = Json::array();
  for (const CubinKernel& kernel : cubin->kernels) {
    if (is_wanted(kernel.name, report->globs)) out["kernels"].push_back(to_json(kernel));
  }
  return out;
}

Result<Json> ptx_json(std::string_view bytes, Report* report) {
  const auto ptx = read_ptx(bytes);
  if (!ptx) return tl::unexpected(ptx.error());
  Json out;
  out["format"] = "ptx";
  out["ptx_version"] = ptx->version;
  out["arch"] = arch_name(ptx->sm, ptx->scope);
  report->has_gpu_code = true;
  out["kernels_in_all"] = ptx->kernels.size();
  out["kernels"] = Json::array();
  for (const std::string& name : ptx->kernels) {
    if (!is_wanted(name, report->globs)) continue;
    const std::string readable = demangle(name);
    out["kernels"].push_back(
        {{"name", name}, {"demangled", readable.empty() ? Json() : Json(readable)}});
  }
  return out;
}

const char* compression_name(FatbinCompression compression) {
  switch (compression) {
    case FatbinCompression::none: return "none";
    case FatbinCompression::lz4: return "lz4";
    case FatbinCompression::zstd: return "zstd";
  }
  return "unknown";
}

Result<std::string> unpack(const FatbinEntry& entry, Report* report) {
  if (entry.compression != FatbinCompression::none) {
    if (entry.raw_bytes > report->unpack_budget) {
      return fail(
          ErrorCode::invalid_image,
          fmt::format("it claims to unpack to {} bytes, too many for this file", entry.raw_bytes));
    }
    report->unpack_budget -= entry.raw_bytes;
  }
  return unpack_payload(entry);
}

// `place` begins what is said of a bad entry.
Result<Json> fatbin_json(std::string_view bytes, const std::string& place, Report* report) {
  const auto fatbin = read_fatbin(bytes);
  if (!fatbin) return tl::unexpected(fatbin.error());
  Json out;
  out["format"] = "fatbin";
  out["entries"] = Json::array();
  for (size_t i = 0; i < fatbin->entries.size(); ++i) {
    const FatbinEntry& entry = fatbin->entries[i];
    Json item;
    item["kind"] = entry.kind == FatbinEntryKind::ptx   ? "ptx"
                   : entry.kind == FatbinEntryKind::elf ? "cubin"
                                                        : fmt::format("kind {}", entry.kind_number);
    item["sm"] = entry.sm;
    item["compression"] = compression_name(entry.compression);
    item["stored_bytes"] = entry.stored_bytes;
    item["raw_bytes"] = entry.raw_bytes;
    item["sha256"] = nullptr;
    item["image"] = nullptr;
    item["problem"] = nullptr;
    if (entry.kind != FatbinEntryKind::other) {
      const auto raw = unpack(entry, report);
      const auto image = !raw ? Result<Json>(tl::unexpected(raw.error()))
                         : entry.kind == FatbinEntryKind::elf ? cubin_json(*raw, report)
                                                              : ptx_json(*raw, report);
      if (!image) {
        item["problem"] = image.error().message;
        report->problems.push_back(
            fmt::format("{}entry {} (sm_{}): {}", place, i, entry.sm, image.error().message));
      } else {
        if (!report->globs.empty() && (*image)["kernels"].empty()) continue;
        item["image"] = *image;
      }
      if (raw) item["sha256"] = sha256_hex(sha256(*raw));
    } else if (!report->globs.empty()) {
      continue;
    }
    out["entries"].push_back(std::move(item));
  }
  return out;
}

// As `image` in a pattern wants it, and as xxhsum -H2 prints it: the high half first.
std::string image_hash_words(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("xxh128:{:016x}{:016x}", hash.high64, hash.low64);
}

// A section of fatbins, one for each source file of the library: each is a module of its own to the
// driver, and to patterns that ask for an image. Between them lies padding.
void add_fatbins(std::string_view section, const std::string& name, Report* report, Json* out) {
  const std::string_view magic("\x50\xed\x55\xba");
  size_t at = 0;
  for (size_t i = 0; (at = section.find(magic, at)) != std::string_view::npos; ++i) {
    const std::string place = fmt::format("section {}: fatbin {}: ", name, i);
    const size_t bytes = fatbin_region_bytes(section.substr(at));
    if (bytes == 0) {
      report->problems.push_back(place + "cut short");
      at += magic.size();
      continue;
    }
    const std::string_view region = section.substr(at, bytes);
    at += bytes;
    auto fatbin = fatbin_json(region, place, report);
    if (!fatbin) {
      report->problems.push_back(place + fatbin.error().message);
      continue;
    }
    if (!report->globs.empty() && (*fatbin)["entries"].empty()) continue;
    (*fatbin)["image"] = image_hash_words(region);
    out->push_back(std::move(*fatbin));
  }
}

// Cubins that cuBLASLt packed by itself, outside of fatbins, among tables of other data.
void add_packed_cubins(std::string_view section, const std::string& name, Report* report,
                       Json* out) {
  const std::string_view magic("\x28\xb5\x2f\xfd");
  for (size_t at = 0; (at = section.find(magic, at)) != std::string_view::npos;) {
    if (report->unpack_budget < kFrameProbeBytes) {
      report->problems.push_back(fmt::format("section {}: too much is packed in it", name));
      return;
    }
    const auto frame = unpack_cubin_frame(section.substr(at), &report->unpack_budget);
    if (!frame) {
      at += magic.size();
      continue;
    }
    auto cubin = cubin_json(frame->raw, report);
    if (!cubin) {
      report->problems.push_back(
          fmt::format("section {}: packed at {:#x}: {}", name, at, cubin.error().message));
    } else if (report->globs.empty() || !(*cubin)["kernels"].empty()) {
      (*cubin)["image"] = image_hash_words(frame->raw);
      out->push_back(std::move(*cubin));
    }
    at += frame->stored_bytes;
  }
}

struct GpuSection {
  std::string_view name;
  const char* key;  // of the report's array that what it holds goes to
  void (*add)(std::string_view section, const std::string& name, Report* report, Json* out);
};

constexpr GpuSection kGpuSections[] = {
    {".nv_fatbin", "fatbins", add_fatbins},
    {"__nv_relfatbin", "fatbins", add_fatbins},
    {".cask_resource", "fatbins", add_fatbins},  // cuBLASLt, cuDNN
    {".ldata", "cubins", add_packed_cubins},     // cuBLASLt
};

// A program or library of this machine: what it links, and the fatbins that nvcc put into it.
Result<Json> host_elf_json(std::string_view bytes, Report* report) {
  elf_version(EV_CURRENT);
  // libelf takes a writable pointer but only reads what was opened this way.
  const std::unique_ptr<Elf, int (*)(Elf*)> elf(
      elf_memory(const_cast<char*>(bytes.data()), bytes.size()), elf_end);
  GElf_Ehdr header;
  size_t names = 0;
  if (elf == nullptr || elf_kind(elf.get()) != ELF_K_ELF ||
      gelf_getehdr(elf.get(), &header) == nullptr) {
    return fail(ErrorCode::invalid_image, fmt::format("damaged ELF file: {}", elf_errmsg(-1)));
  }
  const bool has_names = elf_getshdrstrndx(elf.get(), &names) == 0;
  Json out;
  out["format"] = "elf";
  out["machine"] = header.e_machine == EM_X86_64    ? "x86-64"
                   : header.e_machine == EM_AARCH64 ? "aarch64"
                                                    : fmt::format("machine {}", header.e_machine);
  out["soname"] = nullptr;
  out["needed"] = Json::array();
  out["exported_symbols"] = 0;
  out["fatbins"] = Json::array();
  out["cubins"] = Json::array();
  uint64_t exported = 0;
  uint64_t unread_bytes = bytes.size();
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr info;
    if (gelf_getshdr(section, &info) == nullptr) continue;
    const char* const name = has_names ? elf_strptr(elf.get(), names, info.sh_name) : nullptr;
    const GpuSection* const gpu_section =
        std::find_if(std::begin(kGpuSections), std::end(kGpuSections),
                     [&](const GpuSection& row) { return name != nullptr && row.name == name; });
    const bool is_for_gpu = gpu_section != std::end(kGpuSections);
    if (!is_for_gpu && info.sh_type != SHT_DYNAMIC && info.sh_type != SHT_DYNSYM) continue;
    // What lies twice in the file would be work without end.
    if (info.sh_type != SHT_NOBITS && info.sh_size > unread_bytes) {
      return fail(ErrorCode::invalid_image, "damaged ELF file: its sections overlap");
    }
    if (info.sh_type != SHT_NOBITS) unread_bytes -= info.sh_size;
    Elf_Data* const data = elf_getdata(section, nullptr);
    if (data == nullptr || data->d_buf == nullptr) continue;
    if (is_for_gpu) {
      gpu_section->add({static_cast<const char*>(data->d_buf), data->d_size}, name, report,
                       &out[gpu_section->key]);
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
          ++exported;
        }
        continue;
      }
      GElf_Dyn entry;
      if (gelf_getdyn(data, i, &entry) == nullptr || entry.d_tag == DT_NULL) break;
      if (entry.d_tag != DT_NEEDED && entry.d_tag != DT_SONAME) continue;
      const char* const text = elf_strptr(elf.get(), info.sh_link, entry.d_un.d_val);
      if (text == nullptr) continue;
      if (entry.d_tag == DT_NEEDED) {
        out["needed"].push_back(text);
      } else {
        out["soname"] = text;
      }
    }
  }
  out["exported_symbols"] = exported;
  return out;
}

bool is_host_elf(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header || bytes.substr(0, SELFMAG) != ELFMAG) return false;
  memcpy(&header, bytes.data(), sizeof header);
  return header.e_machine != EM_CUDA;
}

// ---- text

std::string dim_words(const Json& dim) {
  return fmt::format("{} x {} x {}", dim[0].get<uint32_t>(), dim[1].get<uint32_t>(),
                     dim[2].get<uint32_t>());
}

std::string text_of(const Json& json) { return printable(json.get<std::string>()); }

std::string kernel_text(const Json& kernel, const std::string& indent) {
  std::string out = fmt::format("{}kernel {}\n", indent, text_of(kernel["name"]));
  if (!kernel["demangled"].is_null()) {
    out += fmt::format("{}  {}\n", indent, text_of(kernel["demangled"]));
  }
  if (!kernel.contains("params")) return out;  // PTX tells names only
  out += fmt::format(
      "{}  registers {}, static shared memory {} bytes, stack {} bytes, code {} bytes\n", indent,
      kernel["registers"].get<uint32_t>(), kernel["static_shared_bytes"].get<uint32_t>(),
      kernel["stack_bytes"].get<uint32_t>(), kernel["code_bytes"].get<uint32_t>());
  std::string limits;
  if (!kernel["max_threads"].is_null()) {
    limits += fmt::format(", at most {} threads", kernel["max_threads"].get<uint32_t>());
  }
  if (!kernel["required_block"].is_null()) {
    limits += fmt::format(", block {}", dim_words(kernel["required_block"]));
  }
  if (!kernel["required_cluster"].is_null()) {
    limits += fmt::format(", cluster {}", dim_words(kernel["required_cluster"]));
  }
  if (!limits.empty()) out += fmt::format("{}  {}\n", indent, limits.substr(2));
  const Json& params = kernel["params"];
  out += fmt::format("{}  {} parameter{}, {} bytes\n", indent, params.size(),
                     params.size() == 1 ? "" : "s", kernel["param_bytes"].get<uint32_t>());
  if (params.empty()) return out;
  std::vector<std::vector<std::string>> rows = {{">ORDINAL", ">OFFSET", ">SIZE"}};
  for (const Json& param : params) {
    rows.push_back({fmt::format("{}", param["ordinal"].get<uint32_t>()),
                    fmt::format("{:#x}", param["offset"].get<uint32_t>()),
                    fmt::format("{}", param["size"].get<uint32_t>())});
  }
  const std::string table = format_table(rows);
  for (const std::string_view line : split(table, '\n')) {
    out += fmt::format("{}    {}\n", indent, line);
  }
  return out;
}

std::string kernels_text(const Json& image, const std::string& indent) {
  std::string out;
  for (const Json& kernel : image["kernels"]) out += kernel_text(kernel, indent);
  if (!out.empty()) return out;
  return indent + (image["kernels_in_all"] == 0 ? "no kernels\n" : "no kernel of such a name\n");
}

}  // namespace

Result<Json> image_json(std::string_view bytes, const KernelGlobs& globs) {
  Report report{globs, kMaxUnpackedBytes + kMaxUnpackedShare * bytes.size()};
  Result<Json> image = fail(
      ErrorCode::invalid_image,
      bytes.empty() ? "the file is empty" : "neither a cubin, a fatbin, PTX nor another ELF file");
  switch (detect_image_format(bytes)) {
    case ImageFormat::cubin:
      image = is_host_elf(bytes) ? host_elf_json(bytes, &report) : cubin_json(bytes, &report);
      break;
    case ImageFormat::fatbin: image = fatbin_json(bytes, "", &report); break;
    case ImageFormat::ptx: image = ptx_json(bytes, &report); break;
    case ImageFormat::unknown: break;
  }
  if (image) (*image)["has_gpu_code"] = report.has_gpu_code;
  if (image) (*image)["problems"] = std::move(report.problems);
  // A library holds many images; its own hash is none of theirs.
  if (image && (*image)["format"] != "elf") (*image)["image"] = image_hash_words(bytes);
  return image;
}

std::string image_text(const Json& image, const std::string& indent) {
  const std::string format = image["format"].get<std::string>();
  std::string out;
  if (format == "cubin") {
    out += fmt::format("{}cubin for {}, ABI: {}\n", indent, text_of(image["arch"]),
                       text_of(image["abi"]));
  } else if (format == "ptx") {
    out += fmt::format("{}PTX {} for {}\n", indent, text_of(image["ptx_version"]),
                       text_of(image["arch"]));
  } else if (format == "fatbin") {
    out += fmt::format("{}fatbin of {} image{}\n", indent, image["entries"].size(),
                       image["entries"].size() == 1 ? "" : "s");
    if (image.contains("image"))
      out += fmt::format("{}  image     {}\n", indent, text_of(image["image"]));
    for (const Json& entry : image["entries"]) {
      const std::string compression = text_of(entry["compression"]);
      out +=
          fmt::format("{}  {} for sm_{}, {} bytes{}\n", indent, text_of(entry["kind"]),
                      entry["sm"].get<uint32_t>(), entry["raw_bytes"].get<uint64_t>(),
                      compression == "none" ? ""
                                            : fmt::format(" ({} compressed to {})", compression,
                                                          entry["stored_bytes"].get<uint64_t>()));
      if (!entry["image"].is_null()) out += kernels_text(entry["image"], indent + "    ");
      if (!entry["problem"].is_null()) {
        out += fmt::format("{}    not read: {}\n", indent, text_of(entry["problem"]));
      }
    }
  } else {
    out += fmt::format("{}ELF file for {}\n", indent, text_of(image["machine"]));
    if (!image["soname"].is_null()) {
      out += fmt::format("{}  soname {}\n", indent, text_of(image["soname"]));
    }
    std::string needed;
    for (const Json& name : image["needed"]) needed += " " + text_of(name);
    out += fmt::format("{}  needs{}\n", indent, needed.empty() ? " nothing" : needed);
    out +=
        fmt::format("{}  exports {} symbols\n", indent, image["exported_symbols"].get<uint64_t>());
    if (image["fatbins"].empty() && image["cubins"].empty()) {
      out += indent + (image["has_gpu_code"] ? "  no kernel of such a name\n" : "  no GPU code\n");
    }
    for (const Json& fatbin : image["fatbins"]) out += image_text(fatbin, indent + "  ");
    for (const Json& cubin : image["cubins"]) out += image_text(cubin, indent + "  ");
  }
  if (image.contains("kernels")) out += kernels_text(image, indent + "  ");
  return out;
}

}  // namespace fibshim::tools
