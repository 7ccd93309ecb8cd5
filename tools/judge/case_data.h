// The data of one case: values of the axes, and the tensors and scalars of one run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/judge/element_types.h"

namespace fibshim::judge {

using AxisValues = std::map<std::string, int64_t>;

// The shape of an argument with these axes, for these values of the axes.
inline std::vector<int64_t> shape_of(const std::vector<std::string>& axes,
                                     const AxisValues& values) {
  std::vector<int64_t> shape;
  for (const std::string& axis : axes) shape.push_back(values.at(axis));
  return shape;
}

// Contiguous, in host memory.
struct Tensor {
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  // INT64_MAX if the product overflows: shapes come from files.
  int64_t count() const { return product_from(0); }
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  // Elements of one row: all axes but the first.
  int64_t width() const { return product_from(1); }
  double at(int64_t i) const {
    return type->load(bytes.data() + static_cast<size_t>(i) * type->bytes);
  }
  void set(int64_t i, double value) {
    type->store(value, bytes.data() + static_cast<size_t>(i) * type->bytes);
  }
  void allocate() { bytes.assign(static_cast<size_t>(count()) * type->bytes, 0); }

 private:
  int64_t product_from(size_t first) const {
    int64_t product = 1;
    for (size_t i = first; i < shape.size(); ++i) {
      if (__builtin_mul_overflow(product, shape[i], &product)) return INT64_MAX;
    }
    return product;
  }
};

// A tensor that is passed to the kernel.
struct BufferSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
  bool is_output = false;
  std::string shares;  // the input whose buffer this output is written into; "" if it has its own
  std::vector<int64_t> strides;  // of an output, in elements; empty: it lies row by row
};

struct CaseData {
  AxisValues axes;                        // const and var
  std::map<std::string, Tensor> tensors;  // inputs
  std::map<std::string, double> scalars;  // the definition's, and others such as eps
};

}  // namespace fibshim::judge
