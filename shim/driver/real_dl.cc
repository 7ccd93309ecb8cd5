#include "shim/driver/real_dl.h"

#include <atomic>
#include <elf.h>
#include <link.h>

// The linker's list of loaded objects. Weak, since other C libraries do not have it.
extern struct r_debug _r_debug __attribute__((weak));

namespace fibshim {
namespace {

std::atomic<void*> g_dlsym;
std::atomic<void*> g_dlvsym;
std::atomic<void*> g_dlopen;

// Used in place of strcmp, which a sanitizer's runtime replaces by a function that it has not found
// yet when it looks up dlsym.
bool is_same(const char* a, const char* b) {
  while (*a != 0 && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

// The parts of one loaded object's dynamic section that a lookup needs.
struct DynamicTables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* gnu_hash = nullptr;
  const ElfW(Half) * versions = nullptr;
  const char* soname = nullptr;
};

// glibc relocates the pointers in a mapped dynamic section; the vDSO's stay relative.
const void* absolute(ElfW(Addr) base, ElfW(Addr) value) {
  return reinterpret_cast<const void*>(value < base ? base + value : value);
}

bool read_tables(ElfW(Addr) base, const ElfW(Dyn) * dynamic, DynamicTables* out) {
  if (dynamic == nullptr) return false;
  ElfW(Addr) soname_offset = 0;
  bool has_soname = false;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) value = dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB: out->symbols = static_cast<const ElfW(Sym)*>(absolute(base, value)); break;
      case DT_STRTAB: out->strings = static_cast<const char*>(absolute(base, value)); break;
      case DT_GNU_HASH: out->gnu_hash = static_cast<const uint32_t*>(absolute(base, value)); break;
      case DT_VERSYM: out->versions = static_cast<const ElfW(Half)*>(absolute(base, value)); break;
      case DT_SONAME:
        soname_offset = dynamic->d_un.d_val;
        has_soname = true;
        break;
      default: break;
    }
  }
  if (out->strings != nullptr && has_soname) out->soname = out->strings + soname_offset;
  return out->symbols != nullptr && out->strings != nullptr && out->gnu_hash != nullptr;
}

bool read_tables(const dl_phdr_info& object, DynamicTables* out) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
    }
  }
  return read_tables(object.dlpi_addr, dynamic, out);
}

uint32_t gnu_hash_of(const char* name) {
  uint32_t hash = 5381;
  for (; *name != 0; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

// Finds the default version of `name`, to which an unversioned reference would bind.
void* find_symbol(const DynamicTables& tables, ElfW(Addr) base, const char* name) {
  const uint32_t bucket_count = tables.gnu_hash[0];
  const uint32_t first_hashed = tables.gnu_hash[1];
  const uint32_t bloom_words = tables.gnu_hash[2];
  const auto* buckets = reinterpret_cast<const uint32_t*>(
      reinterpret_cast<const ElfW(Addr)*>(tables.gnu_hash + 4) + bloom_words);
  const uint32_t* chains = buckets + bucket_count;
  const uint32_t hash = gnu_hash_of(name);
  uint32_t index = bucket_count == 0 ? 0 : buckets[hash % bucket_count];
  if (index < first_hashed) return nullptr;
  for (;; ++index) {
    const uint32_t chain = chains[index - first_hashed];
    const ElfW(Sym)& symbol = tables.symbols[index];
    const bool is_hidden = tables.versions != nullptr && (tables.versions[index] & 0x8000) != 0;
    if ((chain | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && !is_hidden &&
        is_same(tables.strings + symbol.st_name, name)) {
      return reinterpret_cast<void*>(base + symbol.st_value);
    }
    if ((chain & 1) != 0) return nullptr;
  }
}

// Finds the three functions, which are in libc from glibc 2.34 on, and in libdl before. False: not
// in this object.
bool find_functions_in(ElfW(Addr) base, const DynamicTables& tables) {
  if (tables.soname == nullptr ||
      (!is_same(tables.soname, "libc.so.6") && !is_same(tables.soname, "libdl.so.2"))) {
    return false;
  }
  void* dlsym_found = find_symbol(tables, base, "dlsym");
  void* dlvsym_found = find_symbol(tables, base, "dlvsym");
  void* dlopen_found = find_symbol(tables, base, "dlopen");
  if (dlsym_found == nullptr || dlvsym_found == nullptr || dlopen_found == nullptr) return false;
  g_dlopen.store(dlopen_found, std::memory_order_relaxed);
  g_dlvsym.store(dlvsym_found, std::memory_order_relaxed);
  g_dlsym.store(dlsym_found, std::memory_order_release);
  return true;
}

int visit_object(dl_phdr_info* object, size_t, void*) {
  DynamicTables tables;
  return read_tables(*object, &tables) && find_functions_in(object->dlpi_addr, tables) ? 1 : 0;
}

// libc was loaded with the program, so it is near the front of the linker's list, in the part that
// never changes. That part can be read without a lock and without a call. ThreadSanitizer's runtime
// replaces dl_iterate_phdr by a function that calls what is being looked up here.
void find_dlsym() {
  if (&_r_debug != nullptr) {
    for (const link_map* at = _r_debug.r_map; at != nullptr; at = at->l_next) {
      DynamicTables tables;
      if (read_tables(at->l_addr, at->l_ld, &tables) && find_functions_in(at->l_addr, tables))
        return;
    }
  }
  dl_iterate_phdr(visit_object, nullptr);
}

struct MappedQuestion {
  const char* soname;
  bool is_mapped;
};

int compare_soname(dl_phdr_info* object, size_t, void* data) {
  auto* question = static_cast<MappedQuestion*>(data);
  DynamicTables tables;
  (void)read_tables(*object, &tables);
  question->is_mapped = tables.soname != nullptr && is_same(tables.soname, question->soname);
  return question->is_mapped ? 1 : 0;
}

}  // namespace

bool is_mapped(const char* soname) {
  MappedQuestion question = {soname, false};
  dl_iterate_phdr(compare_soname, &question);
  return question.is_mapped;
}

DlsymFunction real_dlsym() {
  void* found = g_dlsym.load(std::memory_order_acquire);
  if (__builtin_expect(found == nullptr, 0)) {
    find_dlsym();
    found = g_dlsym.load(std::memory_order_acquire);
  }
  return reinterpret_cast<DlsymFunction>(found);
}

DlvsymFunction real_dlvsym() {
  (void)real_dlsym();
  return reinterpret_cast<DlvsymFunction>(g_dlvsym.load(std::memory_order_relaxed));
}

DlopenFunction real_dlopen() {
  (void)real_dlsym();
  return reinterpret_cast<DlopenFunction>(g_dlopen.load(std::memory_order_relaxed));
}

}  // namespace fibshim
