// Runs compiled expressions. Header-only: the launch path inlines it, the loader's tests call it.
//
// Hot: no allocation, no lock, no call out. Arithmetic is 64-bit and checked; whatever cannot be
// computed (overflow, division by zero, a uint64 beyond int64) makes the evaluation fail, and the
// launch falls back.
#pragma once

#include "shim/abi/snapshot.h"

namespace fibshim {

// Bytes that a value of this type takes in a parameter.
constexpr uint32_t size_of(ValueType type) {
  switch (type) {
    case ValueType::int8:
    case ValueType::uint8: return 1;
    case ValueType::int16:
    case ValueType::uint16: return 2;
    case ValueType::int32:
    case ValueType::uint32:
    case ValueType::float32: return 4;
    case ValueType::int64:
    case ValueType::uint64:
    case ValueType::float64:
    case ValueType::address: return 8;
  }
  return 0;
}

namespace program_detail {

template <class T>
inline T read_bytes(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline int64_t double_bits(double value) {
  int64_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double bits_double(int64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Reads a parameter. Integers are widened to int64, floats to the bits of a double.
inline bool read_param(const LaunchView& launch, uint32_t index, uint32_t offset, ValueType type,
                       int64_t* out) {
  const char* at = static_cast<const char*>(launch.params[index]) + offset;
  // The commonest by branches: a jump through a table that is not in the cache costs more than the rest.
  if (type == ValueType::int32) {
    *out = read_bytes<int32_t>(at);
    return true;
  }
  if (type == ValueType::int64 || type == ValueType::address) {
    *out = read_bytes<int64_t>(at);
    return type == ValueType::int64 || *out >= 0;
  }
  switch (type) {
    case ValueType::uint32: *out = read_bytes<uint32_t>(at); return true;
    case ValueType::uint64: *out = read_bytes<int64_t>(at); return *out >= 0;
    case ValueType::int8: *out = read_bytes<int8_t>(at); return true;
    case ValueType::uint8: *out = read_bytes<uint8_t>(at); return true;
    case ValueType::int16: *out = read_bytes<int16_t>(at); return true;
    case ValueType::uint16: *out = read_bytes<uint16_t>(at); return true;
    case ValueType::float32: *out = double_bits(read_bytes<float>(at)); return true;
    case ValueType::float64: *out = double_bits(read_bytes<double>(at)); return true;
    default: break;
  }
  return false;
}

inline bool load_param(const LaunchView& launch, const Step& step, int64_t* out) {
  return read_param(launch, step.index, step.offset, step.type, out);
}

inline Field field_of(const Step& step) { return read_bytes<Field>(&step.imm); }

inline bool load_field(const LaunchView& launch, const Step& step, int64_t* out) {
  const Field field = field_of(step);
  if (!read_param(launch, field.index, field.offset, field.type, out)) return false;
  *out = *out * field.factor + field.added;
  return true;
}

// Reads a pointer and adds bytes to it. Addresses wrap.
inline int64_t add_shift(const void* from, int64_t shift) {
  return static_cast<int64_t>(read_bytes<uint64_t>(from) + static_cast<uint64_t>(shift));
}
// The shift that leads from the pointer to an address.
inline int64_t shift_to(int64_t address, const void* from) {
  return static_cast<int64_t>(static_cast<uint64_t>(address) - read_bytes<uint64_t>(from));
}

// Quotients that int64 cannot hold.
inline bool can_divide(int64_t a, int64_t b) { return b != 0 && !(b == -1 && a == INT64_MIN); }

// Steps to the next if it does the same: without a jump that depends on what it does.
inline bool step_to_same_op(const Step** step, const Step* end) {
  const Step* const next = *step + 1;
  if (next == end || next->op != (*step)->op) return false;
  *step = next;
  return true;
}

}  // namespace program_detail

// Whether what a step reads of parameters is there. `contains(index, offset, bytes)`: whether a parameter has these bytes.
template <class Contains>
bool reads_existing_params(const Step& step, const Contains& contains) {
  if (step.op == Op::load_field || step.op == Op::require_field) {
    const Field field = program_detail::field_of(step);
    if (!contains(field.index, field.offset, size_of(field.type))) return false;
  }
  switch (step.op) {
    case Op::load_param:
    case Op::require_equal:
    case Op::require_unequal:
    case Op::require_least:
    case Op::require_most:
    case Op::require_float:
    case Op::require_field: return contains(step.index, step.offset, size_of(step.type));
    case Op::require_aligned:
    case Op::require_aligned_sum: return contains(step.index, step.offset, 8);
    default: return true;
  }
}

// Runs `count` steps. True when every step could be computed and every `require` held. When
// `result` is given, the value left on the stack goes there.
inline bool run_program(const Step* step, uint32_t count, const LaunchView& launch,
                        int64_t* result) {
  using namespace program_detail;  // NOLINT(google-build-using-namespace): local to one function
  // The loader has proved the depth. An empty stack's top points at the lowest slot.
  int64_t stack[kMaxStackDepth + 1];
  int64_t* top = stack;
  int64_t value;
  const Step* const end = step + count;
  for (; step < end; ++step) {
    switch (step->op) {
      case Op::require_aligned:
        do {
          const char* at = static_cast<const char*>(launch.params[step->index]) + step->offset;
          if ((read_bytes<int64_t>(at) & step->imm) != 0) return false;
        } while (step_to_same_op(&step, end));
        break;
      case Op::require_equal:
        do {
          if (!load_param(launch, *step, &value) || value != step->imm) return false;
        } while (step_to_same_op(&step, end));
        break;
      case Op::require_unequal:
        if (!load_param(launch, *step, &value) || value == step->imm) return false;
        break;
      case Op::require_least:
        if (!load_param(launch, *step, &value) || value < step->imm) return false;
        break;
      case Op::require_most:
        if (!load_param(launch, *step, &value) || value > step->imm) return false;
        break;
      case Op::require_float:
        if (!load_param(launch, *step, &value)) return false;
        if (bits_double(value) != bits_double(step->imm)) return false;
        break;
      case Op::require_field: {
        int64_t other;
        do {
          if (!load_param(launch, *step, &value) || !load_field(launch, *step, &other))
            return false;
          if (value != other) return false;
        } while (step_to_same_op(&step, end));
        break;
      }
      case Op::require_aligned_sum: {
        const char* at = static_cast<const char*>(launch.params[step->index]) + step->offset;
        if ((add_shift(at, *top--) & step->imm) != 0) return false;
        break;
      }
      case Op::require:
        if (*top-- == 0) return false;
        break;
      case Op::load_param:
        if (!load_param(launch, *step, ++top)) return false;
        break;
      case Op::load_field:
        if (!load_field(launch, *step, ++top)) return false;
        break;
      case Op::load_geometry: *++top = launch.geometry[step->index]; break;
      case Op::load_capture: *++top = launch.captures[step->index]; break;
      case Op::push: *++top = step->imm; break;
      case Op::to_float: *top = double_bits(static_cast<double>(*top)); break;
      case Op::add:
        --top;
        if (__builtin_add_overflow(top[0], top[1], top)) return false;
        break;
      case Op::sub:
        --top;
        if (__builtin_sub_overflow(top[0], top[1], top)) return false;
        break;
      case Op::mul:
        --top;
        if (__builtin_mul_overflow(top[0], top[1], top)) return false;
        break;
      case Op::div:
        --top;
        if (!can_divide(top[0], top[1])) return false;
        top[0] /= top[1];
        break;
      case Op::mod:
        --top;
        if (!can_divide(top[0], top[1])) return false;
        top[0] %= top[1];
        break;
      case Op::ceil_div: {
        --top;
        if (!can_divide(top[0], top[1])) return false;
        int64_t quotient = top[0] / top[1];
        // Round up: the truncated quotient is short when a remainder of the divisor's sign is left.
        if (top[0] % top[1] != 0 && (top[0] < 0) == (top[1] < 0)) ++quotient;
        top[0] = quotient;
        break;
      }
      case Op::neg:
        if (__builtin_sub_overflow(int64_t{0}, *top, top)) return false;
        break;
      case Op::min:
        --top;
        if (top[1] < top[0]) top[0] = top[1];
        break;
      case Op::max:
        --top;
        if (top[1] > top[0]) top[0] = top[1];
        break;
      case Op::eq:
        --top;
        top[0] = top[0] == top[1];
        break;
      case Op::ne:
        --top;
        top[0] = top[0] != top[1];
        break;
      case Op::lt:
        --top;
        top[0] = top[0] < top[1];
        break;
      case Op::le:
        --top;
        top[0] = top[0] <= top[1];
        break;
      case Op::gt:
        --top;
        top[0] = top[0] > top[1];
        break;
      case Op::ge:
        --top;
        top[0] = top[0] >= top[1];
        break;
      case Op::feq:
        --top;
        top[0] = bits_double(top[0]) == bits_double(top[1]);
        break;
      case Op::fne:
        --top;
        top[0] = bits_double(top[0]) != bits_double(top[1]);
        break;
      case Op::flt:
        --top;
        top[0] = bits_double(top[0]) < bits_double(top[1]);
        break;
      case Op::fle:
        --top;
        top[0] = bits_double(top[0]) <= bits_double(top[1]);
        break;
      case Op::fgt:
        --top;
        top[0] = bits_double(top[0]) > bits_double(top[1]);
        break;
      case Op::fge:
        --top;
        top[0] = bits_double(top[0]) >= bits_double(top[1]);
        break;
      case Op::logical_not: *top = *top == 0; break;
      case Op::to_bool: *top = *top != 0; break;
      case Op::jump_if_zero_else_pop:
        if (*top == 0)
          step += step->imm;
        else
          --top;
        break;
      case Op::jump_if_nonzero_else_pop:
        if (*top != 0)
          step += step->imm;
        else
          --top;
        break;
    }
  }
  if (result != nullptr) *result = *top;
  return true;
}

}  // namespace fibshim
