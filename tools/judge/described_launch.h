// A launch of the kernel that a pattern describes, as the shim would see it, and the plan for it.
#pragma once

#include "shim/plan/plan.h"
#include "tools/judge/gpu.h"
#include "tools/judge/recorded_launch.h"
#include "tools/judge/variants.h"

namespace fibshim::judge {

// False if a tensor with a "layout" is known to lie in memory in another way than row by row, as
// buffers do.
bool is_row_by_row(const PatternValue& tensor, const Scope& values);

class DescribedLaunch {
 public:
  // The parameters are the pattern's "params"; without these they are as large as the pattern's
  // reads require. `recorded`: a launch whose geometry and values are used unless others are
  // stored; or null.
  DescribedLaunch(const PatternSpec& pattern, const RecordedLaunch* recorded);
  DescribedLaunch(const DescribedLaunch&) = delete;
  DescribedLaunch& operator=(const DescribedLaunch&) = delete;

  // Stores a value where the pattern reads it. Returns why no launch can have it, or "".
  std::string store(const PatternValue& value, double number);
  void store_address(const PatternValue& value, uint64_t address);

  // Appends a capture's text to the symbol. Call it in the order of the indexes.
  void add_capture(uint16_t index, const std::string& text);

  // Sets the whole symbol, and the captures in it.
  void set_symbol(const std::string& symbol, const SymbolMatch& match) {
    symbol_ = symbol;
    match_ = match;
  }

  // The launch itself; of each parameter at most the first 8 bytes.
  Launch original() const;

  // What the shim launches instead; nothing if it runs the original or another of the definition's
  // solutions, and then *reason says why. Fails if the plan leads to another binding than the
  // variant's, or if the fast form differs from the plan.
  Result<std::optional<Launch>> plan(const Snapshot& snapshot, const Variant& variant,
                                     std::string* reason);

  // The launch as the pattern reads it; complete after plan().
  const LaunchView& view() const { return request_.view; }

 private:
  char* at(const Source& source) {
    return static_cast<char*>(params_[source.index]) + source.offset;
  }
  std::string why_original(const LaunchPlan& plan, const Resolution& resolution) const;
  std::string find_fast_difference(const LaunchPlan& plan, bool is_choice) const;

  Record record_{};
  Candidate candidate_{};
  LaunchRequest request_{};
  std::vector<Param> sizes_;
  std::vector<uint64_t> block_;
  std::vector<void*> params_;
  std::string symbol_;
  SymbolMatch match_{};
};

}  // namespace fibshim::judge
