#include "loader/read/diagnostics.h"

#include <algorithm>
#include <tuple>

#include "loader/read/limits.h"

namespace fibshim {
namespace {

// Returns how many edits (insert, remove, replace) turn `a` into `b`. Both must be short.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Names from C, PyTorch, NumPy and CUDA, and ours.
struct OtherName {
  std::string_view name, ours;
};
constexpr OtherName kOtherNames[] = {
    {"int", "int32"},     {"unsigned", "uint32"}, {"uint", "uint32"},    {"long", "int64"},
    {"size_t", "uint64"}, {"float", "float32"},   {"double", "float64"}, {"half", "float16"},
    {"fp16", "float16"},  {"bf16", "bfloat16"},   {"fp32", "float32"},   {"fp64", "float64"},
    {"char", "int8"},     {"short", "int16"},     {"args", "arguments"}, {"smem", "shared_mem"},
};

// A message may quote a file, so it must neither control the terminal nor flood it.
constexpr size_t kMaxMessageBytes = 1000;

std::string printable(std::string text) {
  if (text.size() > kMaxMessageBytes) {
    size_t length = kMaxMessageBytes;
    while (length > 0 && (static_cast<uint8_t>(text[length]) & 0xc0) == 0x80) --length;
    text.resize(length);
    text += "...";
  }
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      result += c;
    } else {
      static constexpr char kDigits[] = "0123456789abcdef";
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result;
}

}  // namespace

const RuleInfo* find_rule(std::string_view name) {
  for (const RuleInfo& info : kRules) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
    case Severity::note: return "note";
  }
  return "";
}

std::string format_diagnostic(const Diagnostic& diagnostic) {
  std::string out = diagnostic.place.file;
  if (diagnostic.place.line != 0) {
    out += ':' + std::to_string(diagnostic.place.line);
    if (diagnostic.place.column != 0) out += ':' + std::to_string(diagnostic.place.column);
  }
  out += ": ";
  out += severity_name(diagnostic.severity);
  out += ": ";
  out += diagnostic.message;
  if (!diagnostic.hint.empty()) out += "; " + diagnostic.hint;
  out += " [";
  out += rule_info(diagnostic.rule).name;
  out += ']';
  return out;
}

std::string_view nearest_word(std::string_view word,
                              const std::vector<std::string_view>& accepted) {
  constexpr size_t kLongestWord = 64;  // a longer word is no typing mistake
  if (word.empty() || word.size() > kLongestWord) return {};
  for (const OtherName& other : kOtherNames) {
    if (word != other.name) continue;
    const auto meant = std::ranges::find(accepted, other.ours);
    if (meant != accepted.end()) return *meant;
  }
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : accepted) {
    if (candidate.size() > kLongestWord) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string_view only_word(std::string_view word, const std::vector<std::string_view>& accepted) {
  const std::string_view best = nearest_word(word, accepted);
  if (best.empty()) return best;
  const size_t distance = edit_distance(word, best);
  for (const std::string_view other : accepted) {
    if (other != best && edit_distance(word, other) <= distance + 1) return {};
  }
  return best;
}

std::string list_words(const std::vector<std::string_view>& words, const char* last) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i != 0) {
      if (i + 1 == words.size()) {
        out += ' ';
        out += last;
        out += ' ';
      } else {
        out += ", ";
      }
    }
    out += '"';
    out += words[i];
    out += '"';
  }
  return out;
}

void Diagnostics::add(Rule rule, Place place, std::string message, std::string hint,
                      std::string_view meant) {
  const Effect effect = rule_info(rule).effect;
  const Severity severity = effect == Effect::warning ? Severity::warning
                            : effect == Effect::note  ? Severity::note
                                                      : Severity::error;
  if (severity == Severity::error) ++error_count_;
  if (severity == Severity::warning) ++warning_count_;
  if (severity == Severity::note) ++note_count_;
  if (effect == Effect::invalid_folder) ++invalid_count_;
  if (is_full()) {
    ++dropped_count_;
    return;
  }
  all_.push_back({std::move(place), severity, rule, printable(std::move(message)),
                  printable(std::move(hint)), std::string(meant)});
}

void Diagnostics::add_all(Diagnostics others) {
  error_count_ += others.error_count_;
  warning_count_ += others.warning_count_;
  note_count_ += others.note_count_;
  invalid_count_ += others.invalid_count_;
  dropped_count_ += others.dropped_count_;
  for (Diagnostic& one : others.all_) {
    if (is_full()) {
      ++dropped_count_;
    } else {
      all_.push_back(std::move(one));
    }
  }
}

bool Diagnostics::has(Rule rule, Mark mark) const {
  return std::any_of(all_.rbegin(), all_.rend(), [&](const Diagnostic& one) {
    return one.rule == rule && one.place.line == mark.line && one.place.column == mark.column &&
           mark.file != nullptr && one.place.file == *mark.file;
  });
}

bool Diagnostics::is_full() const { return all_.size() >= most_; }

std::vector<Diagnostic> Diagnostics::release() {
  if (dropped_count_ > 0) {
    all_.push_back({{all_.back().place.file, 0, 0},
                    error_count_ > 0 ? Severity::error : Severity::warning,
                    Rule::limit,
                    std::to_string(dropped_count_) + " more findings; " + std::to_string(most_) +
                        " are listed",
                    ""});
  }
  return std::move(all_);
}

std::string Diagnostics::suggestion(std::string_view word,
                                    const std::vector<std::string_view>& accepted) {
  if (!has_suggestions_left()) return {};
  ++suggestion_count_;
  const std::string_view nearest = nearest_word(word, accepted);
  return nearest.empty() ? std::string() : "did you mean \"" + std::string(nearest) + "\"?";
}

void Diagnostics::sort() {
  std::ranges::stable_sort(all_, {}, [](const Diagnostic& one) {
    return std::tie(one.place.file, one.place.line, one.place.column);
  });
}

}  // namespace fibshim
