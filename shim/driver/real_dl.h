// libc's own dlsym, dlvsym and dlopen, which the shim's exports of the same names hide from everyone.
//
// Found by reading libc's dynamic symbol table, because every ordinary way of asking (a versioned
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

// True when an object of that DT_SONAME is mapped. Leaves dlerror alone, which a failing dlopen with
// RTLD_NOLOAD does not.
bool is_mapped(const char* soname);

}  // namespace fibshim
