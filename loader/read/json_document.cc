#include "loader/read/json_document.h"

#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "loader/read/known_strings.h"

namespace fibshim {
namespace {

// Returns line and column (in characters) of byte `offset`. Takes linear time, so only for errors.
Mark locate(std::string_view text, size_t offset, const std::string* file) {
  Mark mark{file, 1, 1};
  if (text.substr(0, 3) == "\xef\xbb\xbf")
    text.remove_prefix(3), offset -= std::min<size_t>(offset, 3);
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++mark.line;
      mark.column = 1;
    } else if (!is_continuation_byte(text[i])) {
      ++mark.column;
    }
  }
  return mark;
}

// Words the error for a text that the reader below has refused. Member names are nlohmann's.
struct JsonFault : nlohmann::detail::json_sax_acceptor<nlohmann::json> {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
  // value - unexpected '}'; expected ..." -> "syntax error while parsing value - unexpected ..."
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    const std::string what = error.what();
    const size_t column = what.find("column ");
    const size_t colon = column == std::string::npos ? column : what.find(": ", column);
    message =
        colon != std::string::npos ? what.substr(colon + 2) : what.substr(what.find("] ") + 2);
    offset = position == 0 ? 0 : position - 1;
    return false;
  }
  std::string message = "the text is not JSON";
  size_t offset = 0;
};

}  // namespace

// Reads the text once, strictly (RFC 8259). nlohmann/json records no places, and takes ten times as
// long for the sources in solutions, which are not used here.
class JsonReader {
 public:
  JsonReader(JsonDocument* document, KnownStrings* known)
      : document_(document), known_(known), begin_(document->text_.data()), at_(begin_) {
    end_ = begin_ + document->text_.size();
    if (document->text_.starts_with("\xef\xbb\xbf")) at_ += 3;
    line_begin_ = at_;
    // One node for every 24 bytes is a guess that spares most files a reallocation. Large files are mostly sources.
    document->nodes_.reserve(std::min(document->text_.size() / 24, kMostGuessedNodes) + 16);
  }

  bool read() {
    if (!read_value()) return false;
    skip_blanks();
    return at_ == end_;
  }

  // The limit that the text exceeds, at the last node, in words. After a failed read(), empty if
  // the text is not JSON.
  const std::string& excess() const { return excess_; }

 private:
  using Node = JsonDocument::Node;
  static constexpr size_t kMostGuessedNodes = 240;

  void skip_blanks() {
    for (; at_ < end_; ++at_) {
      if (*at_ == '\n') {
        ++line_;
        line_begin_ = at_ + 1;
        continuation_bytes_ = 0;
      } else if (*at_ != ' ' && *at_ != '\t' && *at_ != '\r') {
        return;
      }
    }
  }

  bool accept(char c) {
    skip_blanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }

  bool add(JsonKind kind) {
    const auto end = static_cast<uint32_t>(document_->nodes_.size() + 1);
    const auto column = static_cast<uint32_t>(at_ - line_begin_) - continuation_bytes_ + 1;
    const auto source = static_cast<uint32_t>(at_ - begin_);
    document_->nodes_.push_back({kind, false, false, end, line_, column, source, {}});
    if (end <= kMaxJsonNodes) return true;
    excess_ = "more than " + std::to_string(kMaxJsonNodes) + " keys and values";
    return false;
  }
  Node& last() { return document_->nodes_.back(); }

  bool read_value() {
    skip_blanks();
    if (at_ == end_) return false;
    switch (*at_) {
      case '{': return read_container(JsonKind::object, '}');
      case '[': return read_container(JsonKind::array, ']');
      case '"': return read_string(false);
      case 'n': return add(JsonKind::null) && accept_word("null");
      case 't':
      case 'f': {
        const bool value = *at_ == 't';
        if (!add(JsonKind::boolean)) return false;
        last().boolean = value;
        return accept_word(value ? "true" : "false");
      }
      default: return read_number();
    }
  }

  bool accept_word(std::string_view word) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool read_container(JsonKind kind, char close) {
    const size_t index = document_->nodes_.size();
    if (!add(kind)) return false;
    if (++depth_ > kMaxJsonDepth) {
      excess_ =
          "more than " + std::to_string(kMaxJsonDepth) + " objects and arrays inside one another";
      return false;
    }
    ++at_;
    if (!accept(close)) {
      do {
        skip_blanks();
        const bool has_key = kind == JsonKind::array ||
                             (at_ < end_ && *at_ == '"' && read_string(true) && accept(':'));
        if (!has_key || !read_value()) return false;
      } while (accept(','));
      if (!accept(close)) return false;
    }
    --depth_;
    document_->nodes_[index].end = static_cast<uint32_t>(document_->nodes_.size());
    return true;
  }

  bool read_string(bool is_key) {
    if (!add(JsonKind::string)) return false;
    const char* const from = ++at_;
    const bool may_be_known = known_ != nullptr && !is_key;
    const JsonString string =
        may_be_known ? known_->read(from, end_) : read_json_string(from, end_);
    if (string.end == nullptr) return false;
    continuation_bytes_ += string.continuation_bytes;
    last().is_key = is_key;
    last().has_escapes = string.has_escapes;
    last().text.at = static_cast<uint32_t>(from - begin_);
    last().text.length = static_cast<uint32_t>(string.end - from);
    at_ = string.end + 1;
    return true;
  }

  size_t skip_digits() {
    const char* const first = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return static_cast<size_t>(at_ - first);
  }

  bool read_number() {
    if (!add(JsonKind::integer)) return false;
    const char* const first = at_;
    if (*at_ == '-') ++at_;
    const bool begins_with_zero = at_ < end_ && *at_ == '0';
    const size_t digits = skip_digits();
    if (digits == 0 || (begins_with_zero && digits > 1)) return false;
    bool is_integer = true;
    if (at_ < end_ && *at_ == '.') {
      is_integer = false;
      ++at_;
      if (skip_digits() == 0) return false;
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      is_integer = false;
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (skip_digits() == 0) return false;
    }
    int64_t integer = 0;
    if (is_integer && std::from_chars(first, at_, integer).ec == std::errc()) {
      last().integer = integer;
      return true;
    }
    last().kind = JsonKind::floating;
    last().floating = 0;
    const auto parsed = std::from_chars(first, at_, last().floating);
    // A number too small for a double is 0; one too large is refused.
    return parsed.ec == std::errc() || std::find(first + 1, at_, '-') != at_;
  }

  JsonDocument* document_;
  KnownStrings* const known_;  // or null
  const char* const begin_;
  const char* at_;
  const char* end_;
  const char* line_begin_;
  uint32_t line_ = 1;
  uint32_t continuation_bytes_ = 0;  // in this line so far: columns count characters
  uint32_t depth_ = 0;
  std::string excess_;
};

Mark MarkedText::at(size_t i) const {
  Mark result = mark;
  if (!columns.empty()) {
    result.column = columns[std::min(i, columns.size() - 1)];
  } else {
    result.column += 1 + static_cast<uint32_t>(std::min(i, text.size()));
  }
  return result;
}

const char* json_kind_words(JsonKind kind) {
  switch (kind) {
    case JsonKind::none: return "nothing";
    case JsonKind::null: return "null";
    case JsonKind::boolean: return "a boolean";
    case JsonKind::integer: return "an integer";
    case JsonKind::floating: return "a number";
    case JsonKind::string: return "a string";
    case JsonKind::array: return "an array";
    case JsonKind::object: return "an object";
  }
  return "nothing";
}

std::optional<JsonDocument> JsonDocument::parse(std::string_view text, const std::string* file,
                                                Diagnostics* diagnostics, KnownStrings* known,
                                                Nodes nodes) {
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    diagnostics->add(Rule::json_syntax, locate(text, nul, file), "a NUL character");
    return std::nullopt;
  }
  JsonDocument document(text, file, std::move(nodes));
  JsonReader reader(&document, known);
  if (reader.read()) {
    document.report_duplicate_keys(diagnostics);
    return document;
  }
  if (!reader.excess().empty()) {
    const Node& last = document.nodes_.back();
    diagnostics->add(Rule::json_limits, Mark{file, last.line, last.column}, reader.excess());
    return std::nullopt;
  }
  JsonFault fault;
  nlohmann::json::sax_parse(text.begin(), text.end(), &fault);
  diagnostics->add(Rule::json_syntax, locate(text, fault.offset, file),
                   text.empty() ? "the file is empty" : fault.message);
  return std::nullopt;
}

std::string_view JsonDocument::decoded(const Node& node) const {
  const auto [entry, is_new] = decoded_.try_emplace(node.text.at);
  if (is_new) entry->second = decode_json_string(text_.substr(node.text.at, node.text.length));
  return entry->second;
}

static bool has_equal(const std::vector<std::pair<std::string_view, uint32_t>>& keys) {
  for (size_t i = 1; i < keys.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (keys[i].first == keys[k].first) return true;
    }
  }
  return false;
}

void JsonDocument::report_duplicate_keys(Diagnostics* diagnostics) const {
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  keys.reserve(16);  // enough for most objects
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind != JsonKind::object) continue;
    keys.clear();
    for (uint32_t key = i + 1; key < nodes_[i].end; key = nodes_[key + 1].end) {
      keys.emplace_back(string_of(nodes_[key]), key);
    }
    // Most lengths differ, so in a small object it takes least to compare each two.
    if (keys.size() <= 16 && !has_equal(keys)) continue;
    std::sort(keys.begin(), keys.end());
    for (size_t k = 1; k < keys.size(); ++k) {
      if (keys[k].first != keys[k - 1].first) continue;
      const Node& first = nodes_[keys[k - 1].second];
      const Node& second = nodes_[keys[k].second];
      diagnostics->add(Rule::duplicate_key, Mark{file_, second.line, second.column},
                       "key \"" + std::string(keys[k].first) + "\" is there twice, first on line " +
                           std::to_string(first.line));
    }
  }
}

JsonKind JsonValue::kind() const {
  return document_ == nullptr ? JsonKind::none : document_->nodes_[index_].kind;
}

Mark JsonValue::mark() const {
  if (document_ == nullptr) return {};
  const JsonDocument::Node& node = document_->nodes_[index_];
  return {document_->file_, node.line, node.column};
}

Mark JsonValue::next_mark() const {
  if (!*this) return {};
  const auto& nodes = document_->nodes_;
  const uint32_t next = nodes[index_].end;
  if (next >= nodes.size()) return {document_->file_, UINT32_MAX, 0};
  return {document_->file_, nodes[next].line, nodes[next].column};
}

bool JsonValue::boolean() const { return document_->nodes_[index_].boolean; }

int64_t JsonValue::integer() const { return document_->nodes_[index_].integer; }

double JsonValue::floating() const {
  const JsonDocument::Node& node = document_->nodes_[index_];
  return node.kind == JsonKind::integer ? static_cast<double>(node.integer) : node.floating;
}

std::string_view JsonValue::string() const {
  return document_->string_of(document_->nodes_[index_]);
}

MarkedText JsonValue::marked_string() const {
  MarkedText result{std::string(string()), mark(), {}};
  // Escapes and multi-byte characters shift the columns, so follow the text byte by byte.
  std::string_view raw = document_->text_.substr(document_->nodes_[index_].source + 1);
  const bool is_plain = raw.substr(0, result.text.size()) == result.text &&
                        std::none_of(result.text.begin(), result.text.end(),
                                     [](char c) { return static_cast<uint8_t>(c) >= 0x80; });
  if (is_plain) return result;
  uint32_t column = result.mark.column + 1;
  size_t at = 0;
  while (result.columns.size() < result.text.size()) {
    size_t raw_length = 1;
    size_t text_length = 1;
    if (raw[at] == '\\' && raw[at + 1] == 'u') {
      const uint8_t first = static_cast<uint8_t>(result.text[result.columns.size()]);
      text_length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
      raw_length = text_length == 4 ? 12 : 6;  // a surrogate pair is two escapes
    } else if (raw[at] == '\\') {
      raw_length = 2;
    } else {
      while (is_continuation_byte(raw[at + raw_length])) ++raw_length;
      text_length = raw_length;
    }
    for (size_t i = 0; i < text_length; ++i) result.columns.push_back(column);
    column += raw[at] == '\\' ? static_cast<uint32_t>(raw_length) : 1;
    at += raw_length;
  }
  result.columns.push_back(column);
  return result;
}

size_t JsonValue::size() const {
  if (kind() != JsonKind::array && kind() != JsonKind::object) return 0;
  size_t count = 0;
  const auto& nodes = document_->nodes_;
  for (uint32_t i = index_ + 1; i < nodes[index_].end; i = nodes[i].end) count += !nodes[i].is_key;
  return count;
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> result;
  if (kind() != JsonKind::array) return result;
  result.reserve(size());
  const auto& nodes = document_->nodes_;
  for (uint32_t i = index_ + 1; i < nodes[index_].end; i = nodes[i].end) {
    result.emplace_back(document_, i);
  }
  return result;
}

std::vector<JsonValue::Member> JsonValue::members() const {
  std::vector<Member> result;
  if (kind() != JsonKind::object) return result;
  result.reserve(size());
  const auto& nodes = document_->nodes_;
  for (uint32_t key = index_ + 1; key < nodes[index_].end; key = nodes[key + 1].end) {
    result.push_back({document_->string_of(nodes[key]),
                      {document_->file_, nodes[key].line, nodes[key].column},
                      key + 1});
  }
  return result;
}

bool JsonValue::has_only(const std::vector<std::string_view>& keys) const {
  if (kind() != JsonKind::object) return true;
  const auto& nodes = document_->nodes_;
  for (uint32_t at = index_ + 1; at < nodes[index_].end; at = nodes[at + 1].end) {
    if (std::ranges::find(keys, document_->string_of(nodes[at])) == keys.end()) return false;
  }
  return true;
}

JsonValue JsonValue::find(std::string_view key) const {
  if (kind() != JsonKind::object) return {};
  const auto& nodes = document_->nodes_;
  for (uint32_t at = index_ + 1; at < nodes[index_].end; at = nodes[at + 1].end) {
    if (document_->string_of(nodes[at]) == key) return {document_, at + 1};
  }
  return {};
}

}  // namespace fibshim
