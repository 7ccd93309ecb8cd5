// How a host gets at the hooks: by name, or in exchange for the driver's own pointers.
#pragma once

namespace fibshim {

// The hook for a pointer that the real driver gave out, or the pointer itself when it is not one
// that the shim hooks. Exact pointers are compared, never names.
void* exchange_pointer(void* given);

// The hook for an exported name, or nullptr. Takes no lock and allocates nothing.
void* hook_for_name(const char* name);

}  // namespace fibshim
