// Mixing of numbers and bytes into hashes. Values of these are compared between processes (shapes,
// solutions of a job) and decide which shapes a folder with a share serves: do not change them.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace fibshim {

// 2^64 divided by the golden ratio. The upper bits of a product with it depend on all of the key.
inline constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15;

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kHashFactor;
  return hash ^ hash >> 32;
}

// Each bit of the result depends on each of the argument: the output step of splitmix64.
constexpr uint64_t scramble(uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return bits ^ bits >> 31;
}

// Eight bytes at a time. Texts with the same hash are taken for the same.
inline uint64_t hash_text(const char* text, size_t length) {
  uint64_t hash = length;
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = 0;
    memcpy(&word, text + i, length - i < 8 ? length - i : 8);
    hash = scramble((hash ^ word) + kHashFactor);
  }
  return hash;
}

// FNV-1a.
inline constexpr uint64_t kEmptyHash = 0xcbf29ce484222325;
inline uint64_t hash_bytes(uint64_t hash, const void* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<const uint8_t*>(bytes)[i]) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace fibshim
