// A program that has nothing to do with CUDA: the shim must leave it alone, and cheaply.
#include <stdio.h>

int main() {
  puts("hello");
  return 0;
}
