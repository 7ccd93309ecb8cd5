// What the fast side of a launch runs and reads lies together: the driver leaves little of the caches between two launches, so
// that each further line or page costs more than the instructions do.
#pragma once

#define FIBSHIM_HOT __attribute__((hot))
// Puts a variable into the one 64-byte line that driver.cc begins. driver.o must be linked before the others' objects; a test
// of the binary checks that.
#define FIBSHIM_HOT_DATA __attribute__((section("fibshim_hot")))
