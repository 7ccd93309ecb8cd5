// Hooks for modules and libraries: load images, return handles, unload.
#include "shim/hooks/hooks.h"

#include "shim/base/upcalls.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_table.h"
#include "shim/hooks/call_real.h"
#include "shim/launch/learn.h"
#include "shim/registry/modules.h"

namespace fibshim {
namespace {

template <class Handle>
uintptr_t as_owner(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}

template <class Owner>
constexpr bool is_library = std::is_same_v<Owner, CUlibrary>;

// `owner`: where the driver has stored the host's handle.
template <class Owner>
CUresult record_load(CUresult result, const Owner* owner, const void* image) {
  if (result == CUDA_SUCCESS && owner != nullptr) {
    record_image(as_owner(*owner), is_library<Owner>, image);
  }
  return result;
}

template <class Owner>
CUresult record_file_load(CUresult result, const Owner* owner, const char* path) {
  if (result == CUDA_SUCCESS && owner != nullptr) {
    record_image_file(as_owner(*owner), is_library<Owner>, path);
  }
  return result;
}

// Learns enumerated handles. Their names come from the driver.
template <class Handle, class GetName>
void learn_all(const Handle* handles, unsigned count, HandleKind kind, uintptr_t owner,
               GetName get_name) {
  if (handles == nullptr || get_name == nullptr || !upcalls().ensure_started()) return;
  for (unsigned i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (handles[i] != nullptr && get_name(&name, handles[i]) == CUDA_SUCCESS) {
      (void)learn_handle(handles[i], kind, owner, name);
    }
  }
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// --- load images ---

CUresult hook_cuModuleLoad(CUmodule* module, const char* file) {
  (void)upcalls().ensure_started();
  return record_file_load(call_real(real::cuModuleLoad, module, file), module, file);
}

CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) {
  (void)upcalls().ensure_started();
  return record_load(call_real(real::cuModuleLoadData, module, image), module, image);
}

CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned option_count,
                                 CUjit_option* options, void** values) {
  (void)upcalls().ensure_started();
  return record_load(
      call_real(real::cuModuleLoadDataEx, module, image, option_count, options, values), module,
      image);
}

CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* fatbin) {
  (void)upcalls().ensure_started();
  return record_load(call_real(real::cuModuleLoadFatBinary, module, fatbin), module, fatbin);
}

CUresult hook_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_options,
                                void** jit_values, unsigned jit_count,
                                CUlibraryOption* library_options, void** library_values,
                                unsigned library_count) {
  (void)upcalls().ensure_started();
  return record_load(call_real(real::cuLibraryLoadData, library, code, jit_options, jit_values,
                               jit_count, library_options, library_values, library_count),
                     library, code);
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option* jit_options,
                                    void** jit_values, unsigned jit_count,
                                    CUlibraryOption* library_options, void** library_values,
                                    unsigned library_count) {
  (void)upcalls().ensure_started();
  return record_file_load(
      call_real(real::cuLibraryLoadFromFile, library, file, jit_options, jit_values, jit_count,
                library_options, library_values, library_count),
      library, file);
}

// --- return handles ---

CUresult hook_cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = call_real(real::cuModuleGetFunction, function, module, name);
  if (result == CUDA_SUCCESS && function != nullptr) {
    (void)learn_handle(*function, HandleKind::function, as_owner(module), name);
  }
  return result;
}

CUresult hook_cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  const CUresult result = call_real(real::cuModuleEnumerateFunctions, functions, count, module);
  if (result == CUDA_SUCCESS) {
    learn_all(functions, count, HandleKind::function, as_owner(module),
              FIBSHIM_REAL(cuFuncGetName));
  }
  return result;
}

CUresult hook_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = call_real(real::cuLibraryGetKernel, kernel, library, name);
  if (result == CUDA_SUCCESS && kernel != nullptr) {
    (void)learn_handle(*kernel, HandleKind::kernel, as_owner(library), name);
  }
  return result;
}

CUresult hook_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  const CUresult result = call_real(real::cuLibraryEnumerateKernels, kernels, count, library);
  if (result == CUDA_SUCCESS) {
    learn_all(kernels, count, HandleKind::kernel, as_owner(library), FIBSHIM_REAL(cuKernelGetName));
  }
  return result;
}

CUresult hook_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  const CUresult result = call_real(real::cuLibraryGetModule, module, library);
  if (result == CUDA_SUCCESS && module != nullptr) {
    record_library_module(as_owner(*module), as_owner(library));
  }
  return result;
}

CUresult hook_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = call_real(real::cuKernelGetFunction, function, kernel);
  const auto get_name = FIBSHIM_REAL(cuFuncGetName);
  const char* name = nullptr;
  if (result == CUDA_SUCCESS && function != nullptr && get_name != nullptr &&
      upcalls().ensure_started() && get_name(&name, *function) == CUDA_SUCCESS) {
    // It dies with the kernel's library or with the context.
    (void)learn_handle(*function, HandleKind::function, library_of(kernel), name, 0,
                       current_context());
  }
  return result;
}

// --- unload ---

// Forget the handles first: once the driver has unloaded them, another thread may get the same
// values.
CUresult hook_cuModuleUnload(CUmodule module) {
  freeze_execs_of_owner(as_owner(module));
  forget_module(as_owner(module));
  return call_real(real::cuModuleUnload, module);
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
  freeze_execs_of_owner(as_owner(library));
  forget_module(as_owner(library));
  return call_real(real::cuLibraryUnload, library);
}
