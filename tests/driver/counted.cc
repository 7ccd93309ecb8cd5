// The exported functions. Each calls the entry point of its name, and counts the error if it
// returns one.
#include "tests/driver/driver.h"

namespace simcuda {
namespace {

template <Api kApi, auto kEntry>
struct Counted;
template <Api kApi, class... Arguments, CUresult (*kEntry)(Arguments...)>
struct Counted<kApi, kEntry> {
  static CUresult call(Arguments... arguments) {
    const CUresult result = kEntry(arguments...);
    if (result != CUDA_SUCCESS) [[unlikely]]
      count_error(*thread_state().records, kApi);
    return result;
  }
};

}  // namespace
}  // namespace simcuda

// C++ cannot define a function with another one's type, so the exported function is a jump.
#if defined(__x86_64__)
#define JUMP(to) "jmp *" to "(%rip)"
#elif defined(__aarch64__)
#define JUMP(to) "adrp x16, " to "\n ldr x16, [x16, :lo12:" to "]\n br x16"
#endif
#define SYMBOL(exported, base, version, form)                                           \
  extern "C" __attribute__((                                                            \
      used, visibility("hidden"))) constexpr decltype(&::exported) counted_##exported = \
      &simcuda::Counted<simcuda::Api::exported, &::exported>::call;                     \
  __asm__(".text\n.globl " #exported "\n.type " #exported ", %function\n" #exported     \
          ":\n" JUMP("counted_" #exported) "\n.size " #exported ", . - " #exported);    \
  extern "C" void exported_##exported() __asm__(#exported);
#include "tests/driver/symbols.def"
#undef SYMBOL

namespace simcuda {

void* exported_function(Api api) {
  static constexpr void (*kFunctions[])() = {
#define SYMBOL(exported, base, version, form) exported_##exported,
#include "tests/driver/symbols.def"
#undef SYMBOL
  };
  return reinterpret_cast<void*>(kFunctions[static_cast<size_t>(api)]);
}

}  // namespace simcuda
