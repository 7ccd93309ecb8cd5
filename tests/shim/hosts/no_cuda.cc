// A program that does not use CUDA: the shim must not affect it, and cost little.
#include <stdio.h>

int main() {
  puts("hello");
  return 0;
}
