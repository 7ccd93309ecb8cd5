#include "shim/graphs/exec_table.h"

#include <new>

#include "shim/abi/hash.h"
#include "shim/driver/driver.h"

namespace fibshim {
namespace {

struct Slot {
  uintptr_t handle;  // never changes
  std::atomic<Exec*> exec;
  Slot* next;  // never changes
};

constexpr size_t kBuckets = 1 << 14;
constinit std::atomic<Slot*> g_buckets[kBuckets] = {};

constinit Mutex g_lock;  // guards the variables below, and the writing of slots
Exec* g_newest;
Exec* g_oldest;
Variant* g_buried;
constinit std::atomic<uint64_t> g_ended_streams{0};

std::atomic<Slot*>& bucket_of(uintptr_t handle) {
  return g_buckets[(handle * kHashFactor >> 40) & (kBuckets - 1)];
}

Slot* find_slot(uintptr_t handle) {
  Slot* slot = bucket_of(handle).load(std::memory_order_acquire);
  while (slot != nullptr && slot->handle != handle) slot = slot->next;
  return slot;
}

// Requires the lock.
Slot* find_or_add_slot(uintptr_t handle) {
  Slot* slot = find_slot(handle);
  if (slot != nullptr) return slot;
  slot = static_cast<Slot*>(g_graph_pool.allocate(sizeof(Slot)));
  if (slot == nullptr) return nullptr;
  std::atomic<Slot*>& bucket = bucket_of(handle);
  slot->handle = handle;
  slot->next = bucket.load(std::memory_order_relaxed);
  bucket.store(slot, std::memory_order_release);
  return slot;
}

// Requires the lock.
void unlink(Exec* exec) {
  (exec->newer == nullptr ? g_newest : exec->newer->older) = exec->older;
  (exec->older == nullptr ? g_oldest : exec->older->newer) = exec->newer;
}

// Empties the slot and returns its exec, or null if it was empty. Requires the lock.
Exec* remove_from(Slot* slot) {
  Exec* const exec = slot == nullptr ? nullptr : slot->exec.load(std::memory_order_relaxed);
  if (exec == nullptr) return nullptr;
  slot->exec.store(nullptr, std::memory_order_relaxed);
  unlink(exec);
  exec->is_ended = true;
  return exec;
}

void release_exec(Exec* exec) {
  exec->~Exec();
  g_graph_pool.release(exec, sizeof *exec);
}

// Releases only the memory, since the driver's objects may be gone.
void forget_variant(Variant* variant) {
  if (variant == nullptr) return;
  variant->exec = nullptr;
  variant->graph = nullptr;
  end_variant(variant);
}

void end_variants(Exec* exec, bool has_driver) {
  Variant* const running = exec->running.exchange(nullptr);
  Variant* const ready = exec->ready.exchange(nullptr);
  Variant* const idle = exec->idle;
  Variant* const shadow = exec->shadow.exchange(nullptr);
  Variant* const unreplaced = exec->unreplaced.exchange(nullptr);
  Variant* const last = exec->last.variant;
  const auto end = [has_driver](Variant* variant) {
    has_driver ? end_variant(variant) : forget_variant(variant);
  };
  if (last != running && last != ready && last != idle && last != unreplaced &&
      last != &exec->plain) {
    end(last);
  }
  end(unreplaced);
  end(idle);
  end(shadow);
  if (ready != running) end(ready);
  end(running);
  exec->idle = exec->last.variant = nullptr;
}

template <class Is, class Change>
void change_execs(Is is, Change change) {
  PinnedExecs execs;
  for (size_t i = 0; i < execs.count(); ++i) {
    MutexGuard guard(execs[i]->lock);
    if (is(*execs[i])) change(execs[i]);
  }
}

bool has_owner(const Exec& exec, uintptr_t owner, uintptr_t unknown) {
  for (const uintptr_t one : exec.owners) {
    if (one == owner || one == unknown) return true;
  }
  return false;
}

bool has_execs() {
  MutexGuard guard(g_lock);
  return g_newest != nullptr;
}

template <class Change>
void change_execs_of_context(CUcontext context, Change change) {
  if (!has_execs()) return;
  change_execs(
      [context](const Exec& exec) {
        return context == nullptr || exec.context == context ||
               has_owner(exec, reinterpret_cast<uintptr_t>(context), kUnknownContext);
      },
      change);
}

}  // namespace

Exec* find_exec(CUgraphExec handle) {
  const Slot* const slot = find_slot(reinterpret_cast<uintptr_t>(handle));
  return slot == nullptr ? nullptr : slot->exec.load(std::memory_order_acquire);
}

Exec* make_exec_record(CUgraphExec handle) {
  auto* const exec = static_cast<Exec*>(g_graph_pool.allocate(sizeof(Exec)));
  if (exec == nullptr) return nullptr;
  new (static_cast<void*>(exec)) Exec();
  exec->host = handle;
  exec->plain.exec = handle;
  exec->plain.is_sample = true;
  return exec;
}

void add_exec(Exec* exec) {
  Exec* before = nullptr;
  bool is_added = false;
  {
    MutexGuard guard(g_lock);
    Slot* const slot = find_or_add_slot(reinterpret_cast<uintptr_t>(exec->host));
    if (slot != nullptr) {
      before = remove_from(slot);
      exec->older = g_newest;
      (g_newest == nullptr ? g_oldest : g_newest->newer) = exec;
      g_newest = exec;
      slot->exec.store(exec, std::memory_order_release);
      is_added = true;
    }
  }
  if (before != nullptr) end_exec(before, false);
  if (is_added) return;
  exec->is_ended = true;
  end_exec(exec, true);
}

Exec* remove_exec(CUgraphExec handle) {
  if (find_exec(handle) == nullptr) return nullptr;
  MutexGuard guard(g_lock);
  return remove_from(find_slot(reinterpret_cast<uintptr_t>(handle)));
}

void end_exec(Exec* exec, bool has_driver) {
  {
    MutexGuard guard(exec->lock);
    exec->is_frozen = true;
    end_variants(exec, has_driver);
    const auto destroy = FIBSHIM_REAL(cuGraphDestroy);
    if (has_driver && exec->originals != nullptr && destroy != nullptr) {
      (void)destroy(exec->originals);
    }
    exec->originals = nullptr;
  }
  bool is_last = false;
  {
    MutexGuard guard(g_lock);
    is_last = exec->pins == 0;
    if (!is_last) exec->newer = exec;  // releasing the last pin releases it
  }
  if (is_last) release_exec(exec);
}

PinnedExecs::PinnedExecs() {
  MutexGuard guard(g_lock);
  size_t count = 0;
  for (const Exec* exec = g_oldest; exec != nullptr; exec = exec->newer) ++count;
  if (!execs_.allocate(count)) return;
  size_t at = 0;
  for (Exec* exec = g_oldest; exec != nullptr; exec = exec->newer) {
    ++exec->pins;
    execs_[at++] = exec;
  }
}

PinnedExecs::~PinnedExecs() {
  for (Exec* const exec : execs_) {
    bool is_last = false;
    {
      MutexGuard guard(g_lock);
      is_last = --exec->pins == 0 && exec->is_ended && exec->newer == exec;
    }
    if (is_last) release_exec(exec);
  }
}

void bury_variant(Variant* variant) {
  if (variant == nullptr) return;
  MutexGuard guard(g_lock);
  if (variant->is_buried) return;
  variant->is_buried = true;
  variant->next = g_buried;
  g_buried = variant;
}

void end_buried_variants() {
  for (;;) {
    Variant* variant = nullptr;
    {
      MutexGuard guard(g_lock);
      variant = g_buried;
      if (variant == nullptr) return;
      g_buried = variant->next;
    }
    const RelaxedCapture relaxed;
    end_variant(variant);
  }
}

void freeze_execs_of_owner(uintptr_t owner) {
  if (!has_execs()) return;
  change_execs([owner](const Exec& exec) { return has_owner(exec, owner, 0); },
               [](Exec* exec) { exec->is_frozen = true; });
}

void freeze_execs_of_context(CUcontext context) {
  change_execs_of_context(context, [](Exec* exec) { exec->is_frozen = true; });
}

void hold_execs_of_context(CUcontext context) {
  change_execs_of_context(context, [](Exec* exec) { ++exec->ending; });
}

void let_go_execs_of_context(CUcontext context) {
  // One that was made meanwhile is not held.
  change_execs_of_context(context, [](Exec* exec) { exec->ending -= exec->ending != 0 ? 1 : 0; });
}

void count_ended_stream() { g_ended_streams.fetch_add(1, std::memory_order_relaxed); }
uint64_t ended_stream_count() { return g_ended_streams.load(std::memory_order_relaxed); }

void lock_graphs_for_fork() {
  g_lock.lock();
  g_graph_pool.lock_for_fork();
}

void unlock_graphs_after_fork(bool is_child) {
  g_graph_pool.unlock_after_fork(is_child);
  if (is_child && g_newest != nullptr) {
    for (std::atomic<Slot*>& bucket : g_buckets) {
      Slot* slot = bucket.load(std::memory_order_relaxed);
      for (; slot != nullptr; slot = slot->next)
        slot->exec.store(nullptr, std::memory_order_relaxed);
    }
    g_newest = nullptr;
    g_oldest = nullptr;
    g_buried = nullptr;
  }
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
