// libconform_names.so: names that begin as the driver's do, and a stand-in for two of its own, as
// test doubles of applications have them. Each says which it is.
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
