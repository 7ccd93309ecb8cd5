#include "tools/record/kept_image.h"

#include <filesystem>

#include <fmt/format.h>

#include "loader/read/file.h"
#include "shim/abi/snapshot.h"

namespace fibshim::tools {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "xxh128-";
constexpr const char* kEndings[] = {".cubin", ".fatbin", ".ptx", ".image"};

std::string hash_text(std::string_view bytes) {
  ImageHashes hashes{};
  fibloader_api(kLoaderApiVersion)->identify_image(bytes.data(), bytes.size(), &hashes);
  return fmt::format("xxh128:{:016x}{:016x}", hashes.file.high, hashes.file.low);
}

bool is_kept_image(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_regular_file(error) && !entry.is_symlink(error) &&
         entry.path().filename().string().starts_with(kPrefix);
}

Error failure(const std::string& path, const std::error_code& error) {
  return {ErrorCode::operating_system, path + ": " + error.message()};
}

}  // namespace

std::string kept_images_folder(const std::string& recording) {
  std::error_code error;
  return fs::is_directory(recording, error) ? (fs::path(recording) / kRecordedImagesFolder).string()
                                            : recording + "." + kRecordedImagesFolder;
}

Result<std::string> read_kept_image(const std::string& recording, const KernelRecord& kernel) {
  if (kernel.image.empty()) {
    return fail(ErrorCode::not_found, "the recording does not know the image that it came from");
  }
  const std::string folder = kept_images_folder(recording);
  const std::string name = kPrefix + kernel.image.substr(kernel.image.find(':') + 1);
  for (const char* const ending : kEndings) {
    const std::string path = folder + "/" + name + ending;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    auto bytes = read_file(path, kMaxRecordingBytes);
    if (!bytes) return bytes;
    if (hash_text(*bytes) == kernel.image) return bytes;
    return fail(ErrorCode::invalid_image,
                path + " is damaged: its hash is not the one in its name");
  }
  return fail(ErrorCode::not_found,
              fmt::format("its image, {}, is not in {}: record again with --keep-images '{}'",
                          kernel.image, folder, kernel.symbol));
}

Result<KeptImages> move_kept_images(const std::string& folder, const std::string& file) {
  KeptImages kept;
  std::error_code error;
  const std::string from = kept_images_folder(folder);
  const std::string to = file + "." + kRecordedImagesFolder;
  if (!fs::is_directory(from, error)) return kept;
  fs::create_directory(to, error);
  if (error) return tl::unexpected(failure(to, error));
  for (const fs::directory_entry& entry : fs::directory_iterator(to, error)) {
    if (is_kept_image(entry)) fs::remove(entry.path(), error);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    if (!is_kept_image(entry)) continue;
    const fs::path place = fs::path(to) / entry.path().filename();
    fs::copy_file(entry.path(), place, fs::copy_options::overwrite_existing, error);
    if (error) return tl::unexpected(failure(place.string(), error));
    ++kept.count;
    kept.bytes += entry.file_size(error);
  }
  return kept;
}

}  // namespace fibshim::tools
