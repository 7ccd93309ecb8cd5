#include "loader/compile/tensors.h"

#include <algorithm>

#include "loader/compile/read_pointer.h"

namespace fibshim {
namespace {

constexpr ElementKind element_named(std::string_view name) {
  if (name == "bool") return ElementKind::uint8;
  for (size_t i = 1; i < std::size(kElements); ++i) {
    if (name == kElements[i].dtype) return static_cast<ElementKind>(i);
  }
  return ElementKind::unknown;
}

// Of each dtype.
constexpr auto kElementOf = [] {
  std::array<ElementKind, std::size(kDtypes)> kinds{};
  std::ranges::transform(kDtypes, kinds.begin(), element_named, &DtypeInfo::name);
  return kinds;
}();

class TensorBinder {
 public:
  TensorBinder(const PatternSpec& pattern, const Definition& definition, const Scope& scope,
               KnownClauses* known, TensorSpecs* specs)
      : pattern_(pattern), definition_(definition), scope_(scope), known_(known), specs_(specs) {}

  void bind(const PatternValue& value) {
    TensorSpec tensor{};
    const size_t axes = specs_->axes.size();
    tensor.name_text = value.name;
    tensor.param = value.source.index;
    tensor.offset = value.source.offset;
    tensor.shift_steps = shift_steps(value, pattern_);
    tensor.element = kElementOf[*value.dtype];
    tensor.is_written = is_written(value.name);
    tensor.may_vary = is_in_any_order(value.name);
    tensor.has_extent = tensor.element != ElementKind::unknown &&
                        (value.layout ? add_layout(value) : add_shape(value));
    if (tensor.has_extent == 0) specs_->axes.resize(axes);
    tensor.axis_count = specs_->axes.size() - axes;
    specs_->tensors.push_back(std::move(tensor));
  }

  void bind(const DefinitionAxis& axis) {
    const auto name = known_->parse(axis.name);
    const auto steps = name ? append(*name, false) : std::nullopt;
    if (steps) specs_->variable_axes.emplace_back(axis.name, *steps);
  }

 private:
  bool is_written(const std::string& name) const {
    const auto is_name = [&](const MarkedName& written) { return written.name == name; };
    return std::ranges::any_of(pattern_.writes, is_name) ||
           std::ranges::any_of(definition_.arguments, [&](const DefinitionArgument& argument) {
             return argument.is_output && (argument.name == name || argument.written_into == name);
           });
  }

  // The original leaves the order of its elements open.
  bool is_in_any_order(std::string_view name) const {
    constexpr std::string_view kOrder = "order:any:";
    return std::ranges::any_of(definition_.tags, [&](std::string_view tag) {
      return tag.starts_with(kOrder) && tag.substr(kOrder.size()) == name;
    });
  }

  std::optional<TensorSpecs::Steps> append(const Expression& value, bool may_float) {
    const size_t begin = specs_->steps.size();
    const auto facts = append_value(value, scope_, &specs_->steps);
    if (!facts || (facts->is_floating && !may_float)) return std::nullopt;
    return TensorSpecs::Steps(begin, specs_->steps.size() - begin);
  }

  bool add_axis(const Expression& count, const Expression& stride) {
    const auto length = append(count, true);
    const auto step = append(stride, true);
    if (length && step) specs_->axes.emplace_back(*length, *step);
    return length && step;
  }

  bool add_layout(const PatternValue& value) {
    return std::ranges::all_of(*value.layout, [&](const auto& axis) {
      return add_axis(axis.first.expression, axis.second.expression);
    });
  }

  // Without a layout it is as dense as the definition has it. Where the launch has strides that nothing pins, nobody
  // knows.
  bool add_shape(const PatternValue& value) {
    const DefinitionArgument* const argument = definition_.find_argument(value.name);
    if (argument == nullptr || argument->is_scalar) return false;
    if (argument->shape.size() > 1 && has_stride()) return false;
    std::string product = "1";
    for (const std::string& axis : argument->shape) product += " * " + axis;
    static const Expression one = Expression::constant(1);
    const auto count = known_->parse(product);
    return count && add_axis(*count, one);
  }

  bool has_stride() const {
    return std::ranges::any_of(pattern_.values, [&](const PatternValue& value) {
      return !value.is_pointer && (value.expression || !value.source.is_constant()) &&
             (value.name.find("stride") != std::string::npos ||
              value.name.find("pitch") != std::string::npos) &&
             !pattern_.pin_of(value.name).is_pinned;
    });
  }

  const PatternSpec& pattern_;
  const Definition& definition_;
  const Scope& scope_;
  KnownClauses* known_;
  TensorSpecs* specs_;
};

}  // namespace

namespace {

// What is drawn at random may be another each time, and so may what stands in an order that the original leaves open, where no
// tag says which output that is.
bool may_all_vary(const Definition& definition) {
  if (std::ranges::find(definition.tags, "order:any") != definition.tags.end()) return true;
  return definition.op_type.find("sampling") != std::string::npos &&
         std::ranges::any_of(definition.arguments, [](const DefinitionArgument& argument) {
           const ElementKind element = kElementOf[argument.dtype];
           return argument.is_output && element != ElementKind::unknown &&
                  !kElements[static_cast<size_t>(element)].is_floating;
         });
}

}  // namespace

std::shared_ptr<const TensorSpecs> bind_tensors(const PatternSpec& pattern,
                                                const Definition& definition, const Scope& scope,
                                                KnownClauses* known) {
  if (may_all_vary(definition)) return nullptr;
  const auto specs = std::make_shared<TensorSpecs>();
  specs->tensors.reserve(4);
  specs->steps.reserve(24);
  specs->axes.reserve(8);
  TensorBinder binder(pattern, definition, scope, known, specs.get());
  for (const PatternValue& value : pattern.values) {
    if (!value.is_pointer || value.expression || !value.dtype) continue;
    // Nobody reads it but the originals, which write it themselves.
    if (has_name(pattern.dead, value.name)) continue;
    // Without room for all of them none is known.
    if (specs->tensors.size() == kMaxTensors) return nullptr;
    binder.bind(value);
  }
  for (const DefinitionAxis& axis : definition.axes) {
    if (!axis.is_const) binder.bind(axis);
  }
  return specs;
}

}  // namespace fibshim
