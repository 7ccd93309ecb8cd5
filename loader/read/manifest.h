// The manifest of a folder is what gets signed: <folder>/fibshim.manifest lists every file that the
// folder is served from, and <folder>/fibshim.manifest.minisig is its signature.
//
// The manifest is canonical: the same files give the same bytes.
//
//   fibshim manifest 1
//   <SHA-256> <size> <path below the folder>        one line per file, sorted by path
//
// If a key is required, a file is parsed only if the manifest names it with the hash of its bytes,
// and every file that the manifest names must be there.
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

// Fails if a path contains control characters.
Result<std::string> manifest_text(std::vector<ManifestEntry> entries);

// A manifest whose signature has been verified.
class SignedManifest {
 public:
  // `key`: as for read_public_key(). The error message says what is missing or wrong.
  static Result<SignedManifest> open(const RootFolder& root, const std::string& key, Trust trust);
  // Parses the manifest's text, which the caller has verified.
  static Result<SignedManifest> parse(std::string_view text);

  bool has(const std::string& relative) const { return entries_.count(relative) != 0; }

  // Says why these bytes are not those that were signed as `relative`; empty if they are.
  std::string difference(const std::string& relative, size_t size, const Sha256& sha256) const;

  const std::map<std::string, ManifestEntry, std::less<>>& entries() const { return entries_; }

 private:
  std::map<std::string, ManifestEntry, std::less<>> entries_;
};

}  // namespace fibshim
