// libconform_names.so: functions whose names begin as the driver's do, and two with names of the
// driver's own, as in test doubles of applications. Each returns a text that identifies it.
#define SAYS(name, text) \
  extern "C" __attribute__((visibility("default"))) const char* name() { return text; }

SAYS(cu, "cu")
SAYS(cuda, "cuda")
SAYS(cudnnCreate, "cudnn")
SAYS(cublasCreate_v2, "cublas")
SAYS(curl_easy_init, "curl")
SAYS(cuLaunchKernelX, "someone's cuLaunchKernelX")
SAYS(culaunchkernel, "lower case")
SAYS(_cuLaunchKernel, "underscore")
SAYS(cuLaunchKernel, "someone's cuLaunchKernel")
SAYS(cuModuleGetFunction, "someone's cuModuleGetFunction")
SAYS(cuGetProcAddress, "someone's cuGetProcAddress")
