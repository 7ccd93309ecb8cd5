// How functions of the driver are found: the answers of dlsym, dlvsym and cuGetProcAddress, and a
// replay of libcudart's questions. `reach` tests the hooked functions. The output of the other
// cases must be the same with and without the shim, so it contains no addresses.
#include <stdio.h>

#include <set>

#include "tests/conformance/hosts/host.h"

namespace conform {
namespace {

const char* const kHooks[] = {
#define HOOK(name, type) #name,
#include "shim/driver/hook_table.h"
#undef HOOK
};

bool is_hooked(const std::string& name) {
  static const std::set<std::string> names(std::begin(kHooks), std::end(kHooks));
  return names.count(name) != 0;
}

// The question to cuGetProcAddress whose answer is an exported function.
enum class Form { plain, ptsz, ptds };
struct Question {
  const char* exported;
  const char* base;
  int version;
  Form form;
};
const Question kSimulated[] = {
#define SYMBOL(exported, base, version, form) {#exported, #base, version, Form::form},
#include "tests/driver/symbols.def"
#undef SYMBOL
};

const Question& question_for(const char* exported) {
  for (const Question& one : kSimulated) {
    if (strcmp(one.exported, exported) == 0) return one;
  }
  fail(__FILE__, __LINE__,
       std::string("tests/driver/symbols.def has no ") + exported + ", which the shim hooks");
}

cuuint64_t flags_of(Form form) {
  return form == Form::plain ? CU_GET_PROC_ADDRESS_DEFAULT
                             : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

using GetProc4 = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetProc5 = CUresult (*)(const char*, void**, int, cuuint64_t,
                              CUdriverProcAddressQueryResult*);

void* reach(const std::string& way, const char* name) {
  const Question& question = question_for(name);
  void* found = nullptr;
  if (way == "dlsym") return dlsym(cuda().library, name);
  if (way == "dlsym_default") return dlsym(RTLD_DEFAULT, name);
  if (way == "dlvsym") return dlvsym(cuda().library, name, "libcuda.so.1");
  if (way == "getproc4") {
    const auto ask = reinterpret_cast<GetProc4>(dlsym(cuda().library, "cuGetProcAddress"));
    OK(ask(question.base, &found, question.version, flags_of(question.form)));
  } else if (way == "getproc5") {
    const auto ask = reinterpret_cast<GetProc5>(dlsym(cuda().library, "cuGetProcAddress_v2"));
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    OK(ask(question.base, &found, question.version, flags_of(question.form), &status));
    EXPECT_EQUAL(CU_GET_PROC_ADDRESS_SUCCESS, status);
    void* again = nullptr;
    OK(ask(question.base, &again, question.version, flags_of(question.form), nullptr));
    CHECK(again == found);
  } else {
    fail(__FILE__, __LINE__, "no way called " + way);
  }
  return found;
}

// Returns the exported name of a function, however it was found. In a real driver some have no
// name.
std::string name_of(const void* function) {
  if (function == nullptr) return "null";
  Dl_info info;
  const bool is_named =
      dladdr(function, &info) != 0 && info.dli_sname != nullptr && info.dli_saddr == function;
  CHECK(is_in_shim(function) == (is_shim_active() && is_named && is_hooked(info.dli_sname)));
  return is_named ? info.dli_sname : "unnamed";
}

// Every form of every function in cudaTypedefs.h: all that libcudart may ask for, and more.
struct Asked {
  const char* base;
  int version;
};
const Asked kAsked[] = {
#define QUESTION(base, version) {#base, version},
#include "conform_questions.def"
#undef QUESTION
};

}  // namespace
}  // namespace conform

using namespace conform;

// `reach WAY`: every hooked function that the driver has is the shim's.
CASE(reach) {
  int wrong = 0;
  int reached = 0;
  for (const char* name : kHooks) {
    if (dlsym(cuda().library, name) == nullptr) {
      if (cuda().is_simulated) fail(__FILE__, __LINE__, std::string(name) + " is not simulated");
      printf("this driver has no %s\n", name);
      continue;
    }
    ++reached;
    const void* function = reach(arguments.at(0), name);
    Dl_info info;
    const bool is_right = is_in_shim(function) && dladdr(function, &info) != 0 &&
                          info.dli_sname != nullptr && strcmp(info.dli_sname, name) == 0;
    if (is_right) continue;
    ++wrong;
    fprintf(stderr, "%s gives %s of %s\n", name, name_of(function).c_str(),
            object_of(function).c_str());
  }
  CHECK(wrong == 0);
  CHECK(reached > 30);
  state({}, {});
}

// Asks for about 440 names, by dlsym'ed resolvers of both ABIs (tools/doc/driver_facts.md, section
// 1), and prints each answer.
CASE(replay) {
  const auto ask4 = reinterpret_cast<GetProc4>(dlsym(cuda().library, "cuGetProcAddress"));
  const auto ask5 = reinterpret_cast<GetProc5>(dlsym(cuda().library, "cuGetProcAddress_v2"));
  CHECK(ask4 != nullptr && ask5 != nullptr);
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  for (const Asked& one : kAsked) {
    for (const int version : {one.version, 2000, 11030, 12000, 13000, 99000}) {
      for (const cuuint64_t flags : {cuuint64_t{CU_GET_PROC_ADDRESS_DEFAULT},
                                     cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM}, kPerThread}) {
        // If there is no answer, the pointer must stay unchanged or become null, as with the
        // driver.
        void* const poison = reinterpret_cast<void*>(&run_replay);
        void* found4 = poison;
        void* found5 = poison;
        void* without_status = poison;
        auto status = static_cast<CUdriverProcAddressQueryResult>(77);
        const CUresult result4 = ask4(one.base, &found4, version, flags);
        const CUresult result5 = ask5(one.base, &found5, version, flags, &status);
        const CUresult result_null = ask5(one.base, &without_status, version, flags, nullptr);
        const auto text = [&](void* found) {
          return found == poison ? std::string("untouched") : name_of(found);
        };
        printf("%s %d %llu: %d %s, %d %s %d, %d %s\n", one.base, version,
               static_cast<unsigned long long>(flags), result4, text(found4).c_str(), result5,
               text(found5).c_str(), status, result_null, text(without_status).c_str());
      }
    }
  }
}

// Invalid questions are answered as the driver does.
CASE(replay_wrong) {
  const auto ask4 = reinterpret_cast<GetProc4>(dlsym(cuda().library, "cuGetProcAddress"));
  const auto ask5 = reinterpret_cast<GetProc5>(dlsym(cuda().library, "cuGetProcAddress_v2"));
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  void* found = nullptr;
  printf("%d %d\n", ask4("cuNoSuchThing", &found, 12000, 0),
         ask5("cuNoSuchThing", &found, 12000, 0, &status));
  printf("status %d, found %s\n", status, found == nullptr ? "null" : "something");
  for (const char* name : {"", "cu", "cuLaunchKernel_ptsz", "cuLaunchKernelX", "culaunchkernel",
                           "cudnnCreate", "cuGetProcAddress_v2"}) {
    found = nullptr;
    const CUresult result4 = ask4(name, &found, 12000, 0);
    const std::string first = name_of(found);
    found = nullptr;
    const CUresult result5 = ask5(name, &found, 12000, 0, &status);
    printf("\"%s\": %d %s, %d %s %d\n", name, result4, first.c_str(), result5,
           name_of(found).c_str(), status);
  }
  // A real driver reads and writes through null here.
  if (cuda().is_simulated) {
    printf("no place: %d %d\n", ask4("cuLaunchKernel", nullptr, 12000, 0),
           ask5("cuLaunchKernel", nullptr, 12000, 0, &status));
    printf("no name: %d %d\n", ask4(nullptr, &found, 12000, 0),
           ask5(nullptr, &found, 12000, 0, nullptr));
  }
  printf("wrong flags: %d %d\n", ask4("cuLaunchKernel", &found, 12000, 64),
         ask5("cuLaunchKernel", &found, 12000, 64, &status));
}

// At 11030 the resolver has 4 arguments, at 12000 it has 5, and each is found by both; and
// functions whose parameters changed between versions.
CASE(abi_versions) {
  const auto ask4 = reinterpret_cast<GetProc4>(dlsym(cuda().library, "cuGetProcAddress"));
  const auto ask5 = reinterpret_cast<GetProc5>(dlsym(cuda().library, "cuGetProcAddress_v2"));
  const auto both = [&](const char* base, int version) {
    void* found4 = nullptr;
    void* found5 = nullptr;
    OK(ask4(base, &found4, version, 0));
    OK(ask5(base, &found5, version, 0, nullptr));
    CHECK(found4 == found5);
    return found4;
  };
  CHECK(both("cuGetProcAddress", 11030) == reinterpret_cast<void*>(ask4));
  CHECK(both("cuGetProcAddress", 12000) == reinterpret_cast<void*>(ask5));
  const struct {
    const char* base;
    int version;
    const char* exported;
  } rows[] = {
      {"cuGraphInstantiate", 10000, "cuGraphInstantiate"},
      {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
      {"cuGraphExecUpdate", 10020, "cuGraphExecUpdate"},
      {"cuGraphExecUpdate", 12000, "cuGraphExecUpdate_v2"},
      {"cuGraphExecKernelNodeSetParams", 10010, "cuGraphExecKernelNodeSetParams"},
      {"cuGraphExecKernelNodeSetParams", 12000, "cuGraphExecKernelNodeSetParams_v2"},
      {"cuCtxDestroy", 2000, "cuCtxDestroy"},
      {"cuCtxDestroy", 4000, "cuCtxDestroy_v2"},
      {"cuStreamBeginCapture", 10000, "cuStreamBeginCapture"},
      {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
  };
  for (const auto& row : rows) {
    void* exported = dlsym(cuda().library, row.exported);
    CHECK(is_in_shim(exported));
    if (both(row.base, row.version) != exported) {
      fail(__FILE__, __LINE__, std::string(row.base) + " at " + std::to_string(row.version));
    }
  }
  // As CUDA 13 calls it, with two arguments, and as before, with one.
  const Gpu gpu;
  CUdevice device = -1;
  OK(reinterpret_cast<PFN_cuCtxGetDevice_v2000>(both("cuCtxGetDevice", 2000))(&device));
  EXPECT_EQUAL(gpu.device(), device);
  void* with_context = nullptr;
  if (ask5("cuCtxGetDevice", &with_context, 13000, 0, nullptr) == CUDA_SUCCESS &&
      with_context != both("cuCtxGetDevice", 2000)) {
    device = -1;
    OK(reinterpret_cast<PFN_cuCtxGetDevice_v13000>(with_context)(&device, gpu.context()));
    EXPECT_EQUAL(gpu.device(), device);
  }
  state({}, {});
}

// All functions are found and called before cuInit: no crash, and the driver's own answers.
CASE(before_init) {
  void* found = nullptr;
  const auto ask5 = reinterpret_cast<GetProc5>(dlsym(cuda().library, "cuGetProcAddress_v2"));
  const auto ask4 = reinterpret_cast<GetProc4>(dlsym(cuda().library, "cuGetProcAddress"));
  printf("%d\n", ask5("cuLaunchKernel", &found, 12000, 0, nullptr));
  printf("%d\n", ask4("cuLaunchKernel", &found, 11030, 0));
  CHECK(found != nullptr);
  const auto launch = reinterpret_cast<PFN_cuLaunchKernel_v4000>(found);
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  CUgraphNode node = nullptr;
  auto config = zeroed<CUlaunchConfig>();
  printf("%d\n", launch(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  printf("%d\n", cuda().cuLaunchKernelEx(&config, nullptr, nullptr, nullptr));
  printf("%d\n", cuda().cuLaunchCooperativeKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr));
  printf("%d\n", cuda().cuModuleLoadData(&module, image(kImage).data()));
  printf("%d\n", cuda().cuModuleGetFunction(&function, nullptr, kStep));
  printf("%d\n", cuda().cuLibraryLoadData(&library, image(kImage).data(), nullptr, nullptr, 0,
                                          nullptr, nullptr, 0));
  printf("%d\n", cuda().cuModuleUnload(nullptr));
  printf("%d\n", cuda().cuLibraryUnload(nullptr));
  printf("%d\n", cuda().cuCtxDestroy_v2(nullptr));
  printf("%d\n", cuda().cuDevicePrimaryCtxReset_v2(0));
  printf("%d\n", cuda().cuGraphDestroyNode(node));
  CHECK(module == nullptr && library == nullptr && function == nullptr);
  // After that everything works.
  const Gpu gpu;
  OK(gpu.launch(gpu.step()));
  gpu.expect_last_value(7);
}
