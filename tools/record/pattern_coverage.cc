#include "tools/record/pattern_coverage.h"

#include <ctype.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "loader/compile/snapshot_builder.h"
#include "shim/plan/fit.h"
#include "tools/base/terminal.h"
#include "tools/record/pattern_fit.h"

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

Fit fit_of(const Snapshot& snapshot, const Pattern& pattern, const KnownKernel& kernel) {
  std::vector<Param> params;
  for (const auto& [offset, size] : kernel.params) params.push_back({offset, size});
  const ImageHashes image = hashes_of(kernel.image, kernel.code);
  return fit_pattern(snapshot, pattern, params.data(), static_cast<uint32_t>(params.size()),
                     kernel.image.empty() && kernel.code.empty() ? nullptr : &image);
}

bool are_same_kernel(const KnownKernel& a, const KnownKernel& b) {
  return a.symbol == b.symbol && a.params == b.params;
}

// The list is in order: kernels that are one follow each other.
void add(const KernelList::Entry& kernel, std::vector<FoundKernel>* found) {
  if (found->empty() || !are_same_kernel(*found->back().kernel, kernel.first)) {
    found->push_back({&kernel.first, {}});
  }
  found->back().origins.insert(kernel.second.begin(), kernel.second.end());
}

// The names in a pattern's symbol, most of which the symbols that it fits contain: none of a group, which may
// be one of several.
std::vector<std::string> names_in(const SymbolPattern& pattern) {
  constexpr size_t kShortestName = 4;
  if (pattern.kind() == SymbolPattern::Kind::demangled) return {};
  std::vector<std::string> out;
  std::string name;
  bool is_escaped = false;
  int groups = 0;
  for (const char c : pattern.text() + " ") {
    const bool is_name = isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (!is_escaped) groups += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (is_name && !is_escaped && groups == 0) {
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
  for (const KernelList::Entry& kernel : kernels.kernels) {
    size_t score = 0;
    for (const std::string& literal : literals) {
      score += contained_prefix(kernel.first.symbol, literal);
    }
    if (score <= best) continue;
    best = score;
    pattern->nearest = FoundKernel{&kernel.first, kernel.second};
  }
  if (pattern->nearest) {
    pattern->why_not = difference(matcher_of(&snapshot), index, pattern->nearest->kernel->symbol);
    return;
  }
  pattern->why_not = "no kernel has a similar name";
  if (snapshot.begin(snapshot.patterns)[index].images.count != 0) {
    pattern->why_not += "; it asks for an image, which the engine may compile at run time";
  }
}

std::string sizes_text(const KnownKernel& kernel) {
  std::string out;
  for (const auto& [offset, size] : kernel.params) out += fmt::format(", {}", size);
  return fmt::format("[{}]", out.empty() ? "" : out.substr(2));
}

nlohmann::ordered_json kernel_json(const FoundKernel& kernel) {
  nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
  for (const auto& [offset, size] : kernel.kernel->params) sizes.push_back(size);
  return {{"symbol", kernel.kernel->symbol}, {"params", sizes}, {"in", kernel.origins}};
}

nlohmann::ordered_json kernels_json(const std::vector<FoundKernel>& kernels) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const FoundKernel& kernel : kernels) out.push_back(kernel_json(kernel));
  return out;
}

std::string kernel_text(const FoundKernel& kernel) {
  return fmt::format("      {} ({})\n", printable(kernel.kernel->symbol),
                     printable(fmt::format("{}", fmt::join(kernel.origins, ", "))));
}

constexpr size_t kMostKernelsShown = 4;

std::string pattern_text(const PatternCoverage& pattern) {
  std::string out = fmt::format("    {}: ", printable(pattern.label));
  if (pattern.fits.empty()) {
    out += fmt::format("fits nothing: {}\n", pattern.why_not);
    if (!pattern.nearest) return out;
    out += kernel_text(*pattern.nearest);
    if (pattern.other_params.empty()) {
      out += fmt::format("      the pattern's: {}\n", printable(pattern.symbol));
    }
    if (!pattern.instead.empty()) {
      out += fmt::format("      {} fits that kernel\n", printable(pattern.instead));
    }
    return out;
  }
  out += fmt::format("fits {}\n", counted(pattern.fits.size(), "kernel"));
  const size_t shown = std::min(kMostKernelsShown, pattern.fits.size());
  for (size_t i = 0; i < shown; ++i) out += kernel_text(pattern.fits[i]);
  if (shown < pattern.fits.size()) {
    out += fmt::format("      and {} more\n", pattern.fits.size() - shown);
  }
  for (const FoundKernel& kernel : pattern.other_params) {
    out += fmt::format("     not for its parameters, {}:\n{}", sizes_text(*kernel.kernel),
                       kernel_text(kernel));
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
    out["patterns"].push_back(
        {{"label", pattern.label},
         {"symbol", pattern.symbol},
         {"fits", kernels_json(pattern.fits)},
         {"other_params", kernels_json(pattern.other_params)},
         {"nearest", pattern.nearest ? kernel_json(*pattern.nearest) : nlohmann::ordered_json()},
         {"why_not", pattern.why_not},
         {"instead", or_null(pattern.instead)}});
  }
  out["unknown_kernels"] = kernels_json(coverage.unknown_kernels);
  return out;
}

std::string coverage_text(const Coverage& coverage) {
  std::string out;
  for (const PatternCoverage& pattern : coverage.patterns) out += pattern_text(pattern);
  return out;
}

namespace {

// Its label; empty: none does.
std::string pattern_that_fits(const Coverage& coverage, const KnownKernel& kernel) {
  for (const PatternCoverage& pattern : coverage.patterns) {
    for (const FoundKernel& found : pattern.fits) {
      if (are_same_kernel(*found.kernel, kernel)) return pattern.label;
    }
  }
  return {};
}

}  // namespace

Coverage cover_kernels(const Snapshot& snapshot, const KernelList& kernels) {
  Coverage coverage;
  const Pattern* const patterns = snapshot.begin(snapshot.patterns);
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    PatternCoverage& pattern = coverage.patterns.emplace_back();
    pattern.label = snapshot.text(patterns[i].label);
    if (patterns[i].kind == PatternKind::rewrite) continue;  // which has none
    pattern.symbol = matcher_of(&snapshot).pattern(i).text();
  }
  const KnownKernel* before = nullptr;
  for (const KernelList::Entry& kernel : kernels.kernels) {
    if (before == nullptr || !are_same_kernel(*before, kernel.first)) ++coverage.kernel_count;
    before = &kernel.first;
    bool is_known = false;
    for (const SymbolMatch& match : matches_of(matcher_of(&snapshot), kernel.first.symbol)) {
      PatternCoverage& pattern = coverage.patterns[match.pattern];
      switch (fit_of(snapshot, patterns[match.pattern], kernel.first)) {
        case Fit::fits:
          add(kernel, &pattern.fits);
          is_known = true;
          break;
        case Fit::other_layout:
          // Where the image tells, others of that name are none of the pattern's.
          if (patterns[match.pattern].images.count == 0) add(kernel, &pattern.other_params);
          break;
        case Fit::other_image:
          pattern.nearest = FoundKernel{&kernel.first, kernel.second};
          pattern.why_not = "its image is another, or not known";
          break;
      }
    }
    if (!is_known) add(kernel, &coverage.unknown_kernels);
  }
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    PatternCoverage& pattern = coverage.patterns[i];
    if (patterns[i].kind == PatternKind::rewrite) continue;
    if (!pattern.fits.empty()) {
      pattern.nearest.reset();
      pattern.why_not.clear();
      // Of several patterns for one name, parameters tell which is meant.
      std::erase_if(pattern.other_params, [&](const FoundKernel& found) {
        return !pattern_that_fits(coverage, *found.kernel).empty();
      });
    } else if (!pattern.other_params.empty()) {
      pattern.nearest = pattern.other_params.front();
      pattern.why_not = "its parameters have the sizes " + sizes_text(*pattern.nearest->kernel);
    } else if (!pattern.nearest) {
      find_nearest(snapshot, i, kernels, &pattern);
    }
  }
  for (PatternCoverage& pattern : coverage.patterns) {
    if (pattern.nearest) pattern.instead = pattern_that_fits(coverage, *pattern.nearest->kernel);
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
