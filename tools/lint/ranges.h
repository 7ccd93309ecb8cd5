// Which values the clauses of a `where` allow: whether a clause can hold, and whether it always
// does.
//
// Understands clauses of the form `name < constant` and `name % constant == constant`, joined by
// &&. Other clauses are ignored.
#pragma once

#include <algorithm>

#include "loader/compile/pattern.h"

namespace fibshim {

// The lowest and the highest number that a value can be.
struct Range {
  int64_t low = INT64_MIN;
  int64_t high = INT64_MAX;
  bool is_integer = true;  // false: it may be a float

  bool is_empty() const { return low > high; }
  void keep(int64_t lowest, int64_t highest) {
    low = std::max(low, lowest);
    high = std::min(high, highest);
  }
};

class Ranges {
 public:
  explicit Ranges(const PatternSpec& pattern);
  explicit Ranges(const Definition& definition);  // its constant axes

  // Why the clause cannot hold together with the earlier ones; empty if it may.
  std::string add(const Expression& clause) { return add(clause, clause.root(), false); }
  // Why the clause holds for every value that the earlier ones allow; empty if it may not hold.
  std::string always_holds(const Expression& clause) const {
    return always_holds(clause, clause.root());
  }
  Range of(const std::string& name) const;

 private:
  std::string add(const Expression& clause, uint16_t index, bool is_negated);
  std::string always_holds(const Expression& clause, uint16_t index) const;
  std::string narrow(const std::string& name, Op op, int64_t bound);

  std::map<std::string, Range> ranges_;
  std::map<std::string, double> floats_;
};

}  // namespace fibshim
