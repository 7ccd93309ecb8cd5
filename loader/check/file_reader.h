// Reads the JSON files of config folders, ahead of their turn and within a total limit. Adds every
// file to the digest, checks who can write it and, if a key is required, that the file was signed.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <unordered_set>

#include "loader/check/images.h"
#include "loader/compile/read_pattern.h"

namespace fibshim {

// One folder of the list, while it is read.
struct OneFolder {
  OneFolder(const FolderListing& given, size_t place, Diagnostics* diagnostics)
      : listing(given), index(static_cast<uint16_t>(place)), trust(given, diagnostics) {}

  const FolderListing& listing;
  const uint16_t index;
  TrustCheck trust;
  std::optional<SignedManifest> manifest;  // set if a key is required
  std::optional<ImageStore> images;
  std::unordered_set<std::string> listed_images;  // images that `entries` contains
  std::unordered_set<std::string> unused_images;  // images of solutions that are not used
  std::vector<ManifestEntry> entries;
};

class FileReader {
 public:
  // `names` receives the file names that Marks point to. `wants_entries`: record entries even if no
  // key is required.
  FileReader(bool wants_entries, std::deque<std::string>* names, Diagnostics* diagnostics);

  // Receives the root of a file's JSON, which lives until Use returns, and the file's relative
  // path.
  using Use = std::function<void(JsonValue root, const std::string& relative)>;
  void read(OneFolder* folder, const std::vector<std::string>& files, const Use& use);
  // As read(). Use must call pattern(), whose result is read ahead, too: few files are much work.
  void read_patterns(OneFolder* folder, const Use& use);
  std::unique_ptr<PatternSpec> pattern(JsonValue root);

  // Adds to the total size. Returns false after reporting it if the total exceeds the limit.
  bool add_size(const OneFolder& folder, uint64_t bytes);
  bool is_within_limit() const { return total_bytes_ <= kMaxFolderBytes; }

  XXH128_hash_t text_hash() const { return text_hash_; }  // of the last file read
  void add_to_digest(std::string_view bytes);
  void add_to_digest(const Sha256& hash) {
    XXH3_128bits_update(&digest_, hash.data(), hash.size());
  }
  XXH128_hash_t digest() const { return XXH3_128bits_digest(&digest_); }

 private:
  struct JsonFile;
  struct Shared;
  void read(OneFolder* folder, const std::vector<std::string>& files, const Use& use,
            Shared* shared);
  std::unique_ptr<JsonFile> read_ahead(const OneFolder& folder, const std::string& relative,
                                       const std::string& name, Shared* shared) const;
  std::unique_ptr<JsonFile> read_late(const OneFolder& folder, const std::string& relative,
                                      const std::string& name);
  void use_file(OneFolder* folder, const std::string& relative, const std::string* name,
                JsonFile* file, const Use& use);
  // Records the file for the manifest and compares it with the signed one. Returns false if it
  // differs.
  bool check_entry(OneFolder* folder, const std::string& relative, std::string_view bytes);

  const bool wants_entries_;
  std::deque<std::string>* names_;
  Diagnostics* diagnostics_;
  XXH3_state_t digest_;
  XXH128_hash_t text_hash_ = {};
  std::unique_ptr<PatternSpec> pattern_;  // of the file in use; null if it is yet to be read
  uint64_t total_bytes_ = 0;
};

}  // namespace fibshim
