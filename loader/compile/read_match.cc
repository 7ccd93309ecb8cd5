#include "loader/compile/read_match.h"

#include <endian.h>

#include "loader/read/sha256.h"

namespace fibshim {
namespace {

void read_image_hash(JsonValue value, MatchSpec* out, Diagnostics* diagnostics) {
  const auto text = read_text(value, "an entry of \"image\"", diagnostics);
  if (!text) return;
  const std::string_view words = text->text;
  const std::string_view kind = words.substr(0, words.find(':') + 1);
  uint64_t halves[2];  // in xxhsum's order: the high half first
  if ((kind != "xxh128:" && kind != "code:") ||
      !parse_hex(words.substr(kind.size()), halves, sizeof halves)) {
    diagnostics->add(Rule::bad_image_hash, text->mark,
                     "an image hash is \"xxh128:\" or \"code:\" and 32 hexadecimal digits, not " +
                         in_quotes(text->text));
    return;
  }
  out->images.push_back({.low = be64toh(halves[1]), .high = be64toh(halves[0])});
}

void read_params(JsonValue params, MatchSpec* out, Diagnostics* diagnostics) {
  out->has_params = true;
  const std::vector<JsonValue> elements = params.elements();
  if (elements.size() > kMaxParams) {
    diagnostics->add(Rule::limit, params.mark(),
                     "\"params\" has " + std::to_string(elements.size()) + " entries; at most " +
                         std::to_string(kMaxParams) + " are accepted");
    return;
  }
  for (const JsonValue element : elements) {
    const auto size =
        read_integer(element, 1, kMaxParamBytes, "an entry of \"params\"", diagnostics);
    out->params.push_back(static_cast<uint16_t>(size.value_or(0)));
  }
}

}  // namespace

MatchSpec read_match(JsonValue match, const What& what, KnownTexts* known,
                     Diagnostics* diagnostics) {
  MatchSpec out;
  out.mark = match.mark();
  if (!expect_kind(match, JsonKind::object, what, diagnostics)) return out;
  accept_only(match, {"symbol", "params", "image"}, what, diagnostics);
  const JsonValue symbol = require_member(match, "symbol", what, diagnostics);
  if (const auto text = read_text(symbol, "\"symbol\"", diagnostics)) {
    auto parsed = known->symbol(text->text);
    if (parsed) {
      out.symbol = std::move(*parsed);
    } else {
      diagnostics->add(Rule::bad_symbol, text->at(parsed.error().offset), parsed.error().message);
    }
  }
  const JsonValue params = match.find("params");
  if (expect_kind(params, JsonKind::array, "\"params\"", diagnostics)) {
    read_params(params, &out, diagnostics);
  }
  const JsonValue images = match.find("image");
  if (expect_kind(images, JsonKind::array, "\"image\"", diagnostics) &&
      check_entry_count(images, "\"image\"", diagnostics)) {
    if (images.elements().empty()) {
      diagnostics->add(Rule::bad_value, images.mark(), "\"image\" is empty",
                       "leave it out when every image will do");
    }
    for (const JsonValue element : images.elements()) read_image_hash(element, &out, diagnostics);
  }
  return out;
}

}  // namespace fibshim
