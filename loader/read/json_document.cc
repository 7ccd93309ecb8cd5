#include "loader/read/json_document.h"

#include <string.h>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace fibshim {
namespace {

bool is_continuation_byte(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// Line and column (in characters) of byte `offset`; for error messages only, as it is linear.
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

// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
// value - unexpected '}'; expected ..." -> "syntax error while parsing value - unexpected ..."
std::string plain_message(const std::string& what) {
  const size_t column = what.find("column ");
  const size_t colon = column == std::string::npos ? column : what.find(": ", column);
  if (colon != std::string::npos) return what.substr(colon + 2);
  const size_t bracket = what.find("] ");
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

}  // namespace

// Receives nlohmann's events; names are nlohmann's.
class JsonTreeBuilder {
 public:
  explicit JsonTreeBuilder(JsonDocument* document) : document_(document) {}

  bool null() { return add(JsonKind::null); }
  bool boolean(bool value) {
    const bool is_within_limits = add(JsonKind::boolean);
    document_->nodes_.back().boolean = value;
    return is_within_limits;
  }
  bool number_integer(int64_t value) {
    const bool is_within_limits = add(JsonKind::integer);
    document_->nodes_.back().integer = value;
    return is_within_limits;
  }
  bool number_unsigned(uint64_t value) {
    if (value > INT64_MAX) return number_float(static_cast<double>(value), {});
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string&) {
    const bool is_within_limits = add(JsonKind::floating);
    document_->nodes_.back().floating = value;
    return is_within_limits;
  }
  bool string(std::string& value) { return add_text(value, false); }
  bool binary(std::vector<uint8_t>&) { return false; }  // JSON text has none
  bool start_object(size_t) { return open(JsonKind::object); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(JsonKind::array); }
  bool end_array() { return close(); }
  bool key(std::string& value) { return add_text(value, true); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    error_offset_ = position == 0 ? 0 : position - 1;
    error_ = plain_message(error.what());
    return false;
  }

  const std::string& error() const { return error_; }
  size_t error_offset() const { return error_offset_; }

 private:
  bool add(JsonKind kind) {
    JsonDocument::Node node{};
    node.kind = kind;
    node.end = static_cast<uint32_t>(document_->nodes_.size() + 1);
    document_->nodes_.push_back(node);
    return document_->nodes_.size() <= kMaxJsonNodes;
  }
  bool add_text(const std::string& value, bool is_key) {
    const bool is_within_limits = add(JsonKind::string);
    JsonDocument::Node& node = document_->nodes_.back();
    node.is_key = is_key;
    node.text.at = static_cast<uint32_t>(document_->strings_.size());
    node.text.length = static_cast<uint32_t>(value.size());
    document_->strings_ += value;
    return is_within_limits;
  }
  bool open(JsonKind kind) {
    open_.push_back(static_cast<uint32_t>(document_->nodes_.size()));
    return add(kind) && open_.size() <= kMaxJsonDepth;
  }
  bool close() {
    document_->nodes_[open_.back()].end = static_cast<uint32_t>(document_->nodes_.size());
    open_.pop_back();
    return true;
  }

  JsonDocument* document_;
  std::vector<uint32_t> open_;
  std::string error_;
  size_t error_offset_ = 0;
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
                                                Diagnostics* diagnostics) {
  // nlohmann takes a NUL for the end of the text and would not look at what follows.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    diagnostics->add(Rule::json_syntax, locate(text, nul, file).place(), "a NUL character");
    return std::nullopt;
  }
  JsonDocument document(text, file);
  // A guess that spares most files the growing: one node for every 24 bytes.
  document.nodes_.reserve(text.size() / 24 + 16);
  JsonTreeBuilder builder(&document);
  bool is_valid = false;
  try {
    is_valid = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &builder);
  } catch (const nlohmann::json::exception& error) {
    diagnostics->add(Rule::json_syntax, Mark{file, 1, 1}.place(), plain_message(error.what()));
    return std::nullopt;
  }
  if (!is_valid && builder.error().empty()) {
    // The builder stopped at a limit: its nodes are the beginning of a tree.
    if (!document.assign_places(diagnostics)) return std::nullopt;
    const Node& last = document.nodes_.back();
    diagnostics->add(Rule::json_limits, Mark{file, last.line, last.column}.place(),
                     "more than " + std::to_string(kMaxJsonNodes) + " keys and values");
    return std::nullopt;
  }
  if (!is_valid) {
    diagnostics->add(Rule::json_syntax, locate(text, builder.error_offset(), file).place(),
                     text.empty() ? "the file is empty" : builder.error());
    return std::nullopt;
  }
  if (!document.assign_places(diagnostics)) return std::nullopt;
  document.report_duplicate_keys(diagnostics);
  return document;
}

// Every node starts at the next byte that is neither blank nor punctuation; opening brackets are
// nodes themselves. nlohmann has accepted the text, so nothing else needs to be looked at.
bool JsonDocument::assign_places(Diagnostics* diagnostics) {
  const char* const begin = text_.data();
  const char* const end = begin + text_.size();
  const char* at = begin;
  if (text_.substr(0, 3) == "\xef\xbb\xbf") at += 3;
  uint32_t line = 1;
  uint32_t column = 1;
  uint32_t depth = 0;
  for (Node& node : nodes_) {
    for (; at < end; ++at) {
      const char c = *at;
      if (c == '\n') {
        ++line;
        column = 1;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == ',' || c == ':') {
        ++column;
      } else if (c == ']' || c == '}') {
        ++column;
        --depth;
      } else {
        break;
      }
    }
    if (at == end) return false;
    node.line = line;
    node.column = column;
    node.source = static_cast<uint32_t>(at - begin);
    if (node.kind == JsonKind::object || node.kind == JsonKind::array) {
      ++at;
      ++column;
      if (++depth > kMaxJsonDepth) {
        diagnostics->add(Rule::json_limits, Mark{file_, node.line, node.column}.place(),
                         "more than " + std::to_string(kMaxJsonDepth) +
                             " objects and arrays inside one another");
        return false;
      }
    } else if (node.kind == JsonKind::string) {
      ++at;
      ++column;
      while (at < end && *at != '"') {
        if (*at == '\\') ++at, ++column;
        if (!is_continuation_byte(*at)) ++column;
        ++at;
      }
      ++at;
      ++column;
    } else {
      while (at < end && strchr(" \t\r\n,:]}", *at) == nullptr) {
        ++at;
        ++column;
      }
    }
  }
  return true;
}

void JsonDocument::report_duplicate_keys(Diagnostics* diagnostics) const {
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind != JsonKind::object) continue;
    keys.clear();
    for (uint32_t key = i + 1; key < nodes_[i].end; key = nodes_[key + 1].end) {
      keys.emplace_back(string_of(nodes_[key]), key);
    }
    std::sort(keys.begin(), keys.end());
    for (size_t k = 1; k < keys.size(); ++k) {
      if (keys[k].first != keys[k - 1].first) continue;
      const Node& first = nodes_[keys[k - 1].second];
      const Node& second = nodes_[keys[k].second];
      diagnostics->add(Rule::duplicate_key, Mark{file_, second.line, second.column}.place(),
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
  // Escapes and characters of several bytes shift the columns: follow the text byte by byte.
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

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> result;
  if (kind() != JsonKind::array) return result;
  const auto& nodes = document_->nodes_;
  for (uint32_t i = index_ + 1; i < nodes[index_].end; i = nodes[i].end) {
    result.emplace_back(document_, i);
  }
  return result;
}

std::vector<JsonValue::Member> JsonValue::members() const {
  std::vector<Member> result;
  if (kind() != JsonKind::object) return result;
  const auto& nodes = document_->nodes_;
  for (uint32_t key = index_ + 1; key < nodes[index_].end; key = nodes[key + 1].end) {
    result.push_back({document_->string_of(nodes[key]),
                      {document_->file_, nodes[key].line, nodes[key].column},
                      key + 1});
  }
  return result;
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
