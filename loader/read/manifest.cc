#include "loader/read/manifest.h"

#include <algorithm>
#include <charconv>

#include "loader/read/signature.h"

namespace fibshim {
namespace {

constexpr std::string_view kFirstLine = "fibshim manifest 1\n";

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; });
}

// Parses "<64 digits> <size> <path>", without the end of the line.
std::optional<ManifestEntry> parse_line(std::string_view line) {
  ManifestEntry entry;
  const auto sha256 = parse_sha256(line.substr(0, 64));
  if (!sha256 || line.size() < 66 || line[64] != ' ') return std::nullopt;
  entry.sha256 = *sha256;
  line.remove_prefix(65);
  const auto size = std::from_chars(line.data(), line.data() + line.size(), entry.size_bytes);
  if (size.ec != std::errc() || size.ptr + 1 >= line.data() + line.size() || *size.ptr != ' ') {
    return std::nullopt;
  }
  entry.relative = line.substr(static_cast<size_t>(size.ptr + 1 - line.data()));
  return entry;
}

}  // namespace

Result<std::string> manifest_text(std::vector<ManifestEntry> entries) {
  std::ranges::sort(entries, {}, &ManifestEntry::relative);
  std::string text(kFirstLine);
  for (const ManifestEntry& entry : entries) {
    if (has_control_characters(entry.relative)) {
      return fail(ErrorCode::invalid_value,
                  "a path with control characters cannot be signed: " + entry.relative);
    }
    text.append(sha256_hex(entry.sha256)).append(" ").append(std::to_string(entry.size_bytes));
    text.append(" ").append(entry.relative).append("\n");
  }
  return text;
}

Result<SignedManifest> SignedManifest::open(const RootFolder& root, const std::string& key,
                                            Trust trust) {
  const auto public_key = read_public_key(key, trust);
  if (!public_key) return tl::unexpected<Error>(public_key.error());
  const auto read = [&](const char* name, size_t max_bytes) -> Result<std::string> {
    auto content = root.read(name, max_bytes);
    if (content) return std::move(content->bytes);
    if (content.error().code != ErrorCode::file_not_found) {
      return tl::unexpected<Error>(std::move(content.error()));
    }
    return fail(ErrorCode::file_not_found, "not signed: there is no " + std::string(name) +
                                               ", and only what the key " +
                                               key_id_text(public_key->id) + " has signed is used");
  };
  const auto text = read(kManifestFile, kMaxManifestBytes);
  if (!text) return tl::unexpected<Error>(text.error());
  const auto signature = read(kManifestSignatureFile, kMaxSignatureBytes);
  if (!signature) return tl::unexpected<Error>(signature.error());
  const auto verified = verify_signature(*text, *signature, *public_key);
  if (!verified) {
    return fail(ErrorCode::invalid_value,
                std::string(kManifestSignatureFile) + ": " + verified.error().message);
  }
  return parse(*text);
}

Result<SignedManifest> SignedManifest::parse(std::string_view text) {
  SignedManifest manifest;
  const auto malformed = [] {
    return fail(ErrorCode::invalid_value,
                std::string(kManifestFile) + ": signed, but not a list that this version reads");
  };
  if (text.substr(0, kFirstLine.size()) != kFirstLine || text.back() != '\n') return malformed();
  text.remove_prefix(kFirstLine.size());
  while (!text.empty()) {
    const size_t end = text.find('\n');
    auto entry = parse_line(text.substr(0, end));
    if (!entry) return malformed();
    text.remove_prefix(end + 1);
    std::string relative = entry->relative;
    if (!manifest.entries_.emplace(std::move(relative), std::move(*entry)).second) {
      return malformed();
    }
  }
  return manifest;
}

std::string SignedManifest::difference(const std::string& relative, size_t size,
                                       const Sha256& sha256) const {
  const auto signed_one = entries_.find(relative);
  if (signed_one == entries_.end())
    return "not signed: " + std::string(kManifestFile) + " does not name it";
  const ManifestEntry& entry = signed_one->second;
  if (entry.size_bytes == size && entry.sha256 == sha256) return {};
  return "not the file that was signed: its SHA-256 is " + sha256_hex(sha256) + ", not " +
         sha256_hex(entry.sha256);
}

}  // namespace fibshim
