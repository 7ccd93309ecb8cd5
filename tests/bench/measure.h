// Runs the benchmark programs and gathers their results by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/bench/median.h"

namespace fibshim::bench {

// The results of one benchmark of one program: its repetitions in all rounds.
struct Samples {
  std::vector<double> time_ns;  // per iteration
  std::map<std::string, std::vector<double>> counters;
};
using Results = std::map<std::string, Samples>;  // by the benchmark's name

// The library between a program and the driver.
struct Preload {
  std::string library;  // a path; "": nothing
  std::string config;   // FIBSHIM_CONFIG; "": none
};

// The environment of a program that uses the simulated driver under a preload.
std::map<std::string, std::string> environment_of(const Preload& preload);

// Runs a Google Benchmark program of build/bench and adds its results. Throws std::runtime_error.
void run_benchmarks(const std::string& program, const std::vector<std::string>& arguments,
                    const Preload& preload, Results* results);

}  // namespace fibshim::bench
