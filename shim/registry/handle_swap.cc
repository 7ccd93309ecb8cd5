#include "shim/registry/handle_swap.h"

#include "shim/base/read_section.h"
#include "shim/registry/handle_store.h"

namespace fibshim {
namespace {

using namespace handle_store;  // NOLINT(google-build-using-namespace): the writers' own

template <class Use>
void for_each_living(const Use& use) {
  g_owners.for_each([&](Owner* owner) {
    for (HandleEntry* at = owner->first; at != nullptr; at = at->next_of_owner) use(at);
    return true;
  });
}

// Entries of the next generation, by handle. `next_of_owner` of a successor is the old entry that
// it replaces. Used only by the watcher. Old entries are read within its read section, and walks
// over the living ones hold the lock.
class Successors {
 public:
  Successors(const Generation& next, MakeSuccessor make) : next_(next), make_(make) {}
  ~Successors() {
    for (uint64_t i = 0; i < capacity(); ++i) {
      const uintptr_t value = table_->slots()[i].value.load(std::memory_order_relaxed);
      if (value != 0) release_entry(reinterpret_cast<HandleEntry*>(value));
    }
    if (table_ != nullptr) g_pool.release(table_, table_bytes(capacity()));
  }
  Successors(const Successors&) = delete;
  Successors& operator=(const Successors&) = delete;

  // Makes missing successors for all living entries, outside the lock. False: no memory.
  bool make_lacking() {
    HandleEntry** lacking = nullptr;
    const uint64_t count = collect_lacking(&lacking);
    bool is_fine = count == 0 || (lacking != nullptr && make_room(count));
    for (uint64_t i = 0; is_fine && i < count && lacking[i] != nullptr; ++i) {
      is_fine = make_one(lacking[i]);
    }
    g_pool.release(lacking, count * sizeof(void*));
    return is_fine;
  }

  // Requires g_lock.
  bool are_complete() const {
    bool is_complete = true;
    for_each_living([&](HandleEntry* entry) {
      is_complete = is_complete && (entry->record == nullptr || find(entry) != nullptr);
    });
    return is_complete;
  }

  // Removes and returns the successor of an entry, or null. Requires g_lock.
  HandleEntry* remove(const HandleEntry* old) {
    HandleSlot* const slot = find(old);
    if (slot == nullptr) return nullptr;
    return reinterpret_cast<HandleEntry*>(slot->value.exchange(0, std::memory_order_relaxed));
  }

 private:
  uint64_t capacity() const { return table_ == nullptr ? 0 : table_->capacity(); }

  HandleSlot* find(const HandleEntry* old) const {
    if (table_ == nullptr) return nullptr;
    for (uint64_t place = first_place(old->handle);; place += kNextPlace) {
      HandleSlot& slot = table_->slot_at(place);
      const uintptr_t key = slot.key.load(std::memory_order_relaxed);
      if (key == 0) return nullptr;
      if (key != old->handle) continue;
      const auto* made = reinterpret_cast<HandleEntry*>(slot.value.load(std::memory_order_relaxed));
      // The handle may be another kernel's by now. Comparing entries is safe: the old entry is not
      // reused within this read section.
      return made != nullptr && made->next_of_owner == old ? &slot : nullptr;
    }
  }

  // `*lacking` has room for all entries that have a record; a null entry ends the list early.
  uint64_t collect_lacking(HandleEntry*** lacking) const {
    MutexGuard guard(g_lock);
    uint64_t count = 0;
    for_each_living([&](HandleEntry* entry) { count += entry->record != nullptr; });
    *lacking = static_cast<HandleEntry**>(g_pool.allocate(count * sizeof(void*)));
    if (*lacking == nullptr) return count;
    uint64_t used = 0;
    for_each_living([&](HandleEntry* entry) {
      if (entry->record != nullptr && find(entry) == nullptr) (*lacking)[used++] = entry;
    });
    if (used < count) (*lacking)[used] = nullptr;
    return count;
  }

  bool make_room(uint64_t more) {
    uint64_t wanted = kSmallestCapacity;
    while (wanted < ((table_ == nullptr ? 0 : table_->used) + more) * 2) wanted *= 2;
    if (wanted <= capacity()) return true;
    auto* const table = static_cast<HandleTable*>(g_pool.allocate(table_bytes(wanted)));
    if (table == nullptr) return false;
    table->byte_mask = (wanted - 1) * sizeof(HandleSlot);
    for (uint64_t i = 0; i < capacity(); ++i) {
      const uintptr_t value = table_->slots()[i].value.load(std::memory_order_relaxed);
      if (value == 0) continue;
      slot_in(table, reinterpret_cast<HandleEntry*>(value)->handle)
          ->value.store(value, std::memory_order_relaxed);
    }
    if (table_ != nullptr) g_pool.release(table_, table_bytes(capacity()));
    table_ = table;
    return true;
  }

  bool make_one(HandleEntry* old) {
    HandleEntry* const entry = make_(next_, *old);
    if (entry == nullptr) return false;
    entry->next_of_owner = old;
    HandleSlot* const slot = slot_in(table_, entry->handle);
    const uintptr_t stale =
        slot->value.exchange(reinterpret_cast<uintptr_t>(entry), std::memory_order_relaxed);
    if (stale != 0) release_entry(reinterpret_cast<HandleEntry*>(stale));
    return true;
  }

  const Generation& next_;
  MakeSuccessor make_;
  HandleTable* table_ = nullptr;
};

// The same handle without a record. Null: no memory.
HandleEntry* bare_copy(const HandleEntry& old) {
  HandleEntry* const entry =
      make_entry({reinterpret_cast<const void*>(old.handle), old.kind, old.owner, old.image_owner,
                  old.context, old.record->symbol, nullptr, 0, 0, 0, 0});
  if (entry != nullptr) entry->name_hash = old.name_hash;
  return entry;
}

// Requires g_lock. Puts the successors into `table` and the owners' lists, and of entries without
// one what belongs to no generation. Retires all that had a record.
void move_entries(Successors* successors, const Generation& next, HandleTable* table) {
  g_owners.for_each([&](Owner* owner) {
    for (HandleEntry** at = &owner->first; *at != nullptr;) {
      HandleEntry* const old = *at;
      HandleEntry* entry = old;
      // Without patterns no kernel is tracked, and no launch needs the slow side.
      uintptr_t mark = next.knows_patterns() ? kUnmatched : kUntracked;
      bool is_matched = false;
      if (old->record != nullptr) {
        entry = successors->remove(old);
        is_matched = entry != nullptr;
        if (!is_matched) {
          entry = bare_copy(*old);
          mark = kUnmatched;
        }
        *at = old->next_of_owner;
        retire(old);
        if (entry == nullptr) continue;  // no memory: the handle is not known any more
        entry->next_of_owner = *at;
        *at = entry;
      }
      slot_in(table, entry->handle)
          ->value.store(is_matched ? value_of(entry) : reinterpret_cast<uintptr_t>(entry) | mark,
                        std::memory_order_relaxed);
      at = &entry->next_of_owner;
    }
    return true;
  });
}

}  // namespace

void prepare_handles(const Generation& next, MakeSuccessor make_successor) {
  const ReadSection section;
  (void)Successors(next, make_successor).make_lacking();
}

bool put_in_force(Generation* next, MakeSuccessor make_successor,
                  void (*before_swap)(const Generation& next)) {
  // New handles may appear in every round. The last ones are matched at their next launch.
  constexpr int kMostRounds = 4;
  const ReadSection section;
  Successors successors(*next, make_successor);
  for (int round = 1;; ++round) {
    if (!successors.make_lacking()) return false;
    before_swap(*next);
    MutexGuard guard(g_lock);
    if (round < kMostRounds && !successors.are_complete()) continue;
    uint64_t living = 0;
    for_each_living([&](HandleEntry*) { ++living; });
    HandleTable* const table = new_table(living);
    if (table == nullptr) return false;
    move_entries(&successors, *next, table);
    Generation* const before = exchange_generation(next);
    publish_table(table);
    retire(before);
    reuse_retired();
    return true;
  }
}

Generation* remove_ended_generation(bool* has_more) {
  MutexGuard guard(g_lock);
  reuse_retired();
  *has_more = has_retired();
  Generation* const ended = g_ended;
  if (ended != nullptr) g_ended = ended->next;
  return ended;
}

}  // namespace fibshim
