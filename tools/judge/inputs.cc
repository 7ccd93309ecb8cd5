#include "tools/judge/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <ranges>
#include <regex>

#include <fmt/format.h>

#include "tools/base/try.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fibshim::judge {
namespace {

using Random = std::mt19937_64;

// Large tensors repeat a block. Its length is odd, so that their rows differ.
constexpr int64_t kBlockElements = (int64_t{1} << 18) + 1;
constexpr int64_t kDistinctProbabilityRows = 16;
constexpr double kDefaultEps = 1e-6;
constexpr int64_t kMostTopK = 64;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

void repeat_block(Tensor* tensor, int64_t block) {
  const size_t bytes = static_cast<size_t>(block) * tensor->type->bytes;
  for (size_t at = bytes; at < tensor->bytes.size(); at += bytes) {
    memcpy(tensor->bytes.data() + at, tensor->bytes.data(),
           std::min(bytes, tensor->bytes.size() - at));
  }
}

template <class Draw>
void fill(Tensor* tensor, const Draw& draw) {
  const int64_t block = std::min(tensor->count(), kBlockElements);
  for (int64_t i = 0; i < block; ++i) tensor->set(i, draw());
  if (block > 0) repeat_block(tensor, block);
}

void fill_activations(Tensor* tensor, int run, Random* random) {
  std::normal_distribution<double> normal;
  const int profile = run % kInputProfiles;
  // Elements of fp8 have scales beside them, by which they fill its range whatever they stand for.
  const bool is_quantized = tensor->type->is_floating && tensor->type->bytes == 1;
  const double scale = is_quantized ? (profile == 2 ? 2 : 64) : profile == 1 ? 1e-3 : 1;
  int64_t i = 0;
  fill(tensor, [&] {
    const double value = normal(*random) * scale;
    return profile == 2 && ++i % 211 == 0 ? 50 * value : value;
  });
  if (tensor->shape.size() < 2 || tensor->rows() < 2) return;
  const size_t row_bytes = static_cast<size_t>(tensor->width()) * tensor->type->bytes;
  memset(tensor->bytes.data() + row_bytes, 0, row_bytes);
}

void fill_probabilities(Tensor* tensor, Random* random) {
  std::normal_distribution<double> normal;
  const int64_t width = tensor->width();
  const int64_t rows = std::min(tensor->rows(), kDistinctProbabilityRows);
  std::vector<double> row(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (double& value : row) sum += value = exp(2 * normal(*random));
    for (int64_t i = 0; i < width; ++i) {
      tensor->set(r * width + i, row[static_cast<size_t>(i)] / sum);
    }
  }
  repeat_block(tensor, rows * width);
}

// Each row: cosines, then sines, of position * 10000^(-2i/d).
void fill_rotations(Tensor* tensor) {
  const int64_t width = tensor->width(), half = width / 2;
  for (int64_t row = 0; row < tensor->rows(); ++row) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(row) *
                           pow(10000, -2.0 * static_cast<double>(i) / static_cast<double>(width));
      tensor->set(row * width + i, cos(angle));
      tensor->set(row * width + half + i, sin(angle));
    }
  }
}

// Slots of a paged cache, all different: with two tokens in one slot, either could remain. Every
// seventh token has no slot (-1), the second has slot 0, which may be a reserved one.
Result<void> fill_slots(const InputRequest& request, bool has_pages, Random* random,
                        Tensor* tensor) {
  const DefinitionArgument* const cache = request.definition.find_argument("key_cache");
  const size_t dimensions = has_pages ? 2 : 1;  // that count slots
  if (cache == nullptr || cache->shape.size() < dimensions) {
    return fail(
        ErrorCode::invalid_value,
        has_pages ? "\"slot_mapping\" leads into \"key_cache\" [pages, slots of a page, ...], "
                    "which the definition lacks"
                  : "\"slots\" leads into \"key_cache\" [slots, ...], which the definition lacks");
  }
  int64_t slot_count = 1;
  for (size_t i = 0; i < dimensions; ++i) slot_count *= request.axes.at(cache->shape[i]);
  std::vector<int64_t> slots(static_cast<size_t>(slot_count));
  if (slots.size() < static_cast<size_t>(tensor->count())) {
    return fail(ErrorCode::invalid_value, "the cache has fewer slots than there are tokens");
  }
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), *random);
  if (slots.size() > 1) std::iter_swap(slots.begin() + 1, std::ranges::find(slots, 0));
  for (int64_t i = 0; i < tensor->count(); ++i) {
    tensor->set(i, i % 7 == 3 ? -1 : static_cast<double>(slots[static_cast<size_t>(i)]));
  }
  return {};
}

// Choices of experts, sorted by these: each expert's choices are padded to whole blocks.
struct SortedChoices {
  std::vector<int64_t> places;
  std::vector<int64_t> experts;  // of each block
  int64_t padding;               // the number of all choices
};

// Every third choice is of one expert, which so has several blocks. With more than two blocks the
// last is of an expert that another rank has (-1).
Result<SortedChoices> sort_choices(const InputRequest& request) {
  const auto axis = [&](const char* name) -> Result<int64_t> {
    const auto found = request.axes.find(name);
    if (found != request.axes.end() && found->second > 0) return found->second;
    return fail(ErrorCode::invalid_value, std::string("\"sorted_token_ids\" needs the axis \"") +
                                              name + "\", which the definition lacks");
  };
  const int64_t choices = FIBSHIM_TRY(axis("num_choices"));
  const int64_t experts = FIBSHIM_TRY(axis("num_experts"));
  const int64_t block = FIBSHIM_TRY(axis("block_size"));
  Random random(static_cast<uint64_t>(choices * kInputProfiles + request.run));
  std::uniform_int_distribution<int64_t> draw(0, experts - 1);
  const int64_t popular = draw(random);
  std::map<int64_t, std::vector<int64_t>> of_expert;
  for (int64_t i = 0; i < choices; ++i) {
    of_expert[i % 3 == 0 ? popular : draw(random)].push_back(i);
  }
  SortedChoices sorted{{}, {}, choices};
  for (auto& [expert, of] : of_expert) {
    of.resize((of.size() + block - 1) / block * block, choices);
    sorted.places.insert(sorted.places.end(), of.begin(), of.end());
    sorted.experts.insert(sorted.experts.end(), of.size() / block, expert);
  }
  if (sorted.experts.size() > 2) sorted.experts.back() = -1;
  return sorted;
}

Result<void> fill_sorted_choices(const InputRequest& request, std::string_view name,
                                 Tensor* tensor) {
  const SortedChoices sorted = FIBSHIM_TRY(sort_choices(request));
  if (name == "num_tokens_post_pad") {
    tensor->set(0, static_cast<double>(sorted.places.size()));
    return {};
  }
  const bool is_places = name == "sorted_token_ids";
  const std::vector<int64_t>& values = is_places ? sorted.places : sorted.experts;
  if (static_cast<size_t>(tensor->count()) < values.size()) {
    return fail(ErrorCode::invalid_value, "\"" + std::string(name) + "\" has " +
                                              std::to_string(tensor->count()) +
                                              " elements, too few for the choices in blocks: " +
                                              std::to_string(values.size()) + " are needed");
  }
  for (int64_t i = 0; i < tensor->count(); ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t behind = is_places ? sorted.padding : -1;
    tensor->set(i, static_cast<double>(at < values.size() ? values[at] : behind));
  }
  return {};
}

// Where each sequence's rows begin. A sequence has one row; every fifth has none.
void fill_first_rows(Tensor* tensor) {
  int64_t row = 0;
  for (int64_t i = 0; i < tensor->count(); ++i) {
    tensor->set(i, static_cast<double>(row));
    row += i % 5 == 4 ? 0 : 1;
  }
}

Result<IntegerRange> range_of(const InputRequest& request, const DefinitionArgument& argument) {
  if (request.range_of) {
    const IntegerRange range = FIBSHIM_TRY(request.range_of(argument.name));
    if (range.low < range.high) return range;
  }
  if (std::string_view(kDtypes[argument.dtype].name) == "bool") return IntegerRange{0, 2};
  if (is_one_of(argument.name, {"positions", "pos_ids"})) {
    const DefinitionArgument* const cache = request.definition.find_argument("cos_sin_cache");
    if (cache != nullptr && !cache->shape.empty()) {
      return IntegerRange{0, request.axes.at(cache->shape[0])};
    }
  }
  if (is_one_of(argument.name, {"top_k", "k"})) {
    const DefinitionArgument* const probs = request.definition.find_argument("probs");
    if (probs != nullptr && !probs->shape.empty()) {
      return IntegerRange{1, std::min(request.axes.at(probs->shape.back()), kMostTopK) + 1};
    }
  }
  return fail(ErrorCode::invalid_value, "the integer input \"" + argument.name +
                                            "\" needs a range: \"verify\": {\"arguments\": {\"" +
                                            argument.name + "\": {\"low\": ..., \"high\": ...}}}");
}

Result<void> fill_argument(const InputRequest& request, const DefinitionArgument& argument,
                           Random* random, Tensor* tensor) {
  const std::string_view name = argument.name;
  std::normal_distribution<double> normal;
  const auto uniform = [&](double low, double high) {
    fill(tensor, [&] { return std::uniform_real_distribution<double>(low, high)(*random); });
  };
  if (is_one_of(name, {"slot_mapping", "slots"})) {
    return fill_slots(request, name == "slot_mapping", random, tensor);
  }
  if (request.definition.find_argument("sorted_token_ids") != nullptr &&
      is_one_of(name, {"sorted_token_ids", "expert_ids", "num_tokens_post_pad"})) {
    return fill_sorted_choices(request, name, tensor);
  }
  if (name == "first_rows") {
    fill_first_rows(tensor);
  } else if (!tensor->type->is_floating) {
    const IntegerRange range = FIBSHIM_TRY(range_of(request, argument));
    std::uniform_int_distribution<int64_t> draw(range.low, range.high - 1);
    fill(tensor, [&] { return static_cast<double>(draw(*random)); });
  } else if (is_one_of(name, {"weight", "gamma", "w"})) {
    const double around = request.op.find("gemma") != std::string_view::npos ? 0 : 1;
    fill(tensor, [&] { return around + 0.5 * normal(*random); });
  } else if (is_one_of(name, {"bias", "beta"})) {
    fill(tensor, [&] { return normal(*random); });
  } else if (is_one_of(name, {"scale"})) {
    const double scales[kInputProfiles] = {0.05, 0.5, 0.01};
    fill(tensor, [&] { return scales[request.run % kInputProfiles]; });
  } else if (name.starts_with("scale_")) {
    uniform(0.05, 0.2);
  } else if (name == "limit") {
    const double limits[kInputProfiles] = {0.75, 0.0005, 10};  // some activations exceed it
    fill(tensor, [&] { return limits[request.run % kInputProfiles]; });
  } else if (is_one_of(name, {"eps", "epsilon"})) {
    fill(tensor, [&] { return eps_of(request.definition); });
  } else if (name == "alpha") {
    fill(tensor, [&] { return 1.702; });
  } else if (name == "cos_sin_cache") {
    fill_rotations(tensor);
  } else if (name == "probs" && tensor->shape.size() > 1) {
    fill_probabilities(tensor, random);
  } else if (is_one_of(name, {"temperature", "squares"})) {
    uniform(0.5, 2);
  } else if (is_one_of(name, {"top_p", "p"})) {
    uniform(0.3, 0.95);
  } else if (name == "min_p") {
    uniform(0.02, 0.3);
  } else {
    fill_activations(tensor, request.run, random);
  }
  return {};
}

// A number in the text of a reference.
struct StatedEps {
  size_t begin, length;
  double value;
};

std::vector<StatedEps> find_stated_eps(const std::string& reference) {
  static const std::regex kEps(
      R"(\b(?:eps|EPS|epsilon|EPSILON)\s*(?::\s*float\s*)?=\s*([0-9][0-9.eE+-]*))");
  std::vector<StatedEps> stated;
  for (std::sregex_iterator at(reference.begin(), reference.end(), kEps), end; at != end; ++at) {
    stated.push_back({static_cast<size_t>(at->position(1)), static_cast<size_t>(at->length(1)),
                      strtod(at->str(1).c_str(), nullptr)});
  }
  return stated;
}

}  // namespace

Result<void> make_inputs(const InputRequest& request, CaseData* data) {
  data->axes = request.axes;
  for (const DefinitionArgument& argument : request.definition.arguments) {
    if (argument.is_output || !(argument.is_scalar || request.wants_tensors)) continue;
    if (data->tensors.count(argument.name) != 0 || data->scalars.count(argument.name) != 0) {
      continue;
    }
    const ElementType* const type = element_type_of(argument.dtype);
    if (type == nullptr) {
      return fail(ErrorCode::invalid_value, "input \"" + argument.name + "\" has the dtype " +
                                                kDtypes[argument.dtype].name +
                                                ", which cannot be made or compared");
    }
    std::string seed = request.definition.name.name + "/" + argument.name;
    for (const auto& [axis, value] : request.axes) seed += "/" + axis + std::to_string(value);
    seed += "#" + std::to_string(request.run);
    Random random(XXH3_64bits(seed.data(), seed.size()));
    Tensor tensor{type, shape_of(argument.shape, request.axes), {}};
    tensor.allocate();
    FIBSHIM_TRY(fill_argument(request, argument, &random, &tensor));
    if (argument.is_scalar) {
      data->scalars[argument.name] = tensor.at(0);
    } else {
      data->tensors[argument.name] = std::move(tensor);
    }
  }
  return {};
}

double eps_of(const Definition& definition) {
  const std::vector<StatedEps> stated = find_stated_eps(definition.reference);
  return stated.empty() || stated[0].value <= 0 ? kDefaultEps : stated[0].value;
}

std::optional<std::string> reference_with_eps(const Definition& definition, double eps) {
  std::string text = definition.reference;
  const std::vector<StatedEps> stated = find_stated_eps(text);
  const auto differs = [&](const StatedEps& one) {
    return !is_same_eps(one.value, stated[0].value);
  };
  if (stated.empty() || std::ranges::any_of(stated, differs)) return std::nullopt;
  if (is_same_eps(stated[0].value, eps)) return text;
  for (const StatedEps& one : std::views::reverse(stated)) {
    text.replace(one.begin, one.length, fmt::format("{}", eps));
  }
  return text;
}

const double* find_eps(const std::map<std::string, double>& scalars) {
  for (const char* const name : {"eps", "epsilon"}) {
    if (const auto at = scalars.find(name); at != scalars.end()) return &at->second;
  }
  return nullptr;
}

}  // namespace fibshim::judge
