// What signs a folder: the list of its files, minisign's public and secret keys and signatures. Whatever
// is done to a signature, none may fit that the key has not made.
//
// Input: a letter that says what the rest is.
//   m       a manifest
//   p, s    the text of a public key; of a secret key
//   P, S    changes to one that is whole (with_changes), of its bytes before they become base64
//   v, V    a signature's text; changes to the text of one that is whole
//   w       changes to the bytes of its first base64 line
//   c       changes to the message that was signed
#include <vector>

#include <sodium/crypto_sign.h>

#include "loader/read/manifest.h"
#include "loader/read/signature.h"
#include "tests/fuzz/fuzz.h"
#include "tools/base/secret_key.h"

namespace fibshim::fuzz {
namespace {

constexpr char kMessage[] = "fibshim manifest 1\n";
constexpr size_t kPublicKeyBytes = 42;
constexpr size_t kSecretKeyBytes = 158;
constexpr size_t kSignatureBytes = 74;

// The same in each process, since the corpus is for one key.
std::string make_secret_key() {
  const uint8_t seed[crypto_sign_SEEDBYTES] = {1};
  uint8_t point[crypto_sign_PUBLICKEYBYTES];
  uint8_t secret[crypto_sign_SECRETKEYBYTES];
  crypto_sign_seed_keypair(point, secret, seed);
  std::string bytes = "Ed";
  bytes += std::string(2, '\0') + "B2" + std::string(48, '\0') + "12345678";
  bytes.append(reinterpret_cast<const char*>(secret), sizeof secret).append(32, '\0');
  return "untrusted comment: for a test\n" + to_base64(bytes) + "\n";
}

const std::string& secret_key_text() {
  static const std::string text = make_secret_key();
  return text;
}

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

const tools::SecretKey& secret_key() {
  static const auto key = tools::SecretKey::parse(
      secret_key_text(), [] { return tl::expected<std::string, std::string>("password"); });
  require(key.has_value(), "the key is one");
  return *key;
}

const std::string& signature() {
  static const std::string text = secret_key().sign(kMessage, "of a test");
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
  require(!verify_signature(kMessage, signature(), *key) ||
              key->point == secret_key().public_key().point,
          "a signature fits its own key alone");
}

void read_secret_key(std::string_view text) {
  // What is encrypted takes a second and a gigabyte: it is not decrypted here.
  const auto key = tools::SecretKey::parse(
      text, [] { return tl::expected<std::string, std::string>(tl::unexpect, "none"); });
  if (!key) {
    require(!key.error().empty(), "a refusal says why");
    return;
  }
  require(verify_signature(kMessage, key->sign(kMessage, "c"), key->public_key()).has_value(),
          "what a key signs, its other half verifies");
}

void read_signature(std::string_view message, std::string_view text) {
  if (!verify_signature(message, text, secret_key().public_key())) return;
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = as_text(data + 1, size - 1);
  static const std::string public_text = public_key_text(secret_key().public_key());
  switch (data[0]) {
    case 'm': read_manifest(rest); break;
    case 'p': read_public_key_text(rest); break;
    case 'P':
      read_public_key_text(with_changed_bytes(public_text, 1, kPublicKeyBytes, rest));
      break;
    case 's': read_secret_key(rest); break;
    case 'S':
      read_secret_key(with_changed_bytes(secret_key_text(), 1, kSecretKeyBytes, rest));
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
