// libc's own dlsym, dlvsym and dlopen, which the shim's exports of the same names hide.
//
// Found by reading libc's dynamic symbol table, since every ordinary look-up (a versioned
// reference, dlvsym itself) would find the shim first. Callable before any constructor has run.
#pragma once

namespace fibshim {

using DlsymFunction = void* (*)(void* handle, const char* name);
using DlvsymFunction = void* (*)(void* handle, const char* name, const char* version);

using DlopenFunction = void* (*)(const char* path, int mode);

// Never null: a libc without dlsym cannot have loaded this library.
DlsymFunction real_dlsym();
DlvsymFunction real_dlvsym();
DlopenFunction real_dlopen();

// True if an object with that DT_SONAME is mapped. Does not change dlerror(), as a failing dlopen
// with RTLD_NOLOAD would.
bool is_mapped(const char* soname);

}  // namespace fibshim
