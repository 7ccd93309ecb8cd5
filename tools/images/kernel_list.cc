#include "tools/images/kernel_list.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "loader/read/file.h"
#include "loader/read/image_format.h"
#include "tools/base/files.h"
#include "tools/images/image_contents.h"

namespace fibshim::tools {
namespace {

// The largest library of a framework has a little more than one GB.
constexpr size_t kMaxLibraryBytes = size_t{4} << 30;
constexpr size_t kMostTold = 3;  // problems of a file: a damaged library may have hundreds
constexpr std::string_view kTableHead = "fibshim kernels 1: ";

// Removes the text up to the separator, and the separator, from *text. Returns that text.
std::string_view pop_until(std::string_view* text, char separator) {
  const std::string_view head = text->substr(0, text->find(separator));
  text->remove_prefix(std::min(text->size(), head.size() + 1));
  return head;
}

bool read_number(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_params(std::string_view text, KnownKernel* kernel) {
  if (text == "-") return true;
  while (!text.empty()) {
    std::string_view param = pop_until(&text, ',');
    auto& [offset, size] = kernel->params.emplace_back();
    const std::string_view first = pop_until(&param, ':');
    if (!read_number(first, &offset) || !read_number(param, &size) || size == 0) return false;
  }
  return !kernel->params.empty();
}

bool is_code(std::string_view text) {
  constexpr std::string_view kPrefix = "code:";
  return text.size() == kPrefix.size() + 32 && text.starts_with(kPrefix) &&
         text.find_first_not_of("0123456789abcdef", kPrefix.size()) == text.npos;
}

Result<void> add_table(std::string_view text, KernelList* list) {
  text.remove_prefix(kTableHead.size());
  const std::string engine(pop_until(&text, '\n'));
  for (uint32_t number = 2; !text.empty(); ++number) {
    std::string_view line = pop_until(&text, '\n');
    std::string_view versions = pop_until(&line, ' ');
    KnownKernel kernel;
    if (versions.empty() || !read_params(pop_until(&line, ' '), &kernel) || line.empty()) {
      return fail(ErrorCode::invalid_value,
                  fmt::format("line {}: no versions, parameters and symbol", number));
    }
    kernel.symbol = pop_until(&line, ' ');
    kernel.code = line;
    if (!line.empty() && !is_code(line)) {
      return fail(ErrorCode::invalid_value,
                  fmt::format("line {}: {} is no hash of code", number, line));
    }
    std::set<std::string>& origins = list->kernels[std::move(kernel)];
    while (!versions.empty()) {
      origins.insert(fmt::format("{} {}", engine, pop_until(&versions, ',')));
    }
    list->origins.insert(origins.begin(), origins.end());
  }
  return {};
}

// Adds a cubin's kernels. PTX is skipped: its parameters are not read.
void add_code(CodeContents* code, const std::string& image, const std::string& origin,
              KernelList* list) {
  if (!code->ptx_version.empty()) return;
  for (CubinKernel& kernel : code->kernels) {
    KnownKernel known{std::move(kernel.name), {}, image, code->code};
    known.params.reserve(kernel.params.size());
    for (const KernelParam& param : kernel.params) {
      known.params.push_back({param.offset, param.size});
    }
    list->kernels[std::move(known)].insert(origin);
  }
}

void add_image(ImageContents* image, const std::string& origin, KernelList* list) {
  add_code(&image->code, image->image, origin, list);
  for (FatbinContents& fatbin : image->fatbins) {
    for (EntryContents& entry : fatbin.entries) {
      if (entry.image) add_code(&*entry.image, fatbin.image, origin, list);
    }
  }
  for (PackedCubin& cubin : image->cubins) add_code(&cubin.code, cubin.image, origin, list);
}

bool may_hold_kernels(std::string_view bytes) {
  return bytes.substr(0, kTableHead.size()) == kTableHead ||
         detect_image_format(bytes) != ImageFormat::unknown;
}

Result<void> add_file(const std::string& path, std::string_view bytes, KernelList* list) {
  if (bytes.substr(0, kTableHead.size()) == kTableHead) return add_table(bytes, list);
  auto image = read_image(bytes, {}, false);
  if (!image) return tl::unexpected(image.error());
  list->origins.insert(path);
  add_image(&*image, path, list);
  const size_t told = std::min(image->problems.size(), kMostTold);
  for (size_t i = 0; i < told; ++i) {
    list->problems.push_back(fmt::format("{}: {}", path, image->problems[i]));
  }
  if (const size_t more = image->problems.size() - told) {
    list->problems.push_back(fmt::format("{}: {} more, which fibshim inspect lists", path, more));
  }
  return {};
}

}  // namespace

Result<void> add_kernels(const std::string& path, KernelList* list) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const auto bytes = read_file(path, kMaxLibraryBytes);
    if (!bytes) return tl::unexpected(bytes.error());
    return add_file(path, *bytes, list);
  }
  const size_t before = list->origins.size();
  for (const std::string& file : paths_below(path, &list->problems)) {
    if (!fs::is_regular_file(file, error)) continue;
    const auto bytes = read_file(file, kMaxLibraryBytes);
    if (!bytes || !may_hold_kernels(*bytes)) continue;
    if (const auto added = add_file(file, *bytes, list); !added) {
      list->problems.push_back(fmt::format("{}: {}", file, added.error().message));
    }
  }
  if (list->origins.size() == before) {
    return fail(ErrorCode::invalid_value, "no file in it holds kernels");
  }
  return {};
}

}  // namespace fibshim::tools
