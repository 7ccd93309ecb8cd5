#include "shim/registry/in_force.h"

#include <atomic>

namespace fibshim {
namespace {

std::atomic<Generation*> g_generation;
const LoaderApi* g_loader;

}  // namespace

bool has_started() { return g_generation.load(std::memory_order_acquire) != nullptr; }

const Generation* current_generation() { return g_generation.load(std::memory_order_seq_cst); }

Generation* exchange_generation(Generation* next) { return g_generation.exchange(next); }

const LoaderApi& loader() { return *g_loader; }

void set_loader(const LoaderApi* api) { g_loader = api; }

}  // namespace fibshim
