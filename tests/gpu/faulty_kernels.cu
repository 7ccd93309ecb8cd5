// A replacement that faults: by name and parameters the folder's RMSNorm of 4096, it writes to an address
// that no allocation has. poison.py puts it in the solution's place.
extern "C" __global__ void rmsnorm_h4096_bf16(const void*, const void*, void*, float*, float, int) {
  *reinterpret_cast<volatile int*>(16) = 1;
}
