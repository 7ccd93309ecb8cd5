// The table of functions that the shim gets. No exception may leave this file: the caller is an
// engine's thread inside a CUDA call.
#include <stdio.h>
#include <string.h>

#include <memory>
#include <new>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/check/check.h"
#include "loader/read/code_hash.h"
#include "loader/read/kernel_params.h"
#include "loader/read/sha256.h"
#include "shim/abi/snapshot.h"
#include "loader/compile/snapshot_builder.h"

namespace fibshim {
namespace {

// Copies `text`, cut to fit, but never in the middle of a UTF-8 character.
void set_message(char* message, size_t message_size, const char* text) {
  if (message == nullptr || message_size == 0) return;
  size_t length = strlen(text);
  if (length >= message_size) {
    length = message_size - 1;
    while (length > 0 && (static_cast<uint8_t>(text[length]) & 0xc0) == 0x80) --length;
  }
  memcpy(message, text, length);
  message[length] = '\0';
}

// Returns the first error with that effect, as `fibshim check` prints it, and how many more there
// are.
std::string summarize(const CheckReport& report, Effect effect) {
  std::string summary;
  uint32_t count = 0;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (rule_info(diagnostic.rule).effect != effect) continue;
    if (count++ == 0) summary = format_diagnostic(diagnostic);
  }
  if (count > 1) summary += " (and " + std::to_string(count - 1) + " more)";
  return summary;
}

const Snapshot* open_folder(const char* folder, const FolderRules& rules, char* message,
                            size_t message_size) {
  set_message(message, message_size, "");
  try {
    const std::string path = folder == nullptr ? "" : folder;
    CheckReport report =
        check_folder(path, {.required_key = rules.required_key, .trust = rules.trust});
    if (report.snapshot == nullptr) {
      const std::string summary = summarize(report, Effect::invalid_folder);
      set_message(message, message_size, summary.empty() ? "out of memory" : summary.c_str());
      return nullptr;
    }
    set_message(message, message_size, summarize(report, Effect::broken_solution).c_str());
    return report.snapshot.release();
  } catch (...) {
    set_message(message, message_size, "out of memory");
    return nullptr;
  }
}

void close_snapshot(const Snapshot* snapshot) { SnapshotCloser()(snapshot); }

uint32_t match_symbol(const Snapshot* snapshot, const char* symbol, SymbolMatch* out,
                      uint32_t capacity) {
  if (snapshot == nullptr || symbol == nullptr) return 0;
  return matcher_of(snapshot).match(symbol, out, capacity);
}

int read_image(const Snapshot* snapshot, uint32_t solution_index, uint32_t image_index,
               ImageBytes* out, char* message, size_t message_size) {
  const auto failed = [&](ErrorCode code, const std::string& text) {
    set_message(message, message_size, text.c_str());
    return static_cast<int>(code);
  };
  set_message(message, message_size, "");
  *out = {};
  try {
    if (solution_index >= snapshot->solutions.count) {
      return failed(ErrorCode::invalid_value, "no such solution");
    }
    const Solution& solution = snapshot->begin(snapshot->solutions)[solution_index];
    if (image_index >= solution.images.count) {
      return failed(ErrorCode::invalid_value, "no such image");
    }
    const Image& image = snapshot->begin(solution.images)[image_index];
    const char* const folder = snapshot->text(snapshot->begin(snapshot->roots)[solution.folder]);
    const auto root = RootFolder::open(folder);
    if (!root) return failed(root.error().code, std::string(folder) + ": " + root.error().message);
    auto content = root->read(snapshot->text(image.path), kMaxImageBytes);
    if (!content) return failed(content.error().code, content.error().message);
    const std::string path = root->path() + "/" + snapshot->text(image.path);
    // Permissions may have changed since the folder was opened, as files may have.
    const std::string distrust =
        distrust_of(content->stamp, root->stamp(), trust_rule(trust_of(snapshot)));
    if (!distrust.empty()) return failed(ErrorCode::operating_system, path + ": " + distrust);
    const Sha256 hash = sha256(content->bytes);
    if (memcmp(hash.data(), image.sha256, hash.size()) != 0) {
      return failed(ErrorCode::invalid_image, path + ": its SHA-256 is not the one that solution " +
                                                  snapshot->text(solution.name) + " states");
    }
    auto* const owner = new std::string(std::move(content->bytes));  // release_image() deletes it
    *out = {owner->data(), owner->size(), owner};
    return 0;
  } catch (...) {
    set_message(message, message_size, "out of memory");
    return static_cast<int>(ErrorCode::operating_system);
  }
}

void release_image(ImageBytes* bytes) {
  if (bytes == nullptr) return;
  delete static_cast<std::string*>(bytes->owner);
  *bytes = {};
}

void identify_image(const void* data, size_t size, ImageHashes* out) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  *out = {{hash.low64, hash.high64}, {}};
  try {
    out->code = hash_code({static_cast<const char*>(data), size}).value_or(ImageHash{});
  } catch (...) {  // out of memory: the code hash stays zero
  }
}

void list_kernels(const void* data, size_t size, void* context,
                  void (*use)(void* context, const char* name, uint32_t param_count)) {
  try {
    for (const auto& [name, param_count] :
         count_kernel_params({static_cast<const char*>(data), size})) {
      use(context, name.c_str(), param_count);
    }
  } catch (...) {  // out of memory: the caller asks the driver about the kernels not listed
  }
}

constexpr LoaderApi kApi = {kLoaderApiVersion, open_folder,   close_snapshot, match_symbol,
                            read_image,        release_image, identify_image, list_kernels};

}  // namespace
}  // namespace fibshim

extern "C" __attribute__((visibility("default"))) const fibshim::LoaderApi* fibloader_api(
    uint32_t version) {
  return version == fibshim::kLoaderApiVersion ? &fibshim::kApi : nullptr;
}
