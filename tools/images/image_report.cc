#include "tools/images/image_report.h"

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

const char* abi_words(CubinAbi abi) {
  return abi == CubinAbi::since_13 ? "CUDA 13 and later" : "before CUDA 13";
}

std::string kind_name(const FatbinEntry& entry) {
  switch (entry.kind) {
    case FatbinEntryKind::ptx: return "ptx";
    case FatbinEntryKind::elf: return "cubin";
    case FatbinEntryKind::other: break;
  }
  return fmt::format("kind {}", entry.kind_number);
}

const char* compression_name(FatbinCompression compression) {
  switch (compression) {
    case FatbinCompression::none: return "none";
    case FatbinCompression::lz4: return "lz4";
    case FatbinCompression::zstd: return "zstd";
  }
  return "unknown";
}

// ---- JSON

class Writer {
 public:
  explicit Writer(JsonWriter* json) : json_(*json) {}

  void image(const ImageContents& image);

 private:
  void number(const char* key, uint64_t value) {
    json_.key(key);
    json_.number(value);
  }
  void number_or_null(const char* key, uint64_t value) {
    json_.key(key);
    value == 0 ? json_.null() : json_.number(value);
  }
  void text(const char* key, std::string_view value) {
    json_.key(key);
    json_.text(value);
  }
  void text_or_null(const char* key, std::string_view value) {
    json_.key(key);
    json_.text_or_null(value);
  }
  void texts(const char* key, const std::vector<std::string>& values) {
    list(key, values, [this](const std::string& value) { json_.text(value); });
  }
  template <class Values, class Write>
  void list(const char* key, const Values& values, const Write& write) {
    json_.key(key);
    json_.open('[');
    for (const auto& value : values) write(value);
    json_.close();
  }
  template <class Values, class Write>
  void objects(const char* key, const Values& values, const Write& write) {
    list(key, values, [&](const auto& value) {
      json_.open('{');
      write(value);
      json_.close();
    });
  }
  void dim(const char* key, const Dim3& value);
  void kernel(const CubinKernel& kernel, bool is_ptx);
  void code(const CodeContents& code);
  void entry(const EntryContents& entry);
  void fatbin(const FatbinContents& fatbin);

  JsonWriter& json_;
  ReadableNames names_;
};

void Writer::dim(const char* key, const Dim3& value) {
  json_.key(key);
  if (value.x == 0) return json_.null();
  json_.open('[');
  for (const uint32_t size : {value.x, value.y, value.z}) json_.number(size);
  json_.close();
}

void Writer::kernel(const CubinKernel& kernel, bool is_ptx) {
  text("name", kernel.name);
  text_or_null("demangled", names_.of(kernel.name));
  if (is_ptx) return;
  number("registers", kernel.registers);
  number("static_shared_bytes", kernel.static_shared_bytes);
  number("stack_bytes", kernel.stack_bytes);
  number("code_bytes", kernel.code_bytes);
  number_or_null("max_threads", kernel.max_threads);
  dim("required_block", kernel.required_threads);
  dim("required_cluster", kernel.required_cluster);
  number("param_bytes", kernel.param_bytes);
  objects("params", kernel.params, [this](const KernelParam& param) {
    number("ordinal", param.ordinal);
    number("offset", param.offset);
    number("size", param.size);
  });
}

void Writer::code(const CodeContents& code) {
  const bool is_ptx = !code.ptx_version.empty();
  text("format", is_ptx ? "ptx" : "cubin");
  if (is_ptx) text("ptx_version", code.ptx_version);
  text("arch", code.arch);
  if (!code.code.empty()) text("code", code.code);
  if (!is_ptx) text("abi", abi_words(code.abi));
  number("kernels_in_all", code.kernels_in_all);
  objects("kernels", code.kernels,
          [&](const CubinKernel& kernel) { this->kernel(kernel, is_ptx); });
}

void Writer::entry(const EntryContents& entry) {
  text("kind", kind_name(entry.header));
  number("sm", entry.header.sm);
  text("compression", compression_name(entry.header.compression));
  number("stored_bytes", entry.header.stored_bytes);
  number("raw_bytes", entry.header.raw_bytes);
  text_or_null("sha256", entry.sha256);
  json_.key("image");
  if (entry.image) {
    json_.open('{');
    code(*entry.image);
    json_.close();
  } else {
    json_.null();
  }
  text_or_null("problem", entry.problem);
}

void Writer::fatbin(const FatbinContents& fatbin) {
  text("format", "fatbin");
  objects("entries", fatbin.entries, [this](const EntryContents& entry) { this->entry(entry); });
}

void Writer::image(const ImageContents& image) {
  if (!image.image.empty()) text("image", image.image);
  switch (image.kind) {
    case ContentsKind::code: code(image.code); break;
    case ContentsKind::fatbin: fatbin(image.fatbins.front()); break;
    case ContentsKind::host_elf:
      text("format", "elf");
      text("machine", image.machine);
      text_or_null("soname", image.soname);
      texts("needed", image.needed);
      number("exported_symbols", image.exported_symbols);
      objects("fatbins", image.fatbins, [this](const FatbinContents& fatbin) {
        this->fatbin(fatbin);
        text("image", fatbin.image);
      });
      objects("cubins", image.cubins, [this](const PackedCubin& cubin) {
        code(cubin.code);
        text("image", cubin.image);
      });
      break;
  }
  json_.key("has_gpu_code");
  json_.boolean(image.has_gpu_code);
  texts("problems", image.problems);
}

// ---- text

std::string dim_words(const Dim3& dim) { return fmt::format("{} x {} x {}", dim.x, dim.y, dim.z); }

std::string kernel_text(const CubinKernel& kernel, bool is_ptx, const std::string& indent,
                        ReadableNames* names) {
  std::string out = fmt::format("{}kernel {}\n", indent, printable(kernel.name));
  const std::string& readable = names->of(kernel.name);
  if (!readable.empty()) out += fmt::format("{}  {}\n", indent, printable(readable));
  if (is_ptx) return out;  // PTX gives only names
  out += fmt::format(
      "{}  registers {}, static shared memory {} bytes, stack {} bytes, code {} bytes\n", indent,
      kernel.registers, kernel.static_shared_bytes, kernel.stack_bytes, kernel.code_bytes);
  std::string limits;
  if (kernel.max_threads != 0) limits += fmt::format(", at most {} threads", kernel.max_threads);
  if (kernel.required_threads.x != 0) {
    limits += fmt::format(", block {}", dim_words(kernel.required_threads));
  }
  if (kernel.required_cluster.x != 0) {
    limits += fmt::format(", cluster {}", dim_words(kernel.required_cluster));
  }
  if (!limits.empty()) out += fmt::format("{}  {}\n", indent, limits.substr(2));
  out += fmt::format("{}  {}, {} bytes\n", indent, counted(kernel.params.size(), "parameter"),
                     kernel.param_bytes);
  if (kernel.params.empty()) return out;
  std::vector<std::vector<std::string>> rows = {{">ORDINAL", ">OFFSET", ">SIZE"}};
  for (const KernelParam& param : kernel.params) {
    rows.push_back({fmt::format("{}", param.ordinal), fmt::format("{:#x}", param.offset),
                    fmt::format("{}", param.size)});
  }
  const std::string table = format_table(rows);
  for (const std::string_view line : split(table, '\n')) {
    out += fmt::format("{}    {}\n", indent, line);
  }
  return out;
}

std::string kernels_text(const CodeContents& code, const std::string& indent,
                         ReadableNames* names) {
  std::string out;
  for (const CubinKernel& kernel : code.kernels) {
    out += kernel_text(kernel, !code.ptx_version.empty(), indent, names);
  }
  if (!out.empty()) return out;
  return indent + (code.kernels_in_all == 0 ? "no kernels\n" : "no kernel of such a name\n");
}

std::string code_text(const CodeContents& code, const std::string& indent, ReadableNames* names) {
  return (code.ptx_version.empty()
              ? fmt::format("{}cubin for {}, ABI: {}\n", indent, code.arch, abi_words(code.abi))
              : fmt::format("{}PTX {} for {}\n", indent, printable(code.ptx_version), code.arch)) +
         kernels_text(code, indent + "  ", names);
}

std::string fatbin_text(const FatbinContents& fatbin, bool is_in_library, const std::string& indent,
                        ReadableNames* names) {
  std::string out =
      fmt::format("{}fatbin of {}\n", indent, counted(fatbin.entries.size(), "image"));
  if (is_in_library) out += fmt::format("{}  image     {}\n", indent, fatbin.image);
  for (const EntryContents& entry : fatbin.entries) {
    const FatbinEntry& header = entry.header;
    out += fmt::format(
        "{}  {} for sm_{}, {} bytes{}\n", indent, kind_name(header), header.sm, header.raw_bytes,
        header.compression == FatbinCompression::none
            ? ""
            : fmt::format(" ({} compressed to {})", compression_name(header.compression),
                          header.stored_bytes));
    if (entry.image) out += kernels_text(*entry.image, indent + "    ", names);
    if (!entry.problem.empty()) {
      out += fmt::format("{}    not read: {}\n", indent, printable(entry.problem));
    }
  }
  return out;
}

std::string host_elf_text(const ImageContents& image, const std::string& indent,
                          ReadableNames* names) {
  std::string out = fmt::format("{}ELF file for {}\n", indent, image.machine);
  if (!image.soname.empty()) {
    out += fmt::format("{}  soname {}\n", indent, printable(image.soname));
  }
  std::string needed;
  for (const std::string& name : image.needed) needed += " " + printable(name);
  out += fmt::format("{}  needs{}\n", indent, needed.empty() ? " nothing" : needed);
  out += fmt::format("{}  exports {} symbols\n", indent, image.exported_symbols);
  if (image.fatbins.empty() && image.cubins.empty()) {
    out += indent + (image.has_gpu_code ? "  no kernel of such a name\n" : "  no GPU code\n");
  }
  for (const FatbinContents& fatbin : image.fatbins) {
    out += fatbin_text(fatbin, true, indent + "  ", names);
  }
  for (const PackedCubin& cubin : image.cubins) out += code_text(cubin.code, indent + "  ", names);
  return out;
}

}  // namespace

void write_image(const ImageContents& image, JsonWriter* json) { Writer(json).image(image); }

std::string image_text(const ImageContents& image, const std::string& indent) {
  ReadableNames names;
  switch (image.kind) {
    case ContentsKind::code: return code_text(image.code, indent, &names);
    case ContentsKind::fatbin: return fatbin_text(image.fatbins.front(), false, indent, &names);
    case ContentsKind::host_elf: break;
  }
  return host_elf_text(image, indent, &names);
}

}  // namespace fibshim::tools
