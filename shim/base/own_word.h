// A word of memory that one thread writes and others read.
#pragma once

#include <stdint.h>

namespace fibshim {

// Adds to a word that only this thread writes. A plain add, but stored at once, so that a reader
// never sees half of it, and after everything that this thread has read or written before. The
// compiler moves nothing across it.
inline void add_in_order(uint64_t* word, int64_t by) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  // Compilers make three instructions of the form below.
  __asm__ volatile("addq %1, %0" : "+m"(*word) : "er"(by) : "cc", "memory");
#else
  __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + static_cast<uint64_t>(by),
                   __ATOMIC_RELEASE);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

}  // namespace fibshim
