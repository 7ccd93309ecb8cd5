// A pattern: how to read an engine's kernel launch as a call of a definition (fibshim-config(5)).
//
// This module compiles what does not depend on a definition: the symbol, the launch-time parts of
// the definition's name, and `where`.
#pragma once

#include <map>

#include "loader/compile/definition.h"
#include "loader/compile/compile_expression.h"
#include "loader/compile/marked_expression.h"
#include "loader/compile/read_match.h"

namespace fibshim {

// An axis or argument of a pattern.
struct PatternValue {
  std::string name;
  Mark mark;  // of its object
  bool is_axis = false;
  Source source;
  BoxedExpression expression;    // "expr": instead of `source`
  bool reads_param = false;      // "arg"
  bool is_pointer = false;       // "arg" without "type"
  std::optional<uint8_t> dtype;  // index into kDtypes
  Mark dtype_mark;
  uint8_t kernel = 0;        // in a rewrite: index of the kernel that has it
  BoxedExpression bytes;     // size of the buffer at a rewrite's pointer
  bool reaches_end = false;  // the buffer at a rewrite's pointer reaches to its allocation's end
  BoxedExpression shift;     // of a pointer: bytes that are added to it
  // "layout" of a pointer: length and stride (in elements) of each axis.
  std::optional<std::vector<std::pair<MarkedExpression, MarkedExpression>>> layout;

  // True for a scalar parameter of the original, as opposed to a value derived from the launch.
  bool is_scalar_param() const { return reads_param && !is_pointer; }
  // True if both are read from the same bytes, and point to the same memory if they are pointers.
  bool is_same_place(const PatternValue& other) const;
};

// A piece of the definition's name.
struct TemplatePart {
  enum class Kind : uint8_t { text, key, capture } kind;
  std::string text;   // the literal text, or the name of the value
  uint8_t index = 0;  // into keys or captures
};

// One kernel of a rewrite. Its parameters start at index `first_param` of the pattern's parameters.
// Except for the first kernel, its geometry follows them.
struct MemberSpec : MatchSpec {
  uint16_t first_param = 0;
};

// The buffer that a pointer of a rewrite points to.
struct BufferSpec : RewriteBuffer {
  std::vector<Step> steps;  // the builder makes `bytes` from them
  std::vector<Step> shift_steps;
};

class PatternSpec : public Scope {
 public:
  uint16_t folder = 0;  // index into FolderModel::folders
  std::string label;
  Mark label_mark;
  Mark mark;  // of the whole object
  int32_t benefit = 0;
  // Whether it leads to solutions of folders with a share of the launches, and to those of others.
  bool reads_share = false, reads_rest = true;
  std::shared_ptr<const SymbolPattern> symbol;  // null for a rewrite
  bool has_params = false;
  std::vector<uint16_t> params;  // bytes
  std::vector<ImageHash> images;
  std::vector<MemberSpec> members;  // the kernels of a rewrite; else empty
  std::vector<BufferSpec> buffers;
  std::vector<MarkedName> dead, written_first;
  bool is_analysis = false;
  std::vector<std::string> captures;  // the groups that are used, by index
  uint32_t numeric_captures = 0;      // bit i: captures[i] must be a decimal number
  std::vector<PatternValue> values;
  Mark writes_mark;
  std::vector<MarkedName> writes;
  std::vector<MarkedExpression> where;
  MarkedText definition;  // the template as written
  std::vector<TemplatePart> name;
  // Indices of scalar parameters in `values` that no axis or shift is computed from, no clause pins,
  // and leave_out_equal() leaves.
  std::vector<uint16_t> loose_scalars;
  std::vector<CompiledValue> keys;     // one for each different key in `name`
  std::vector<std::string> key_names;  // the names of these values
  std::vector<Step> where_steps;
  std::vector<Clause> where_clauses;  // what the steps check

  bool is_rewrite() const { return !members.empty(); }
  const PatternValue* find_value(std::string_view wanted) const;
  // The integer that a `where` clause requires the value to equal; for a float, no value.
  struct Pin {
    bool is_pinned = false;
    std::optional<int64_t> value;
  };
  Pin pin_of(std::string_view wanted) const;
  // Removes from these indices of values those that a clause makes equal to values not among them.
  void leave_out_equal(std::vector<uint16_t>* indices) const;
  // True if a launch-time part of the definition's name is, or is computed from, that value.
  bool is_tied_to_name(std::string_view wanted) const;

  std::optional<Meaning> find(std::string_view wanted) const override;
  std::optional<Meaning> find_meaning(std::string_view wanted) const;  // of values only
  std::vector<std::string_view> names() const override;

  using FixedValues = std::vector<std::pair<std::string_view, int64_t>>;
  // True if the template can produce `definition_name`. `fixed`: the known values of keys; a key
  // with such a name must be exactly that integer.
  bool can_name(std::string_view definition_name, const FixedValues& fixed) const;
  // True if that name can be read with several values of a key, none of which is `fixed`:
  // "h{a}{b}" produces "h123" for 1 and 23, and for 12 and 3.
  bool is_ambiguous(std::string_view definition_name, const FixedValues& fixed) const;
  // Returns the literal text before the first key or capture.
  std::string_view name_prefix() const;
};

}  // namespace fibshim
