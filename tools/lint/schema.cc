#include "tools/lint/schema.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "loader/read/fields.h"

// Embeds the schemas. The assembler finds the files relative to the folder in which make runs.
#define SCHEMA_TEXT(name)                              \
  extern "C" const char fibshim_##name##_schema[];     \
  extern "C" const char fibshim_##name##_schema_end[]; \
  asm(".pushsection .rodata\n"                         \
      ".global fibshim_" #name                         \
      "_schema\n"                                      \
      ".hidden fibshim_" #name                         \
      "_schema\n"                                      \
      "fibshim_" #name                                 \
      "_schema:\n"                                     \
      ".incbin \"tools/schema/" #name                  \
      ".schema.json\"\n"                               \
      ".global fibshim_" #name                         \
      "_schema_end\n"                                  \
      ".hidden fibshim_" #name                         \
      "_schema_end\n"                                  \
      "fibshim_" #name                                 \
      "_schema_end:\n"                                 \
      ".popsection\n")

SCHEMA_TEXT(pattern);
SCHEMA_TEXT(solution);
SCHEMA_TEXT(measurements);

namespace fibshim {
namespace {

using Json = nlohmann::json;

std::string_view text_of(SchemaName name) {
  switch (name) {
    case SchemaName::pattern: return {fibshim_pattern_schema, fibshim_pattern_schema_end};
    case SchemaName::solution: return {fibshim_solution_schema, fibshim_solution_schema_end};
    case SchemaName::measurements:
      return {fibshim_measurements_schema, fibshim_measurements_schema_end};
  }
  return {};
}

const valijson::Schema& schema_of(SchemaName name) {
  static std::map<SchemaName, valijson::Schema> known;
  const auto [entry, is_new] = known.try_emplace(name);
  if (is_new) {
    const Json text = Json::parse(text_of(name));
    valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(text),
                                            entry->second);
  }
  return entry->second;
}

// No schema needs more of a string than this. The limit is there because the standard library's
// regular expressions use stack for each character.
constexpr size_t kMostText = 2048;

std::string shortened(std::string_view text) {
  if (text.size() <= kMostText) return std::string(text);
  size_t size = kMostText;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return std::string(text.substr(0, size));
}

// Recursion is bounded, since the document's depth is.
Json to_json(JsonValue value) {
  switch (value.kind()) {
    case JsonKind::boolean: return value.boolean();
    case JsonKind::integer: return value.integer();
    case JsonKind::floating: return value.floating();
    case JsonKind::string: return shortened(value.string());
    case JsonKind::array: {
      Json out = Json::array();
      for (const JsonValue element : value.elements()) out.push_back(to_json(element));
      return out;
    }
    case JsonKind::object: {
      Json out = Json::object();
      for (const JsonValue::Member& member : value.members()) {
        out.emplace(std::string(member.key), to_json(value.value_of(member)));
      }
      return out;
    }
    default: return nullptr;
  }
}

// The element "[3]" of an array, or the member "[key]" of an object.
JsonValue step(JsonValue from, std::string_view part) {
  if (part.size() < 2) return from;
  part = part.substr(1, part.size() - 2);
  if (from.kind() == JsonKind::object) return from.find(part);
  size_t index = 0;
  std::from_chars(part.data(), part.data() + part.size(), index);
  const std::vector<JsonValue> elements = from.elements();
  return index < elements.size() ? elements[index] : from;
}

bool is_within(const std::vector<std::string>& path, const std::vector<std::string>& outer) {
  return path.size() > outer.size() && std::equal(outer.begin(), outer.end(), path.begin());
}

}  // namespace

std::vector<SchemaFault> find_schema_faults(SchemaName schema, JsonValue root) {
  const Json document = to_json(root);
  valijson::ValidationResults results;
  valijson::Validator().validate(schema_of(schema),
                                 valijson::adapters::NlohmannJsonAdapter(document), &results);
  std::vector<SchemaFault> out;
  const std::vector<std::string>* last = nullptr;
  for (const auto& error : results) {
    const auto is_inner = [&](const auto& other) {
      return is_within(other.context, error.context);
    };
    if (std::any_of(results.begin(), results.end(), is_inner)) continue;
    if (last != nullptr && *last == error.context) continue;
    last = &error.context;
    JsonValue value = root;
    std::string what = "the file";
    for (size_t i = 1; i < error.context.size() && value; ++i) {
      const std::string& part = error.context[i];
      if (value.kind() == JsonKind::object) {
        what = in_quotes(std::string_view(part).substr(1, part.size() - 2));
      } else {
        what.insert(0, "an entry of ");
      }
      value = step(value, part);
    }
    if (!value) continue;
    out.push_back({value.mark(), value.next_mark(),
                   what.append(" does not fit the schema: ").append(error.description)});
  }
  return out;
}

}  // namespace fibshim
