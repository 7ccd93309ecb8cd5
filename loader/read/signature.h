// Ed25519 signatures in minisign's formats, so that its program can verify what ours signs and the
// other way round (https://jedisct1.github.io/minisign/#key-and-signature-formats). Only the public
// half: whoever serves never holds a secret key. All functions are pure but for read_public_key().
#pragma once

#include <array>
#include <string_view>

#include "loader/read/result.h"
#include "shim/abi/settings.h"

namespace fibshim {

using KeyId = std::array<uint8_t, 8>;
using Ed25519Signature = std::array<uint8_t, 64>;

struct PublicKey {
  KeyId id;
  std::array<uint8_t, 32> point;
};

// As minisign prints it: 16 upper-case hexadecimal digits.
std::string key_id_text(const KeyId& id);

// A base64 line, or the two lines of a .pub file.
Result<PublicKey> parse_public_key(std::string_view text);

// `key`: a public key as base64, else the absolute path of a file with one, which nobody else may be
// able to write. Fails with a message that names what was given.
Result<PublicKey> read_public_key(const std::string& key, Trust trust);

// What FIBSHIM_REQUIRE_KEY says now; empty: no signature is asked for. For programs of our own, as
// trust_in_force().
std::string required_key_in_force();

// Whether `signature`, the text of a .minisig file, is that key's for `message`. Its trusted comment
// is verified with it.
Result<void> verify_signature(std::string_view message, std::string_view signature,
                              const PublicKey& key);

inline constexpr size_t kMaxKeyFileBytes = 8192;
inline constexpr size_t kMaxSignatureBytes = 16384;

// What is signed in place of the message: its BLAKE2b-512.
std::array<uint8_t, 64> prehash(std::string_view message);

// Nothing but the base64 of that many bytes; empty when it is something else.
std::string from_base64(std::string_view text, size_t size);

}  // namespace fibshim
