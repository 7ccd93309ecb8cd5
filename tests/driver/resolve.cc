// Both forms of cuGetProcAddress, from the one table of exported functions (symbols.def). Also
// checks that the table's types are those of cudaTypedefs.h.
#include "tests/driver/driver.h"

#include <string.h>

#include <type_traits>

namespace simcuda {
namespace {

struct Symbol {
  const char* base;  // the name for cuGetProcAddress
  int version;       // the CUDA version that introduced this form
  bool is_ptsz;      // the form for per-thread default streams
  Api api;
};

enum class Form { plain, ptsz, ptds };
const Symbol kSymbols[] = {
#define SYMBOL(exported, base, version, form) \
  {#base, version, Form::form != Form::plain, Api::exported},
#include "tests/driver/symbols.def"
#undef SYMBOL
};

// Compares the table with cudaTypedefs.h: the type of each form at its version.
#define PFN_plain(base, version) PFN_##base##_v##version
#define PFN_ptsz(base, version) PFN_##base##_v##version##_ptsz
#define PFN_ptds(base, version) PFN_##base##_v##version##_ptds
#define SYMBOL(exported, base, version, form)                                     \
  static_assert(std::is_same_v<decltype(&::exported), PFN_##form(base, version)>, \
                #exported " is not what cuGetProcAddress promises for " #base);
#include "tests/driver/symbols.def"
#undef SYMBOL

// Finds the newest form that the caller's version knows, the per-thread one if requested and
// present. A name that is not found is no error: the pointer is then null, and the status says why.
CUresult resolve(const char* symbol, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr || version > kDriverVersion ||
      (flags & ~cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const bool wants_ptsz = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Symbol* best = nullptr;
  bool is_known = false;
  for (const Symbol& candidate : kSymbols) {
    if (strcmp(candidate.base, symbol) != 0) continue;
    is_known = true;
    if (candidate.version > version || (candidate.is_ptsz && !wants_ptsz)) continue;
    if (best == nullptr || candidate.version > best->version ||
        (candidate.version == best->version && candidate.is_ptsz))
      best = &candidate;
  }
  *function = best != nullptr ? exported_function(best->api) : nullptr;
  if (status != nullptr)
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : is_known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

// Both work before cuInit.
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  count_call(*thread_state().records, Api::cuGetProcAddress);
  if (g_has_faults.load()) {
    SIM_TRY(find_fault(Api::cuGetProcAddress, nullptr));
  }
  const CUresult result = resolve(symbol, function, version, flags, nullptr);
  // As documented for CUDA 11, which introduced this form.
  return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  count_call(*thread_state().records, Api::cuGetProcAddress_v2);
  if (g_has_faults.load()) {
    SIM_TRY(find_fault(Api::cuGetProcAddress_v2, nullptr));
  }
  return resolve(symbol, function, version, flags, status);
}

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  count_call(*thread_state().records, Api::cuGetExportTable);
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
