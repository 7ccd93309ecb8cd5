// curated_n2 for the simulated driver (SIMCUDA_KERNELS). If CONFORM_HOLD names two descriptors,
// "out,in", it writes to the first when it runs, and returns when it reads a byte from the second.
// A thread can be cancelled there, within the launch.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" void curated_n2(const void* const*, const uint32_t*, const uint32_t*) {
  const char* const hold = getenv("CONFORM_HOLD");
  int out = -1;
  int in = -1;
  if (hold == nullptr || sscanf(hold, "%d,%d", &out, &in) != 2) return;
  char byte = 'x';
  if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) abort();
}
