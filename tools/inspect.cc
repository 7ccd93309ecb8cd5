// fibshim inspect: what a GPU image, or a host program or library with images inside, holds, and
// what a running process has of the shim. The numbers are those that the loader checks solutions
// against.
#include <cxxabi.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <gelf.h>
#include <libelf.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/cubin.h"
#include "loader/file.h"
#include "loader/sha256.h"
#include "tools/commands.h"
#include "tools/counters_files.h"
#include "tools/fatbin_payload.h"
#include "tools/folders_in_force.h"
#include "tools/launch_counts.h"
#include "tools/options.h"
#include "tools/processes.h"
#include "tools/terminal.h"

namespace fibshim::tools {
namespace {

using Json = nlohmann::ordered_json;

// A framework's largest library has somewhat more than one GB.
constexpr size_t kMaxLibraryBytes = size_t{4} << 30;

// The readable form of a mangled C++ name; empty for other names.
std::string demangle(const std::string& name) {
  if (name.rfind("_Z", 0) != 0) return "";
  int status = 0;
  const std::unique_ptr<char, decltype(&free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), free);
  return status == 0 ? text.get() : "";
}

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

// Which kernels are wanted: all where no glob was given, else those whose name, mangled or readable,
// fits one.
using Globs = std::vector<std::string>;

bool is_wanted(const std::string& name, const Globs& globs) {
  if (globs.empty()) return true;
  const std::string readable = demangle(name);
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return fnmatch(glob.c_str(), name.c_str(), 0) == 0 ||
           fnmatch(glob.c_str(), readable.c_str(), 0) == 0;
  });
}

Result<Json> cubin_json(std::string_view bytes, const Globs& globs) {
  const auto cubin = read_cubin(bytes);
  if (!cubin) return tl::unexpected(cubin.error());
  Json out;
  out["format"] = "cubin";
  out["arch"] = arch_name(cubin->sm, cubin->scope);
  out["abi"] = cubin->abi == CubinAbi::since_13 ? "CUDA 13 and later" : "before CUDA 13";
  out["kernels"] = Json::array();
  for (const CubinKernel& kernel : cubin->kernels) {
    if (is_wanted(kernel.name, globs)) out["kernels"].push_back(to_json(kernel));
  }
  return out;
}

Result<Json> ptx_json(std::string_view bytes, const Globs& globs) {
  const auto ptx = read_ptx(bytes);
  if (!ptx) return tl::unexpected(ptx.error());
  Json out;
  out["format"] = "ptx";
  out["ptx_version"] = ptx->version;
  out["arch"] = arch_name(ptx->sm, ptx->scope);
  out["kernels"] = Json::array();
  for (const std::string& name : ptx->kernels) {
    if (!is_wanted(name, globs)) continue;
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

Result<Json> fatbin_json(std::string_view bytes, const Globs& globs) {
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
    if (entry.kind != FatbinEntryKind::other) {
      const auto raw = unpack_payload(entry);
      const auto image = !raw ? Result<Json>(tl::unexpected(raw.error()))
                         : entry.kind == FatbinEntryKind::elf ? cubin_json(*raw, globs)
                                                              : ptx_json(*raw, globs);
      if (!image) {
        return fail(image.error().code,
                    fmt::format("entry {} (sm_{}): {}", i, entry.sm, image.error().message));
      }
      if (!globs.empty() && (*image)["kernels"].empty()) continue;
      item["sha256"] = sha256_hex(sha256(*raw));
      item["image"] = *image;
    } else if (!globs.empty()) {
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
// driver, and to patterns that ask for an image.
Result<Json> fatbins_json(std::string_view section, const Globs& globs) {
  Json out = Json::array();
  while (!section.empty()) {
    const size_t bytes = fatbin_region_bytes(section);
    if (bytes == 0) {
      if (detect_image_format(section) != ImageFormat::fatbin) break;  // padding at the end
      return fail(ErrorCode::invalid_image, "cut short: the fatbin's region");
    }
    const std::string_view region = section.substr(0, bytes);
    auto fatbin = fatbin_json(region, globs);
    if (!fatbin) return fatbin;
    section.remove_prefix(bytes);
    if (!globs.empty() && (*fatbin)["entries"].empty()) continue;
    (*fatbin)["image"] = image_hash_words(region);
    out.push_back(std::move(*fatbin));
  }
  return out;
}

// A program or library of this machine: what it links, and the fatbins that nvcc put into it.
Result<Json> host_elf_json(std::string* bytes, const Globs& globs) {
  elf_version(EV_CURRENT);
  const std::unique_ptr<Elf, int (*)(Elf*)> elf(elf_memory(bytes->data(), bytes->size()), elf_end);
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
  uint64_t exported = 0;
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf.get(), section)) != nullptr;) {
    GElf_Shdr info;
    if (gelf_getshdr(section, &info) == nullptr) continue;
    const char* const name = has_names ? elf_strptr(elf.get(), names, info.sh_name) : nullptr;
    const bool is_fatbin =
        name != nullptr && (strcmp(name, ".nv_fatbin") == 0 || strcmp(name, "__nv_relfatbin") == 0);
    if (!is_fatbin && info.sh_type != SHT_DYNAMIC && info.sh_type != SHT_DYNSYM) continue;
    Elf_Data* const data = elf_getdata(section, nullptr);
    if (data == nullptr || data->d_buf == nullptr) continue;
    if (is_fatbin) {
      const auto fatbins = fatbins_json(
          std::string_view(static_cast<const char*>(data->d_buf), data->d_size), globs);
      if (!fatbins) {
        return fail(fatbins.error().code,
                    fmt::format("section {}: {}", name, fatbins.error().message));
      }
      out["fatbins"].insert(out["fatbins"].end(), fatbins->begin(), fatbins->end());
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

Result<Json> inspect_file(const std::string& path, const Globs& globs) {
  auto bytes = read_file(path, kMaxLibraryBytes);
  if (!bytes) return tl::unexpected(bytes.error());
  Result<Json> image = fail(
      ErrorCode::invalid_image,
      bytes->empty() ? "the file is empty" : "neither a cubin, a fatbin, PTX nor another ELF file");
  switch (detect_image_format(*bytes)) {
    case ImageFormat::cubin:
      image = is_host_elf(*bytes) ? host_elf_json(&*bytes, globs) : cubin_json(*bytes, globs);
      break;
    case ImageFormat::fatbin: image = fatbin_json(*bytes, globs); break;
    case ImageFormat::ptx: image = ptx_json(*bytes, globs); break;
    case ImageFormat::unknown: break;
  }
  if (!image) return tl::unexpected(image.error());
  Json out;
  out["path"] = path;
  out["bytes"] = bytes->size();
  out["sha256"] = sha256_hex(sha256(*bytes));
  // A library holds many images; its own hash is none of theirs.
  if ((*image)["format"] != "elf") out["image"] = image_hash_words(*bytes);
  out.update(*image);
  return out;
}

// ---- text, made from the JSON: the two cannot say different things

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
  std::string_view table;
  const std::string text = format_table(rows);
  for (table = text; !table.empty(); table.remove_prefix(table.find('\n') + 1)) {
    out += fmt::format("{}    {}\n", indent, table.substr(0, table.find('\n')));
  }
  return out;
}

std::string kernels_text(const Json& image, const std::string& indent) {
  std::string out;
  for (const Json& kernel : image["kernels"]) out += kernel_text(kernel, indent);
  return out.empty() ? indent + "no kernels\n" : out;
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
    if (image["fatbins"].empty()) out += indent + "  no GPU code\n";
    for (const Json& fatbin : image["fatbins"]) out += image_text(fatbin, indent + "  ");
  }
  if (image.contains("kernels")) out += kernels_text(image, indent + "  ");
  return out;
}

// ---- processes

// The counters of a process: those files that it has mapped, seen through its own root, so that a
// process in a container is read, too.
Json counters_json(const ProcessLook& process) {
  Json out = Json::array();
  for (const std::string& path : process.counters) {
    const size_t slash = path.rfind('/');
    const std::string folder = fmt::format("/proc/{}/root{}", process.pid, path.substr(0, slash));
    const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    Json item;
    item["file"] = path;
    const auto read = read_counters_file(fd.get(), path.substr(slash + 1));
    item["problem"] = read ? Json() : Json(read.error());
    if (read && read->has_value()) {
      const ProcessCounters& counters = **read;
      item["mode"] = counters.mode;
      item["config"] = Json::array();
      for (const ConfigIdentity& config : counters.configs) {
        item["config"].push_back({{"path", config.path}, {"digest", config.digest}});
      }
      item["folder"] = folder_to_json(counters.folder);
      item["totals"] = Json::object();
      for (const auto& [outcome, count] : totals_of(sorted_rows(counts_of(counters)))) {
        item["totals"][outcome_name(outcome)] = count;
      }
    }
    out.push_back(std::move(item));
  }
  return out;
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json process_json(const ProcessLook& process) {
  Json out;
  out["pid"] = process.pid;
  out["command"] = process.command;
  out["shim"] = or_null(process.shim);
  out["why_not"] = process.shim.empty() ? Json(why_no_shim(process.pid)) : Json();
  out["loader"] = or_null(process.loader);
  out["driver"] = or_null(process.driver);
  out["container"] = or_null(process.container);
  out["environment"] = Json::object();
  for (const auto& [name, value] : shim_variables(process.pid)) out["environment"][name] = value;
  out["counters"] = counters_json(process);
  return out;
}

std::string process_text(const Json& process) {
  const auto line = [](const char* name, const std::string& value) {
    return fmt::format("  {:<10}{}\n", name, value);
  };
  const auto path = [&process](const char* key) {
    return process[key].is_null() ? std::string("not loaded") : text_of(process[key]);
  };
  std::string out =
      fmt::format("pid {}: {}\n", process["pid"].get<uint64_t>(), text_of(process["command"]));
  out += line("shim", process["shim"].is_null() ? "not loaded: " + text_of(process["why_not"])
                                                : path("shim"));
  out += line("loader", path("loader")) + line("driver", path("driver"));
  if (!process["container"].is_null()) out += line("in", text_of(process["container"]));
  for (const auto& [name, value] : process["environment"].items()) {
    out += fmt::format("  {}={}\n", printable(name), text_of(value));
  }
  if (process["counters"].empty()) {
    out += line("counters",
                process["loader"].is_null() ? "none: it has not used CUDA under the shim" : "none");
  }
  for (const Json& item : process["counters"]) {
    out += line("counters", text_of(item["file"]));
    if (!item["problem"].is_null()) out += line("", text_of(item["problem"]));
    if (!item.contains("mode")) continue;
    out += line("  mode", text_of(item["mode"]));
    for (const Json& config : item["config"]) {
      out += line("  config", fmt::format("{} ({})", text_of(config["path"]),
                                          text_of(config["digest"]).substr(0, 12)));
    }
    const Json& folder = item["folder"];
    out += line(folder["off"].get<bool>() ? "  off from" : "  now in",
                fmt::format("{}, moved {} times", text_of(folder["path"]),
                            folder["swaps"].get<uint64_t>()));
    if (folder["refusal"] != "") out += line("  refused", text_of(folder["refusal"]));
    for (const auto& [outcome, count] : item["totals"].items()) {
      out += fmt::format("    {:<22}{:>12}\n", outcome, count.get<uint64_t>());
    }
  }
  return out;
}

bool inspect_processes(const std::vector<uint64_t>& pids, Json* list, std::string* text) {
  bool is_fine = true;
  for (const uint64_t pid : pids) {
    bool is_forbidden = false;
    const auto process = look_at_process(pid, &is_forbidden);
    if (!process) {
      is_fine = false;
      print_message("inspect", fmt::format("process {}: {}", pid,
                                           is_forbidden ? "it may not be looked into; try as root"
                                                        : "there is none"));
      continue;
    }
    list->push_back(process_json(*process));
    *text += process_text(list->back());
  }
  return is_fine;
}

}  // namespace

int inspect_command(int argc, const char* const* argv) {
  CLI::App app("What a cubin, fatbin, PTX file, library or running process holds",
               "fibshim inspect");
  std::vector<std::string> paths;
  std::vector<uint64_t> pids;
  Globs globs;
  bool wants_json = false;
  app.add_option("FILE", paths, "files to read")->type_name("");
  app.add_option("--pid", pids, "a running process: is the shim in it, with which folder")
      ->type_name("PID")
      ->check([](const std::string& pid) {
        return pid.starts_with('-') ? "a process has a positive number, not " + pid : std::string();
      })
      ->allow_extra_args(false);
  app.add_option("--kernel", globs, "only kernels whose name, mangled or readable, fits")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  app.add_flag("--json", wants_json, "print JSON");
  app.footer(
      "Exit codes: 0 fine; 1 a file or process cannot be read or is damaged; 2 wrong usage.");
  if (int exit_code = 0; !parse_options(&app, "[OPTIONS] [FILE...]", argc, argv, &exit_code))
    return exit_code;

  if (paths.empty() && pids.empty()) {
    return usage_error("inspect", "name at least one file, or a process with --pid");
  }

  bool is_fine = true;
  std::string text;
  Json document;
  document["version"] = 1;
  document["files"] = Json::array();
  for (const std::string& path : paths) {
    auto file = inspect_file(path, globs);
    if (!file) {
      is_fine = false;
      // Messages about reading name the path already.
      const std::string& reason = file.error().message;
      print_message("inspect", printable(reason.find(path) == std::string::npos
                                             ? fmt::format("{}: {}", path, reason)
                                             : reason));
      continue;
    }
    text += fmt::format("{}: {} bytes, sha256 {}\n", printable(path),
                        (*file)["bytes"].get<uint64_t>(), (*file)["sha256"].get<std::string>());
    if (file->contains("image")) {
      text += fmt::format("  image     {}\n", (*file)["image"].get<std::string>());
    }
    text += image_text(*file, "  ");
    document["files"].push_back(std::move(*file));
  }
  document["processes"] = Json::array();
  is_fine = inspect_processes(pids, &document["processes"], &text) && is_fine;
  is_fine = (wants_json ? print_json(document) : print_data(text)) && is_fine;
  return is_fine ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
