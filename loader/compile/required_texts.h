// Texts that everything that a pattern fits contains, and an index of patterns by them: so a symbol
// is tried with the few patterns whose texts it contains, not with all of a folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fibshim {

// Returns texts that every match of the regular expression contains, as far as that is easy to see.
std::vector<std::string> texts_in_regex(std::string_view regex);

// Each pattern is found by six bytes of its texts: of all these, the six that the fewest patterns
// share.
class TextIndex {
 public:
  // A pattern without a text of six bytes is always found.
  void add(uint32_t pattern, const std::vector<std::string>& texts);
  // Call when all patterns have been added.
  void build();

  // Appends all patterns that may fit the subject, in no order and some more than once.
  void find(std::string_view subject, std::vector<uint32_t>* patterns) const;
  const std::vector<uint32_t>& always() const { return always_; }

 private:
  struct Entry {
    uint64_t key;
    uint32_t pattern;
  };

  std::vector<std::pair<uint32_t, const std::vector<std::string>*>> added_;
  std::vector<uint32_t> always_;
  std::vector<Entry> entries_;  // sorted by key
  std::vector<uint64_t> bits_;  // one for each hash; set if an entry has it
};

}  // namespace fibshim
