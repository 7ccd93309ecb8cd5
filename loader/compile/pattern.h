// A pattern: how one engine's kernel launch reads as a call of a definition
// (fibshim-config(5)).
//
// It is compiled as far as it can be without a definition: the symbol, the launch-time parts of the
// definition's name, and `where`.
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
  std::optional<MarkedExpression> expression;  // "expr": instead of `source`
  bool reads_param = false;                    // "arg"
  bool is_pointer = false;                     // "arg" without "type"
  std::optional<uint8_t> dtype;                // index into kDtypes
  Mark dtype_mark;
  uint8_t kernel = 0;                     // of a rewrite: which of its kernels has it
  std::optional<MarkedExpression> bytes;  // of a rewrite's pointer: how much it leads to
  bool reaches_end = false;               // the same: all that lies behind it in its allocation
  // "layout" of a pointer: of each axis how long it is, and elements from one to the next.
  std::optional<std::vector<std::pair<MarkedExpression, MarkedExpression>>> layout;

  // A scalar parameter of the original, as opposed to what is derived from the launch.
  bool is_scalar_param() const { return reads_param && !is_pointer; }
};

// A piece of the definition's name.
struct TemplatePart {
  enum class Kind : uint8_t { text, key, capture } kind;
  std::string text;   // the text, or the name of the value
  uint8_t index = 0;  // into keys or captures
};

// One kernel of a rewrite. Its parameters begin at `first_param` of the pattern's; but for the first kernel its
// geometry follows them.
struct MemberSpec : MatchSpec {
  uint16_t first_param = 0;
};

// What is behind a pointer of a rewrite.
struct BufferSpec : RewriteBuffer {
  std::vector<Step> steps;  // of which the builder makes `bytes`
};

class PatternSpec : public Scope {
 public:
  uint16_t folder = 0;  // index into FolderModel::folders
  std::string label;
  Mark label_mark;
  Mark mark;  // of the whole object
  int32_t benefit = 0;
  // For solutions of folders with a share of the launches, and for those of the others.
  bool reads_share = false, reads_rest = true;
  std::shared_ptr<const SymbolPattern> symbol;  // null of a rewrite
  bool has_params = false;
  std::vector<uint16_t> params;  // bytes
  std::vector<ImageHash> images;
  std::vector<MemberSpec> members;  // of a rewrite; else none
  std::vector<BufferSpec> buffers;
  std::vector<MarkedName> dead, written_first;
  bool is_analysis = false;
  std::vector<std::string> captures;  // the groups that are used, in the order of their indices
  uint32_t numeric_captures = 0;      // bit i: captures[i] must be a decimal number
  std::vector<PatternValue> values;
  Mark writes_mark;
  std::vector<MarkedName> writes;
  std::vector<MarkedExpression> where;
  MarkedText definition;  // the template as written
  std::vector<TemplatePart> name;
  std::vector<CompiledValue> keys;     // one for each key part
  std::vector<std::string> key_names;  // the value that each stands for
  std::vector<Step> where_steps;
  std::vector<Clause> where_clauses;  // what the steps check

  bool is_rewrite() const { return !members.empty(); }
  const PatternValue* find_value(std::string_view wanted) const;
  // The integer that a `where` clause pins the value to; a pin to a float gives no value.
  struct Pin {
    bool is_pinned = false;
    std::optional<int64_t> value;
  };
  Pin pin_of(std::string_view wanted) const;
  // Whether the name is, or feeds an expression of, a launch-time part of the definition's name.
  bool is_tied_to_name(std::string_view wanted) const;

  std::optional<Meaning> find(std::string_view wanted) const override;
  std::vector<std::string_view> names() const override;

  // Whether the template can produce `definition_name`. `fixed`: values that keys are known to
  // have; a key of such a name must then be exactly that integer.
  bool can_name(std::string_view definition_name,
                const std::map<std::string, int64_t, std::less<>>& fixed) const;
  // The literal text before the first key or capture.
  std::string_view name_prefix() const;
};

}  // namespace fibshim
