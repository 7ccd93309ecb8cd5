// The program around a host: HOST WAY:N:TIMES... runs one after the other, and prints a line for each.
#include <stdio.h>

#include "tests/gpu/frameworks/host.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    char way[32];
    int n = 0;
    int times = 0;
    if (sscanf(argv[i], "%31[^:]:%d:%d", way, &n, &times) != 3) {
      fprintf(stderr, "%s: %s is no WAY:N:TIMES\n", argv[0], argv[i]);
      return 2;
    }
    printf("%s %d %s\n", way, n, run_plus_one(way, n, times));
  }
  return 0;
}
