#include "tools/judge/element_types.h"

#include <math.h>
#include <string.h>

#include <limits>

#include "loader/compile/definition.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

template <class T>
double load_plain(const uint8_t* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

template <class T>
void store_plain(double value, uint8_t* to) {
  const T typed = static_cast<T>(value);
  memcpy(to, &typed, sizeof typed);
}

void store_bool(double value, uint8_t* to) { *to = value != 0; }

// A small binary float: sign, exponent, fraction. Types with infinities round an overflow to them.
// e4m3fn has none and saturates; e5m2 saturates here, too, as cvt.satfinite does.
struct SmallFloat {
  int exponent_bits, fraction_bits;
  bool has_infinity, saturates;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t top_exponent() const { return (1u << exponent_bits) - 1; }
  uint32_t fraction_mask() const { return (1u << fraction_bits) - 1; }
  uint32_t nan() const {
    return has_infinity ? top_exponent() << fraction_bits | 1u << (fraction_bits - 1)
                        : top_exponent() << fraction_bits | fraction_mask();
  }
  // The bits of the largest finite value.
  uint32_t largest() const {
    return has_infinity ? (top_exponent() << fraction_bits) - 1 : nan() - 1;
  }

  double decode(uint32_t bits) const {
    const bool is_negative = (bits >> (exponent_bits + fraction_bits) & 1) != 0;
    const uint32_t exponent = bits >> fraction_bits & top_exponent();
    const uint32_t fraction = bits & fraction_mask();
    double value;
    if (exponent == top_exponent() && has_infinity) {
      value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                            : std::numeric_limits<double>::infinity();
    } else if (!has_infinity && (bits & nan()) == nan()) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      value = ldexp(fraction, 1 - bias() - fraction_bits);
    } else {
      value = ldexp(fraction | (1u << fraction_bits),
                    static_cast<int>(exponent) - bias() - fraction_bits);
    }
    return is_negative ? -value : value;
  }

  uint32_t encode(double given) const {
    const auto value = static_cast<double>(static_cast<float>(given));
    const uint32_t sign = signbit(value) ? 1u << (exponent_bits + fraction_bits) : 0;
    if (isnan(value)) return sign | nan();
    const double magnitude = fabs(value);
    if (isinf(magnitude)) {
      return sign | (has_infinity && !saturates ? top_exponent() << fraction_bits : largest());
    }
    if (magnitude == 0) return sign;
    int exponent = 0;
    frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
    int unit = exponent - 1 - fraction_bits;
    const int lowest_unit = 1 - bias() - fraction_bits;
    if (unit < lowest_unit) unit = lowest_unit;
    const double steps = nearbyint(ldexp(magnitude, -unit));  // ties to even: the default mode
    // A whole number of units; subnormal below 2^fraction_bits. A carry moves into the exponent.
    const auto bits =
        static_cast<uint64_t>(steps) + (static_cast<uint64_t>(unit - lowest_unit) << fraction_bits);
    if (bits > largest()) {
      return sign | (has_infinity && !saturates ? top_exponent() << fraction_bits : largest());
    }
    return sign | static_cast<uint32_t>(bits);
  }
};

constexpr SmallFloat kFp16{5, 10, true, false}, kE4m3{4, 3, false, true}, kE5m2{5, 2, true, true};

// Special code for the two types that are read hundreds of millions of times.
double load_bf16(const uint8_t* from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
void store_bf16(double value, uint8_t* to) {
  const auto narrow = static_cast<float>(value);
  uint32_t wide;
  memcpy(&wide, &narrow, sizeof wide);
  uint16_t bits = 0x7fff;
  if (narrow == narrow) {
    wide += 0x7fff + ((wide >> 16) & 1);
    bits = static_cast<uint16_t>(wide >> 16);
  }
  memcpy(to, &bits, sizeof bits);
}

double load_fp16(const uint8_t* from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  const uint32_t exponent = bits >> 10 & 31;
  if (exponent == 0 || exponent == 31) return kFp16.decode(bits);
  const uint32_t wide =
      uint32_t{bits & 0x8000u} << 16 | (exponent + 112) << 23 | uint32_t{bits & 0x3ffu} << 13;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}
void store_fp16(double value, uint8_t* to) {
  const auto bits = static_cast<uint16_t>(kFp16.encode(value));
  memcpy(to, &bits, sizeof bits);
}
double load_e4m3(const uint8_t* from) { return kE4m3.decode(*from); }
void store_e4m3(double value, uint8_t* to) { *to = static_cast<uint8_t>(kE4m3.encode(value)); }
double load_e5m2(const uint8_t* from) { return kE5m2.decode(*from); }
void store_e5m2(double value, uint8_t* to) { *to = static_cast<uint8_t>(kE5m2.encode(value)); }

constexpr ElementType kElementTypes[] = {
    {"float64", "F64", 8, true, load_plain<double>, store_plain<double>},
    {"float32", "F32", 4, true, load_plain<float>, store_plain<float>},
    {"float16", "F16", 2, true, load_fp16, store_fp16},
    {"bfloat16", "BF16", 2, true, load_bf16, store_bf16},
    {"float8_e4m3fn", "F8_E4M3", 1, true, load_e4m3, store_e4m3},
    {"float8_e5m2", "F8_E5M2", 1, true, load_e5m2, store_e5m2},
    {"int64", "I64", 8, false, load_plain<int64_t>, store_plain<int64_t>},
    {"int32", "I32", 4, false, load_plain<int32_t>, store_plain<int32_t>},
    {"int16", "I16", 2, false, load_plain<int16_t>, store_plain<int16_t>},
    {"int8", "I8", 1, false, load_plain<int8_t>, store_plain<int8_t>},
    {"uint64", "U64", 8, false, load_plain<uint64_t>, store_plain<uint64_t>},
    {"uint32", "U32", 4, false, load_plain<uint32_t>, store_plain<uint32_t>},
    {"uint16", "U16", 2, false, load_plain<uint16_t>, store_plain<uint16_t>},
    {"uint8", "U8", 1, false, load_plain<uint8_t>, store_plain<uint8_t>},
    {"bool", "BOOL", 1, false, load_plain<uint8_t>, store_bool},
};

}  // namespace

const ElementType* find_element_type(std::string_view name) {
  return tools::find_row(kElementTypes, &ElementType::name, name);
}

const ElementType* element_type_of(uint8_t dtype) { return find_element_type(kDtypes[dtype].name); }

const ElementType* find_safetensors_type(std::string_view name) {
  return tools::find_row(kElementTypes, &ElementType::safetensors, name);
}

double rounded_to(const ElementType& type, double value) {
  uint8_t bytes[8];
  type.store(value, bytes);
  return type.load(bytes);
}

}  // namespace fibshim::judge
