// The host program of the conformance suite: `conform CASE [ARGUMENT]...` runs one case in this
// process. The cases are in *_cases.cc; `conform --list` names them.
//
// Exit status: 0 the case passes, 1 it fails (stderr says where), 2 usage, 77 this driver or
// machine lacks what the case tests.
#include <stdio.h>

#include "tests/conformance/hosts/host.h"

int main(int argc, char** argv) {
  using conform::Case;
  if (argc == 2 && strcmp(argv[1], "--list") == 0) {
    for (const Case* one = conform::g_cases; one != nullptr; one = one->next) puts(one->name);
    return 0;
  }
  for (const Case* one = conform::g_cases; argc >= 2 && one != nullptr; one = one->next) {
    if (strcmp(one->name, argv[1]) != 0) continue;
    one->run(std::vector<std::string>(argv + 2, argv + argc));
    return 0;
  }
  fprintf(stderr, "usage: conform CASE [ARGUMENT]...\n       conform --list\n");
  return 2;
}
