// The kernels of judged_kernels.cu on the simulated driver (SIMCUDA_KERNELS): right ones,
// and one for each mistake that the judge must find.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "tools/judge/element_types.h"

namespace {

using fibshim::judge::ElementType;
using fibshim::judge::find_element_type;

constexpr int64_t kHidden = 64;
constexpr int64_t kVocabulary = 50;

template <class T>
T read(const void* const* params, int index) {
  T value;
  memcpy(&value, params[index], sizeof value);
  return value;
}

struct Bf16 {
  uint8_t* at;
  double load(int64_t i) const { return type().load(at + 2 * i); }
  void store(int64_t i, double value) const { type().store(value, at + 2 * i); }
  static const ElementType& type() {
    static const ElementType* const found = find_element_type("bfloat16");
    return *found;
  }
};

struct Norm {
  Bf16 x, weight, y;
  float* rstd;
  double eps;
  int64_t rows;
  bool writes_columns = false;  // each of one element more than there are rows

  explicit Norm(const void* const* params)
      : x{read<uint8_t*>(params, 0)},
        weight{read<uint8_t*>(params, 1)},
        y{read<uint8_t*>(params, 2)},
        rstd(read<float*>(params, 3)),
        eps(read<float>(params, 4)),
        rows(read<int32_t>(params, 5)) {}

  void run() const {
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < kHidden; ++i) {
        const double value = x.load(row * kHidden + i);
        sum += value * value;
      }
      const double factor = 1 / sqrt(sum / kHidden + eps);
      const float narrow = static_cast<float>(factor);
      memcpy(reinterpret_cast<uint8_t*>(rstd) + row * 4, &narrow, 4);
      for (int64_t i = 0; i < kHidden; ++i) {
        const int64_t at = writes_columns ? i * (rows + 1) + row : row * kHidden + i;
        y.store(at, x.load(row * kHidden + i) * factor * weight.load(i));
      }
    }
  }
};

struct Sampler {
  const float* probs;
  const int32_t* top_k;
  int32_t* samples;
  uint64_t seed;
  int64_t rows;

  explicit Sampler(const void* const* params)
      : probs(read<const float*>(params, 0)),
        top_k(read<const int32_t*>(params, 1)),
        samples(read<int32_t*>(params, 2)),
        seed(read<uint64_t>(params, 3)),
        rows(read<int32_t>(params, 4)) {}

  // `filters`: draws only from the k most probable.
  void run(bool filters) const {
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> weights(probs + row * kVocabulary, probs + (row + 1) * kVocabulary);
      std::vector<double> sorted = weights;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const double least =
          sorted[static_cast<size_t>(std::min<int64_t>(top_k[row], kVocabulary)) - 1];
      for (double& weight : weights) {
        if (filters && weight < least) weight = 0;
      }
      std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(row));
      samples[row] = std::discrete_distribution<int32_t>(weights.begin(), weights.end())(random);
    }
  }
};

struct AddNorm {
  Bf16 x, residual, weight, y, sum;
  double eps;
  int64_t rows;

  explicit AddNorm(const void* const* params)
      : x{read<uint8_t*>(params, 0)},
        residual{read<uint8_t*>(params, 1)},
        weight{read<uint8_t*>(params, 2)},
        y{read<uint8_t*>(params, 3)},
        sum{read<uint8_t*>(params, 4)},
        eps(read<float>(params, 5)),
        rows(read<int32_t>(params, 6)) {}

  // `reads_again`: reads from memory again after the sum was written, which is wrong if both are in
  // the same place.
  void run(bool reads_again) const {
    for (int64_t row = 0; row < rows; ++row) {
      double values[kHidden], squares = 0;
      for (int64_t i = 0; i < kHidden; ++i) {
        const int64_t at = row * kHidden + i;
        values[i] = x.load(at) + residual.load(at);
        sum.store(at, values[i]);
      }
      for (int64_t i = 0; i < kHidden; ++i) {
        const int64_t at = row * kHidden + i;
        if (reads_again) values[i] = x.load(at) + residual.load(at);
        squares += values[i] * values[i];
      }
      const double factor = 1 / sqrt(squares / kHidden + eps);
      for (int64_t i = 0; i < kHidden; ++i) {
        y.store(row * kHidden + i, values[i] * factor * weight.load(i));
      }
    }
  }
};

}  // namespace

#define KERNEL(name)                                           \
  extern "C" __attribute__((visibility("default"))) void name( \
      [[maybe_unused]] const void* const* params, const uint32_t*, const uint32_t*)

KERNEL(norm_right) { Norm(params).run(); }
KERNEL(norm_by_columns) {
  Norm norm(params);
  norm.writes_columns = true;
  norm.run();
}
// Right only if its workspace has zeros, which it leaves behind.
KERNEL(norm_with_workspace) {
  Norm norm(params);
  int32_t* const counts = read<int32_t*>(params, 6);
  for (int64_t row = 0; row < norm.rows; ++row) {
    if (counts[row]++ != 0) norm.eps = 1;
  }
  norm.run();
  for (int64_t row = 0; row < norm.rows; ++row) --counts[row];
}
KERNEL(norm_ignores_eps) {
  Norm norm(params);
  norm.eps = 1e-6;
  norm.run();
}
KERNEL(norm_leaves_one) {
  const Norm norm(params);
  uint8_t kept[2];
  memcpy(kept, norm.y.at + 2 * (norm.rows * kHidden - 1), 2);
  norm.run();
  memcpy(norm.y.at + 2 * (norm.rows * kHidden - 1), kept, 2);
}
KERNEL(norm_writes_nan) {
  const Norm norm(params);
  norm.run();
  norm.y.store(5, NAN);
}
KERNEL(norm_stale) {
  static std::vector<uint8_t> cached;
  const Norm norm(params);
  const size_t bytes = static_cast<size_t>(2 * norm.rows * kHidden);
  norm.run();
  if (cached.size() != bytes) cached.assign(norm.y.at, norm.y.at + bytes);
  memcpy(norm.y.at, cached.data(), bytes);
}
KERNEL(norm_past_the_end) {
  const Norm norm(params);
  norm.run();
  norm.y.store(norm.rows * kHidden, 1);
}
KERNEL(norm_before_the_start) {
  const Norm norm(params);
  norm.run();
  norm.y.store(-1, 1);
}
KERNEL(norm_writes_input) {
  const Norm norm(params);
  norm.run();
  norm.weight.store(0, 7);
}
KERNEL(norm_hangs) {
  for (;;) pause();
}
KERNEL(norm_crashes) { __builtin_trap(); }
KERNEL(norm_reads_past_the_end) {
  const Norm norm(params);
  norm.run();
  const int64_t last = norm.rows * kHidden - 1;
  norm.y.store(last, norm.y.load(last) + 0 * norm.x.load(last + 1));
}
KERNEL(norm_assumes_alignment) {
  const Norm norm(params);
  norm.run();
  if (reinterpret_cast<uintptr_t>(norm.y.at) % 16 != 0) norm.y.store(0, 99);
}
KERNEL(norm_wrong_rstd) {
  const Norm norm(params);
  norm.run();
  const float wrong = 0;
  memcpy(norm.rstd, &wrong, sizeof wrong);
}
KERNEL(norm_slow) {
  // Takes its time by work, not by the clock.
  for (int i = 0; i < 20; ++i) Norm(params).run();
}
// Within every tolerance, but one bit depends on the batch size or on the place in the batch.
KERNEL(norm_by_batch) {
  const Norm norm(params);
  norm.run();
  if (norm.rows > 33) norm.rstd[2] = nextafterf(norm.rstd[2], INFINITY);
}
KERNEL(norm_by_place) {
  const Norm norm(params);
  norm.run();
  if (norm.rows > 7) norm.rstd[7] = nextafterf(norm.rstd[7], INFINITY);
}
KERNEL(norm_of_other_bits) {
  const Norm norm(params);
  norm.run();
  for (int64_t row = 0; row < norm.rows; ++row) {
    norm.rstd[row] = nextafterf(norm.rstd[row], INFINITY);
  }
}
KERNEL(add_norm_right) { AddNorm(params).run(false); }
KERNEL(add_norm_not_in_place) { AddNorm(params).run(true); }
KERNEL(sample_right) { Sampler(params).run(true); }
KERNEL(sample_outside) { Sampler(params).run(false); }
KERNEL(sample_greedy) {
  const Sampler sampler(params);
  for (int64_t row = 0; row < sampler.rows; ++row) {
    const float* const begin = sampler.probs + row * kVocabulary;
    sampler.samples[row] =
        static_cast<int32_t>(std::max_element(begin, begin + kVocabulary) - begin);
  }
}
