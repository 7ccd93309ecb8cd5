// A libcupti for the simulated driver: reports executed launches as kernel records, with invented
// times. A kernel takes 1,000 ns and 100 ns for each block in x; 1,000 ns pass between two kernels
// on one device.
//
// Environment, read once when the library is loaded:
//   SIMCUPTI_VERSION    what cuptiGetVersion says; 130001 unless set
//   SIMCUPTI_IS_TAKEN   1: another client has subscribed
//   SIMCUPTI_ONE_PLACE  1: all kernels' names use the same memory, one after the other; for one launching thread
//   SIMCUPTI_TAKE_OVER  from that record on another client gets the buffers; it frees ours
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "shim/record/cupti_api.h"
#include "tests/driver/simcuda.h"

namespace {

using fibshim::CuptiActivity;
using fibshim::CuptiCallback;
using fibshim::CuptiCompleteBuffer;
using fibshim::CuptiKernel;
using fibshim::CuptiRequestBuffer;
using fibshim::CuptiResult;
using fibshim::kCuptiSuccess;

constexpr CuptiResult kNotInitialized = 15;
constexpr CuptiResult kMaxLimitReached = 12;

// Has the size of CUpti_ActivityKernel10.
struct alignas(8) Record {
  CuptiKernel kernel;
  char rest[40];
};

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* const text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

struct Simcupti {
  std::mutex lock;
  CuptiRequestBuffer request = nullptr;
  CuptiCompleteBuffer complete = nullptr;
  uint8_t* buffer = nullptr;
  size_t buffer_bytes = 0;
  size_t used_bytes = 0;
  std::set<std::string> names;
  std::map<int, uint64_t> last_end;  // by device
  uint64_t records = 0;
  size_t dropped = 0;
  uint64_t version = number_of("SIMCUPTI_VERSION", 130001);
  bool has_one_place = number_of("SIMCUPTI_ONE_PLACE", 0) != 0;
  char place[512] = "";
  std::mutex reading;  // of names; never taken with `lock` held
  bool is_taken = number_of("SIMCUPTI_IS_TAKEN", 0) != 0;
  uint64_t take_over = number_of("SIMCUPTI_TAKE_OVER", UINT64_MAX);
};
// Never destroyed, since the last flush happens while the process ends.
Simcupti& g_cupti = *new Simcupti;

void return_buffer(std::unique_lock<std::mutex>& guard) {
  uint8_t* const buffer = g_cupti.buffer;
  const size_t bytes = g_cupti.buffer_bytes;
  const size_t used = g_cupti.used_bytes;
  g_cupti.buffer = nullptr;
  guard.unlock();
  if (buffer != nullptr) {
    std::lock_guard reading(g_cupti.reading);
    g_cupti.complete(nullptr, 0, buffer, bytes, used);
  }
  guard.lock();
}

// Where the kernel's name stands until the buffer is returned.
const char* place_of(const char* name, std::unique_lock<std::mutex>& guard) {
  if (!g_cupti.has_one_place) return g_cupti.names.insert(name).first->c_str();
  if (strcmp(g_cupti.place, name) != 0) {
    return_buffer(guard);
    guard.unlock();
    std::lock_guard reading(g_cupti.reading);
    snprintf(g_cupti.place, sizeof g_cupti.place, "%s", name);
    guard.lock();
  }
  return g_cupti.place;
}

void observe(const SimcudaLaunch* launch) {
  std::unique_lock guard(g_cupti.lock);
  const char* const name = place_of(launch->kernel, guard);
  if (++g_cupti.records >= g_cupti.take_over) {
    free(g_cupti.buffer);  // as clients do that allocate buffers with malloc
    g_cupti.buffer = nullptr;
    return;
  }
  if (g_cupti.buffer != nullptr && g_cupti.used_bytes + sizeof(Record) > g_cupti.buffer_bytes) {
    return_buffer(guard);
  }
  if (g_cupti.buffer == nullptr) {
    size_t limit = 0;
    g_cupti.request(&g_cupti.buffer, &g_cupti.buffer_bytes, &limit);
    g_cupti.used_bytes = 0;
  }
  if (g_cupti.buffer == nullptr) {
    ++g_cupti.dropped;
    return;
  }
  Record record = {};
  CuptiKernel& kernel = record.kernel;
  kernel.kind = fibshim::kCuptiConcurrentKernel;
  uint64_t& last_end = g_cupti.last_end[launch->device];
  kernel.start = last_end + 1000;
  kernel.end = last_end = kernel.start + 1000 + 100 * uint64_t{launch->grid[0]};
  kernel.device_id = static_cast<uint32_t>(launch->device);
  for (size_t i = 0; i < 3; ++i) {
    kernel.grid[i] = static_cast<int32_t>(launch->grid[i]);
    kernel.block[i] = static_cast<int32_t>(launch->block[i]);
    kernel.cluster[i] = launch->cluster[i] == 1 ? 0 : launch->cluster[i];
  }
  kernel.dynamic_shared_memory = static_cast<int32_t>(launch->shared_mem);
  kernel.graph_node_id = launch->is_from_graph != 0 ? 77 : 0;
  kernel.name = name;
  memcpy(g_cupti.buffer + g_cupti.used_bytes, &record, sizeof record);
  g_cupti.used_bytes += sizeof record;
}

}  // namespace

extern "C" {

CuptiResult cuptiGetVersion(uint32_t* version) {
  *version = static_cast<uint32_t>(g_cupti.version);
  return kCuptiSuccess;
}

CuptiResult cuptiSubscribe(void** subscriber, CuptiCallback, void*) {
  *subscriber = &g_cupti;
  return g_cupti.is_taken ? fibshim::kCuptiMultipleSubscribers : kCuptiSuccess;
}

CuptiResult cuptiUnsubscribe(void*) { return kCuptiSuccess; }

CuptiResult cuptiActivityRegisterCallbacks(CuptiRequestBuffer request,
                                           CuptiCompleteBuffer complete) {
  g_cupti.request = request;
  g_cupti.complete = complete;
  return kCuptiSuccess;
}

CuptiResult cuptiActivityEnable(uint32_t kind) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto set_observer = reinterpret_cast<decltype(&simcuda_observe)>(
      driver == nullptr ? nullptr : dlsym(driver, "simcuda_observe"));
  if (set_observer == nullptr || kind != fibshim::kCuptiConcurrentKernel) return kNotInitialized;
  set_observer(observe);
  return kCuptiSuccess;
}

CuptiResult cuptiActivityFlushAll(uint32_t) {
  std::unique_lock guard(g_cupti.lock);
  return_buffer(guard);
  return kCuptiSuccess;
}

CuptiResult cuptiActivityGetNextRecord(const uint8_t* buffer, size_t valid_bytes,
                                       const CuptiActivity** record) {
  const auto* const before = reinterpret_cast<const uint8_t*>(*record);
  const uint8_t* const next = before == nullptr ? buffer : before + sizeof(Record);
  if (next + sizeof(Record) > buffer + valid_bytes) return kMaxLimitReached;
  *record = reinterpret_cast<const CuptiActivity*>(next);
  return kCuptiSuccess;
}

CuptiResult cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* count) {
  std::unique_lock guard(g_cupti.lock);
  *count = g_cupti.dropped;
  g_cupti.dropped = 0;
  return kCuptiSuccess;
}

}  // extern "C"
