#include "loader/read/ptx.h"

#include <algorithm>

#include "loader/read/image_reading.h"

namespace fibshim {
namespace {

constexpr size_t kMaxPtxKernels = 1 << 16;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%';
}

// Reads PTX word by word. Words are runs of non-blank characters; comments are skipped.
class PtxWords {
 public:
  explicit PtxWords(std::string_view text) : text_(text) {}

  std::string_view next() {
    while (at_ < text_.size()) {
      if (is_blank(text_[at_])) {
        ++at_;
      } else if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.compare(at_, 2, "/*") == 0) {
        const size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        break;
      }
    }
    const size_t begin = at_;
    while (at_ < text_.size() && !is_blank(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Counts the .param directives in the parameter list that may follow an entry's name. First goes
  // back `back` bytes, which were read as part of the name.
  uint32_t count_params(size_t back) {
    at_ -= back;
    uint32_t count = 0;
    bool is_in_list = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (!is_in_list && c != '(' && !is_blank(c)) break;
      if (c == ')') break;
      if (text_.compare(at_, 6, ".param") == 0) ++count;
      is_in_list = is_in_list || c == '(';
      ++at_;
    }
    return count;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<PtxInfo> read_ptx(std::string_view bytes) {
  // PTX in a fatbin ends with a NUL; bytes after a NUL are not PTX.
  bytes = bytes.substr(0, bytes.find('\0'));
  PtxInfo info;
  PtxWords words(bytes);
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
    if (word == ".version" && info.version.empty()) {
      info.version = words.next();
    } else if (word == ".target" && info.sm == 0) {
      std::string_view target = words.next();
      target = target.substr(0, target.find(','));
      if (!target.starts_with("sm_")) {
        return invalid("PTX for an unknown target " + std::string(target.substr(0, 64)));
      }
      target.remove_prefix(3);
      uint32_t sm = 0;
      while (!target.empty() && target[0] >= '0' && target[0] <= '9' && sm < 1000) {
        sm = sm * 10 + static_cast<uint32_t>(target[0] - '0');
        target.remove_prefix(1);
      }
      info.sm = static_cast<uint16_t>(sm);
      if (target == "a") info.scope = ArchScope::arch_specific;
      if (target == "f") info.scope = ArchScope::family_specific;
      if (info.sm == 0 || target.size() > 1) return invalid("PTX for an unknown target");
    } else if (word == ".entry") {
      std::string_view name = words.next();
      size_t length = 0;
      while (length < name.size() && is_word_char(name[length])) ++length;
      if (info.kernels.size() == kMaxPtxKernels) return invalid("PTX with too many kernels");
      if (length == 0) return invalid("PTX with an .entry that has no name");
      info.kernels.emplace_back(name.substr(0, length));
      info.param_counts.push_back(words.count_params(name.size() - length));
    }
  }
  if (info.version.empty() || info.sm == 0) {
    return invalid("not PTX: no .version and .target");
  }
  return info;
}

bool begins_like_ptx(std::string_view bytes) {
  PtxWords words(bytes.substr(0, 4096));
  return words.next() == ".version";
}

}  // namespace fibshim
