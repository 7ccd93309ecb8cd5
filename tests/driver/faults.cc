// Faults that a test requests: named calls return given error codes. See simcuda.h for the syntax.
#include <fnmatch.h>
#include <string.h>

#include "tests/driver/later.h"

namespace simcuda {

std::atomic<bool> g_has_faults{false};

namespace {

struct Fault {
  std::string function;  // exported name, or its base
  std::string kernel;    // glob; empty: any
  int code;
  int64_t spared;  // how many more calls pass
  int64_t left;    // how many more calls fail; -1: all
};

std::mutex& fault_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}

std::vector<Fault>& faults() {
  static auto* all = new std::vector<Fault>;
  return *all;
}

// cuLaunchKernel_ptsz -> cuLaunchKernel, cuMemAlloc_v2 -> cuMemAlloc
std::string base_name(std::string name) {
  for (const char* suffix : {"_ptsz", "_ptds"}) {
    const size_t at = name.size() - strlen(suffix);
    if (name.size() > strlen(suffix) && name.compare(at, std::string::npos, suffix) == 0)
      name.resize(at);
  }
  const size_t at = name.rfind("_v");
  if (at != std::string::npos && at + 3 == name.size() && isdigit(name[at + 2])) name.resize(at);
  return name;
}

constexpr char kPoison[] = "poison";

bool parse(const std::string& text, std::vector<Fault>* parsed) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    at = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.rfind('=');
    if (equals == std::string::npos) return false;
    const size_t colon = item.find(':');
    Fault fault{};
    if (colon != std::string::npos && colon < equals) {
      fault.function = item.substr(0, colon);
      fault.kernel = item.substr(colon + 1, equals - colon - 1);
    } else {
      fault.function = item.substr(0, equals);
    }
    const bool is_poison = fault.function == kPoison && !fault.kernel.empty();
    if (fault.function.rfind("cu", 0) != 0 && !is_poison) return false;
    char* rest = nullptr;
    fault.code = static_cast<int>(strtol(item.c_str() + equals + 1, &rest, 10));
    fault.left = -1;
    if (rest == item.c_str() + equals + 1 || fault.code == 0) return false;
    if (*rest == '@') {
      const char* first = rest + 1;
      fault.spared = strtol(first, &rest, 10) - 1;
      if (rest == first || fault.spared < 0) return false;
    }
    if (*rest == '*') {
      const char* times = rest + 1;
      fault.left = strtol(times, &rest, 10);
      if (rest == times || fault.left < 0) return false;
    }
    if (*rest != 0) return false;
    parsed->push_back(fault);
  }
  return true;
}

// `kernel` is null at the start of a call, and set when a launch knows its kernel. A fault with a
// kernel strikes then, one without at the start.
CUresult find_fault_of(const std::string& exported, const char* kernel) {
  const std::lock_guard guard(fault_lock());
  for (Fault& fault : faults()) {
    if (fault.kernel.empty() != (kernel == nullptr) || fault.left == 0) continue;
    if (fault.function != exported && fault.function != base_name(exported)) continue;
    if (kernel != nullptr && fnmatch(fault.kernel.c_str(), kernel, 0) != 0) continue;
    if (fault.spared > 0) {
      --fault.spared;
      continue;
    }
    if (fault.left > 0) --fault.left;
    return static_cast<CUresult>(fault.code);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult find_fault(Api api, const char* kernel) {
  if (kernel == nullptr && runs_later()) run_before(api);
  SIM_TRY(find_seeded_fault(api, kernel));
  return find_fault_of(api_name(api), kernel);
}

CUresult find_poison(const char* kernel) { return find_fault_of(kPoison, kernel); }

}  // namespace simcuda

extern "C" int simcuda_set_faults(const char* text) {
  using namespace simcuda;
  std::vector<Fault> parsed;
  if (!parse(text != nullptr ? text : "", &parsed)) return 0;
  const std::lock_guard guard(fault_lock());
  faults() = std::move(parsed);
  g_has_faults.store(!faults().empty() || is_chaos_on() || runs_later());
  return 1;
}
