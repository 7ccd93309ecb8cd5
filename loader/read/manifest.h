// What a signature stands for: a list of every file that a folder is served from, in
// <folder>/fibshim.manifest, and its signature in <folder>/fibshim.manifest.minisig.
//
// The list is canonical: the same files make the same bytes.
//
//   fibshim manifest 1
//   <SHA-256> <size> <path below the folder>        one line a file, by path
//
// With a key required nothing of a folder is parsed that the list does not name with the very hash
// of the bytes at hand, and every file that it names must be there.
#pragma once

#include <map>

#include "loader/read/file.h"
#include "loader/read/sha256.h"
#include "shim/abi/settings.h"

namespace fibshim {

inline constexpr char kManifestFile[] = "fibshim.manifest";
inline constexpr char kManifestSignatureFile[] = "fibshim.manifest.minisig";

struct ManifestEntry {
  std::string relative;
  uint64_t size_bytes;
  Sha256 sha256;
};

// Fails when a path cannot stand in a line.
Result<std::string> manifest_text(std::vector<ManifestEntry> entries);

// A list whose signature has been verified.
class SignedManifest {
 public:
  // `key`: as read_public_key() takes it. The message says what is missing or wrong.
  static Result<SignedManifest> open(const RootFolder& root, const std::string& key, Trust trust);
  // The same of a list's text alone, whoever has verified that.
  static Result<SignedManifest> parse(std::string_view text);

  bool has(const std::string& relative) const { return entries_.count(relative) != 0; }

  // Why these bytes are not what was signed as `relative`; empty when they are.
  std::string difference(const std::string& relative, size_t size, const Sha256& sha256) const;

  const std::map<std::string, ManifestEntry, std::less<>>& entries() const { return entries_; }

 private:
  std::map<std::string, ManifestEntry, std::less<>> entries_;
};

}  // namespace fibshim
