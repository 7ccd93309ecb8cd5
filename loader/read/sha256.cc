#include "loader/read/sha256.h"

#include <sodium/crypto_hash_sha256.h>
#include <sodium/utils.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace fibshim {
namespace {

constexpr size_t kBlockBytes = 64;

#ifdef __x86_64__
// True if the processor has SHA instructions. libsodium does not use them; they take a sixth of the
// time.
bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_sse41 = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0;
  return has_sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

alignas(16) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__attribute__((target("sha,sse4.1"))) void add_blocks(uint32_t state[8], const char* data,
                                                      size_t blocks) {
  const auto load = [](const void* from) __attribute__((target("sha,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  };
  const __m128i byte_order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions expect the state's words as A B E F and C D G H.
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(load(state + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; blocks > 0; --blocks, data += kBlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
    for (size_t i = 0; i < 4; ++i) words[i] = _mm_shuffle_epi8(load(data + 16 * i), byte_order);
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; ++i) {
      __m128i& word = words[i % 4];
      const __m128i last = words[(i + 3) % 4];
      const __m128i sum = _mm_add_epi32(word, load(kRoundConstants + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      // The message words of 16 rounds later.
      const __m128i mixed = _mm_add_epi32(_mm_sha256msg1_epu32(word, words[(i + 1) % 4]),
                                          _mm_alignr_epi8(last, words[(i + 2) % 4], 4));
      word = _mm_sha256msg2_epu32(mixed, last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

Sha256 sha256(std::string_view bytes) {
  static_assert(crypto_hash_sha256_BYTES == sizeof(Sha256));
  Sha256 hash;
  // Needs no sodium_init(), which would open the system's random source.
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
#ifdef __x86_64__
  static const bool is_fast = has_instructions();
  if (is_fast) {
    const size_t blocks = bytes.size() / kBlockBytes;
    add_blocks(state.state, bytes.data(), blocks);
    state.count = blocks * kBlockBytes * 8;  // bits
    bytes.remove_prefix(blocks * kBlockBytes);
  }
#endif
  crypto_hash_sha256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
  crypto_hash_sha256_final(&state, hash.data());
  return hash;
}

std::string sha256_hex(const Sha256& hash) {
  std::string hex(2 * hash.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), hash.data(), hash.size());
  hex.pop_back();  // the NUL
  return hex;
}

bool parse_hex(std::string_view hex, void* out, size_t size) {
  if (hex.size() != 2 * size) return false;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i < size; ++i) {
    const int byte = digit(hex[2 * i]) * 16 | digit(hex[2 * i + 1]);
    if (byte < 0) return false;
    static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(byte);
  }
  return true;
}

std::optional<Sha256> parse_sha256(std::string_view hex) {
  Sha256 hash;
  return parse_hex(hex, hash.data(), hash.size()) ? std::optional(hash) : std::nullopt;
}

}  // namespace fibshim
