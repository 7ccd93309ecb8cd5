#include "tools/record/pattern_coverage.h"

#include <ctype.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "loader/compile/snapshot_builder.h"
#include "shim/plan/fit.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

std::vector<SymbolMatch> matches_of(const SymbolMatcher& matcher, std::string_view symbol) {
  std::vector<SymbolMatch> matches(16);
  const auto find = [&] {
    return matcher.match(symbol, matches.data(), static_cast<uint32_t>(matches.size()));
  };
  uint32_t count = find();
  if (count > matches.size()) {
    matches.resize(count);
    count = find();
  }
  matches.resize(count);
  return matches;
}

bool fits_symbol(const SymbolMatcher& matcher, uint32_t pattern, std::string_view symbol) {
  const auto matches = matches_of(matcher, symbol);
  return std::any_of(matches.begin(), matches.end(),
                     [&](const SymbolMatch& match) { return match.pattern == pattern; });
}

// Of "xxh128:" or "code:" and 32 digits; 0: not known.
ImageHash image_hash(const std::string& text) {
  if (text.empty()) return {};
  const std::string digits = text.substr(text.find(':') + 1);
  return {std::stoull(digits.substr(16), nullptr, 16),
          std::stoull(digits.substr(0, 16), nullptr, 16)};
}

Fit fit_of(const Snapshot& snapshot, const Pattern& pattern, const KnownKernel& kernel) {
  std::vector<Param> params;
  for (const auto& [offset, size] : kernel.params) params.push_back({offset, size});
  const ImageHashes image = {image_hash(kernel.image), image_hash(kernel.code)};
  return fit_pattern(snapshot, pattern, params.data(), static_cast<uint32_t>(params.size()),
                     kernel.image.empty() && kernel.code.empty() ? nullptr : &image);
}

// The names in a pattern's symbol, most of which the symbols that it fits contain.
std::vector<std::string> names_in(const SymbolPattern& pattern) {
  constexpr size_t kShortestName = 4;
  if (pattern.kind() == SymbolPattern::Kind::demangled) return {};
  std::vector<std::string> out;
  std::string name;
  bool is_escaped = false;
  for (const char c : pattern.text() + " ") {
    const bool is_name = isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (is_name && !is_escaped) {
      name += c;
    } else {
      if (name.size() >= kShortestName) out.push_back(name);
      name.clear();
    }
    is_escaped = !is_escaped && c == '\\';
  }
  return out;
}

// How many bytes of the literal's beginning the symbol contains somewhere.
size_t contained_prefix(std::string_view symbol, std::string_view literal) {
  size_t least = 0;
  size_t most = literal.size();
  while (least < most) {
    const size_t middle = (least + most + 1) / 2;
    if (symbol.find(literal.substr(0, middle)) != std::string_view::npos) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

// A template argument that is a number, as symbols spell it: "Lb1E". Its length; 0: there is none here.
size_t literal_argument(std::string_view symbol) {
  constexpr std::string_view kIntegerTypes = "bhijlmstxy";
  if (symbol.size() < 4 || symbol[0] != 'L' ||
      kIntegerTypes.find(symbol[1]) == std::string_view::npos) {
    return 0;
  }
  size_t at = symbol[2] == 'n' ? 3 : 2;
  const size_t digits = at;
  while (at < symbol.size() && symbol[at] >= '0' && symbol[at] <= '9') ++at;
  return at > digits && at < symbol.size() && symbol[at] == 'E' ? at + 1 : 0;
}

// Why the pattern does not fit a symbol that is near: proven by taking the difference out.
std::string difference(const SymbolMatcher& matcher, uint32_t pattern, const std::string& symbol) {
  for (size_t at = 0; at < symbol.size(); ++at) {
    const size_t length = literal_argument(std::string_view(symbol).substr(at));
    if (length == 0) continue;
    std::string without = symbol;
    without.erase(at, length);
    if (fits_symbol(matcher, pattern, without)) {
      return fmt::format("fits but for one more template argument, {}", symbol.substr(at, length));
    }
  }
  return "the symbol differs";
}

void find_nearest(const Snapshot& snapshot, uint32_t index, const KernelList& kernels,
                  PatternCoverage* pattern) {
  const std::vector<std::string> literals = names_in(matcher_of(&snapshot).pattern(index));
  size_t whole = 0;
  for (const std::string& literal : literals) whole += literal.size();
  size_t best = whole / 3;  // what shares less is no relative
  for (const KernelAndOrigins& kernel : kernels.kernels) {
    size_t score = 0;
    for (const std::string& literal : literals) {
      score += contained_prefix(kernel.first.symbol, literal);
    }
    if (score <= best) continue;
    best = score;
    pattern->nearest = &kernel;
  }
  pattern->why_not = pattern->nearest == nullptr
                         ? "no kernel has a similar name"
                         : difference(matcher_of(&snapshot), index, pattern->nearest->first.symbol);
}

std::string sizes_text(const KnownKernel& kernel) {
  std::string out;
  for (const auto& [offset, size] : kernel.params) out += fmt::format(", {}", size);
  return fmt::format("[{}]", out.empty() ? "" : out.substr(2));
}

nlohmann::ordered_json kernel_json(const KernelAndOrigins& kernel) {
  nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
  for (const auto& [offset, size] : kernel.first.params) sizes.push_back(size);
  return {{"symbol", kernel.first.symbol}, {"params", sizes}, {"in", kernel.second}};
}

nlohmann::ordered_json kernels_json(const std::vector<const KernelAndOrigins*>& kernels) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const KernelAndOrigins* const kernel : kernels) out.push_back(kernel_json(*kernel));
  return out;
}

std::string kernel_text(const KernelAndOrigins& kernel) {
  return fmt::format("      {} ({})\n", printable(kernel.first.symbol),
                     printable(fmt::format("{}", fmt::join(kernel.second, ", "))));
}

constexpr size_t kMostKernelsShown = 4;

std::string pattern_text(const PatternCoverage& pattern) {
  std::string out = fmt::format("    {}: ", printable(pattern.label));
  if (pattern.fits.empty()) {
    out += fmt::format("fits nothing: {}\n", pattern.why_not);
    return pattern.nearest == nullptr ? out : out + kernel_text(*pattern.nearest);
  }
  out += fmt::format("fits {}\n", counted(pattern.fits.size(), "kernel"));
  const size_t shown = std::min(kMostKernelsShown, pattern.fits.size());
  for (size_t i = 0; i < shown; ++i) out += kernel_text(*pattern.fits[i]);
  if (shown < pattern.fits.size()) {
    out += fmt::format("      and {} more\n", pattern.fits.size() - shown);
  }
  for (const KernelAndOrigins* const kernel : pattern.other_params) {
    out += fmt::format("     not for its parameters, {}:\n{}", sizes_text(kernel->first),
                       kernel_text(*kernel));
  }
  return out;
}

}  // namespace

bool Coverage::is_whole() const {
  return std::all_of(patterns.begin(), patterns.end(), [](const PatternCoverage& pattern) {
    return !pattern.fits.empty() && pattern.other_params.empty();
  });
}

nlohmann::ordered_json coverage_json(const Coverage& coverage) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  out["patterns"] = nlohmann::ordered_json::array();
  for (const PatternCoverage& pattern : coverage.patterns) {
    const bool has_nearest = pattern.nearest != nullptr;
    out["patterns"].push_back(
        {{"label", pattern.label},
         {"fits", kernels_json(pattern.fits)},
         {"other_params", kernels_json(pattern.other_params)},
         {"nearest", has_nearest ? kernel_json(*pattern.nearest) : nlohmann::ordered_json()},
         {"why_not", pattern.why_not}});
  }
  out["unknown_kernels"] = kernels_json(coverage.unknown_kernels);
  return out;
}

std::string coverage_text(const Coverage& coverage) {
  std::string out;
  for (const PatternCoverage& pattern : coverage.patterns) out += pattern_text(pattern);
  return out;
}

Coverage cover_kernels(const Snapshot& snapshot, const KernelList& kernels) {
  Coverage coverage;
  const Pattern* const patterns = snapshot.begin(snapshot.patterns);
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    coverage.patterns.emplace_back().label = snapshot.text(patterns[i].label);
  }
  for (const KernelAndOrigins& kernel : kernels.kernels) {
    bool is_known = false;
    for (const SymbolMatch& match : matches_of(matcher_of(&snapshot), kernel.first.symbol)) {
      PatternCoverage& pattern = coverage.patterns[match.pattern];
      switch (fit_of(snapshot, patterns[match.pattern], kernel.first)) {
        case Fit::fits:
          pattern.fits.push_back(&kernel);
          is_known = true;
          break;
        case Fit::other_layout:
          // Where the image tells, others of that name are none of the pattern's.
          if (patterns[match.pattern].images.count == 0) pattern.other_params.push_back(&kernel);
          break;
        case Fit::other_image:
          pattern.nearest = &kernel;
          pattern.why_not = "its image is another, or not known";
          break;
      }
    }
    if (!is_known) coverage.unknown_kernels.push_back(&kernel);
  }
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    PatternCoverage& pattern = coverage.patterns[i];
    if (patterns[i].kind == PatternKind::rewrite) continue;
    if (!pattern.fits.empty()) {
      pattern.nearest = nullptr;
      pattern.why_not.clear();
    } else if (!pattern.other_params.empty()) {
      pattern.nearest = pattern.other_params.front();
      pattern.why_not = "its parameters have the sizes " + sizes_text(pattern.nearest->first);
    } else if (pattern.nearest == nullptr) {
      find_nearest(snapshot, i, kernels, &pattern);
    }
  }
  // A rewrite is told by its members, which are listed, too.
  for (uint32_t i = snapshot.patterns.count; i-- > 0;) {
    if (patterns[i].kind == PatternKind::rewrite) {
      coverage.patterns.erase(coverage.patterns.begin() + i);
    }
  }
  return coverage;
}

}  // namespace fibshim::tools
