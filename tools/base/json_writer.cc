#include "tools/base/json_writer.h"

#include <algorithm>
#include <charconv>

#include "tools/base/terminal.h"

namespace fibshim::tools {

void JsonWriter::begin_line() {
  out_->push_back('\n');
  out_->append(2 * open_.size(), ' ');
}

void JsonWriter::begin_value() {
  const bool follows_key = has_key_;
  has_key_ = false;
  if (follows_key || open_.empty()) return;
  if (!is_empty_) out_->push_back(',');
  begin_line();
  is_empty_ = false;
}

void JsonWriter::add(std::string_view json) {
  begin_value();
  out_->append(json);
}

void JsonWriter::key(std::string_view name) {
  text(name);
  out_->append(": ");
  has_key_ = true;
}

void JsonWriter::open(char bracket) {
  begin_value();
  out_->push_back(bracket);
  open_.push_back(bracket == '{' ? '}' : ']');
  is_empty_ = true;
}

void JsonWriter::close() {
  const char bracket = open_.back();
  open_.pop_back();
  if (!is_empty_) begin_line();
  out_->push_back(bracket);
  is_empty_ = false;
}

void JsonWriter::number(uint64_t value) {
  char digits[20];
  add({digits, std::to_chars(digits, std::end(digits), value).ptr});
}

void JsonWriter::text(std::string_view text) {
  const bool is_plain = std::ranges::all_of(
      text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (!is_plain) return add(json_string(text));
  begin_value();
  out_->push_back('"');
  out_->append(text);
  out_->push_back('"');
}

void JsonWriter::text_or_null(std::string_view value) { value.empty() ? null() : text(value); }

void JsonWriter::document(std::string_view json) {
  begin_value();
  if (json.ends_with('\n')) json.remove_suffix(1);
  for (const char c : json) {
    c == '\n' ? begin_line() : out_->push_back(c);
  }
}

}  // namespace fibshim::tools
