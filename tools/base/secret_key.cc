#include "tools/base/secret_key.h"

#include <string.h>

#include <algorithm>

#include <fmt/format.h>
#include <sodium.h>

namespace fibshim::tools {
namespace {

// The file's second line, decoded. Everything from key_id on is encrypted: combined by exclusive or
// with a stream that scrypt makes of the password.
struct Record {
  char algorithm[2];      // "Ed"
  char kdf[2];            // "Sc", or two zeros: not encrypted
  char checksum_kind[2];  // "B2"
  uint8_t salt[32];
  uint8_t operations[8];  // little-endian
  uint8_t memory_bytes[8];
  uint8_t key_id[8];
  uint8_t secret[64];
  uint8_t checksum[32];  // BLAKE2b-256 of algorithm, key_id and secret
};
static_assert(sizeof(Record) == 158);
constexpr size_t kEncryptedBytes = 104;
constexpr char kComment[] = "untrusted comment: ";
// A key file may ask for this much, which is what minisign asks for.
constexpr uint64_t kMostOperations = crypto_pwhash_scryptsalsa208sha256_OPSLIMIT_SENSITIVE;
constexpr uint64_t kMostMemory = crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_SENSITIVE;

uint64_t from_little_endian(const uint8_t (&bytes)[8]) {
  uint64_t value = 0;
  for (int i = 8; i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

void to_little_endian(uint64_t value, uint8_t (*bytes)[8]) {
  for (uint8_t& byte : *bytes) {
    byte = static_cast<uint8_t>(value);
    value >>= 8;
  }
}

void fill_checksum(const Record& record, uint8_t* out) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, sizeof record.checksum);
  const auto add = [&](const auto& part) {
    crypto_generichash_update(&state, reinterpret_cast<const uint8_t*>(&part), sizeof part);
  };
  add(record.algorithm);
  add(record.key_id);
  add(record.secret);
  crypto_generichash_final(&state, out, sizeof record.checksum);
}

// Whether the public half belongs to the secret one.
bool is_pair(const Record& record) {
  uint8_t point[crypto_sign_PUBLICKEYBYTES];
  uint8_t secret[crypto_sign_SECRETKEYBYTES];
  crypto_sign_seed_keypair(point, secret, record.secret);
  const bool is_same = sodium_memcmp(secret, record.secret, sizeof secret) == 0;
  sodium_memzero(secret, sizeof secret);
  return is_same;
}

// False: no memory for it.
bool apply_password(std::string_view password, uint64_t operations, uint64_t memory_bytes,
                    Record* record) {
  uint8_t stream[kEncryptedBytes];
  if (crypto_pwhash_scryptsalsa208sha256(stream, sizeof stream, password.data(), password.size(),
                                         record->salt, operations,
                                         static_cast<size_t>(memory_bytes)) != 0) {
    return false;
  }
  uint8_t* const encrypted = record->key_id;
  for (size_t i = 0; i < sizeof stream; ++i) encrypted[i] ^= stream[i];
  sodium_memzero(stream, sizeof stream);
  return true;
}

}  // namespace

SecretKey::~SecretKey() { sodium_memzero(secret_.data(), secret_.size()); }

SecretKey SecretKey::generate() {
  SecretKey key;
  std::array<uint8_t, 32> point;
  randombytes_buf(key.id_.data(), key.id_.size());
  crypto_sign_keypair(point.data(), key.secret_.data());
  return key;
}

tl::expected<SecretKey, std::string> SecretKey::parse(std::string_view text,
                                                      const AskPassword& ask) {
  const auto refuse = [](const char* why) { return tl::unexpected(std::string(why)); };
  const size_t first_end = std::min(text.find('\n'), text.size());
  if (text.substr(0, strlen(kComment)) != kComment || first_end == text.size()) {
    return refuse("not a minisign secret key");
  }
  std::string_view line = text.substr(first_end + 1);
  line = line.substr(0, line.find('\n'));
  std::string bytes = from_base64(line, sizeof(Record));
  Record record;
  if (bytes.empty()) return refuse("not a minisign secret key");
  memcpy(&record, bytes.data(), sizeof record);
  sodium_memzero(bytes.data(), bytes.size());
  if (memcmp(record.algorithm, "Ed", 2) != 0 || memcmp(record.checksum_kind, "B2", 2) != 0) {
    return refuse("a secret key of an unknown kind");
  }
  const bool is_encrypted = memcmp(record.kdf, "Sc", 2) == 0;
  if (!is_encrypted && memcmp(record.kdf, "\0\0", 2) != 0) {
    return refuse("a secret key of an unknown kind");
  }
  if (is_encrypted) {
    const uint64_t operations = from_little_endian(record.operations);
    const uint64_t memory_bytes = from_little_endian(record.memory_bytes);
    if (operations > kMostOperations || memory_bytes > kMostMemory) {
      return refuse("the secret key asks for more work than is accepted");
    }
    auto password = ask();
    if (!password) return tl::unexpected(password.error());
    const bool is_applied = apply_password(*password, operations, memory_bytes, &record);
    sodium_memzero(password->data(), password->size());
    if (!is_applied) return refuse("not enough memory to decrypt the secret key");
  }
  uint8_t checksum[sizeof record.checksum];
  fill_checksum(record, checksum);
  // minisign writes no checksum of a key that is not encrypted.
  const bool has_checksum =
      is_encrypted || sodium_is_zero(record.checksum, sizeof record.checksum) == 0;
  const bool fits = !has_checksum || sodium_memcmp(checksum, record.checksum, sizeof checksum) == 0;
  if (!fits || !is_pair(record)) {
    sodium_memzero(&record, sizeof record);
    return refuse(is_encrypted ? "wrong password" : "the secret key is damaged");
  }
  SecretKey key;
  memcpy(key.id_.data(), record.key_id, key.id_.size());
  memcpy(key.secret_.data(), record.secret, key.secret_.size());
  sodium_memzero(&record, sizeof record);
  return key;
}

PublicKey SecretKey::public_key() const {
  PublicKey key;
  key.id = id_;
  std::copy(secret_.begin() + 32, secret_.end(), key.point.begin());
  return key;
}

tl::expected<std::string, std::string> SecretKey::text(std::string_view password) const {
  Record record{};
  memcpy(record.algorithm, "Ed", 2);
  memcpy(record.checksum_kind, "B2", 2);
  memcpy(record.key_id, id_.data(), id_.size());
  memcpy(record.secret, secret_.data(), secret_.size());
  fill_checksum(record, record.checksum);
  if (!password.empty()) {
    memcpy(record.kdf, "Sc", 2);
    randombytes_buf(record.salt, sizeof record.salt);
    uint64_t operations = kMostOperations;
    uint64_t memory_bytes = kMostMemory;
    // Where there is less memory, less work: the file says how much.
    while (!apply_password(password, operations, memory_bytes, &record)) {
      operations /= 2;
      memory_bytes /= 2;
      if (memory_bytes < crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_MIN) {
        return tl::unexpected(std::string("not enough memory to encrypt the secret key"));
      }
    }
    to_little_endian(operations, &record.operations);
    to_little_endian(memory_bytes, &record.memory_bytes);
  }
  std::string text = fmt::format(
      "{}fibshim {} secret key\n{}\n", kComment, password.empty() ? "unencrypted" : "encrypted",
      to_base64({reinterpret_cast<const char*>(&record), sizeof record}));
  sodium_memzero(&record, sizeof record);
  return text;
}

std::string SecretKey::sign(std::string_view message, std::string_view trusted_comment) const {
  const auto signed_by_key = [&](std::string_view what) {
    Ed25519Signature signature;
    crypto_sign_detached(signature.data(), nullptr, reinterpret_cast<const uint8_t*>(what.data()),
                         what.size(), secret_.data());
    return signature;
  };
  const auto text_of = [](const auto& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const Ed25519Signature signature = signed_by_key(text_of(prehash(message)));
  const Ed25519Signature global = signed_by_key(text_of(signature) + std::string(trusted_comment));
  return signature_text(id_, signature, trusted_comment, global);
}

}  // namespace fibshim::tools
