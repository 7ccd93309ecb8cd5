// Declares the part of CUPTI that libfibrecord.so uses. The library links only libc, and finds the
// functions by name.
//
// From cupti_activity.h, cupti_callbacks.h, cupti_result.h and cupti_version.h. CuptiKernel is the
// common beginning of CUpti_ActivityKernel9 (CUDA 12) and 10 (CUDA 13);
// tests/shim/cupti_layout_test.cc compares it with the header of the installed toolkit.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace fibshim {

using CuptiResult = int;
inline constexpr CuptiResult kCuptiSuccess = 0;
inline constexpr CuptiResult kCuptiMultipleSubscribers = 39;

inline constexpr uint32_t kCuptiConcurrentKernel = 10;  // CUpti_ActivityKind
inline constexpr uint32_t kCuptiFlushForced = 1;        // CUpti_ActivityFlag

// True for versions whose records begin like CuptiKernel: those of CUDA 12, which start at 18, and
// of CUDA 13.
inline constexpr bool is_known_cupti(uint32_t version) {
  return (version >= 18 && version < 100) || (version >= 130000 && version < 140000);
}

struct CuptiActivity {
  uint32_t kind;
};

struct CuptiKernel {
  uint32_t kind;
  uint8_t cache_config[4];
  uint32_t partitioned_cache[2];
  uint64_t start;  // ns; 0: unknown
  uint64_t end;
  uint64_t completed;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared_memory;
  int32_t dynamic_shared_memory;
  uint32_t local_memory_per_thread;
  uint32_t local_memory_total;
  uint32_t correlation_id;
  int64_t grid_id;
  const char* name;  // the symbol
  void* reserved;
  uint64_t queued;
  uint64_t submitted;
  uint8_t launch_type[4];
  uint32_t shared_memory_executed;
  uint64_t graph_node_id;  // 0: launched eagerly
  uint32_t shared_memory_limit;
  uint32_t graph_id;
  void* access_policy_window;
  uint32_t channel_id;
  uint32_t channel_type;
  uint32_t cluster[3];  // 0: none
};

using CuptiRequestBuffer = void (*)(uint8_t** buffer, size_t* bytes, size_t* record_limit);
using CuptiCompleteBuffer = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes,
                                     size_t valid_bytes);
using CuptiCallback = void (*)(void* data, int domain, uint32_t id, const void* what);

// name, its parameters
#define FIBSHIM_CUPTI_FUNCTIONS(CALL)                                                              \
  CALL(cuptiGetVersion, (uint32_t * version))                                                      \
  CALL(cuptiSubscribe, (void** subscriber, CuptiCallback callback, void* data))                    \
  CALL(cuptiUnsubscribe, (void* subscriber))                                                       \
  CALL(cuptiActivityRegisterCallbacks, (CuptiRequestBuffer request, CuptiCompleteBuffer complete)) \
  CALL(cuptiActivityEnable, (uint32_t kind))                                                       \
  CALL(cuptiActivityFlushAll, (uint32_t flag))                                                     \
  CALL(cuptiActivityGetNextRecord,                                                                 \
       (const uint8_t* buffer, size_t valid_bytes, const CuptiActivity** record))                  \
  CALL(cuptiActivityGetNumDroppedRecords, (void* context, uint32_t stream, size_t* count))

struct CuptiFunctions {
#define CALL(name, parameters) CuptiResult(*name) parameters;
  FIBSHIM_CUPTI_FUNCTIONS(CALL)
#undef CALL
};

}  // namespace fibshim
