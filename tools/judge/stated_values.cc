#include "tools/judge/stated_values.h"

#include "tools/base/try.h"

namespace fibshim::judge {
namespace {

constexpr char kIndex[] = "index";

}  // namespace

Result<std::vector<int64_t>> shape_of(const VerifyArgument& buffer, const AxisValues& axes) {
  std::vector<int64_t> shape;
  for (const MarkedExpression& extent : buffer.shape) {
    const auto value = evaluate(extent.expression, axes);
    if (!value || *value < 0) {
      return fail(ErrorCode::invalid_value, "\"verify\" gives " + in_quotes(buffer.name) +
                                                " the axis " + in_quotes(extent.text.text) +
                                                ", which does not follow from the definition's");
    }
    shape.push_back(*value);
  }
  return shape;
}

Result<void> add_stated(const Subject& subject, CaseData* data) {
  for (const VerifyArgument& told : subject.verify->arguments) {
    const DefinitionArgument* const argument = subject.definition->find_argument(told.name);
    if (told.kind == VerifyArgument::Kind::value && argument != nullptr && argument->is_scalar) {
      data->scalars.emplace(told.name, told.value);
    }
    if (!told.elements || data->tensors.contains(told.name)) continue;
    Tensor tensor;
    if (told.kind == VerifyArgument::Kind::tensor) {
      tensor = {element_type_of(told.dtype), FIBSHIM_TRY(shape_of(told, data->axes)), {}};
    } else if (argument != nullptr && !argument->is_scalar && !argument->is_output) {
      tensor = {element_type_of(argument->dtype), shape_of(argument->shape, data->axes), {}};
    }
    if (tensor.type == nullptr) {
      return fail(ErrorCode::invalid_value, "\"verify\" gives " + in_quotes(told.name) +
                                                " elements: it is no input that can be made");
    }
    tensor.allocate();
    AxisValues known = data->axes;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      known[kIndex] = i;
      tensor.set(i, static_cast<double>(FIBSHIM_TRY(evaluate(told.elements->expression, known))));
    }
    data->tensors.emplace(told.name, std::move(tensor));
  }
  return {};
}

}  // namespace fibshim::judge
