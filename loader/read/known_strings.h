// Long strings of JSON that have been read once: an equal one is only compared. The solutions of a folder repeat the
// few sources of their kernels, which are nearly all of their bytes.
//
// Thread-safe. Keeps copies, up to a limit; the first strings win.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "loader/read/json_string.h"

namespace fibshim {

class KnownStrings {
 public:
  static constexpr size_t kMostStrings = 64;
  static constexpr size_t kMostBytes = size_t{1} << 20;  // of all strings

  // Shorter strings than `least_bytes` are not kept.
  explicit KnownStrings(size_t least_bytes = 1024);

  // As read_json_string().
  JsonString read(const char* at, const char* end);

 private:
  struct Known {
    std::string text;  // with its closing quote
    JsonString string;
  };

  const Known* find(const char* at, const char* end) const;
  void add(const char* at, const JsonString& string);

  const size_t least_bytes_;
  std::mutex adding_;
  size_t bytes_ = 0;
  std::atomic<size_t> count_ = 0;             // those below do not change any more
  std::array<uint64_t, kMostStrings> heads_;  // the first bytes of each
  std::array<Known, kMostStrings> known_;
};

}  // namespace fibshim
