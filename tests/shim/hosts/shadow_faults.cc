// fibshim's RMSNorm of rows of 128 bfloat16 elements, for the simulated driver (SIMCUDA_KERNELS),
// with the fault that SHADOW_FAULT names; "none": it is right. With SHADOW_FAULT_BLOCK only
// launches with so many threads per block have the fault, so that one of several folders has it.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "shim/abi/hash.h"

namespace {

constexpr int kHidden = 128;

float load(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t store(float value) {
  if (value != value) return 0x7fff;
  uint32_t wide;
  memcpy(&wide, &value, sizeof wide);
  wide += 0x7fff + ((wide >> 16) & 1);
  return static_cast<uint16_t>(wide >> 16);
}

struct Call {
  const uint16_t* x;
  const uint16_t* weight;
  uint16_t* y;
  float* rstd;
  float eps;
  int rows;
  long number;  // of the launch, counted from 0
};

// Results before they are stored.
struct Result {
  std::vector<uint16_t> y;
  std::vector<float> rstd;
  std::vector<bool> is_written;  // of y
  std::vector<bool> is_rstd_written;
};

float factor_of(const float* x, int count, float eps) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1.0 / sqrt(sum / kHidden + eps));
}

// True if the value is wrong by the judge's rule.
bool is_beyond(uint16_t found, uint16_t expected) {
  const double x = load(found), y = load(expected);
  const double difference = fabs(x - y);
  return difference > 1e-2 && difference / (fabs(y) + 1e-8) > 1e-2;
}

// The first value beyond the tolerance, in the direction away from zero.
uint16_t first_beyond(uint16_t value) {
  uint16_t moved = value;
  while (!is_beyond(moved, value)) ++moved;
  return moved;
}

bool is_fault(const char* name) {
  static const char* const wanted = [] {
    const char* const given = getenv("SHADOW_FAULT");
    return given == nullptr ? "none" : given;
  }();
  return strcmp(wanted, name) == 0;
}

void spoil(const Call& call, const std::vector<float>& x, const std::vector<float>& weight,
           Result* result) {
  auto& y = result->y;
  const int rows = call.rows;
  const auto row_of = [&](int row) { return y.begin() + row * kHidden; };
  const auto leave_row = [&](int row) {
    std::fill_n(result->is_written.begin() + row * kHidden, kHidden, false);
  };
  const auto again = [&](int row, float factor, const float* from, const float* by) {
    for (int i = 0; i < kHidden; ++i) row_of(row)[i] = store(from[i] * factor * by[i]);
  };
  const auto for_all = [&](const auto& change) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = change(y[i], i);
  };
  static std::vector<float> earlier_x, earlier_weight;
  static long rows_so_far = 0;
  if (is_fault("wrong_for_one_shape")) {
    if (rows == 7)
      for_all([](uint16_t value, size_t) { return static_cast<uint16_t>(value ^ 0x8000); });
  } else if (is_fault("wrong_for_many_rows")) {
    if (rows > 20) leave_row(rows - 1);
  } else if (is_fault("wrong_for_one_row_alone")) {
    if (rows == 1) for_all([](uint16_t, size_t) { return uint16_t{0}; });
  } else if (is_fault("wrong_for_even_rows")) {
    if (rows % 2 == 0) std::fill_n(row_of(rows - 1), kHidden, uint16_t{0x3f80});
  } else if (is_fault("one_row_in_a_thousand")) {
    for (int row = 0; row < rows; ++row) {
      if (++rows_so_far % 1000 == 0) std::fill_n(row_of(row), kHidden, uint16_t{0x4000});
    }
  } else if (is_fault("nan")) {
    y[0] = 0x7fc0;
  } else if (is_fault("nan_everywhere")) {
    for_all([](uint16_t, size_t) { return uint16_t{0x7fc0}; });
  } else if (is_fault("nan_in_the_last_element")) {
    y.back() = 0xffc0;
  } else if (is_fault("nan_in_one_launch_of_ten")) {
    if (call.number % 10 == 9) y[y.size() / 2] = 0x7fc0;
  } else if (is_fault("infinite")) {
    y[1] = 0x7f80;
  } else if (is_fault("minus_infinite")) {
    y[y.size() - 2] = 0xff80;
  } else if (is_fault("just_beyond")) {
    y[5] = first_beyond(y[5]);
  } else if (is_fault("just_beyond_everywhere")) {
    for_all([](uint16_t value, size_t) { return first_beyond(value); });
  } else if (is_fault("two_ulps")) {
    for_all([](uint16_t value, size_t) { return static_cast<uint16_t>(value + 2); });
  } else if (is_fault("one_ulp")) {  // within the tolerance
    for_all([](uint16_t value, size_t) { return static_cast<uint16_t>(value + 1); });
  } else if (is_fault("just_within")) {  // the same
    for_all([](uint16_t value, size_t) {
      const uint16_t beyond = first_beyond(value);
      return static_cast<uint16_t>(beyond - 1);
    });
  } else if (is_fault("stale_read")) {
    for (int row = 0; row < rows && earlier_x.size() >= x.size(); ++row) {
      again(row, factor_of(&earlier_x[static_cast<size_t>(row) * kHidden], kHidden, call.eps),
            &earlier_x[static_cast<size_t>(row) * kHidden], weight.data());
    }
  } else if (is_fault("stale_weight")) {
    for (int row = 0; row < rows && !earlier_weight.empty(); ++row) {
      again(row, result->rstd[static_cast<size_t>(row)], &x[static_cast<size_t>(row) * kHidden],
            earlier_weight.data());
    }
  } else if (is_fault("stale_first_row")) {
    if (!earlier_x.empty()) {
      again(0, factor_of(earlier_x.data(), kHidden, call.eps), earlier_x.data(), weight.data());
    }
  } else if (is_fault("nothing_written")) {
    for (int row = 0; row < rows; ++row) leave_row(row);
  } else if (is_fault("unwritten_tail")) {
    for (size_t i = 0; i < y.size(); ++i) {
      if (i % kHidden >= kHidden - 8) result->is_written[i] = false;
    }
  } else if (is_fault("unwritten_last_element")) {
    result->is_written[y.size() - 1] = false;
  } else if (is_fault("unwritten_last_row")) {
    leave_row(rows - 1);
  } else if (is_fault("unwritten_first_row")) {
    leave_row(0);
  } else if (is_fault("unwritten_rstd")) {
    result->is_rstd_written.assign(result->is_rstd_written.size(), false);
  } else if (is_fault("wrong_input_stride")) {
    for (int row = 1; row < rows; ++row) {
      const float* const from = &x[static_cast<size_t>(row) * kHidden - 1];
      again(row, factor_of(from, kHidden, call.eps), from, weight.data());
    }
  } else if (is_fault("wrong_output_stride")) {
    for (int row = rows - 1; row > 0; --row) {
      std::copy_backward(row_of(row), row_of(row) + kHidden - 1, row_of(row) + kHidden);
    }
  } else if (is_fault("shifted")) {
    std::rotate(y.begin(), y.begin() + 1, y.end());
  } else if (is_fault("rows_exchanged")) {
    if (rows > 1) std::swap_ranges(row_of(0), row_of(0) + kHidden, row_of(1));
  } else if (is_fault("first_row_repeated")) {
    for (int row = 1; row < rows; ++row) std::copy_n(row_of(0), kHidden, row_of(row));
  } else if (is_fault("weight_ignored")) {
    const std::vector<float> ones(kHidden, 1);
    for (int row = 0; row < rows; ++row) {
      again(row, result->rstd[static_cast<size_t>(row)], &x[static_cast<size_t>(row) * kHidden],
            ones.data());
    }
  } else if (is_fault("weight_plus_one")) {
    std::vector<float> more = weight;
    for (float& value : more) value += 1;
    for (int row = 0; row < rows; ++row) {
      again(row, result->rstd[static_cast<size_t>(row)], &x[static_cast<size_t>(row) * kHidden],
            more.data());
    }
  } else if (is_fault("sum_of_half_a_row")) {
    for (int row = 0; row < rows; ++row) {
      const float* const from = &x[static_cast<size_t>(row) * kHidden];
      again(row, factor_of(from, kHidden / 2, call.eps), from, weight.data());
    }
  } else if (is_fault("rstd_of_a_shorter_row")) {
    for (int row = 0; row < rows; ++row) {
      result->rstd[static_cast<size_t>(row)] =
          factor_of(&x[static_cast<size_t>(row) * kHidden], kHidden - 1, call.eps);
    }
  } else if (is_fault("rstd_squared")) {
    for (float& value : result->rstd) value *= value;
  } else if (is_fault("eps_is_another")) {
    for (int row = 0; row < rows; ++row) {
      result->rstd[static_cast<size_t>(row)] =
          factor_of(&x[static_cast<size_t>(row) * kHidden], kHidden, 1e-2f);
    }
  } else if (is_fault("saturated")) {
    for_all([](uint16_t value, size_t) { return load(value) > 2 ? store(2) : value; });
  } else if (is_fault("sign_lost")) {
    for_all([](uint16_t value, size_t) { return static_cast<uint16_t>(value & 0x7fff); });
  } else if (is_fault("race")) {  // a warp reads its neighbour's sum
    for (int row = 1; row < rows; ++row) {
      if (fibshim::scramble(static_cast<uint64_t>(call.number) * 64 + static_cast<uint64_t>(row)) %
              50 !=
          0)
        continue;
      again(row, result->rstd[static_cast<size_t>(row) - 1] * 1.5f,
            &x[static_cast<size_t>(row) * kHidden], weight.data());
    }
  } else if (is_fault("torn_write")) {
    if (fibshim::scramble(static_cast<uint64_t>(call.number)) % 20 == 0) {
      std::fill_n(result->is_written.begin() + (rows - 1) * kHidden + 64, 64, false);
    }
  } else if (is_fault("wrong_in_place")) {
    if (call.x == call.y && rows > 1) {
      // Reads rows that were overwritten already.
      for (int i = 0; i < kHidden; ++i) row_of(rows - 1)[i] = row_of(0)[i];
    }
  } else if (!is_fault("none")) {
    fprintf(stderr, "shadow_faults: no such fault: %s\n", getenv("SHADOW_FAULT"));
    abort();
  }
  earlier_x = x;
  earlier_weight = weight;
}

}  // namespace

// Parameters: (hidden_states, weight, output, rstd, eps, batch_size).
extern "C" void rmsnorm_h128_bf16(const void* const* params, const uint32_t* /*grid*/,
                                  const uint32_t* block) {
  static long number = 0;
  Call call{};
  memcpy(&call.x, params[0], sizeof call.x);
  memcpy(&call.weight, params[1], sizeof call.weight);
  memcpy(&call.y, params[2], sizeof call.y);
  memcpy(&call.rstd, params[3], sizeof call.rstd);
  memcpy(&call.eps, params[4], sizeof call.eps);
  memcpy(&call.rows, params[5], sizeof call.rows);
  call.number = number++;
  const auto elements = static_cast<size_t>(call.rows) * kHidden;
  std::vector<float> x(elements), weight(kHidden);
  for (size_t i = 0; i < elements; ++i) x[i] = load(call.x[i]);
  for (size_t i = 0; i < kHidden; ++i) weight[i] = load(call.weight[i]);
  Result result{std::vector<uint16_t>(elements), std::vector<float>(static_cast<size_t>(call.rows)),
                std::vector<bool>(elements, true),
                std::vector<bool>(static_cast<size_t>(call.rows), true)};
  for (size_t row = 0; row < result.rstd.size(); ++row) {
    const float factor = factor_of(&x[row * kHidden], kHidden, call.eps);
    result.rstd[row] = factor;
    for (size_t i = 0; i < kHidden; ++i) {
      result.y[row * kHidden + i] = store(x[row * kHidden + i] * factor * weight[i]);
    }
  }
  const char* const faulty_block = getenv("SHADOW_FAULT_BLOCK");
  if (faulty_block == nullptr || static_cast<uint32_t>(atol(faulty_block)) == block[0]) {
    spoil(call, x, weight, &result);
  }
  for (size_t i = 0; i < elements; ++i) {
    if (result.is_written[i]) call.y[i] = result.y[i];
  }
  for (size_t row = 0; row < result.rstd.size(); ++row) {
    if (result.is_rstd_written[row] && call.rstd != nullptr) call.rstd[row] = result.rstd[row];
  }
}
