// Writes keys and values of new tokens into their slots of a paged cache, which replaces vLLM's
// reshape_and_cache_flash. A token with a negative slot is skipped. Copies bits, so it serves every
// type of 2 bytes.
//
// block = 128 threads, one for each vector of as many whole tokens as they are enough for; a longer token has a
// block for itself. grid = (blocks that the tokens take, 2): keys, then values.
#include "vector.cuh"

namespace fibshim {
namespace {

constexpr int kThreads = 128;

}  // namespace
}  // namespace fibshim

// Strides are in elements. A token's heads are contiguous, `elements` in all, but in the cache; a
// head has a multiple of 8. The slots do not depend on the kernel before ("reads_before_wait").
extern "C" __global__ void __launch_bounds__(fibshim::kThreads)
    append_paged_kv_cache_slots_16bit(const uint16_t* key, const uint16_t* value,
                                      uint16_t* key_cache, uint16_t* value_cache,
                                      const int64_t* slot_mapping, int64_t page_stride,
                                      int64_t slot_stride, int64_t head_stride, int64_t key_stride,
                                      int64_t value_stride, int page_size, int head_size,
                                      int elements, int num_tokens, int next_may_begin) {
  using namespace fibshim;
  let_next_begin(next_may_begin);
  const int vectors = elements / kElementsPerVector;
  const int tokens_of_block = max(kThreads / vectors, 1);
  const int place = threadIdx.x / vectors;
  const int64_t token = int64_t{blockIdx.x} * tokens_of_block + place;
  if (place >= tokens_of_block || token >= num_tokens) return;
  const int64_t slot = __ldg(slot_mapping + token);
  const bool is_key = blockIdx.y == 0;
  const uint16_t* const from = is_key ? key + token * key_stride : value + token * value_stride;
  uint16_t* const to = (is_key ? key_cache : value_cache) + slot / page_size * page_stride +
                       slot % page_size * slot_stride;
  wait_for_kernel_before();
  if (slot < 0) return;
  for (int i = threadIdx.x % vectors * kElementsPerVector; i < elements;
       i += kThreads * kElementsPerVector) {
    store(to + i / head_size * head_stride + i % head_size, load_once(from + i));
  }
}
