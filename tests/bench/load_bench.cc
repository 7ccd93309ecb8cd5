// Google Benchmark for the loader: reads and checks a whole folder, as a process does when it
// starts with the shim. Opens libfibloader.so as the shim does.
//
//   load_bench FOLDER [--benchmark_...]
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <stdio.h>

#include <filesystem>
#include <string>

#include "shim/abi/snapshot.h"

namespace {

const fibshim::LoaderApi* open_loader() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto path = self.parent_path().parent_path() / "lib/libfibloader.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return nullptr;
  }
  const auto entry = reinterpret_cast<decltype(&fibloader_api)>(dlsym(library, "fibloader_api"));
  return entry == nullptr ? nullptr : entry(fibshim::kLoaderApiVersion);
}

void open_folder(benchmark::State& state, const fibshim::LoaderApi* api, const char* folder) {
  char message[4096];
  for (auto _ : state) {
    const fibshim::Snapshot* snapshot = api->open(folder, {}, message, sizeof message);
    if (snapshot == nullptr || message[0] != 0) {
      state.SkipWithError(message);
      break;
    }
    state.counters["solutions"] = snapshot->solutions.count;
    state.counters["patterns"] = snapshot->patterns.count;
    state.counters["snapshot_bytes"] = snapshot->size_bytes;
    state.PauseTiming();
    api->close(snapshot);
    state.ResumeTiming();
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: load_bench FOLDER [--benchmark_...]\n");
    return 2;
  }
  const fibshim::LoaderApi* api = open_loader();
  if (api == nullptr) return 1;
  benchmark::RegisterBenchmark("open", open_folder, api, argv[1])->Iterations(1);
  return benchmark::RunSpecifiedBenchmarks() == 0 ? 1 : 0;
}
