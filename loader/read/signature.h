// Verifies Ed25519 signatures in minisign's formats, so that minisign can verify what fibshim signs
// and the other way round (https://jedisct1.github.io/minisign/#key-and-signature-formats). Nothing
// here handles secret keys: a serving process never has one. All functions are pure except
// read_public_key() and required_key_in_force().
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

// Returns 16 upper-case hexadecimal digits, as minisign prints them.
std::string key_id_text(const KeyId& id);

// Parses a base64 line, or the two lines of a .pub file.
Result<PublicKey> parse_public_key(std::string_view text);

// `key`: a public key in base64, or the absolute path of a file that contains one and that nobody
// else can write. Fails with a message that quotes `key`.
Result<PublicKey> read_public_key(const std::string& key, Trust trust);

// Returns the current value of FIBSHIM_REQUIRE_KEY; empty if no signature is required. For our own
// programs only, as trust_in_force().
std::string required_key_in_force();

// Succeeds if `signature`, the text of a .minisig file, is a signature of `message` by that key.
// Also verifies the trusted comment.
Result<void> verify_signature(std::string_view message, std::string_view signature,
                              const PublicKey& key);

inline constexpr size_t kMaxKeyFileBytes = 8192;
inline constexpr size_t kMaxSignatureBytes = 16384;

// Returns the message's BLAKE2b-512, which is signed in place of the message.
std::array<uint8_t, 64> prehash(std::string_view message);

// Decodes the base64 text of exactly `size` bytes. Returns "" if the text is anything else.
std::string from_base64(std::string_view text, size_t size);

}  // namespace fibshim
