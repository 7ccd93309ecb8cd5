// Writes keys and signatures in minisign's formats: the other half of loader/read/signature.h.
#pragma once

#include <sodium/utils.h>

#include "loader/read/signature.h"

namespace fibshim {

template <size_t kSize>
std::string_view bytes_of(const std::array<uint8_t, kSize>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string to_base64(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const uint8_t*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the NUL
  return text;
}

// Returns the text of a .minisig file. `global`: the signature of `signature` and the trusted
// comment.
inline std::string signature_text(const KeyId& id, const Ed25519Signature& signature,
                                  std::string_view trusted_comment,
                                  const Ed25519Signature& global) {
  std::string own = "ED";
  own.append(bytes_of(id)).append(bytes_of(signature));
  std::string text = "untrusted comment: signature from fibshim secret key\n" + to_base64(own);
  text.append("\ntrusted comment: ").append(trusted_comment).append("\n");
  return text.append(to_base64(bytes_of(global))).append("\n");
}

// Returns the text of a .pub file.
inline std::string public_key_text(const PublicKey& key) {
  std::string bytes = "Ed";
  bytes.append(bytes_of(key.id)).append(bytes_of(key.point));
  return "untrusted comment: minisign public key " + key_id_text(key.id) + "\n" + to_base64(bytes) +
         "\n";
}

}  // namespace fibshim
