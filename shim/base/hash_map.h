// The shim's hash map: nodes by a 64-bit key, chained in buckets whose number grows with them.
//
// A Node has `uint64_t key` (or uintptr_t) and `Node* next`. The caller allocates and releases
// nodes; the map owns only its buckets. Not synchronised: every user has a mutex. Tables that
// launches read without a lock are in registry/handles.h and registry/decisions.h.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shim/abi/hash.h"
#include "shim/base/pool.h"

namespace fibshim {

// Makes a key from a text.
inline uint64_t hash_of_text(const char* text) { return hash_text(text, strlen(text)); }

template <class Node>
class HashMap {
 public:
  constexpr explicit HashMap(Pool* pool) : pool_(pool) {}

  // Returns the pointer to the node of a key. It holds null if there is no such node, and is itself
  // null if the map has no buckets yet.
  Node** find(uint64_t key) const {
    if (buckets_ == nullptr) return nullptr;
    Node** at = bucket_of(key);
    while (*at != nullptr && (*at)->key != key) at = &(*at)->next;
    return at;
  }

  Node* get(uint64_t key) const {
    Node* const* const at = find(key);
    return at == nullptr ? nullptr : *at;
  }

  // Requires that the key is not in the map. False: no memory for the first buckets.
  bool insert(Node* node) {
    if (count_ >= capacity_) grow();
    if (buckets_ == nullptr) return false;
    Node** const bucket = bucket_of(node->key);
    node->next = *bucket;
    *bucket = node;
    ++count_;
    return true;
  }

  // Unlinks the node of a key and returns it, or null if there is none.
  Node* remove(uint64_t key) {
    Node** const at = find(key);
    if (at == nullptr || *at == nullptr) return nullptr;
    Node* const node = *at;
    *at = node->next;
    --count_;
    return node;
  }

  // Calls `use(node)` for each node until it returns false. `use` may not change the map.
  template <class Use>
  void for_each(const Use& use) const {
    for (size_t i = 0; i < capacity_; ++i) {
      for (Node* node = buckets_[i]; node != nullptr; node = node->next) {
        if (!use(node)) return;
      }
    }
  }

  size_t count() const { return count_; }

 private:
  Node** bucket_of(uint64_t key) const {
    return &buckets_[(key * kHashFactor >> 32) & (capacity_ - 1)];
  }

  // If there is no memory for more buckets the chains get longer.
  void grow() {
    const size_t capacity = capacity_ == 0 ? 256 : capacity_ * 2;
    auto** const buckets = static_cast<Node**>(pool_->allocate(capacity * sizeof(Node*)));
    if (buckets == nullptr) return;
    Node** const old = buckets_;
    const size_t old_capacity = capacity_;
    buckets_ = buckets;
    capacity_ = capacity;
    for (size_t i = 0; i < old_capacity; ++i) {
      for (Node* node = old[i]; node != nullptr;) {
        Node* const next = node->next;
        Node** const bucket = bucket_of(node->key);
        node->next = *bucket;
        *bucket = node;
        node = next;
      }
    }
    pool_->release(old, old_capacity * sizeof(Node*));
  }

  Pool* pool_;
  Node** buckets_ = nullptr;
  size_t capacity_ = 0;
  size_t count_ = 0;
};

}  // namespace fibshim
