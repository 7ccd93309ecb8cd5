// See later.h. A call that may see the work of a launch first runs everything that waits. So the
// order is open only between consecutive launches and uploads of graphs. They are ordered as in the
// real driver: by the stream, and by the executable graph. The nodes of unordered launches are
// interleaved.
#include "tests/driver/later.h"

#include <stdlib.h>
#include <string.h>

#include <list>
#include <random>

namespace simcuda {
namespace {

// Returns the seed, or null if launches run at once.
const char* seed() {
  static const char* const given = getenv("SIMCUDA_LATER");
  return given;
}

struct Waiting {
  uint64_t number;
  std::vector<uint64_t> after;
  Graph* graph;             // a copy from the time of the launch; null: an upload
  std::vector<Node*> left;  // the nodes still to run, the next one last
  const GraphExec* exec;
  uint32_t exec_generation;
  Origin origin;
  Stream* stream;
  CUstream handle;
};

std::recursive_mutex& lock() {
  static auto* made = new std::recursive_mutex;
  return *made;
}
std::list<Waiting>& waiting() {
  static auto* all = new std::list<Waiting>;
  return *all;
}
thread_local bool t_is_running;

// Every call checks for faults first, and waiting launches run there.
__attribute__((constructor)) void begin() {
  if (seed() != nullptr) g_has_faults.store(true);
}

bool is_waiting(uint64_t number) {
  return std::any_of(waiting().begin(), waiting().end(),
                     [&](const Waiting& one) { return one.number == number; });
}

bool is_ready(const Waiting& one) {
  return std::none_of(one.after.begin(), one.after.end(), is_waiting);
}

// Requires the lock. Runs the next node of a launch; after the last one, ends the launch.
void run_one(std::list<Waiting>::iterator at) {
  if (!at->left.empty()) {
    t_is_running = true;
    (void)run_node(*at->left.back(), at->origin, *at->stream, at->handle);
    t_is_running = false;
    at->left.pop_back();
    return;
  }
  if (at->graph != nullptr) {
    const Lock guard(driver().lock);
    end_graph(*at->graph);
  }
  waiting().erase(at);
}

void run_with_what_is_before(uint64_t number) {
  const auto at = std::find_if(waiting().begin(), waiting().end(),
                               [&](const Waiting& one) { return one.number == number; });
  if (at == waiting().end()) return;
  for (const uint64_t before : at->after) run_with_what_is_before(before);
  while (is_waiting(number)) run_one(at);
}

void run_all() {
  static std::minstd_rand random(static_cast<unsigned>(strtoul(seed(), nullptr, 10)));
  const std::lock_guard guard(lock());
  while (!waiting().empty()) {
    auto at = waiting().end();
    unsigned long seen = 0;
    for (auto one = waiting().begin(); one != waiting().end(); ++one) {
      if (is_ready(*one) && random() % ++seen == 0) at = one;
    }
    run_one(at);
  }
}

// True for calls that cannot see what a launch does.
bool is_apart(Api api) {
  const char* const name = api_name(api);
  for (const char* const begin :
       {"cuGraph", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetDevice",
        "cuStreamCreate", "cuStreamIsCapturing", "cuStreamGetCaptureInfo", "cuStreamDestroy",
        "cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode", "cuGetProcAddress", "cuKernel",
        "cuFunc", "cuLibraryGet", "cuMemGetAddressRange"}) {
    if (strncmp(name, begin, strlen(begin)) == 0) return true;
  }
  return false;
}

}  // namespace

bool runs_later() { return seed() != nullptr; }

void run_before(Api api) {
  if (t_is_running || is_apart(api)) return;
  run_all();
}

void run_stream(const Stream& stream) {
  if (!runs_later() || t_is_running) return;
  const std::lock_guard guard(lock());
  std::vector<uint64_t> all;
  for (const Waiting& one : waiting()) {
    if (one.stream == &stream) all.push_back(one.number);
  }
  for (const uint64_t one : all) run_with_what_is_before(one);
}

void put_off(GraphExec* exec, Graph* graph, const Origin& origin, Stream* stream, CUstream handle) {
  // The legacy stream and blocking streams wait for each other.
  if (stream->stream_kind == simcuda_stream_legacy ||
      (stream->stream_kind == simcuda_stream_created &&
       !(stream->flags & CU_STREAM_NON_BLOCKING))) {
    run_all();
  }
  static uint64_t last;
  const std::lock_guard guard(lock());
  Waiting made{++last, {}, graph, {}, exec, exec->generation, origin, stream, handle};
  if (graph != nullptr) {
    made.left = order_of(*graph);
    std::reverse(made.left.begin(), made.left.end());
  }
  for (const Waiting& one : waiting()) {
    if (one.stream == stream || (one.exec == exec && one.exec_generation == exec->generation)) {
      made.after.push_back(one.number);
    }
  }
  waiting().push_back(std::move(made));
}

}  // namespace simcuda
