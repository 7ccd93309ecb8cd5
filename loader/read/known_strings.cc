#include "loader/read/known_strings.h"

#include <string.h>

#include <algorithm>

namespace fibshim {
namespace {

uint64_t head_of(const char* at) {
  uint64_t head;
  memcpy(&head, at, sizeof head);
  return head;
}

}  // namespace

KnownStrings::KnownStrings(size_t least_bytes)
    : least_bytes_(std::max(least_bytes, sizeof(uint64_t))) {}

JsonString KnownStrings::read(const char* at, const char* end) {
  if (const Known* const known = find(at, end)) {
    JsonString string = known->string;
    string.end = at + known->text.size() - 1;
    return string;
  }
  const JsonString string = read_json_string(at, end);
  if (string.end != nullptr && static_cast<size_t>(string.end - at) >= least_bytes_) {
    add(at, string);
  }
  return string;
}

// Where a string ends depends on nothing but its bytes. So one that begins with a known one's bytes, up to and with the
// closing quote, is that one.
const KnownStrings::Known* KnownStrings::find(const char* at, const char* end) const {
  const auto left = static_cast<size_t>(end - at);
  if (left <= least_bytes_) return nullptr;
  const uint64_t head = head_of(at);
  const size_t count = count_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    if (heads_[i] != head) continue;
    const std::string& text = known_[i].text;
    if (text.size() <= left && memcmp(text.data(), at, text.size()) == 0) return &known_[i];
  }
  return nullptr;
}

void KnownStrings::add(const char* at, const JsonString& string) {
  const auto bytes = static_cast<size_t>(string.end + 1 - at);
  const std::lock_guard lock(adding_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kMostStrings || bytes > kMostBytes - bytes_) return;
  if (find(at, string.end + 1) != nullptr) return;  // another thread was first
  known_[count] = {{at, bytes}, string};
  heads_[count] = head_of(at);
  bytes_ += bytes;
  count_.store(count + 1, std::memory_order_release);
}

}  // namespace fibshim
