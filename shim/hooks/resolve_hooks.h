// How a host gets the hooks: by name, or in exchange for the driver's own pointers.
#pragma once

namespace fibshim {

// Returns the hook for a pointer that the real driver has returned, or the pointer itself if the
// shim does not hook it. Compares pointers, never names.
void* exchange_pointer(void* given);

// Returns the hook for an exported name, or nullptr. Takes no lock and allocates nothing.
void* hook_for_name(const char* name);

}  // namespace fibshim
