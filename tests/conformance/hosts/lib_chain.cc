// libconform_chain_a.so and, with CHAIN_LAST, libconform_chain_b.so: both define the same
// functions, and the first looks up the next definition, as interposers do.
#include <dlfcn.h>

#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

#ifdef CHAIN_LAST

EXPORTED const char* conform_chain() { return "last"; }

#else

EXPORTED const char* conform_chain() {
  static std::string* text = new std::string;
  using Chain = const char* (*)();
  const auto next = reinterpret_cast<Chain>(dlsym(RTLD_NEXT, "conform_chain"));
  *text = std::string("first, then ") + (next == nullptr ? "none" : next());
  return text->c_str();
}

EXPORTED const char* conform_chain_by_version() {
  return dlvsym(RTLD_NEXT, "conform_chain", "NO_SUCH_VERSION") == nullptr ? "none" : "some";
}

// The caller of dlsym and dlopen is this library.
EXPORTED void* conform_next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  return found;  // not a tail call, since dlsym must see this caller
}
EXPORTED void* conform_default(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  return found;
}
EXPORTED void* conform_open(const char* path) {
  void* opened = dlopen(path, RTLD_NOW);
  return opened;
}

#endif
