#include "shim/launch/learn.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/pool.h"
#include "shim/base/read_section.h"
#include "shim/base/settings_in_force.h"
#include "shim/base/upcalls.h"
#include "shim/driver/driver.h"
#include "shim/plan/plan.h"
#include "shim/plan/remembered.h"
#include "shim/registry/devices.h"
#include "shim/registry/images.h"

namespace fibshim {
namespace {

constexpr uint32_t kFewMatches = 16;      // patterns of one symbol that need no allocation
constexpr uint32_t kMaxCandidates = 255;  // Record::candidate_count

Pool g_match_pool;

enum class Answer { known, unknown, not_now };

// Reads the kernel's parameter table from the driver. Unknown: the driver cannot report it (before
// 12.4), or the kernel has more parameters than the launch path supports. Not now: the driver
// refused, but may not the next time. If the image gives their number (`known_count`), the driver
// is not asked past the last one, as tools that watch its calls would report an error.
Answer ask_params(const NewHandle& asked, uint32_t known_count, Param* params, uint32_t* count) {
  const void* const handle = asked.handle;
  const HandleKind kind = asked.kind;
  const auto function_info = FIBSHIM_REAL(cuFuncGetParamInfo);
  const auto kernel_info = FIBSHIM_REAL(cuKernelGetParamInfo);
  auto* const as_function = static_cast<CUfunction>(const_cast<void*>(handle));
  auto* const as_kernel = static_cast<CUkernel>(const_cast<void*>(handle));
  for (uint32_t i = 0; i <= kMaxParams; ++i) {
    if (i == known_count) {
      *count = i;
      return Answer::known;
    }
    size_t offset = 0;
    size_t size = 0;
    CUresult result;
    if (kind == HandleKind::kernel && kernel_info != nullptr) {
      result = kernel_info(as_kernel, i, &offset, &size);
    } else if (kind == HandleKind::function && function_info != nullptr) {
      result = function_info(as_function, i, &offset, &size);
    } else {
      return Answer::unknown;
    }
    if (result == CUDA_ERROR_INVALID_VALUE) {
      *count = i;
      return Answer::known;
    }
    if (result != CUDA_SUCCESS) return Answer::not_now;
    if (i == kMaxParams) return Answer::unknown;
    params[i] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(size)};
  }
  return Answer::unknown;
}

// Asks for the module or library of a handle whose look-up was not seen.
uintptr_t ask_owner(const void* handle, HandleKind kind) {
  const auto module_of = FIBSHIM_REAL(cuFuncGetModule);
  const auto library_of_kernel = FIBSHIM_REAL(cuKernelGetLibrary);
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  if (kind == HandleKind::function && module_of != nullptr &&
      module_of(&module, static_cast<CUfunction>(const_cast<void*>(handle))) == CUDA_SUCCESS) {
    return reinterpret_cast<uintptr_t>(module);
  }
  if (kind == HandleKind::kernel && library_of_kernel != nullptr &&
      library_of_kernel(&library, static_cast<CUkernel>(const_cast<void*>(handle))) ==
          CUDA_SUCCESS) {
    return reinterpret_cast<uintptr_t>(library);
  }
  return 0;
}

// For authors of patterns: the messages give the kernel's own values as patterns write them.
void explain_params(const char* symbol, const char* label, const Param* params, uint32_t count) {
  if (log_level() < LogLevel::info) return;
  char sizes[kMaxParams * 8 + 1] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < count && used < sizeof sizes; ++i) {
    used += static_cast<size_t>(
        snprintf(sizes + used, sizeof sizes - used, "%s%u", i == 0 ? "" : ", ", params[i].size));
  }
  log_message(LogLevel::info, "%s: fits the symbol of pattern %s, but its params are [%s]", symbol,
              label, sizes);
}

void explain_image(const char* symbol, const char* label, const ImageHashes* image) {
  if (image == nullptr) {
    log_message(LogLevel::info, "%s: pattern %s asks for an image, and this one's is not known",
                symbol, label);
    return;
  }
  log_message(LogLevel::info,
              "%s: pattern %s asks for another image; this one is xxh128:%016llx%016llx, its code "
              "code:%016llx%016llx",
              symbol, label, static_cast<unsigned long long>(image->file.high),
              static_cast<unsigned long long>(image->file.low),
              static_cast<unsigned long long>(image->code.high),
              static_cast<unsigned long long>(image->code.low));
}

// The patterns whose symbol fits a kernel; after keep_fitting() those that fit it entirely.
class Matches {
 public:
  Matches(const Generation& generation, const char* symbol) : generation_(generation) {
    if (!generation.knows_patterns()) return;
    const Snapshot* const snapshot = generation.snapshot;
    count_ = loader().match(snapshot, symbol, few_, kFewMatches);
    if (count_ <= kFewMatches) return;
    bytes_ = count_ * sizeof(SymbolMatch);
    matches_ = static_cast<SymbolMatch*>(g_match_pool.allocate(bytes_));
    has_memory_ = matches_ != nullptr;
    if (has_memory_) (void)loader().match(snapshot, symbol, matches_, count_);
  }
  ~Matches() {
    if (matches_ != few_) g_match_pool.release(matches_, bytes_);
  }
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;

  bool has_memory() const { return has_memory_; }
  uint32_t count() const { return count_; }
  // Counts matches of rewrites' members, which come last, as their patterns do.
  uint32_t count_members() const {
    const Pattern* const patterns = generation_.snapshot->begin(generation_.snapshot->patterns);
    uint32_t members = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      members += patterns[matches_[i].pattern].kind == PatternKind::member ? 1 : 0;
    }
    return members;
  }
  const SymbolMatch& operator[](uint32_t i) const { return matches_[i]; }
  bool merge_inputs(const NewHandle& kernel, const Param* params, MergedInputs* out) const {
    return fibshim::merge_inputs(*generation_.snapshot, matches_, kernel.candidate_count, params,
                                 kernel.param_count, out);
  }

  // Keeps the matches whose patterns fit the kernel.
  void keep_fitting(const char* symbol, const Param* params, uint32_t param_count,
                    uintptr_t image_owner) {
    const Snapshot& snapshot = *generation_.snapshot;
    ImageIdentity identity;
    const ImageHashes* image = nullptr;
    bool was_asked = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      const Pattern& pattern = snapshot.begin(snapshot.patterns)[matches_[i].pattern];
      if (pattern.images.count != 0 && !was_asked) {
        was_asked = true;
        if (find_image(image_owner, &identity)) image = &identity.hashes;
      }
      const char* const label = snapshot.text(pattern.label);
      switch (fit_pattern(snapshot, pattern, params, param_count, image)) {
        case Fit::fits: break;
        case Fit::other_layout: explain_params(symbol, label, params, param_count); continue;
        case Fit::other_image: explain_image(symbol, label, image); continue;
      }
      if (kept == kMaxCandidates) {
        log_message(LogLevel::warn, "%s: more than %u patterns fit; the rest are not tried", symbol,
                    kMaxCandidates);
        break;
      }
      matches_[kept++] = matches_[i];
    }
    count_ = kept;
  }

 private:
  const Generation& generation_;
  SymbolMatch few_[kFewMatches];
  SymbolMatch* matches_ = few_;
  uint32_t count_ = 0;
  size_t bytes_ = 0;
  bool has_memory_ = true;
};

// Makes a complete entry that is not in the table yet. `before`: the record of an earlier
// generation, which holds what the driver would be asked for, or null. Returns null if there is no
// memory, or the driver refuses for now.
HandleEntry* build_entry(const Generation& generation, NewHandle kernel, const Record* before) {
  Matches matches(generation, kernel.name);
  if (!matches.has_memory()) return nullptr;
  if (matches.count() == 0 && !is_recording() && before == nullptr) return make_entry(kernel);

  kernel.symbol = kernel.name;
  Param params[kMaxParams];
  if (kernel.image_owner == 0) kernel.image_owner = kernel.owner;
  uint32_t known_count = kMaxParams + 1;
  if (before == nullptr) (void)find_param_count(kernel.image_owner, kernel.name, &known_count);
  // find_param_count() above must not use this owner: the module may have been loaded unseen, at
  // the address of one that ended with its context.
  if (kernel.image_owner == 0) kernel.image_owner = ask_owner(kernel.handle, kernel.kind);
  Answer answer = Answer::known;
  if (before == nullptr) {
    answer = ask_params(kernel, known_count, params, &kernel.param_count);
  } else if (before->has_params) {
    kernel.param_count = before->param_count;
    memcpy(params, before->params, kernel.param_count * sizeof(Param));
  } else {
    answer = Answer::unknown;
  }
  if (answer == Answer::not_now) return nullptr;
  if (answer == Answer::unknown) {
    static std::atomic<bool> was_warned{false};
    const bool is_first = !was_warned.exchange(true, std::memory_order_relaxed);
    log_message(is_first ? LogLevel::warn : LogLevel::info,
                "%s: the driver does not tell its parameters (drivers from CUDA 12.4 on do); such "
                "kernels are left alone",
                kernel.name);
    kernel.param_count = 0;
    return make_entry(kernel);
  }
  matches.keep_fitting(kernel.name, params, kernel.param_count, kernel.image_owner);
  kernel.member_count = matches.count_members();
  kernel.candidate_count = matches.count() - kernel.member_count;
  // It must be known before the first decision whether the GPUs are alike.
  if (matches.count() != 0) (void)known_devices();
  MergedInputs inputs;
  const bool are_whole =
      kernel.candidate_count != 0 && matches.merge_inputs(kernel, params, &inputs);
  kernel.input_count = are_whole ? inputs.count : 0;
  HandleEntry* const entry = make_entry(kernel);
  if (entry == nullptr) return nullptr;
  Record& record = *entry->record;
  record.has_params = true;
  if (are_whole) fill_inputs(inputs, &record.inputs);
  memcpy(record.params, params, kernel.param_count * sizeof(Param));
  if (kernel.param_count != 0) {
    const Param& last = params[kernel.param_count - 1];
    record.params_bytes = last.offset + last.size;
  }
  for (uint32_t i = 0; i < kernel.candidate_count; ++i) {
    fill_candidate(*generation.snapshot, matches[i], &record.candidates[i]);
    record.candidates[i].generation = &generation;
  }
  if (kernel.member_count != 0) record.generation = &generation;
  for (uint32_t i = 0; i < kernel.member_count; ++i) {
    record.members[i] = matches[kernel.candidate_count + i].pattern;
  }
  return entry;
}

void load_replacements_of(const Generation& generation, const Pattern& pattern) {
  const Snapshot& snapshot = *generation.snapshot;
  const Devices* const devices = known_devices();
  const Route* const routes = snapshot.begin(pattern.routes);
  for (uint32_t r = 0; r < pattern.routes.count; ++r) {
    const Binding* const first = &snapshot.begin(snapshot.bindings)[routes[r].binding];
    for (const Binding* binding = first; binding != first + routes[r].count; ++binding) {
      if (binding->state != BindingState::ready || devices == nullptr) continue;
      for (uint32_t c = 0; c < devices->class_count; ++c) {
        (void)load_replacement(generation, *binding, c);
      }
    }
  }
}

// Loads every image that a launch of this handle may need, for every kind of GPU.
void load_replacements(const HandleEntry& entry) {
  const Record* const record = entry.record;
  if (record == nullptr) return;
  for (uint32_t i = 0; i < record->candidate_count; ++i) {
    load_replacements_of(*record->candidates[i].generation, *record->candidates[i].pattern);
  }
  for (uint32_t i = 0; i < record->member_count; ++i) {
    const Snapshot& snapshot = *record->generation->snapshot;
    const Pattern* const patterns = snapshot.begin(snapshot.patterns);
    const Rewrite& rewrite =
        snapshot.begin(snapshot.rewrites)[patterns[record->members[i]].rewrite];
    load_replacements_of(*record->generation, patterns[rewrite.pattern]);
  }
}

}  // namespace

uintptr_t library_of(const void* kernel) {
  const ReadSection section;
  const uintptr_t slot = find_handle(kernel);
  return slot == 0 ? 0 : entry_of(slot)->owner;
}

uintptr_t learn_handle(const void* handle, HandleKind kind, uintptr_t owner, const char* symbol,
                       uintptr_t image_owner, CUcontext context) {
  if (!upcalls().ensure_started() || handle == nullptr || symbol == nullptr) return 0;
  // No generation that is read here ends within this section.
  const ReadSection section;
  const uintptr_t known = find_handle(handle);
  // Hosts look up the same function repeatedly.
  if (known != 0 && (known & kUnmatched) == 0 &&
      is_same_handle(*entry_of(known), kind, owner, symbol)) {
    return known;
  }
  if (kind == HandleKind::function && context == nullptr) context = context_of_module(owner);
  const NewHandle given = {handle, kind, owner, image_owner, context, symbol, nullptr, 0, 0, 0, 0};
  for (;;) {
    const Generation& generation = *current_generation();
    HandleEntry* const entry = build_entry(generation, given, nullptr);
    uintptr_t value = 0;
    Inserted inserted = Inserted::no_memory;
    if (entry != nullptr) inserted = insert_entry(generation, entry, &value);
    if (inserted == Inserted::yes) {
      load_replacements(*entry);
      return value;
    }
    if (entry != nullptr) release_entry(entry);
    if (inserted == Inserted::no_memory) {
      forget_handle(handle);
      return 0;
    }
  }
}

uintptr_t learn_stranger(const void* handle) {
  if (!upcalls().ensure_started() || !resolve_driver()) return 0;
  const auto kernel_name = FIBSHIM_REAL(cuKernelGetName);
  const auto function_name = FIBSHIM_REAL(cuFuncGetName);
  const ReadSection section;
  const uintptr_t known = find_handle(handle);
  const HandleEntry none = {};
  const HandleEntry& entry = known != 0 ? *entry_of(known) : none;
  const auto learn = [&](HandleKind kind, const char* name) {
    uintptr_t owner = entry.owner;
    CUcontext context = entry.context;
    if (owner == 0) owner = ask_owner(handle, kind);
    if (kind == HandleKind::function && entry.owner == 0) {
      context = context_of_module(owner);
      // A module whose load was not seen may be one of a library, and ends with that.
      if (context == nullptr) owner = 0;
    }
    return learn_handle(handle, kind, owner, name, entry.image_owner, context);
  };
  // The names belong to the driver; learn_handle() copies what it needs.
  const char* name = nullptr;
  const auto ask = [&](HandleKind kind) {
    if (kind == HandleKind::function) {
      return function_name != nullptr &&
             function_name(&name, static_cast<CUfunction>(const_cast<void*>(handle))) ==
                 CUDA_SUCCESS;
    }
    return kernel_name != nullptr &&
           kernel_name(&name, static_cast<CUkernel>(const_cast<void*>(handle))) == CUDA_SUCCESS;
  };
  // Try the kind that the value had before: asking the driver for the wrong kind is an error.
  const HandleKind likely = entry.kind;
  const HandleKind other =
      likely == HandleKind::function ? HandleKind::kernel : HandleKind::function;
  if (ask(likely)) return learn(likely, name);
  if (ask(other)) return learn(other, name);
  return 0;
}

bool find_params(const void* handle, Param* params, uint32_t* count) {
  const ReadSection section;
  uintptr_t slot = find_handle(handle);
  if (slot == 0 || (slot & kUnmatched) != 0) slot = learn_stranger(handle);
  if (slot == 0) return false;
  const HandleEntry& entry = *entry_of(slot);
  if (entry.record != nullptr && entry.record->has_params) {
    *count = entry.record->param_count;
    memcpy(params, entry.record->params, *count * sizeof *params);
    return true;
  }
  const auto kernel_name = FIBSHIM_REAL(cuKernelGetName);
  const auto function_name = FIBSHIM_REAL(cuFuncGetName);
  const char* name = nullptr;
  uint32_t known_count = kMaxParams + 1;
  const bool is_named =
      entry.kind == HandleKind::kernel
          ? kernel_name != nullptr &&
                kernel_name(&name, static_cast<CUkernel>(const_cast<void*>(handle))) == CUDA_SUCCESS
          : function_name != nullptr &&
                function_name(&name, static_cast<CUfunction>(const_cast<void*>(handle))) ==
                    CUDA_SUCCESS;
  const uintptr_t image_owner = entry.image_owner == 0 ? entry.owner : entry.image_owner;
  if (is_named) (void)find_param_count(image_owner, name, &known_count);
  const NewHandle asked = {handle, entry.kind, entry.owner, image_owner, entry.context,
                           name,   nullptr,    0,           0,           0};
  return ask_params(asked, known_count, params, count) == Answer::known;
}

void lock_learning_for_fork() { g_match_pool.lock_for_fork(); }

void unlock_learning_after_fork(bool is_child) { g_match_pool.unlock_after_fork(is_child); }

HandleEntry* learn_successor(const Generation& next, const HandleEntry& old) {
  const Record& before = *old.record;
  HandleEntry* const entry =
      build_entry(next,
                  {reinterpret_cast<const void*>(old.handle), old.kind, old.owner, old.image_owner,
                   old.context, before.symbol, nullptr, 0, 0, 0},
                  &before);
  if (entry == nullptr) return nullptr;
  entry->record->recorded.store(before.recorded.load(std::memory_order_acquire),
                                std::memory_order_relaxed);
  load_replacements(*entry);
  return entry;
}

}  // namespace fibshim
