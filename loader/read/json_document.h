// A JSON file as a tree in which every key and value knows its line and column.
//
// A small strict reader parses the text; nlohmann/json words the error for a text that it refuses.
// Values are views: they live as long as the document. Not thread-safe; throws only for lack of
// memory.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "loader/read/diagnostics.h"
#include "loader/read/limits.h"

namespace fibshim {

// A string from the JSON with the place of each of its bytes: an expression, a regular expression
// or a name template.
struct MarkedText {
  std::string text;
  Mark mark;                      // of the opening quote
  std::vector<uint32_t> columns;  // of each byte; empty if byte i is at mark.column + 1 + i

  // Returns the place of byte `i`; for the index past the last byte, that of the closing quote.
  Mark at(size_t i) const;
};

enum class JsonKind : uint8_t { none, null, boolean, integer, floating, string, array, object };

// "a string", "an object", ...
const char* json_kind_words(JsonKind kind);

class JsonDocument;
class KnownStrings;

// A value of a document, or none.
class JsonValue {
 public:
  JsonValue() = default;
  JsonValue(const JsonDocument* document, uint32_t index) : document_(document), index_(index) {}

  explicit operator bool() const { return document_ != nullptr; }
  JsonKind kind() const;
  Mark mark() const;
  // Returns the place of the node that follows this value in the text. If none follows, the line is
  // UINT32_MAX.
  Mark next_mark() const;

  bool boolean() const;
  // An integer outside int64 has kind floating.
  int64_t integer() const;
  double floating() const;  // works for an integer, too
  std::string_view string() const;
  MarkedText marked_string() const;

  // The elements of an array or the members of an object. If a key occurs twice, find() returns the
  // first one.
  struct Member {
    std::string_view key;
    Mark key_mark;
    uint32_t index;
  };
  size_t size() const;  // how many there are; 0 for any other kind
  std::vector<JsonValue> elements() const;
  std::vector<Member> members() const;
  JsonValue value_of(const Member& member) const { return {document_, member.index}; }
  JsonValue find(std::string_view key) const;
  bool has_only(const std::vector<std::string_view>& keys) const;  // true of other kinds

 private:
  const JsonDocument* document_ = nullptr;
  uint32_t index_ = 0;
};

class JsonDocument {
  struct Node;

 public:
  using Nodes = std::vector<Node>;

  // Parses `text`, which must outlive the document. Reports errors to `diagnostics`, and returns
  // nullopt if the text is no JSON or exceeds a limit. Duplicate keys are reported, but do not
  // fail. `known`: strings of other texts, if there are some like this one. `nodes`: memory to use.
  static std::optional<JsonDocument> parse(std::string_view text, const std::string* file,
                                           Diagnostics* diagnostics, KnownStrings* known = nullptr,
                                           Nodes nodes = {});

  JsonValue root() const { return {this, 0}; }
  Nodes take_nodes() { return std::move(nodes_); }  // ends all values

 private:
  friend class JsonValue;
  friend class JsonReader;

  // Nodes are in the order of the text. Each member of an object is a key node and then a value.
  struct Node {
    struct Text {
      uint32_t at, length;  // in `text_`, between the quotes
    };
    JsonKind kind;
    bool is_key;
    bool has_escapes;  // a string
    uint32_t end;      // index past the last node below this one
    uint32_t line, column;
    uint32_t source;  // byte of the text where the node starts
    union {
      bool boolean;
      int64_t integer;
      double floating;
      Text text;
    };
  };

  JsonDocument(std::string_view text, const std::string* file, Nodes nodes)
      : text_(text), file_(file), nodes_(std::move(nodes)) {
    nodes_.clear();
  }
  std::string_view string_of(const Node& node) const {
    return node.has_escapes ? decoded(node) : text_.substr(node.text.at, node.text.length);
  }
  std::string_view decoded(const Node& node) const;
  void report_duplicate_keys(Diagnostics* diagnostics) const;

  std::string_view text_;
  const std::string* file_;
  Nodes nodes_;
  // Strings with escapes that were asked for, by their place. The loader asks for no sources.
  mutable std::map<uint32_t, std::string> decoded_;
};

}  // namespace fibshim
