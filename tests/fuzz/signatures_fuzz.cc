// What signs a folder: the list of its files, minisign's public keys and signatures. Whatever
// is done to a signature, none may fit that the key has not made.
//
// Input: a letter that says what the rest is.
//   m       a manifest
//   p       the text of a public key
//   P       changes to one that is whole (with_changes), of its bytes before they become base64
//   v, V    a signature's text; changes to the text of one that is whole
//   w       changes to the bytes of its first base64 line
//   c       changes to the message that was signed
#include <vector>

#include <sodium/crypto_sign.h>

#include "loader/read/manifest.h"
#include "loader/read/signature.h"
#include "tests/loader/minisign_writer.h"
#include "tests/fuzz/fuzz.h"

namespace fibshim::fuzz {
namespace {

constexpr char kMessage[] = "fibshim manifest 1\n";
constexpr size_t kPublicKeyBytes = 42;
constexpr size_t kSignatureBytes = 74;

// A key as minisign makes it. The same in each process, since the corpus is for one key.
struct Key {
  Key() {
    const uint8_t seed[crypto_sign_SEEDBYTES] = {1};
    pub.id = {'1', '2', '3', '4', '5', '6', '7', '8'};
    crypto_sign_seed_keypair(pub.point.data(), secret, seed);
  }
  Ed25519Signature sign(std::string_view what) const {
    Ed25519Signature out;
    crypto_sign_detached(out.data(), nullptr, reinterpret_cast<const uint8_t*>(what.data()),
                         what.size(), secret);
    return out;
  }
  PublicKey pub;
  uint8_t secret[crypto_sign_SECRETKEYBYTES];
};
const Key kKey;

std::string line_of(std::string_view text, int number) {
  for (int i = 0; i < number; ++i) take_until(&text, '\n');
  std::string_view line = take_until(&text, '\n');
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return std::string(line);
}

std::string with_line(std::string_view text, int number, std::string_view line) {
  std::string out;
  for (int i = 0; !text.empty(); ++i) {
    const std::string_view own = take_until(&text, '\n');
    out.append(i == number ? line : own).append("\n");
  }
  return out;
}

template <class Bytes>
std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::string& signature() {
  static const std::string text = [] {
    constexpr char kComment[] = "of a test";
    const Ed25519Signature own = kKey.sign(text_of(prehash(kMessage)));
    return signature_text(kKey.pub.id, own, kComment, kKey.sign(text_of(own) + kComment));
  }();
  return text;
}

void read_manifest(std::string_view text) {
  const auto manifest = SignedManifest::parse(text);
  if (!manifest) {
    require(!manifest.error().message.empty(), "a refusal says why");
    return;
  }
  std::vector<ManifestEntry> entries;
  for (const auto& [relative, entry] : manifest->entries()) {
    require(manifest->has(relative) && relative == entry.relative && !relative.empty(),
            "a file is found by its name");
    require(manifest->difference(relative, entry.size_bytes, entry.sha256).empty() &&
                !manifest->difference(relative, entry.size_bytes + 1, entry.sha256).empty(),
            "a file is the one that was listed, or another");
    entries.push_back(entry);
  }
  const auto again = manifest_text(entries);
  if (!again) return;  // a name that no line can hold for sure
  const auto read = SignedManifest::parse(*again);
  require(read && read->entries().size() == entries.size(), "what is written can be read");
}

void read_public_key_text(std::string_view text) {
  const auto key = parse_public_key(text);
  if (!key) return;
  const auto again = parse_public_key(public_key_text(*key));
  require(again && again->id == key->id && again->point == key->point,
          "a public key is read as it is written");
  require(!verify_signature(kMessage, signature(), *key) || key->point == kKey.pub.point,
          "a signature fits its own key alone");
}

void read_signature(std::string_view message, std::string_view text) {
  if (!verify_signature(message, text, kKey.pub)) return;
  // The untrusted comment and the ends of lines may differ, and nothing else.
  require(message == kMessage && line_of(text, 1) == line_of(signature(), 1) &&
              line_of(text, 2) == line_of(signature(), 2) &&
              line_of(text, 3) == line_of(signature(), 3),
          "a signature that fits is the one that was made");
}

// A base64 line of `text` with changes to what it stands for.
std::string with_changed_bytes(const std::string& text, int line, size_t bytes,
                               std::string_view changes) {
  return with_line(text, line,
                   to_base64(with_changes(from_base64(line_of(text, line), bytes), changes)));
}

}  // namespace

FUZZ_TARGET(signatures) {
  if (size == 0) return 0;
  const std::string_view rest = as_text(data + 1, size - 1);
  static const std::string public_text = public_key_text(kKey.pub);
  switch (data[0]) {
    case 'm': read_manifest(rest); break;
    case 'p': read_public_key_text(rest); break;
    case 'P':
      read_public_key_text(with_changed_bytes(public_text, 1, kPublicKeyBytes, rest));
      break;
    case 'v': read_signature(kMessage, rest); break;
    case 'V': read_signature(kMessage, with_changes(signature(), rest)); break;
    case 'w':
      read_signature(kMessage, with_changed_bytes(signature(), 1, kSignatureBytes, rest));
      break;
    case 'c': read_signature(with_changes(kMessage, rest), signature()); break;
    default: break;
  }
  return 0;
}

}  // namespace fibshim::fuzz
