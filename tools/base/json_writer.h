// Writes JSON piece by piece, indented as json_text() does. For documents of gigabytes.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>

namespace fibshim::tools {

class JsonWriter {
 public:
  explicit JsonWriter(std::string* out) : out_(out) {}

  // The key of an object's next member; its value must follow.
  void key(std::string_view name);

  void open(char bracket);  // { or [
  void close();
  void number(uint64_t value);
  void text(std::string_view text);
  void text_or_null(std::string_view text);  // null if the text is empty
  void boolean(bool value) { add(value ? "true" : "false"); }
  void null() { add("null"); }
  // A value that json_text() has written.
  void document(std::string_view json);

 private:
  void begin_value();
  void begin_line();
  void add(std::string_view json);

  std::string* out_;
  std::string open_;  // the closing brackets of the open objects and arrays
  bool is_empty_ = true;
  bool has_key_ = false;
};

}  // namespace fibshim::tools
