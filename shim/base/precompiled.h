// Library headers that take long to read. make precompiles them once (Makefile).
#include <string.h>

#include <atomic>
