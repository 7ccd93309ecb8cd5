// SHA-256 of files, as solutions and manifests state it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fibshim {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);

// Returns 64 lower-case hexadecimal digits.
std::string sha256_hex(const Sha256& hash);

// Reads exactly `size` bytes, written as hexadecimal digits of either case. Returns false if `hex`
// is anything else.
bool parse_hex(std::string_view hex, void* out, size_t size);

std::optional<Sha256> parse_sha256(std::string_view hex);

}  // namespace fibshim
