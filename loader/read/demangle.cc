#include "loader/read/demangle.h"

#include <setjmp.h>
#include <string.h>

#include <algorithm>
#include <string_view>

// libstdc++'s demangler without allocation: it passes the name on piece by piece. It is declared in
// no header, but every libstdc++.a since GCC 4.3 has it; the loader and the tools link that one.
extern "C" int __gcclibcxx_demangle_callback(const char* symbol,
                                             void (*use)(const char*, size_t, void*), void* data);

namespace fibshim {
namespace {

struct Output {
  char* text;
  size_t capacity;
  size_t length;
  jmp_buf too_long;
};

// The demangler cannot be told to stop, and might go on for hours. It is written in C and holds
// nothing that a longjmp() out of it would lose.
void append(const char* piece, size_t length, void* data) {
  auto* const output = static_cast<Output*>(data);
  if (length > output->capacity - output->length) longjmp(output->too_long, 1);
  memcpy(output->text + output->length, piece, length);
  output->length += length;
}

// No C++ object lives in the frame that is jumped back to.
size_t demangle_into(const char* symbol, Output* output) {
  if (setjmp(output->too_long) != 0) return 0;
  return __gcclibcxx_demangle_callback(symbol, append, output) == 0 ? output->length : 0;
}

}  // namespace

std::string demangle(const std::string& symbol) {
  // Otherwise the demangler would accept mangled types such as "i", too.
  if (!std::string_view(symbol).starts_with("_Z")) return {};
  std::string text(std::min(kMaxReadableNameBytes, kMaxReadableShare * symbol.size()), '\0');
  Output output{text.data(), text.size(), 0, {}};
  text.resize(demangle_into(symbol.c_str(), &output));
  text.shrink_to_fit();
  return text;
}

}  // namespace fibshim
