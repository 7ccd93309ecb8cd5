#include "loader/read/signature.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include <sodium/crypto_generichash_blake2b.h>
#include <sodium/crypto_sign_ed25519.h>
#include <sodium/utils.h>

#include "loader/read/trust.h"

namespace fibshim {
namespace {

// "Ed": the message itself was signed. "ED": its hash was signed.
constexpr std::string_view kAlgorithm = "Ed";
constexpr std::string_view kHashedAlgorithm = "ED";
constexpr std::string_view kUntrustedComment = "untrusted comment: ";
constexpr std::string_view kTrustedComment = "trusted comment: ";

tl::unexpected<Error> bad_value(std::string message) {
  return fail(ErrorCode::invalid_value, std::move(message));
}

template <size_t kSize>
void copy_to(std::array<uint8_t, kSize>* out, std::string_view from) {
  memcpy(out->data(), from.data(), kSize);
}

template <size_t kSize>
std::string_view bytes_of(const std::array<uint8_t, kSize>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const uint8_t* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

bool is_signed(std::string_view message, std::string_view signature, const PublicKey& key) {
  return crypto_sign_ed25519_verify_detached(unsigned_bytes(signature), unsigned_bytes(message),
                                             message.size(), key.point.data()) == 0;
}

// Removes the first line from `text` and returns it without its end.
std::string_view pop_line(std::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool begins_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

}  // namespace

std::string key_id_text(const KeyId& id) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text;
  for (size_t i = id.size(); i-- > 0;) {
    text += kDigits[id[i] >> 4];
    text += kDigits[id[i] & 15];
  }
  return text;
}

std::string from_base64(std::string_view text, size_t size) {
  // libsodium 1.0.18 accepts some 8-bit characters as 7-bit ones.
  const bool is_ascii = std::all_of(text.begin(), text.end(), [](char c) { return c > 0; });
  if (!is_ascii) return {};
  std::string bytes(size, '\0');
  size_t length = 0;
  const char* end = nullptr;
  if (sodium_base642bin(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &length, &end, sodium_base64_VARIANT_ORIGINAL) != 0 ||
      length != size || end != text.data() + text.size()) {
    return {};
  }
  return bytes;
}

Result<PublicKey> parse_public_key(std::string_view text) {
  std::string_view line = pop_line(&text);
  if (begins_with(line, kUntrustedComment)) line = pop_line(&text);
  PublicKey key;
  const std::string bytes = from_base64(line, kAlgorithm.size() + key.id.size() + key.point.size());
  if (bytes.empty() || !begins_with(bytes, kAlgorithm) || !text.empty()) {
    return bad_value("not a minisign public key");
  }
  copy_to(&key.id, std::string_view(bytes).substr(2));
  copy_to(&key.point, std::string_view(bytes).substr(10));
  return key;
}

Result<PublicKey> read_public_key(const std::string& key, Trust trust) {
  if (auto parsed = parse_public_key(key)) return *parsed;
  if (key.empty() || key[0] != '/') {
    return bad_value("\"" + key + "\" is neither a minisign public key nor an absolute path");
  }
  const auto text = read_trusted_file(key, kMaxKeyFileBytes, trust);
  if (!text) return tl::unexpected<Error>(text.error());
  auto parsed = parse_public_key(*text);
  if (!parsed) return bad_value(key + ": " + parsed.error().message);
  return parsed;
}

std::string required_key_in_force() {
  const char* const value =
      secure_getenv(kSettings[static_cast<size_t>(SettingId::require_key)].name);
  return value == nullptr ? "" : value;
}

std::array<uint8_t, 64> prehash(std::string_view message) {
  std::array<uint8_t, 64> hash;
  crypto_generichash_blake2b(hash.data(), hash.size(), unsigned_bytes(message), message.size(),
                             nullptr, 0);
  return hash;
}

Result<void> verify_signature(std::string_view message, std::string_view signature,
                              const PublicKey& key) {
  const std::string_view comment = pop_line(&signature);
  const std::string_view own_line = pop_line(&signature);
  std::string_view trusted = pop_line(&signature);
  const std::string_view global_line = pop_line(&signature);
  Ed25519Signature part;
  KeyId id;
  const std::string own = from_base64(own_line, 2 + id.size() + part.size());
  const std::string global = from_base64(global_line, part.size());
  if (!begins_with(comment, kUntrustedComment) || !begins_with(trusted, kTrustedComment) ||
      own.empty() || global.empty() || !signature.empty()) {
    return bad_value("not a minisign signature");
  }
  trusted.remove_prefix(kTrustedComment.size());
  const std::string_view view = own;
  const std::string_view algorithm = view.substr(0, 2);
  if (algorithm != kAlgorithm && algorithm != kHashedAlgorithm) {
    return bad_value("a signature of an unknown kind");
  }
  copy_to(&id, view.substr(2));
  if (id != key.id) {
    return bad_value("signed with the key " + key_id_text(id) + ", not with " +
                     key_id_text(key.id));
  }
  const std::string_view of_message = view.substr(2 + id.size());
  const auto hash = prehash(message);
  const std::string_view what = algorithm == kHashedAlgorithm ? bytes_of(hash) : message;
  if (!is_signed(what, of_message, key)) {
    return bad_value("the signature of the key " + key_id_text(key.id) + " does not fit");
  }
  if (!is_signed(std::string(of_message).append(trusted), global, key)) {
    return bad_value("the signature's trusted comment was changed");
  }
  return {};
}

}  // namespace fibshim
