// A JSON file as a tree in which every key and value knows its line and column.
//
// Read by a small strict reader; nlohmann/json words what is wrong with a text that it refuses. Values
// are views: they live as long as the document. Not thread-safe, never throws but for lack of memory.
#pragma once

#include <deque>
#include <optional>

#include "loader/read/diagnostics.h"
#include "loader/read/limits.h"

namespace fibshim {

// A string from the JSON that still knows where each of its bytes stands: an expression, a regular
// expression or a name template.
struct MarkedText {
  std::string text;
  Mark mark;                      // of the opening quote
  std::vector<uint32_t> columns;  // of each byte; empty when byte i stands at mark.column + 1 + i

  // The place of byte `i`; the one past the last byte is the closing quote's.
  Mark at(size_t i) const;
};

enum class JsonKind : uint8_t { none, null, boolean, integer, floating, string, array, object };

// "a string", "an object", ...
const char* json_kind_words(JsonKind kind);

class JsonDocument;

// A value of a document, or none.
class JsonValue {
 public:
  JsonValue() = default;
  JsonValue(const JsonDocument* document, uint32_t index) : document_(document), index_(index) {}

  explicit operator bool() const { return document_ != nullptr; }
  JsonKind kind() const;
  Mark mark() const;
  // Of what comes next in the text; past the last line where nothing does.
  Mark next_mark() const;

  bool boolean() const;
  // An integer outside int64 has kind floating.
  int64_t integer() const;
  double floating() const;  // of an integer too
  std::string_view string() const;
  MarkedText marked_string() const;

  // Elements of an array, members of an object. The first of two equal keys holds.
  struct Member {
    std::string_view key;
    Mark key_mark;
    uint32_t index;
  };
  size_t size() const;  // how many it has; of any other kind 0
  std::vector<JsonValue> elements() const;
  std::vector<Member> members() const;
  JsonValue value_of(const Member& member) const { return {document_, member.index}; }
  JsonValue find(std::string_view key) const;

 private:
  const JsonDocument* document_ = nullptr;
  uint32_t index_ = 0;
};

class JsonDocument {
 public:
  // Parses `text`, which must outlive the document. What is wrong goes to `diagnostics`; nullopt
  // when there is no tree to read. Duplicate keys are reported, and the tree is given.
  static std::optional<JsonDocument> parse(std::string_view text, const std::string* file,
                                           Diagnostics* diagnostics);

  JsonValue root() const { return {this, 0}; }
  void set_file(const std::string* file) { file_ = file; }  // of marks from now on

 private:
  friend class JsonValue;
  friend class JsonReader;

  // Nodes lie in the order of the text; an object's members are a key node and a value each.
  struct Node {
    JsonKind kind;
    bool is_key;
    uint32_t end;  // index past the last node below this one
    uint32_t line, column;
    uint32_t source;  // byte of the text at which it starts
    union {
      bool boolean;
      int64_t integer;
      double floating;
      struct {
        uint32_t at, length;
      } text;  // in `strings_`
    };
  };

  JsonDocument(std::string_view text, const std::string* file) : text_(text), file_(file) {}
  std::string_view string_of(const Node& node) const {
    return std::string_view(strings_).substr(node.text.at, node.text.length);
  }
  void report_duplicate_keys(Diagnostics* diagnostics) const;

  std::string_view text_;
  const std::string* file_;
  std::vector<Node> nodes_;
  std::string strings_;
};

}  // namespace fibshim
