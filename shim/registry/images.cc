#include "shim/registry/images.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/settings_in_force.h"
#include "shim/driver/context_scope.h"
#include "shim/registry/devices.h"
#include "shim/registry/loaded_images.h"

namespace fibshim {

namespace {

// Returns the best image that was not tried yet, or -1.
int choose_image(const Snapshot& snapshot, const Solution& solution, uint32_t sm, uint64_t tried) {
  const Image* images = snapshot.begin(solution.images);
  int best = -1;
  for (uint32_t i = 0; i < solution.images.count; ++i) {
    const uint32_t value = i < 64 && (tried >> i & 1) != 0 ? 0 : image_rank(images[i], sm);
    if (value != 0 && (best < 0 || value > image_rank(images[best], sm)))
      best = static_cast<int>(i);
  }
  return best;
}

// Why a generation that is not in force yet could not be loaded.
Mutex g_fault_lock;  // guards the next two variables
uint64_t g_faulty_generation;
char g_fault[512];

void report_once(const Generation& generation, const Solution& solution, LoadedSolution& row,
                 uint32_t device_class, const char* message) {
  const uint32_t bit = 1u << device_class;
  if ((row.reported.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return;
  const char* const name = generation.snapshot->text(solution.name);
  const Generation* const now = current_generation();
  if (now != nullptr && now->number < generation.number) {
    // The folder will be refused because of this, and the refusal gives the reason.
    MutexGuard guard(g_fault_lock);
    g_faulty_generation = generation.number;
    snprintf(g_fault, sizeof g_fault, "solution %s: %s", name, message);
    return;
  }
  log_message(LogLevel::error, "solution %s: %s; %s", name, message,
              on_error_of(solution.on_error, generation.on_error) == OnError::fail &&
                      mode() != Mode::observe
                  ? "matching launches fail (FIBSHIM_ON_ERROR=fallback runs the original)"
                  : "matching launches run the original");
}

// Checks that the kernel's parameters fit the binding's arguments; if not, `message` says why. The
// loader has checked their number in the image. A driver before 12.4 cannot report parameters; the
// loader has checked those of cubins already.
CUresult check_parameters(const Snapshot& snapshot, const Binding& binding, CUkernel kernel,
                          char* message, size_t message_size) {
  const auto get_info = FIBSHIM_REAL(cuKernelGetParamInfo);
  if (get_info == nullptr) return CUDA_SUCCESS;
  const ArgumentMap* arguments = snapshot.begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    size_t offset = 0;
    size_t size = 0;
    const CUresult result = get_info(kernel, i, &offset, &size);
    // CUDA_ERROR_INVALID_VALUE: the kernel has no such parameter. Other errors say nothing of it.
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) {
      snprintf(message, message_size, "cuKernelGetParamInfo returns %s", ErrorText(result).text);
      return result;
    }
    // Without a parameter table (PTX) the loader stores integers in 8 bytes, of which the kernel
    // may read fewer.
    const bool is_loose =
        snapshot.begin(snapshot.solutions)[binding.solution].param_sizes.count == 0 &&
        arguments[i].kind == ArgumentMap::Kind::integer;
    if (result != CUDA_SUCCESS || (is_loose ? size > 8 : size != arguments[i].size)) {
      snprintf(message, message_size, "parameter %u of its kernel has %zu bytes, the argument %u",
               i, result == CUDA_SUCCESS ? size : 0, arguments[i].size);
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// Sets how much dynamic shared memory a solution's launches may use. Solutions that share a kernel
// share this value: the largest one remains, whichever of two threads sets it last.
CUresult set_shared_memory(const Solution& solution, ImageKernel* loaded, const Devices& devices,
                           uint32_t device_class) {
  constexpr uint32_t kFreeSharedBytes = 48 * 1024;
  if (solution.max_shared_mem <= kFreeSharedBytes) return CUDA_SUCCESS;
  const auto set_attribute = FIBSHIM_REAL(cuKernelSetAttribute);
  const auto get_attribute = FIBSHIM_REAL(cuDeviceGetAttribute);
  const auto kernel_attribute = FIBSHIM_REAL(cuKernelGetAttribute);
  if (set_attribute == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t most = loaded->shared_mem.load();
  while (most < solution.max_shared_mem &&
         !loaded->shared_mem.compare_exchange_weak(most, solution.max_shared_mem)) {
  }
  do {
    most = loaded->shared_mem.load();
    for (uint32_t i = 0; i < devices.count; ++i) {
      if (devices.class_of[i] != device_class) continue;
      int bytes = static_cast<int>(most);
      if (most == UINT32_MAX) {
        // The size is an expression: allow what the device allows beside the kernel's static
        // memory. The driver refuses a launch that needs more.
        int static_bytes = 0;
        CUresult asked = get_attribute(
            &bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, devices.device[i]);
        if (asked == CUDA_SUCCESS && kernel_attribute != nullptr) {
          asked = kernel_attribute(&static_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                   loaded->kernel, devices.device[i]);
        }
        if (asked != CUDA_SUCCESS) return asked;
        bytes -= static_bytes;
      }
      const CUresult result = set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes,
                                            loaded->kernel, devices.device[i]);
      if (result != CUDA_SUCCESS) return result;
    }
  } while (loaded->shared_mem.load() != most);
  return CUDA_SUCCESS;
}

// Allows clusters of more than eight blocks, which a kernel must permit. A size that the device
// does not support is refused at the launch.
CUresult allow_clusters(const Binding& binding, CUkernel kernel, const Devices& devices,
                        uint32_t device_class) {
  const auto set_attribute = FIBSHIM_REAL(cuKernelSetAttribute);
  if (!binding.has_cluster || set_attribute == nullptr) return CUDA_SUCCESS;
  for (uint32_t i = 0; i < devices.count; ++i) {
    if (devices.class_of[i] != device_class) continue;
    const CUresult result = set_attribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
                                          kernel, devices.device[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

struct LoadFailure {
  CUresult error;
  char message[512];
};

// Reads, verifies and loads one image, unless it is loaded already. Null: `failure` says why.
LoadedImage* load_image(const Snapshot& snapshot, uint32_t solution_index, uint32_t image_index,
                        uint32_t device_class, LoadFailure* failure) {
  const Solution& solution = snapshot.begin(snapshot.solutions)[solution_index];
  const Image& image = snapshot.begin(solution.images)[image_index];
  LoadedImage* found = find_loaded_image(image.sha256, device_class);
  if (found != nullptr) return found;
  const auto load = FIBSHIM_REAL(cuLibraryLoadData);
  const auto unload = FIBSHIM_REAL(cuLibraryUnload);
  if (load == nullptr || unload == nullptr || FIBSHIM_REAL(cuLibraryGetKernel) == nullptr) {
    failure->error = CUDA_ERROR_NOT_SUPPORTED;
    snprintf(failure->message, sizeof failure->message,
             "this driver has no cuLibraryLoadData: CUDA 12.0 or later is needed");
    return nullptr;
  }
  ImageBytes bytes;
  const int read = loader().read_image(&snapshot, solution_index, image_index, &bytes,
                                       failure->message, sizeof failure->message);
  if (read != 0) {
    failure->error = static_cast<CUresult>(read);
    return nullptr;
  }
  CUlibrary library = nullptr;
  const uint64_t size_bytes = bytes.size;
  const CUresult result = load(&library, bytes.data, nullptr, nullptr, 0, nullptr, nullptr, 0);
  loader().release_image(&bytes);
  if (result != CUDA_SUCCESS) {
    failure->error = result;
    snprintf(failure->message, sizeof failure->message, "%s: cuLibraryLoadData returns %s",
             snapshot.text(image.path), ErrorText(result).text);
    return nullptr;
  }
  found = add_loaded_image(image.sha256, device_class, size_bytes, library);
  if (found == nullptr) {
    failure->error = CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(failure->message, sizeof failure->message, "no memory");
  }
  // Unload this copy if another thread's came first, or if there is no memory to record it.
  if (found == nullptr || found->library != library) (void)unload(library);
  return found;
}

// Loads one image and makes its kernel ready. Null: `failure` says why.
ImageKernel* load_kernel(const Snapshot& snapshot, const Binding& binding, uint32_t image_index,
                         const Devices& devices, uint32_t device_class, LoadFailure* failure) {
  const Solution& solution = snapshot.begin(snapshot.solutions)[binding.solution];
  LoadedImage* const image =
      load_image(snapshot, binding.solution, image_index, device_class, failure);
  if (image == nullptr) return nullptr;
  const char* const path = snapshot.text(snapshot.begin(solution.images)[image_index].path);
  const char* step = "cuLibraryGetKernel";
  ImageKernel* loaded = nullptr;
  CUresult result = find_kernel(image, snapshot.text(solution.kernel), &loaded);
  if (result == CUDA_SUCCESS) {
    failure->error = check_parameters(snapshot, binding, loaded->kernel, failure->message,
                                      sizeof failure->message);
    if (failure->error != CUDA_SUCCESS) return nullptr;
    step = "cuKernelSetAttribute";
    result = set_shared_memory(solution, loaded, devices, device_class);
    if (result == CUDA_SUCCESS) {
      result = allow_clusters(binding, loaded->kernel, devices, device_class);
    }
  }
  if (result != CUDA_SUCCESS) {
    failure->error = result;
    snprintf(failure->message, sizeof failure->message, "%s, kernel %s: %s returns %s", path,
             snapshot.text(solution.kernel), step, ErrorText(result).text);
    return nullptr;
  }
  // Load it into the current context now, if there is one: a lazy load at the launch would wait for
  // the GPU.
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  CUfunction in_context = nullptr;
  if (get_function != nullptr) (void)get_function(&in_context, loaded->kernel);
  return loaded;
}

uint64_t number_of(const LoadedImage& image) {
  uint64_t number = 0;
  for (uint32_t i = 0; i < sizeof number; ++i) number = number << 8 | image.sha256[i];
  return number;
}

void record_use(LoadedImage* image, uint64_t generation) {
  uint64_t last = image->last_used_by.load(std::memory_order_relaxed);
  while (last < generation &&
         !image->last_used_by.compare_exchange_weak(last, generation, std::memory_order_relaxed)) {
  }
}

}  // namespace

Replacement find_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class) {
  const CUkernel kernel =
      generation.solutions[binding.solution].kernels[device_class].load(std::memory_order_acquire);
  if (kernel == nullptr) return {LoadState::not_yet, CUDA_SUCCESS, nullptr};
  return {
      LoadState::ready, CUDA_SUCCESS, kernel,
      generation.solutions[binding.solution].images[device_class].load(std::memory_order_relaxed)};
}

Replacement load_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class) {
  const Replacement found = find_replacement(generation, binding, device_class);
  if (found.state == LoadState::ready) return found;
  const Devices* const devices = known_devices();
  if (devices == nullptr) return found;
  const Snapshot& snapshot = *generation.snapshot;
  const Solution& solution = snapshot.begin(snapshot.solutions)[binding.solution];
  const char* name = snapshot.text(solution.name);
  LoadedSolution& row = generation.solutions[binding.solution];
  if (solution.error_code != 0) {
    report_once(generation, solution, row, device_class, snapshot.text(solution.error_message));
    return {LoadState::failed, static_cast<CUresult>(solution.error_code), nullptr};
  }
  if (binding.state == BindingState::broken) {
    report_once(generation, solution, row, device_class, snapshot.text(binding.reason));
    return {LoadState::failed, CUDA_ERROR_INVALID_VALUE, nullptr};
  }
  const RelaxedCapture relaxed;
  // The watcher has no context, but the driver needs one.
  PrimaryContextScope context;
  if (!has_current_context()) {
    for (uint32_t i = 0; i < devices->count; ++i) {
      if (devices->class_of[i] == device_class && context.enter(devices->device[i])) break;
    }
  }
  ImageKernel* loaded = nullptr;
  for (uint64_t tried = 0; loaded == nullptr;) {
    const int image = choose_image(snapshot, solution, devices->class_sm[device_class], tried);
    if (image < 0) return {LoadState::no_image, CUDA_SUCCESS, nullptr};
    LoadFailure failure;
    loaded = load_kernel(snapshot, binding, static_cast<uint32_t>(image), *devices, device_class,
                         &failure);
    if (loaded != nullptr) break;
    // Only the driver knows which GPUs a fatbin supports. PTX may be there besides.
    const bool is_cubin = snapshot.begin(solution.images)[image].kind == ImageKind::cubin;
    if (is_cubin || failure.error != CUDA_ERROR_NO_BINARY_FOR_GPU || image >= 64) {
      // In a forked child, or without a context, no call works, as the launch's own error shows.
      const bool is_unusable = failure.error == CUDA_ERROR_NOT_INITIALIZED ||
                               failure.error == CUDA_ERROR_DEINITIALIZED ||
                               failure.error == CUDA_ERROR_INVALID_CONTEXT;
      if (!is_unusable) report_once(generation, solution, row, device_class, failure.message);
      return {LoadState::failed, failure.error, nullptr};
    }
    tried |= uint64_t{1} << image;
  }
  record_use(loaded->image, generation.number);
  const uint64_t image = number_of(*loaded->image);
  row.images[device_class].store(image, std::memory_order_relaxed);
  row.kernels[device_class].store(loaded->kernel, std::memory_order_release);
  log_message(LogLevel::debug, "solution %s: ready for sm_%u", name,
              devices->class_sm[device_class]);
  return {LoadState::ready, CUDA_SUCCESS, loaded->kernel, image};
}

bool find_fault(const Generation& generation, char* message, size_t size) {
  const Snapshot& snapshot = *generation.snapshot;
  const char* const root = snapshot.text(snapshot.root);
  for (uint32_t i = 0; i < snapshot.solutions.count; ++i) {
    const Solution& solution = snapshot.begin(snapshot.solutions)[i];
    const char* const name = snapshot.text(solution.name);
    if (solution.error_code != 0) {
      snprintf(message, size, "%s: solution %s: %s", root, name,
               snapshot.text(solution.error_message));
      return true;
    }
    if (generation.solutions[i].reported.load(std::memory_order_relaxed) != 0) {
      MutexGuard guard(g_fault_lock);
      if (g_faulty_generation != generation.number) continue;
      snprintf(message, size, "%s: %s", root, g_fault);
      return true;
    }
  }
  for (uint32_t i = 0; i < snapshot.bindings.count; ++i) {
    const Binding& binding = snapshot.begin(snapshot.bindings)[i];
    if (binding.state != BindingState::broken) continue;
    const Solution& solution = snapshot.begin(snapshot.solutions)[binding.solution];
    snprintf(message, size, "%s: solution %s: %s", root, snapshot.text(solution.name),
             snapshot.text(binding.reason));
    return true;
  }
  return false;
}

void load_into_contexts(const Generation& generation) {
  const Devices* const devices = known_devices();
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  if (devices == nullptr || get_function == nullptr) return;
  const RelaxedCapture relaxed;
  for (uint32_t i = 0; i < devices->count; ++i) {
    const uint32_t device_class = devices->class_of[i];
    PrimaryContextScope context;
    if (device_class == kNoDeviceClass || !context.enter(devices->device[i])) continue;
    for (uint32_t k = 0; k < generation.snapshot->solutions.count; ++k) {
      const CUkernel kernel =
          generation.solutions[k].kernels[device_class].load(std::memory_order_acquire);
      CUfunction in_context = nullptr;
      if (kernel != nullptr) (void)get_function(&in_context, kernel);
    }
  }
}

}  // namespace fibshim
