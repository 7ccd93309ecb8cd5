#include "shim/graphs/shadow_exec.h"

#include "shim/base/read_section.h"
#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/graph_edges.h"
#include "shim/graphs/make_variant.h"
#include "shim/graphs/merged_kernels.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/registry/decisions.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

constexpr uint32_t kChecksOfSample = 8;
constexpr uint32_t kMoreVisits = 50;  // soon after each other, once a launch had none
// After which a sample that no launch has taken gives its room to others.
constexpr uint32_t kIdleVisits = 100;
constexpr uint32_t kVisitsAhead = 32;  // within which a launch is to take what is made now

bool is_replaced(CounterIndex counter) {
  const Outcome outcome = outcome_of_counter(counter);
  return outcome == Outcome::hit || outcome == Outcome::absorbed;
}

// How often it was launched since the last look, about; 0 at the first one.
uint32_t count_launches(Exec* exec) {
  const uint32_t before = exec->seen_sample;
  const uint32_t left = exec->seen_sample = exec->sample_in.load(std::memory_order_relaxed);
  if (before > left) return before - left;
  return exec->lacks_shadow.load(std::memory_order_relaxed) || (before != 0 && before != left) ? 1
                                                                                               : 0;
}

bool lacks_room(const Exec& exec) { return exec.lacks_room.load(std::memory_order_relaxed); }

bool reserve_room(Exec* exec, Variant* variant) {
  const bool has_room = reserve_sample_room(variant);
  exec->lacks_room.store(!has_room, std::memory_order_relaxed);
  return has_room;
}

enum class Added : uint8_t { check, nothing, no_room, failed };

// A sample that is being made.
class Sample {
 public:
  Sample(Exec* exec, const Variant& running)
      : exec_(*exec), running_(running), originals_(current_originals(exec)) {}
  ~Sample() { end_variant(variant_); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  // Null: it has no check, there is no room, or the driver refuses.
  Variant* make() {
    const size_t count = exec_.nodes.count();
    variant_ = make_variant(count);
    if (variant_ == nullptr) return nullptr;
    variant_->is_sample = true;
    if (!reserve_room(&exec_, variant_)) return nullptr;
    if (!copy_originals(originals_, variant_, &kernels_)) return nullptr;
    uint32_t checks = 0;
    for (size_t i = 0; i < count && checks < kChecksOfSample; ++i) {
      const size_t index = exec_.next_checked % count;
      exec_.next_checked = static_cast<uint32_t>(index + 1);
      if (!may_be_checked(index)) continue;
      const Added added = add_check(index);
      if (added == Added::failed) return nullptr;
      if (added == Added::check) ++checks;
      if (added != Added::no_room) continue;
      exec_.next_checked = static_cast<uint32_t>(index);
      break;
    }
    if (variant_->checks.count() == 0 || !instantiate_variant(originals_, variant_)) return nullptr;
    upload_variant(*variant_);
    Variant* const made = variant_;
    variant_ = nullptr;
    return made;
  }

 private:
  // True for a replaced node outside child graphs; for a rewrite at the first of its kernels.
  bool may_be_checked(size_t index) const {
    const VariantNode& node = running_.nodes[index];
    return node.solution != 0 && (node.shape.runs_in == 0 || node.shape.runs_in == index + 1) &&
           kernels_[index].is_certain && !exec_.nodes[index].is_disabled &&
           !exec_.nodes[index].has_no_check;
  }

  Added add_check(size_t index) {
    if (running_.nodes[index].shape.runs_in != 0) return add_check_of_rewrite(index);
    KernelNode& known = exec_.nodes[index];
    NodeParams params;
    NodePlan plan;
    LaunchRequest request;
    if (!read_kernel(known.kept, &params) ||
        plan_node(params, attributes_of(known.kept, &known.facts).cluster, &request, &plan) !=
            LaunchAction::redirect) {
      return Added::nothing;
    }
    const auto only = static_cast<uint32_t>(index);
    return add_check_of(&only, 1, params, request, plan);
  }

  Added add_check_of_rewrite(size_t first) {
    RewriteCall call;
    NodePlan plan;
    uint32_t members[kMaxRewriteKernels];
    if (!read_instance(originals_, running_, first, members, &call) ||
        plan_rewrite(&call, &plan) != LaunchAction::redirect) {
      return Added::nothing;
    }
    return add_check_of(members, call.rewrite->member_count, call.first, call.request, plan);
  }

  // Adds a check of kernels that are replaced as one: the solution runs before all of them, the
  // comparison after them.
  Added add_check_of(const uint32_t* indexes, uint32_t count, const NodeParams& params,
                     const LaunchRequest& request, const NodePlan& plan) {
    if (!is_in_context(params) || !is_sampled(plan)) return Added::nothing;
    CUgraph const graph = variant_->graph;
    CUgraphNode members[kMaxRewriteKernels];
    Block<CUgraphNode> before;
    Block<CUgraphNode> after;
    for (uint32_t i = 0; i < count; ++i) members[i] = kernels_[indexes[i]].node;
    if (!make_all_edges_full(graph, members, count) ||
        !list_around(members, count, &before, &after)) {
      return Added::failed;
    }
    ShadowNodes nodes = {graph, before.begin(), before.count(), 0, 0, {}};
    ShadowLaunch shadow(request, plan.launch, &nodes);
    if (nodes.number != 0) {
      uint32_t* const added = variant_->checks.append();
      if (added == nullptr) {
        end_check_in_graph(nodes.number, false);
        return Added::failed;
      }
      *added = nodes.number;
    }
    if (shadow.plan() == nullptr) {
      if (shadow.miss() == ShadowMiss::busy) return Added::no_room;
      exec_.nodes[indexes[0]].has_no_check = shadow.miss() == ShadowMiss::extent ||
                                             shadow.miss() == ShadowMiss::size ||
                                             shadow.miss() == ShadowMiss::launch;
      // The graph may hold copies into room that is free again. The next sample leaves the node out.
      return nodes.number != 0 ? Added::failed : Added::nothing;
    }
    if (!give_workspace(variant_, indexes[0], false, context_of(params, plan.launch),
                        shadow.plan())) {
      exec_.nodes[indexes[0]].has_no_check = true;
      return Added::failed;
    }
    CUgraphNode const solution = add_solution(params, *shadow.plan(), nodes);
    CUgraphNode const comparison =
        solution == nullptr ? nullptr : shadow.compare_in_graph(members[0]);
    if (comparison == nullptr) return Added::failed;
    for (uint32_t i = 0; i < count; ++i) {
      if (!add_edge(solution, members[i]) || (i != 0 && !add_edge(members[i], comparison))) {
        return Added::failed;
      }
    }
    for (const CUgraphNode later : after) {
      if (!add_edge(comparison, later)) return Added::failed;
    }
    return Added::check;
  }

  // A kernel of another context may not reach the copies.
  bool is_in_context(const NodeParams& params) const {
    CUcontext context = params.ctx;
    const uintptr_t known = find_handle(handle_of(params));
    if (context == nullptr && known != 0) context = entry_of(known)->context;
    return context == nullptr || context == exec_.context;
  }

  static bool is_sampled(const NodePlan& plan) {
    return shadow_interval(*plan.launch.decision->snapshot, solution_of(plan)) != 0;
  }

  // Null: the driver refuses.
  CUgraphNode add_solution(const NodeParams& original, const LaunchPlan& launch,
                           const ShadowNodes& nodes) const {
    const auto add = FIBSHIM_REAL(cuGraphAddKernelNode_v2);
    const NodeParams params = params_of(original, launch);
    CUgraphNode node = nullptr;
    if (add == nullptr ||
        add(&node, variant_->graph, nodes.copies, nodes.copy_count, &params) != CUDA_SUCCESS) {
      return nullptr;
    }
    const uint32_t cluster[3] = {launch.geometry[kClusterX], launch.geometry[kClusterY],
                                 launch.geometry[kClusterZ]};
    return !has_cluster(launch) || set_cluster(node, cluster) ? node : nullptr;
  }

  bool add_edge(CUgraphNode before, CUgraphNode node) const {
    const auto add = FIBSHIM_REAL(cuGraphAddDependencies_v2);
    return add != nullptr && add(variant_->graph, &before, &node, nullptr, 1) == CUDA_SUCCESS;
  }

  Exec& exec_;
  const Variant& running_;
  const Originals originals_;
  Variant* variant_ = nullptr;
  Block<CopiedKernel> kernels_;
};

// Null: the driver refuses, or there is no room.
Variant* make_unreplaced(Exec* exec) {
  const Originals originals = current_originals(exec);
  Variant* const variant = make_variant(exec->nodes.count());
  Block<CopiedKernel> kernels;
  if (variant == nullptr) return nullptr;
  variant->is_sample = true;
  if (reserve_room(exec, variant) && copy_originals(originals, variant, &kernels) &&
      instantiate_variant(originals, variant)) {
    return variant;
  }
  end_variant(variant);
  return nullptr;
}

// Holding its lock, within a read section. True: it was launched meanwhile, and had none.
bool prepare(Exec* exec) {
  if (!follow_shadow_rules(exec)) {
    drop_shadow(exec);
    return false;
  }
  const uint32_t launches = count_launches(exec);
  exec->idle_visits = launches == 0 ? exec->idle_visits + 1 : 0;
  if (exec->idle_visits > kIdleVisits) drop_shadow(exec);
  if (launches == 0 || exec->shadow.load(std::memory_order_relaxed) != nullptr) return false;
  exec->lacks_shadow.store(false, std::memory_order_relaxed);
  // Its room is better used by others.
  if (exec->seen_sample / kVisitsAhead > launches) return false;
  const ContextScope scope(exec->context);
  if (!scope.is_current()) return false;
  const RelaxedCapture relaxed;
  Variant* const running = exec->running.load(std::memory_order_acquire);
  Variant* const made = Sample(exec, *running).make();
  exec->shadow.store(made, std::memory_order_release);
  return true;
}

// Calls `use` for every exec, with its lock held.
template <class Use>
void for_each_exec(const Use& use) {
  PinnedExecs execs;
  for (size_t i = 0; i < execs.count(); ++i) {
    MutexGuard guard(execs[i]->lock);
    const ReadSection section;
    use(execs[i]);
  }
}

}  // namespace

bool keep_unreplaced(Exec* exec, const Variant& variant) {
  if (!exec->is_in_place || exec->originals == nullptr || sample_interval_of(variant) == 0 ||
      exec->unreplaced.load(std::memory_order_relaxed) != nullptr) {
    return false;
  }
  const ContextScope scope(exec->context);
  const RelaxedCapture relaxed;
  Variant* const made = scope.is_current() ? make_unreplaced(exec) : nullptr;
  exec->unreplaced.store(made, std::memory_order_release);
  return made != nullptr;
}

bool follow_shadow_rules(Exec* exec) {
  const Generation* const generation = current_generation();
  if (exec->originals == nullptr || exec->is_frozen || exec->ending != 0 || generation == nullptr)
    return false;
  // A launch may be taking over another one: what it ran until now is ended by this thread alone.
  Variant* const ready = exec->ready.load(std::memory_order_acquire);
  Variant* const running = exec->running.load(std::memory_order_acquire);
  bool is_wanted = false;
  for (Variant* const variant : {ready, running}) {
    if (variant == nullptr) continue;
    if (variant->generation == generation->number && variant->rules != shadow_rules_number()) {
      find_sample_interval(variant);
    }
    is_wanted |= sample_interval_of(*variant) != 0;
    if (keep_unreplaced(exec, *variant)) upload_variant(*exec->unreplaced.load());
  }
  if (is_wanted) {
    exec->asks.fetch_and(~kIsNoMore, std::memory_order_relaxed);
  } else if (exec->unreplaced.load(std::memory_order_relaxed) != nullptr) {
    exec->asks.fetch_or(kIsNoMore, std::memory_order_relaxed);
  }
  follow_interval(exec);
  return running->generation == generation->number && sample_interval_of(*running) != 0;
}

Variant* choose_variant(Exec* exec) {
  Variant* const running = exec->running.load(std::memory_order_relaxed);
  if (skip_sample(exec, kIsSampled)) return running;
  const uint32_t interval = sample_interval_of(*running);
  if (interval == 0) return running;
  exec->sample_in.store(draw_sample(interval), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // If the rate was changed meanwhile, check the next launch, which draws by the new rate.
  if (sample_interval_of(*running) != interval) exec->sample_in.store(1, std::memory_order_relaxed);
  Variant* const shadow = exec->shadow.exchange(nullptr, std::memory_order_acq_rel);
  exec->lacks_shadow.store(true, std::memory_order_relaxed);
  return shadow != nullptr ? shadow : unchecked_variant(exec);
}

Variant* unchecked_variant(Exec* exec) {
  if (!exec->is_in_place) return &exec->plain;
  Variant* const unreplaced = exec->unreplaced.load(std::memory_order_acquire);
  return unreplaced != nullptr ? unreplaced : unchecked_running(exec);
}

Variant* unchecked_running(Exec* exec) {
  Variant* const running = exec->running.load(std::memory_order_relaxed);
  for (const Run& run : running->runs) {
    if (run.number == 0 || !is_replaced(run.counter)) continue;
    count_unchecked_graph(series_of_counter(run.counter), lacks_room(*exec));
    break;
  }
  return running;
}

void count_sample(Exec* exec, Variant* sample) {
  const Variant& running = *exec->running.load(std::memory_order_relaxed);
  uint32_t series = 0;
  for (const Run& run : running.runs) {
    if (run.number == 0) continue;
    const bool would_be_hit = is_replaced(run.counter);
    const CounterIndex counter =
        would_be_hit ? counter_of(series_of_counter(run.counter), Outcome::shadowed) : run.counter;
    if (would_be_hit && series == 0) series = series_of_counter(run.counter);
    count_many(counter_of_kind(counter, CountKind::node_run), run.number);
  }
  sample->was_launched = true;
  if (sample->checks.count() == 0 && series != 0) count_unchecked_graph(series, lacks_room(*exec));
}

void follow_shadow_rules() {
  if (wants_shadow()) for_each_exec([](Exec* exec) { (void)follow_shadow_rules(exec); });
}

bool prepare_shadows() {
  if (!wants_shadow() || !has_shadow()) return false;
  static uint32_t visits_left;
  if (visits_left != 0) --visits_left;
  for_each_exec([](Exec* exec) {
    if (prepare(exec)) visits_left = kMoreVisits;
  });
  return visits_left != 0;
}

}  // namespace fibshim
