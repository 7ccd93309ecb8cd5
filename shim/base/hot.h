// What the fast side of a launch runs and reads lies together: the driver leaves little of the caches between two launches, so
// that each further line or page costs more than the instructions do.
#pragma once

#define FIBSHIM_HOT __attribute__((hot))
// A variable of one 64-byte line, which driver.cc begins. Of other objects the linker puts them behind it.
#define FIBSHIM_HOT_DATA __attribute__((section("fibshim_hot")))
