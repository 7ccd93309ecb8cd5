#include "tools/record/pattern_fit.h"

#include <fmt/format.h>

#include "loader/compile/snapshot_builder.h"
#include "shim/abi/outcomes.h"
#include "shim/plan/fit.h"

namespace fibshim::tools {
namespace {

std::string sizes_text(const std::vector<uint32_t>& sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

ImageHash image_hash(const std::string& text) {
  if (text.empty()) return {};
  const std::string digits = text.substr(text.find(':') + 1);
  return {std::stoull(digits.substr(16), nullptr, 16),
          std::stoull(digits.substr(0, 16), nullptr, 16)};
}

// Why the pattern does not fit the kernel; empty if it does.
std::string misfit(const Snapshot& snapshot, const Pattern& pattern, const KernelRecord& kernel) {
  if (!kernel.has_params) return "the driver does not tell the kernel's parameters";
  std::vector<Param> params;
  std::vector<uint32_t> own;
  for (const ParamRecord& param : kernel.params) {
    params.push_back({param.offset, param.size});
    own.push_back(param.size);
  }
  const bool has_image = !kernel.image.empty();
  const ImageHashes image = hashes_of(kernel.image, kernel.code);
  switch (fit_pattern(snapshot, pattern, params.data(), static_cast<uint32_t>(params.size()),
                      has_image ? &image : nullptr)) {
    case Fit::fits: return "";
    case Fit::other_image:
      return has_image ? fmt::format("image differs: the kernel's is {}{}{}", kernel.image,
                                     kernel.code.empty() ? "" : ", ", kernel.code)
                       : "image differs: the kernel's is not known";
    case Fit::other_layout: break;
  }
  const uint16_t* const sizes = snapshot.begin(pattern.param_sizes);
  const std::vector<uint32_t> wanted(sizes, sizes + pattern.param_sizes.count);
  if (pattern.has_params == 0 || own == wanted) {
    return fmt::format("the pattern reads past the kernel's params, which are {}", sizes_text(own));
  }
  return fmt::format("params differ: the kernel's are {}, the pattern's {}", sizes_text(own),
                     sizes_text(wanted));
}

// Why launches were not redirected, from the outcomes that were counted during the recording.
std::string reasons(const KernelRecord& kernel) {
  std::string out;
  for (const auto& [outcome, count] : kernel.outcomes) {
    if (outcome == static_cast<uint32_t>(Outcome::hit) ||
        outcome == static_cast<uint32_t>(Outcome::observed) ||
        outcome == static_cast<uint32_t>(Outcome::absorbed) ||
        outcome == static_cast<uint32_t>(Outcome::untracked) || outcome >= kOutcomeCount) {
      continue;
    }
    out += fmt::format("{}{} {}: {}", out.empty() ? "" : "; ", count, kOutcomes[outcome].name,
                       kOutcomes[outcome].meaning);
  }
  return out;
}

}  // namespace

ImageHashes hashes_of(const std::string& image, const std::string& code) {
  return {image_hash(image), image_hash(code)};
}

std::vector<PatternFit> fit_patterns(const Snapshot& snapshot, const KernelRecord& kernel) {
  const SymbolMatcher& matcher = matcher_of(&snapshot);
  std::vector<SymbolMatch> matches(16);
  uint32_t count =
      matcher.match(kernel.symbol, matches.data(), static_cast<uint32_t>(matches.size()));
  if (count > matches.size()) {
    matches.resize(count);
    count = matcher.match(kernel.symbol, matches.data(), count);
  }
  matches.resize(count);
  std::vector<PatternFit> out;
  for (const SymbolMatch& match : matches) {
    const Pattern& pattern = snapshot.begin(snapshot.patterns)[match.pattern];
    const std::string why = misfit(snapshot, pattern, kernel);
    out.push_back(
        {snapshot.text(pattern.label), why.empty(), why.empty() ? reasons(kernel) : why, match});
  }
  return out;
}

}  // namespace fibshim::tools
