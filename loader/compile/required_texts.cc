#include "loader/compile/required_texts.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "shim/abi/hash.h"

namespace fibshim {
namespace {

constexpr size_t kKeyBytes = 6;
constexpr size_t kHashes = size_t{1} << 16;

size_t hash_of(uint64_t key) { return key * kHashFactor >> 48; }

// A key is in the upper bytes of a word.
template <class Use>
void for_each_key(std::string_view text, const Use& use) {
  constexpr size_t kUnused = sizeof(uint64_t) - kKeyBytes;
  uint64_t word = 0;
  size_t i = 0;
  for (; i + sizeof word <= text.size(); ++i) {
    memcpy(&word, text.data() + i, sizeof word);
    use(word << 8 * kUnused);
  }
  for (; i + kKeyBytes <= text.size(); ++i) {
    word = 0;
    memcpy(reinterpret_cast<char*>(&word) + kUnused, text.data() + i, kKeyBytes);
    use(word);
  }
}

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// True for \d and the like. The other escapes with a letter or digit are too hard here.
bool is_class(char escaped) {
  return std::string_view("dDwWsS").find(escaped) != std::string::npos;
}

// Returns the place of the ] of the set that begins at `open`; npos if that is hard to tell.
size_t end_of_set(std::string_view regex, size_t open) {
  size_t i = open + 1;
  if (i < regex.size() && regex[i] == '^') ++i;
  for (const size_t first = i; i < regex.size(); ++i) {
    if (regex[i] == ']' && i != first) return i;
    if (regex[i] == '[') return std::string::npos;
    if (regex[i] != '\\') continue;
    if (++i == regex.size() || (is_alphanumeric(regex[i]) && !is_class(regex[i]))) break;
  }
  return std::string::npos;
}

}  // namespace

std::vector<std::string> texts_in_regex(std::string_view regex) {
  std::vector<std::string> texts;
  std::string text;
  int depth = 0;  // within parentheses nothing is looked for
  const auto end_text = [&] {
    if (!text.empty()) texts.push_back(std::move(text));
    text.clear();
  };
  for (size_t i = 0; i < regex.size(); ++i) {
    const std::string_view rest = regex.substr(i);
    const char c = rest[0];
    if (c == '\\') {
      if (rest.size() == 1 || (is_alphanumeric(rest[1]) && !is_class(rest[1]))) return {};
      ++i;
      if (is_class(rest[1]))
        end_text();
      else if (depth == 0)
        text += rest[1];
    } else if (c == '[') {
      end_text();
      i = end_of_set(regex, i);
      if (i == std::string::npos) return {};
    } else if (c == '(') {
      const bool is_plain = rest.starts_with("(?:") || rest.starts_with("(?<") ||
                            !(rest.starts_with("(?") || rest.starts_with("(*"));
      if (!is_plain) return {};
      end_text();
      ++depth;
    } else if (c == ')') {
      --depth;
    } else if (c == '|') {
      if (depth == 0) return {};
    } else if (depth != 0) {
      continue;
    } else if (c == '*' || c == '?' || c == '{') {
      // The last character may be missing.
      if (!text.empty()) text.pop_back();
      end_text();
      if (c != '{') continue;
      const size_t close = rest.find_first_not_of("0123456789,", 1);
      if (close == std::string::npos || rest[close] != '}') return {};
      i += close;
    } else if (c == '+' || c == '.' || c == '^' || c == '$') {
      end_text();
    } else {
      text += c;
    }
  }
  end_text();
  return texts;
}

void TextIndex::add(uint32_t pattern, const std::vector<std::string>& texts) {
  added_.emplace_back(pattern, &texts);
}

void TextIndex::build() {
  // How many patterns have a key of this hash.
  std::vector<uint32_t> counts(kHashes);
  std::vector<uint32_t> last(kHashes, UINT32_MAX);
  const auto for_each = [](const std::vector<std::string>& texts, const auto& use) {
    for (const std::string& text : texts) for_each_key(text, use);
  };
  for (const auto& [pattern, texts] : added_) {
    for_each(*texts, [&, pattern = pattern](uint64_t key) {
      if (std::exchange(last[hash_of(key)], pattern) != pattern) ++counts[hash_of(key)];
    });
  }
  bits_.resize(kHashes / 64);
  for (const auto& [pattern, texts] : added_) {
    uint32_t fewest = UINT32_MAX;
    uint64_t rarest = 0;
    for_each(*texts, [&](uint64_t key) {
      if (counts[hash_of(key)] >= fewest) return;
      fewest = counts[hash_of(key)];
      rarest = key;
    });
    if (fewest == UINT32_MAX) {
      always_.push_back(pattern);
      continue;
    }
    entries_.push_back({rarest, pattern});
    bits_[hash_of(rarest) / 64] |= uint64_t{1} << hash_of(rarest) % 64;
  }
  std::ranges::sort(entries_, {}, &Entry::key);
}

void TextIndex::find(std::string_view subject, std::vector<uint32_t>* patterns) const {
  const uint64_t* const bits = bits_.data();
  for_each_key(
      subject, [&](uint64_t key) __attribute__((always_inline)) {
        const size_t hash = hash_of(key);
        if (__builtin_expect((bits[hash / 64] >> hash % 64 & 1) == 0, 1)) return;
        auto entry = std::ranges::lower_bound(entries_, key, {}, &Entry::key);
        for (; entry != entries_.end() && entry->key == key; ++entry) {
          patterns->push_back(entry->pattern);
        }
      });
}

}  // namespace fibshim
