// Lets the statically linked unwinder work with a glibc before 2.35.
//
// If libgcc's unwinder is built with a glibc that has _dl_find_object, it calls that function and
// has no other way, so a program with that unwinder would not start with glibc 2.34. This is the
// same function by dl_iterate_phdr, which every glibc has. It is slower, but only thrown exceptions
// pay for that. The symbol is hidden inside the library that this file is linked into.
#include <dlfcn.h>

#ifdef DLFO_STRUCT_HAS_EH_DBASE

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

namespace {

struct Search {
  uintptr_t address;
  dl_find_object* out;
};

// Fills in the answer if `address` lies in this object and the object has unwind tables.
int examine_object(dl_phdr_info* info, size_t, void* data) {
  const auto* const search = static_cast<Search*>(data);
  uintptr_t begin = UINTPTR_MAX, end = 0;
  const ElfW(Phdr)* tables = nullptr;
  bool is_inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_EH_FRAME) tables = &segment;
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t at = info->dlpi_addr + segment.p_vaddr;
    if (at < begin) begin = at;
    if (at + segment.p_memsz > end) end = at + segment.p_memsz;
    is_inside = is_inside || (search->address >= at && search->address - at < segment.p_memsz);
  }
  if (!is_inside || tables == nullptr) return 0;
  *search->out = {};
  search->out->dlfo_map_start = reinterpret_cast<void*>(begin);
  search->out->dlfo_map_end = reinterpret_cast<void*>(end);
  search->out->dlfo_eh_frame = reinterpret_cast<void*>(info->dlpi_addr + tables->p_vaddr);
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(void* address,
                                                                     dl_find_object* out) noexcept {
  Search search{reinterpret_cast<uintptr_t>(address), out};
  return dl_iterate_phdr(examine_object, &search) == 1 ? 0 : -1;
}

#endif  // DLFO_STRUCT_HAS_EH_DBASE
