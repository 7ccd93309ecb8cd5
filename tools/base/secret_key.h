// Secret keys in minisign's format: made, read and used by `fibshim sign`. A key's bytes are wiped
// when its object goes.
#ifndef FIBSHIM_TOOLS_BASE_SECRET_KEY_H_
#define FIBSHIM_TOOLS_BASE_SECRET_KEY_H_

#include <array>
#include <functional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "loader/read/signature.h"

namespace fibshim::tools {

// Asks for the password; nothing when there is none to be had.
using AskPassword = std::function<tl::expected<std::string, std::string>()>;

class SecretKey {
 public:
  static SecretKey generate();

  // The text of a .key file; `ask` is called where it is encrypted.
  static tl::expected<SecretKey, std::string> parse(std::string_view text, const AskPassword& ask);

  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();

  PublicKey public_key() const;

  // Encrypted unless the password is empty. Takes seconds and up to 1 GiB then, as minisign does.
  tl::expected<std::string, std::string> text(std::string_view password) const;

  // The text of a .minisig file for `message`.
  std::string sign(std::string_view message, std::string_view trusted_comment) const;

 private:
  SecretKey() = default;

  KeyId id_{};
  std::array<uint8_t, 64> secret_{};  // libsodium's: the seed and the public key
};

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_BASE_SECRET_KEY_H_
