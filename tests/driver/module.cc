// Modules and libraries, and their handles: CUfunction and CUkernel.
#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/driver/driver.h"

namespace simcuda {
namespace {

using Bytes = std::vector<uint8_t>;

CUresult read_file(const char* path, Bytes* bytes) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  struct stat info {};
  CUresult result = CUDA_SUCCESS;
  if (fstat(fd, &info) != 0 || info.st_size == 0) {
    result = CUDA_ERROR_INVALID_IMAGE;
  } else {
    bytes->resize(static_cast<size_t>(info.st_size));
    size_t at = 0;
    while (at < bytes->size()) {
      const ssize_t got = read(fd, bytes->data() + at, bytes->size() - at);
      if (got <= 0) break;
      at += static_cast<size_t>(got);
    }
    if (at != bytes->size()) result = CUDA_ERROR_INVALID_IMAGE;
  }
  close(fd);
  return result;
}

// Reads a file for calls that take a path. A truncated cubin file ends the process, as it does with
// the real driver (580), so that no test passes one.
CUresult read_image_file(const char* path, Bytes* bytes) {
  const CUresult error = read_file(path, bytes);
  if (error == CUDA_SUCCESS && is_truncated_elf(*bytes))
    crash_like_the_real_driver("the image file is truncated");
  return error;
}

// Requires the lock.
Function* make_handle(Kind kind, const KernelInfo& info) {
  Function* function = driver().pools.functions.allocate(kind);
  function->info = &info;
  function->name = strdup(info.name.c_str());
  return function;
}

// Requires the lock. Overwrites the name, which was only lent to callers.
void end_handle(Function& function) {
  memset(function.name, '#', strlen(function.name));
  free(function.name);
  function.name = nullptr;
  function.info = nullptr;
  driver().pools.functions.release(&function);
}

// `limit`: the number of bytes known to be there (0: unknown).
CUresult make_module(Api api, const void* data, size_t limit, Context& context, CUmodule* handle) {
  // Modules accept only a plain image; wrappers around fatbins are for libraries.
  if (format_of(data, limit) == ImageFormat::fatbin_wrapper) return CUDA_ERROR_INVALID_IMAGE;
  Bytes bytes;
  SIM_TRY(copy_image(data, limit, &bytes));
  auto image = std::make_shared<Image>();
  SIM_TRY(read_image(bytes, context.device->sm, image.get()));
  const Lock guard(driver().lock);
  SIM_TRY(check_image_budget(api));
  Module* module = driver().pools.modules.allocate(Kind::module);
  module->context = &context;
  module->image = std::move(image);
  context.modules.push_back(module);
  *handle = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult load_module(Api api, CUmodule* handle, const void* data, Context* context) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return make_module(api, data, 0, *context, handle);
}

// Loading is lazy: code for another GPU, or no code at all, is only noticed at the first use.
CUresult make_library(Api api, const void* data, size_t limit, CUlibrary* handle) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::map<int, std::shared_ptr<const Image>> images;
  CUresult first_use_error = CUDA_ERROR_INVALID_IMAGE;
  if (format_of(data, limit) != ImageFormat::unknown) {
    Bytes bytes;
    SIM_TRY(copy_image(data, limit, &bytes));
    for (const Device& device : driver().devices) {
      auto image = std::make_shared<Image>();
      const CUresult error = read_image(bytes, device.sm, image.get());
      if (error == CUDA_SUCCESS)
        images[device.ordinal] = std::move(image);
      else if (error == CUDA_ERROR_INVALID_IMAGE)
        return error;
      else
        first_use_error = error;
    }
  }
  const Lock guard(driver().lock);
  SIM_TRY(check_image_budget(api));
  Library* library = driver().pools.libraries.allocate(Kind::library);
  library->images = std::move(images);
  library->first_use_error = library->images.empty() ? first_use_error : CUDA_SUCCESS;
  *handle = reinterpret_cast<CUlibrary>(library);
  return CUDA_SUCCESS;
}

Module* find_module(CUmodule handle) { return driver().pools.modules.find(handle, Kind::module); }
Library* find_library(CUlibrary handle) {
  return driver().pools.libraries.find(handle, Kind::library);
}

// Requires the lock.
CUresult function_in(Module& module, const std::string& name, Function** function) {
  const auto found = module.functions.find(name);
  if (found != module.functions.end()) {
    *function = found->second;
    return CUDA_SUCCESS;
  }
  SIM_FIND(info, module.image->find(name), CUDA_ERROR_NOT_FOUND);
  *function = make_handle(Kind::function, *info);
  (*function)->context = module.context;
  (*function)->module = &module;
  module.functions[name] = *function;
  return CUDA_SUCCESS;
}

// Requires the lock.
CUresult kernel_in(Library& library, const std::string& name, Function** kernel) {
  if (library.first_use_error != CUDA_SUCCESS) return library.first_use_error;
  const auto found = library.kernels.find(name);
  if (found != library.kernels.end()) {
    *kernel = found->second;
    return CUDA_SUCCESS;
  }
  for (const auto& [device, image] : library.images) {
    const KernelInfo* info = image->find(name);
    if (info == nullptr) continue;
    if (library.kernels.count(name) == 0) {
      library.kernels[name] = make_handle(Kind::kernel, *info);
      library.kernels[name]->library = &library;
    }
    library.kernels[name]->device_info[device].store(info);
  }
  const auto made = library.kernels.find(name);
  if (made == library.kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *kernel = made->second;
  return CUDA_SUCCESS;
}

CUresult param_info(const KernelInfo& info, size_t index, size_t* offset, size_t* size) {
  if (index >= info.params.size() || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *offset = info.params[index].offset;
  if (size != nullptr) *size = info.params[index].size;
  return CUDA_SUCCESS;
}

CUresult get_attribute(const Function& function, const Device& device, int* value,
                       CUfunction_attribute attribute) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const KernelInfo& info = *function.info;
  const KernelSettings& settings = function.settings(device.ordinal);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(info.max_threads);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(info.static_shared_mem);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = static_cast<int>(info.const_bytes); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(info.register_count); break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = info.sm; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = settings.max_dynamic_shared_mem >= 0 ? settings.max_dynamic_shared_mem
                                                    : default_max_dynamic_shared_mem(info);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = settings.carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
      const int axis = attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
      *value =
          info.cluster[axis] != 0 ? static_cast<int>(info.cluster[axis]) : settings.cluster[axis];
      break;
    }
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = settings.non_portable_cluster;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(Function& function, const Device& device, CUfunction_attribute attribute,
                       int value) {
  const Lock guard(driver().lock);
  KernelSettings& settings = function.settings(device.ordinal);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value + static_cast<int>(function.info->static_shared_mem) >
                           device.max_shared_mem_optin())
        return CUDA_ERROR_INVALID_VALUE;
      settings.max_dynamic_shared_mem = value;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      settings.carveout = value;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      if (value < 0 || function.info->cluster[0] != 0) return CUDA_ERROR_INVALID_VALUE;
      settings.cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      settings.non_portable_cluster = value != 0;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult global_in(Module& module, const char* name, CUdeviceptr* pointer, size_t* bytes) {
  for (const Global& global : module.image->globals) {
    if (global.name != name) continue;
    std::unique_ptr<uint8_t[]>& memory = module.globals[global.name];
    if (memory == nullptr) {
      memory = std::make_unique<uint8_t[]>(global.size);
      std::copy(global.initial.begin(), global.initial.end(), memory.get());
    }
    if (pointer != nullptr) *pointer = reinterpret_cast<CUdeviceptr>(memory.get());
    if (bytes != nullptr) *bytes = global.size;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

void end_module(Module& module) {
  // Freed so that the next module's handles are allocated in another order: a reused address then
  // mostly belongs to another kernel.
  for (auto& [name, function] : module.functions) end_handle(*function);
  auto& modules = module.context->modules;
  modules.erase(std::remove(modules.begin(), modules.end(), &module), modules.end());
  if (module.library != nullptr) module.library->modules.erase(module.context);
  driver().pools.modules.release(&module);
}

CUresult module_of_library(Library& library, Context& context, Module** module) {
  const Lock guard(driver().lock);
  const auto found = library.modules.find(&context);
  if (found != library.modules.end()) {
    *module = found->second;
    return CUDA_SUCCESS;
  }
  const auto image = library.images.find(context.device->ordinal);
  if (image == library.images.end())
    return library.first_use_error != CUDA_SUCCESS ? library.first_use_error
                                                   : CUDA_ERROR_NO_BINARY_FOR_GPU;
  *module = driver().pools.modules.allocate(Kind::module);
  (*module)->context = &context;
  (*module)->library = &library;
  (*module)->image = image->second;
  context.modules.push_back(*module);
  library.modules[&context] = *module;
  return CUDA_SUCCESS;
}

CUresult function_of_kernel(Function& kernel, Context& context, Function** function) {
  const Lock guard(driver().lock);
  SIM_GET(Module*, module, module_of_library(*kernel.library, context, &module));
  SIM_TRY(function_in(*module, kernel.info->name, function));
  (*function)->kernel = &kernel;
  return CUDA_SUCCESS;
}

CUresult code_on(Function& function, Device& device, const KernelInfo** info) {
  *info = function.library != nullptr
              ? function.device_info[device.ordinal].load(std::memory_order_relaxed)
              : function.info;
  return *info != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  SIM_ENTER_CONTEXT(cuModuleLoad);
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Bytes bytes;
  SIM_TRY(read_image_file(path, &bytes));
  return make_module(Api::cuModuleLoad, bytes.data(), bytes.size(), *context, module);
}
ENTRY_IN_CONTEXT(cuModuleLoadData, (CUmodule * module, const void* image),
                 load_module(Api::cuModuleLoadData, module, image, context))
ENTRY_IN_CONTEXT(cuModuleLoadDataEx,
                 (CUmodule * module, const void* image, unsigned int, CUjit_option*, void**),
                 load_module(Api::cuModuleLoadDataEx, module, image, context))
ENTRY_IN_CONTEXT(cuModuleLoadFatBinary, (CUmodule * module, const void* image),
                 load_module(Api::cuModuleLoadFatBinary, module, image, context))
CUresult cuModuleUnload(CUmodule handle) {
  SIM_ENTER_CONTEXT(cuModuleUnload);
  const Lock guard(driver().lock);
  Module* module = find_module(handle);
  if (module == nullptr || module->context != context || module->library != nullptr)
    return CUDA_ERROR_INVALID_HANDLE;
  end_module(*module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  SIM_ENTER_CONTEXT(cuModuleGetFunction);
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  SIM_FIND(module, find_module(handle), CUDA_ERROR_INVALID_HANDLE);
  return function_in(*module, name, reinterpret_cast<Function**>(function));
}
CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  SIM_ENTER_CONTEXT(cuModuleGetFunctionCount);
  SIM_FIND(module, find_module(handle), CUDA_ERROR_INVALID_HANDLE);
  return give(count, module->image->kernels.size());
}
CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int capacity, CUmodule handle) {
  SIM_ENTER_CONTEXT(cuModuleEnumerateFunctions);
  const Lock guard(driver().lock);
  SIM_FIND(module, find_module(handle), CUDA_ERROR_INVALID_HANDLE);
  if (functions == nullptr || capacity == 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned written = 0;
  for (const KernelInfo* info : module->image->kernels) {
    if (written == capacity) break;
    SIM_GET(Function*, function, function_in(*module, info->name, &function));
    functions[written++] = reinterpret_cast<CUfunction>(function);
  }
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule handle,
                              const char* name) {
  SIM_ENTER_CONTEXT(cuModuleGetGlobal_v2);
  const Lock guard(driver().lock);
  SIM_FIND(module, find_module(handle), CUDA_ERROR_INVALID_HANDLE);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return global_in(*module, name, pointer, bytes);
}
ENTRY(cuModuleGetLoadingMode, (CUmoduleLoadingMode * mode), give(mode, CU_MODULE_LAZY_LOADING))

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  SIM_ENTER(cuLibraryLoadData);
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return make_library(Api::cuLibraryLoadData, code, 0, library);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                               unsigned int, CUlibraryOption*, void**, unsigned int) {
  SIM_ENTER(cuLibraryLoadFromFile);
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Bytes bytes;
  SIM_TRY(read_image_file(path, &bytes));
  return make_library(Api::cuLibraryLoadFromFile, bytes.data(), bytes.size(), library);
}
CUresult cuLibraryUnload(CUlibrary handle) {
  SIM_ENTER_LOCKED(cuLibraryUnload);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  while (!library->modules.empty()) end_module(*library->modules.begin()->second);
  for (auto& [name, kernel] : library->kernels) end_handle(*kernel);
  driver().pools.libraries.release(library);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  SIM_ENTER(cuLibraryGetKernel);
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  return kernel_in(*library, name, reinterpret_cast<Function**>(kernel));
}
CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  SIM_ENTER(cuLibraryGetKernelCount);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (library->first_use_error != CUDA_SUCCESS) return library->first_use_error;
  *count = static_cast<unsigned>(library->images.begin()->second->kernels.size());
  return CUDA_SUCCESS;
}
CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int capacity, CUlibrary handle) {
  SIM_ENTER_LOCKED(cuLibraryEnumerateKernels);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  if (kernels == nullptr || capacity == 0) return CUDA_ERROR_INVALID_VALUE;
  if (library->first_use_error != CUDA_SUCCESS) return library->first_use_error;
  unsigned written = 0;
  for (const KernelInfo* info : library->images.begin()->second->kernels) {
    if (written == capacity) break;
    SIM_GET(Function*, kernel, kernel_in(*library, info->name, &kernel));
    kernels[written++] = reinterpret_cast<CUkernel>(kernel);
  }
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary handle) {
  SIM_ENTER_CONTEXT(cuLibraryGetModule);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return module_of_library(*library, *context, reinterpret_cast<Module**>(module));
}
CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary handle,
                            const char* name) {
  SIM_ENTER_CONTEXT(cuLibraryGetGlobal);
  const Lock guard(driver().lock);
  SIM_FIND(library, find_library(handle), CUDA_ERROR_INVALID_HANDLE);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SIM_GET(Module*, module, module_of_library(*library, *context, &module));
  return global_in(*module, name, pointer, bytes);
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  SIM_ENTER_CONTEXT(cuKernelGetFunction);
  SIM_FIND(kernel, find_kernel(handle), CUDA_ERROR_INVALID_HANDLE);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return function_of_kernel(*kernel, *context, reinterpret_cast<Function**>(function));
}
ENTRY_VALUE(cuKernelGetLibrary, CUlibrary, CUkernel, find_kernel, CUDA_ERROR_INVALID_HANDLE,
            reinterpret_cast<CUlibrary>(found->library))
ENTRY_VALUE(cuKernelGetName, const char*, CUkernel, find_kernel, CUDA_ERROR_INVALID_HANDLE,
            found->name)
CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  SIM_ENTER(cuKernelGetParamInfo);
  SIM_FIND(kernel, find_kernel(handle), CUDA_ERROR_INVALID_HANDLE);
  return param_info(*kernel->info, index, offset, size);
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice ordinal) {
  SIM_ENTER(cuKernelGetAttribute);
  Function* kernel = find_kernel(handle);
  const Device* device = find_device(ordinal);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return get_attribute(*kernel, *device, value, attribute);
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice ordinal) {
  SIM_ENTER(cuKernelSetAttribute);
  Function* kernel = find_kernel(handle);
  const Device* device = find_device(ordinal);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return set_attribute(*kernel, *device, attribute, value);
}
CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice ordinal) {
  SIM_ENTER(cuKernelSetCacheConfig);
  if (find_kernel(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return find_device(ordinal) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

ENTRY_VALUE(cuFuncGetName, const char*, CUfunction, find_function, CUDA_ERROR_INVALID_HANDLE,
            found->name)
CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  SIM_ENTER(cuFuncGetParamInfo);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  return param_info(*function->info, index, offset, size);
}
ENTRY_VALUE(cuFuncGetModule, CUmodule, CUfunction, find_function, CUDA_ERROR_INVALID_HANDLE,
            reinterpret_cast<CUmodule>(found->module))
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  SIM_ENTER(cuFuncGetAttribute);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  return get_attribute(*function, *function->context->device, value, attribute);
}
CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  SIM_ENTER(cuFuncSetAttribute);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  return set_attribute(*function, *function->context->device, attribute, value);
}
ENTRY(cuFuncSetCacheConfig, (CUfunction handle, CUfunc_cache),
      find_function(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
ENTRY(cuFuncSetSharedMemConfig, (CUfunction handle, CUsharedconfig),
      find_function(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  SIM_ENTER(cuFuncIsLoaded);
  if (find_function(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return give(state, CU_FUNCTION_LOADING_STATE_LOADED);
}
ENTRY(cuFuncLoad, (CUfunction handle),
      find_function(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)

// Linking: only one cubin is supported, which is passed through unchanged.
static CUresult create_link(CUlinkState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  *state = reinterpret_cast<CUlinkState>(driver().pools.links.allocate(Kind::link));
  return CUDA_SUCCESS;
}
static CUresult add_to_link(CUlinkState state, CUjitInputType type, const void* data, size_t size) {
  const Lock guard(driver().lock);
  Link* link = driver().pools.links.find(state, Kind::link);
  if (link == nullptr || link->is_complete) return CUDA_ERROR_INVALID_HANDLE;
  if (type != CU_JIT_INPUT_CUBIN || !link->cubin.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  return copy_image(data, size, &link->cubin);
}
static CUresult add_file_to_link(CUlinkState state, CUjitInputType type, const char* path) {
  Bytes bytes;
  SIM_TRY(read_file(path, &bytes));
  return add_to_link(state, type, bytes.data(), bytes.size());
}
ENTRY_IN_CONTEXT(cuLinkCreate, (unsigned int, CUjit_option*, void**, CUlinkState* state),
                 create_link(state))
ENTRY_IN_CONTEXT(cuLinkCreate_v2, (unsigned int, CUjit_option*, void**, CUlinkState* state),
                 create_link(state))
ENTRY(cuLinkAddData,
      (CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned int,
       CUjit_option*, void**),
      add_to_link(state, type, data, size))
ENTRY(cuLinkAddData_v2,
      (CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned int,
       CUjit_option*, void**),
      add_to_link(state, type, data, size))
ENTRY(cuLinkAddFile,
      (CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
       void**),
      add_file_to_link(state, type, path))
ENTRY(cuLinkAddFile_v2,
      (CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
       void**),
      add_file_to_link(state, type, path))
CUresult cuLinkComplete(CUlinkState state, void** cubin, size_t* size) {
  SIM_ENTER_LOCKED(cuLinkComplete);
  SIM_FIND(link, driver().pools.links.find(state, Kind::link), CUDA_ERROR_INVALID_HANDLE);
  if (cubin == nullptr || link->cubin.empty()) return CUDA_ERROR_INVALID_VALUE;
  link->is_complete = true;
  *cubin = link->cubin.data();
  if (size != nullptr) *size = link->cubin.size();
  return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState state) {
  SIM_ENTER_LOCKED(cuLinkDestroy);
  SIM_FIND(link, driver().pools.links.find(state, Kind::link), CUDA_ERROR_INVALID_HANDLE);
  driver().pools.links.release(link);
  return CUDA_SUCCESS;
}

}  // extern "C"
