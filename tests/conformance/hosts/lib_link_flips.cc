// libconform_link_flips.so: a realpath() that repoints a link after the shim has resolved it and
// before it opens the target, and back before the shim resolves it again. Preloaded before the
// shim.
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

char g_link[PATH_MAX];
char g_target[PATH_MAX];
char g_back[PATH_MAX];
std::atomic<int> g_flips_left{0};

void repoint(const char* target) {
  char temporary[PATH_MAX + 8];
  snprintf(temporary, sizeof temporary, "%s.flip", g_link);
  if (symlink(target, temporary) != 0 || rename(temporary, g_link) != 0) abort();
}

}  // namespace

// After the next realpath() of `link`, the link leads to `target`; after the one after that, to
// `back`.
EXPORTED void conform_flip_link(const char* link, const char* target, const char* back) {
  snprintf(g_link, sizeof g_link, "%s", link);
  snprintf(g_target, sizeof g_target, "%s", target);
  snprintf(g_back, sizeof g_back, "%s", back);
  g_flips_left.store(2);
}

EXPORTED char* realpath(const char* path, char* resolved) {
  using Function = char* (*)(const char*, char*);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "realpath"));
  const int flip = g_flips_left.load() != 0 && strcmp(path, g_link) == 0 ? g_flips_left-- : 0;
  if (flip == 1) repoint(g_back);
  char* const out = real(path, resolved);
  if (flip == 2) repoint(g_target);
  return out;
}
