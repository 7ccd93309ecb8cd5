// Reads the JSON files of config folders: ahead of their turn, all of them together within a limit. Whatever is read has
// its place in the digest, is looked at for who may write it and, where a key is required, must have been signed.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <unordered_set>

#include "loader/check/images.h"

namespace fibshim {

// One folder of the list, while it is read.
struct OneFolder {
  OneFolder(const FolderListing& given, size_t place, Diagnostics* diagnostics)
      : listing(given), index(static_cast<uint16_t>(place)), trust(given, diagnostics) {}

  const FolderListing& listing;
  const uint16_t index;
  TrustCheck trust;
  std::optional<SignedManifest> manifest;  // where a key is required
  std::optional<ImageStore> images;
  std::unordered_set<std::string> listed_images;  // those that the entries have
  std::unordered_set<std::string> unused_images;  // of solutions that are not used
  std::vector<ManifestEntry> entries;
};

class FileReader {
 public:
  // `names`: gets the names that Marks point at. `wants_entries`: of every file, not of signed ones alone.
  FileReader(bool wants_entries, std::deque<std::string>* names, Diagnostics* diagnostics);

  // Gets the root of a file's JSON, which lives only that long, and the file's path.
  using Use = std::function<void(JsonValue root, const std::string& relative)>;
  void read(OneFolder* folder, const std::vector<std::string>& files, const Use& use);

  // Counts what is read. False, and reported once: it is too much.
  bool add_size(const OneFolder& folder, uint64_t bytes);
  bool is_within_limit() const { return total_bytes_ <= kMaxFolderBytes; }

  XXH128_hash_t text_hash() const { return text_hash_; }  // of the file that was read last
  void add_to_digest(std::string_view bytes);
  void add_to_digest(const Sha256& hash) {
    XXH3_128bits_update(&digest_, hash.data(), hash.size());
  }
  XXH128_hash_t digest() const { return XXH3_128bits_digest(&digest_); }

 private:
  struct JsonFile;
  std::unique_ptr<JsonFile> read_ahead(const OneFolder& folder, const std::string& relative) const;
  void read_one(OneFolder* folder, const std::string& relative, std::unique_ptr<JsonFile> file,
                const Use& use);
  // Records the file for the manifest, and compares it with the signed one. False: it differs.
  bool check_entry(OneFolder* folder, const std::string& relative, std::string_view bytes);

  const bool wants_entries_;
  std::deque<std::string>* names_;
  Diagnostics* diagnostics_;
  XXH3_state_t digest_;
  XXH128_hash_t text_hash_ = {};
  uint64_t total_bytes_ = 0;
};

}  // namespace fibshim
