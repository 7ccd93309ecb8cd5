#include "shim/graphs/new_exec.h"

#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/driver/driver.h"
#include "shim/graphs/bodies.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/follow_update.h"
#include "shim/graphs/make_variant.h"
#include "shim/graphs/merged_kernels.h"
#include "shim/graphs/rewrites.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/shadow_rules.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

bool is_for_device_launch(const Instantiation& instantiation) {
  return (instantiation.flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
}

// True if the graph's nodes must not be replaced; `*reason` says why.
bool is_left(const Survey& survey, const Instantiation& instantiation, bool is_update,
             GraphReason* reason) {
  if (is_for_device_launch(instantiation)) {
    *reason = GraphReason::device_launch;
    return true;
  }
  // The driver refuses updates with such nodes.
  if (!is_update && survey.has_updatable_nodes()) {
    *reason = GraphReason::device_update;
    return true;
  }
  *reason = GraphReason::unchecked;
  return survey.has_uncopied && survey.is_always_checked;
}

// Keeps the original of every node.
void leave_as_it_is(Survey* survey, GraphReason reason) {
  log_message(LogLevel::info, "a graph runs as it is: %s", meaning_of(reason));
  for (CounterIndex& counter : survey->counters) {
    if (counter != kNoCounter) counter = keep_original(counter, reason);
  }
  survey->has_redirects = survey->has_members = survey->has_observed = false;
}

// True if the folder in force has something for the graph.
bool is_concerned(const Survey& survey) {
  return survey.has_redirects || survey.has_members || survey.has_observed;
}

void adopt_survey(Survey* survey, Exec* exec) {
  exec->nodes.swap(survey->nodes);
  exec->owners.swap(survey->owners);
}

void set_solutions(const Exec& exec, const Survey& survey, Variant* variant) {
  if (survey.solutions.count() == 0) return;
  variant->generation = exec.tried;
  for (size_t i = 0; i < survey.solutions.count(); ++i) {
    variant->nodes[i].solution = survey.solutions[i];
  }
  const ReadSection section;
  find_sample_interval(variant);
}

// Makes the variant that stands for the host's own exec.
Variant* make_in_host(const Exec& exec, const Survey& survey) {
  Variant* const variant = make_host_variant(exec, survey.counters);
  if (variant != nullptr) set_solutions(exec, survey, variant);
  return variant;
}

// Updates that variant if it runs already. Requires that no node is disabled. False: make another.
bool update_in_host(const Exec& exec, const Survey& survey, Variant* running) {
  if (!running->is_host() || running->nodes.count() != survey.counters.count()) return false;
  for (size_t i = 0; i < survey.counters.count(); ++i) {
    VariantNode& node = running->nodes[i];
    node.solution = 0;
    if (node.counter != survey.counters[i]) {
      (void)count_node_as(running, i, survey.counters[i], false);
    }
  }
  running->generation = running->rules = 0;
  __atomic_store_n(&running->sample_interval, 0, __ATOMIC_RELAXED);
  set_solutions(exec, survey, running);
  return true;
}

// True if its nodes differ from the host's in more than parameters.
bool needs_own_exec(const Variant& variant) {
  if (variant.is_host() || variant.has_rewrites) return variant.has_rewrites;
  for (const VariantNode& node : variant.nodes) {
    if (!is_same_shape(node.shape, {})) return true;
  }
  return false;
}

// True if the survey found the nodes that the exec was made from, in their order.
bool has_first_nodes(const Survey& survey, const Exec& exec) {
  const size_t count = survey.host_nodes.count();
  bool is_same = count == exec.host_nodes.count();
  for (size_t i = 0; is_same && i < count; ++i) {
    is_same = survey.host_nodes[i].node == exec.host_nodes[i].node &&
              survey.host_nodes[i].index == exec.host_nodes[i].index;
  }
  return is_same;
}

// Copies the host's graph and finds the copies of its nodes. False: that is not possible.
bool keep_originals(CUgraph graph, const Survey& survey, Exec* exec) {
  const auto clone = FIBSHIM_REAL(cuGraphClone);
  CUgraph copy = nullptr;
  if (clone == nullptr || clone(&copy, graph) != CUDA_SUCCESS) return false;
  exec->originals = copy;
  exec->taken_over.remember_copied(graph);
  bool is_flat = true;
  for (size_t i = 0; is_flat && i < survey.host_nodes.count(); ++i) {
    KernelNode& node = exec->nodes[survey.host_nodes[i].index];
    node.is_certain = is_flat = find_in_clone(survey.host_nodes[i].node, copy, &node.kept);
  }
  if (is_flat) return true;
  size_t index = 0;
  return for_each_copied_kernel(graph, copy,
                                [&](CUgraphNode, CUgraph, CUgraphNode kept, bool is_certain) {
                                  if (index == exec->nodes.count()) return false;
                                  exec->nodes[index].kept = kept;
                                  exec->nodes[index].is_certain = is_certain;
                                  ++index;
                                  return true;
                                }) &&
         index == exec->nodes.count();
}

// Keeps the existing copy, and its owners, since its nodes hold their old kernels until it is
// brought up to date. False: no memory.
bool keep_copies(const Exec& exec, Survey* survey) {
  for (size_t i = 0; i < exec.nodes.count(); ++i) {
    survey->nodes[i].kept = exec.nodes[i].kept;
    survey->nodes[i].is_certain = exec.nodes[i].is_certain;
  }
  for (const uintptr_t owner : exec.owners) {
    if (!add_owner(owner, &survey->owners)) return false;
  }
  return true;
}

// True if both agree in all properties that an exec keeps from its instantiation.
bool have_same_shapes(const Variant& one, const Variant& other) {
  if (one.nodes.count() != other.nodes.count()) return false;
  for (size_t i = 0; i < one.nodes.count(); ++i) {
    if (!is_same_shape(one.nodes[i].shape, other.nodes[i].shape)) return false;
  }
  return true;
}

// Updates the running variant's exec from the graph of `variant`, which has no exec, as the host's
// exec was updated. The previous graph is then in `variant`. Shapes must be the same: the driver
// reports success for an update with other clusters, but runs the previous ones.
bool update_variant(Variant* running, Variant* variant) {
  const auto update = FIBSHIM_REAL(cuGraphExecUpdate_v2);
  CUgraphExecUpdateResultInfo info = {};
  if (running == nullptr || running->is_host() || !have_same_shapes(*running, *variant) ||
      update == nullptr || update(running->exec, variant->graph, &info) != CUDA_SUCCESS) {
    return false;
  }
  CUgraph const graph = running->graph;
  running->graph = variant->graph;
  variant->graph = graph;
  running->generation = variant->generation;
  running->sample_interval = sample_interval_of(*variant);
  running->rules = variant->rules;
  running->nodes.swap(variant->nodes);
  running->runs.swap(variant->runs);
  running->merges.swap(variant->merges);
  running->workspaces.swap(variant->workspaces);
  return true;
}

// Keeps a copy of the graph, and makes the variant that is to run from it. `running`: the variant
// that runs so far, which is updated and returned if possible; null: none. Returns null if the
// host's exec is to run.
Variant* make_own(CUgraph graph, Survey* survey, Exec* exec, Variant* running) {
  if (!is_concerned(*survey)) return nullptr;
  if (survey->has_uncopied || !keep_originals(graph, *survey, exec)) {
    drop_originals(exec);
    leave_as_it_is(survey, GraphReason::not_copied);
    return nullptr;
  }
  const ReadSection section;
  exec->tried = current_generation()->number;
  if (!survey->has_redirects && (survey->is_one_for_one || !survey->has_members)) return nullptr;
  Variant* variant = nullptr;
  const Originals originals = current_originals(exec);
  const Made made = make_rewritten(originals, &variant);
  if (made == Made::rewritten && update_variant(running, variant)) {
    end_variant(variant);
    return running;
  }
  if (made == Made::rewritten && instantiate_variant(originals, variant)) return variant;
  if (made == Made::unchanged) {
    // A folder that replaces nothing in this graph has come into force meanwhile.
    variant->exec = exec->host;
    return variant;
  }
  end_variant(variant);
  drop_originals(exec);
  leave_as_it_is(survey, GraphReason::refused);
  return nullptr;
}

}  // namespace

void HostGraph::prepare(const Instantiation& instantiation, Exec* updated) {
  const bool is_update = updated != nullptr;
  const Variant* const running =
      is_update ? updated->running.load(std::memory_order_relaxed) : nullptr;
  // If it needs an exec beside the host's, the next graph most likely does, too, and is copied.
  const bool is_beside = is_update && !updated->is_in_place && needs_own_exec(*running);
  const ReadSection section;
  const bool has_copy = is_update && updated->originals != nullptr && !updated->is_frozen &&
                        (!is_beside || Following(updated, updated->running, nullptr).may_follow());
  const Generation* const generation = current_generation();
  generation_ = generation == nullptr ? 0 : generation->number;
  const bool is_off = generation != nullptr && generation->mode == Mode::off;
  is_known_ = survey_.examine(graph_, has_copy ? updated : nullptr);
  if (survey_.has_uncopied && survey_.failure == CUDA_SUCCESS) prepare_bodies(instantiation);
  if (!is_known_) return;
  is_in_place_ = survey_.has_uncopied;
  GraphReason reason;
  if (!is_concerned(survey_)) {
    // No copy is made for an update, which would take twice as long: the next update is planned by
    // the folder that is in force then.
    is_kept_ = (is_off || !is_update || survey_.is_written) && !survey_.has_uncopied &&
               !is_left(survey_, instantiation, is_update, &reason);
    return;
  }
  if (is_left(survey_, instantiation, is_update, &reason)) {
    is_in_place_ = false;
    return leave_as_it_is(&survey_, reason);
  }
  if (is_beside && running->has_rewrites && survey_.has_members) survey_.is_one_for_one = false;
  if (!survey_.has_uncopied && survey_.is_one_for_one && survey_.has_members) {
    for (const HostNode& host : survey_.host_nodes) survey_.nodes[host.index].kept = host.node;
    survey_.is_one_for_one = !may_be_rewritten(graph_, survey_.nodes);
    for (KernelNode& node : survey_.nodes) node.kept = nullptr;
  }
  // A launch that is to be checked needs an exec of the originals.
  is_in_place_ |= survey_.has_redirects && survey_.is_one_for_one && !wants_shadow();
  if (!is_in_place_ || !survey_.has_redirects) return;
  if (survey_.has_uncopied) {
    log_message(LogLevel::info,
                "a graph with memory or conditional nodes cannot be copied: its kernels are "
                "replaced one for one, and a swap does not reach it");
  }
  swap_.replace(&survey_, survey_.is_written ? &updated->taken_over : nullptr);
}

void HostGraph::prepare_bodies(const Instantiation& instantiation) {
  const ReadSection section;
  if (!bodies_.examine_bodies(graph_)) return;
  bodies_.has_uncopied = true;
  if (survey_.has_updatable_nodes()) return leave_as_it_is(&bodies_, GraphReason::device_update);
  GraphReason reason;
  if (is_left(bodies_, instantiation, false, &reason)) return leave_as_it_is(&bodies_, reason);
  swap_of_bodies_.replace(&bodies_, nullptr);
}

void HostGraph::count_body_nodes() const {
  for (const CounterIndex counter : bodies_.counters) {
    if (counter != kNoCounter) count_many(counter_of_kind(counter, CountKind::body_node), 1);
  }
}

bool HostGraph::undo_replacements() {
  const bool had_any = swap_of_bodies_.put_back();
  if (had_any) leave_as_it_is(&bodies_, GraphReason::refused);
  if (!swap_.put_back()) return had_any;
  (void)survey_.solutions.allocate(0);
  is_in_place_ = false;
  return true;
}

void HostGraph::keep(Exec* exec) {
  exec->tried = generation_;
  if (survey_.has_uncopied || keep_originals(graph_, survey_, exec)) return;
  drop_originals(exec);
  log_message(LogLevel::info, "a swap does not reach a graph: the driver does not copy it");
}

void HostGraph::keep_update(Exec* exec) {
  if (!survey_.is_written) return keep(exec);
  exec->tried = generation_;
  exec->taken_over.commit(&survey_.plans, survey_.plans_changes);
}

NewExec::NewExec(CUgraph graph, const Instantiation& instantiation)
    : graph_(graph), instantiation_(instantiation) {
  const auto is_on = [] {
    const ReadSection section;
    return has_generation();
  };
  is_on_ = resolve_driver() && is_on();
  if (is_on_) graph_.prepare(instantiation, nullptr);
}

CUresult NewExec::finish(CUresult result, const CUgraphExec* handle) {
  graph_.put_back();
  if (result == CUDA_SUCCESS) graph_.count_body_nodes();
  if (!graph_.is_known() || result != CUDA_SUCCESS || handle == nullptr) return result;
  const uint32_t rules = shadow_rules_number();
  Exec* const exec = make_exec_record(*handle);
  if (exec == nullptr) return result;
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  if (get_current != nullptr) (void)get_current(&exec->context);
  exec->instantiation = instantiation_;
  Survey& survey = graph_.survey();
  adopt_survey(&survey, exec);
  exec->is_in_place = graph_.is_in_place();
  Variant* variant = nullptr;
  if (exec->is_in_place || graph_.is_kept()) {
    graph_.keep(exec);
  } else {
    variant = make_own(graph_.get(), &survey, exec, nullptr);
  }
  if (variant == nullptr) variant = make_in_host(*exec, survey);
  exec->host_nodes.swap(survey.host_nodes);
  exec->has_known_nodes = true;
  // Later instantiations are without an upload.
  exec->instantiation.flags &= ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  if (variant == nullptr) {
    exec->is_ended = true;
    end_exec(exec, true);
    return result;
  }
  count_nodes(*variant);
  exec->running.store(variant, std::memory_order_relaxed);
  (void)keep_unreplaced(exec, *variant);
  follow_interval(exec);
  add_exec(exec);
  if (rules != shadow_rules_number()) {
    // The rules have changed before the watcher could find this exec.
    MutexGuard guard(exec->lock);
    const ReadSection section;
    (void)follow_shadow_rules(exec);
  }
  return result;
}

ExecUpdate::ExecUpdate(CUgraphExec handle, CUgraph graph)
    : exec_(find_exec(handle)), graph_(graph) {
  if (exec_ == nullptr) {
    // All kernels of its graph may lie in bodies.
    const auto get_flags = FIBSHIM_REAL(cuGraphExecGetFlags);
    cuuint64_t flags = 0;
    if (knows_bodies() && get_flags != nullptr && get_flags(handle, &flags) == CUDA_SUCCESS) {
      graph_.prepare_bodies({flags, nullptr, false});
    }
    return;
  }
  exec_->lock.lock();
  drop_shadow(exec_);
  graph_.prepare(exec_->instantiation, exec_);
}

ExecUpdate::~ExecUpdate() {
  if (exec_ != nullptr) exec_->lock.unlock();
}

CUresult ExecUpdate::finish(CUresult result) {
  graph_.put_back();
  if (exec_ == nullptr || result != CUDA_SUCCESS) return result;
  drop_ready_variant(exec_);
  drop_idle_variant(exec_);
  drop_unreplaced(exec_);
  exec_->is_in_place = graph_.is_in_place();
  if (!graph_.is_known()) {
    run_host_exec(exec_, GraphReason::not_copied);
    return result;
  }
  Survey& survey = graph_.survey();
  Variant* const before = exec_->running.load(std::memory_order_relaxed);
  exec_->has_switched_others |= exec_->disabled_others.count() != 0;
  const bool was_disabled = [this] {
    for (const KernelNode& node : exec_->nodes) {
      if (node.is_disabled) return true;
    }
    return exec_->has_switched_others;
  }();
  const bool is_beside = !exec_->is_in_place && !graph_.is_kept();
  if (survey.is_written && (was_disabled || (is_beside && !follow_update(survey, exec_, before)) ||
                            !keep_copies(*exec_, &survey))) {
    survey.forget_written();
  }
  if (!survey.is_written) {
    drop_originals(exec_);
    exec_->has_known_nodes = has_first_nodes(survey, *exec_);
  }
  adopt_survey(&survey, exec_);
  // The driver still identifies nodes by those of the graph from which the exec was made. It pairs
  // them with the nodes of this graph in their order if both list the same nodes and edges
  // (driver_facts.md, section 8), and most likely also if not, which suffices for counting.
  if (exec_->host_nodes.count() != exec_->nodes.count()) (void)exec_->host_nodes.allocate(0);
  exec_->is_updated = true;
  exec_->is_frozen = false;  // it has other kernels now
  (void)exec_->disabled_others.allocate(0);
  // Ask the driver which nodes are disabled after the update.
  const auto get_enabled = FIBSHIM_REAL(cuGraphNodeGetEnabled);
  bool is_told = true;
  for (size_t i = 0; was_disabled && i < exec_->host_nodes.count(); ++i) {
    const HostNode& node = exec_->host_nodes[i];
    // The driver refuses if the graph of these nodes has been destroyed: then keep the known state.
    unsigned is_enabled = survey.nodes[node.index].is_disabled ? 0 : 1;
    is_told = is_told && get_enabled != nullptr &&
              get_enabled(exec_->host, node.node, &is_enabled) == CUDA_SUCCESS;
    exec_->nodes[node.index].is_disabled = is_enabled == 0;
  }
  Variant* variant = nullptr;
  if (was_disabled) {
    // The driver cannot be asked about other nodes, so no rewritten copy is made.
    if (!exec_->is_in_place) {
      leave_as_it_is(&survey, GraphReason::disabled);
    }
  } else if (is_beside && survey.is_written) {
    graph_.keep_update(exec_);
    variant = before;
  } else if (!is_beside) {
    graph_.keep_update(exec_);
    if (update_in_host(*exec_, survey, before)) variant = before;
  } else {
    variant = make_own(graph_.get(), &survey, exec_, before);
  }
  if (variant != nullptr && variant == before) {
    (void)keep_unreplaced(exec_, *before);
    follow_interval(exec_);
    return result;
  }
  if (variant == nullptr) variant = make_in_host(*exec_, survey);
  if (variant == nullptr) variant = make_variant(0);
  if (variant == nullptr) return result;
  if (variant->exec == nullptr) variant->exec = exec_->host;
  (void)keep_unreplaced(exec_, *variant);
  run_variant(exec_, variant);
  return result;
}

CUresult finish_end(CUresult result, Exec* exec) {
  // A driver that is shutting down destroys everything itself.
  if (exec != nullptr) end_exec(exec, result == CUDA_SUCCESS);
  return result;
}

}  // namespace fibshim
