#include "shim/graphs/rewrites.h"

#include <string.h>

#include <algorithm>

#include "shim/base/log.h"
#include "shim/base/read_section.h"
#include "shim/graphs/address_holders.h"
#include "shim/graphs/address_index.h"
#include "shim/graphs/graph_edges.h"
#include "shim/graphs/merged_kernels.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

constexpr int kMostTrials = 64;  // ways to find the other kernels of a rewrite from its first

// Kernels that a rewrite fits, by their numbers in the graph, in its order.
struct Instance {
  uint32_t rewrite;
  uint32_t nodes[kMaxRewriteKernels];
  uint32_t first_range;  // of what they read and write
  uint32_t range_count;
  const char* conflict;  // why they cannot be one launch; null: nothing is known yet
};

// A kernel that holds an address inside a dead buffer, and the instances of which it is a kernel
// and which declare that buffer dead, of which there is at least one.
struct Holder {
  AddressHolder holder;
  uint32_t first_owner;
  uint32_t owner_count;
};

class Absorption {
 public:
  Absorption(const Originals& originals, CUgraph copy, const Block<CopiedKernel>& kernels,
             Variant* variant, const Block<RewrittenNode>& rewritten)
      : originals_(originals),
        copy_(copy),
        kernels_(kernels),
        variant_(variant),
        rewritten_(rewritten),
        generation_(*current_generation()),
        snapshot_(*generation_.snapshot) {}

  // Whether there are instances; without memory, none. `is_one_enough`: stops at the first.
  bool find(bool is_one_enough) {
    is_whole_ = true;
    if (snapshot_.rewrites.count == 0 || generation_.mode == Mode::off || !find_records()) {
      return false;
    }
    is_whole_ = false;
    if (!shape_.read(copy_) || !number_kernels()) return false;
    for (uint32_t i = 0; i < snapshot_.rewrites.count; ++i) {
      if (!find_instances(i, is_one_enough)) return false;
      if (is_one_enough && instances_.count() != 0) return true;
    }
    is_whole_ = !has_given_up_;
    return instances_.count() != 0;
  }

  Absorbed run() {
    const Absorbed result = find(false) ? apply_all() : Absorbed::none;
    if (result != Absorbed::failed) remember_proof();
    return result;
  }

 private:
  Absorbed apply_all() {
    has_holders_ = collect_holders();
    is_whole_ &= has_holders_;
    Absorbed result = Absorbed::none;
    for (Instance& instance : instances_) {
      switch (apply(instance)) {
        case Absorbed::none: break;
        case Absorbed::some: result = Absorbed::some; break;
        case Absorbed::failed: return Absorbed::failed;
      }
    }
    return result;
  }

  const Rewrite& rewrite_of(const Instance& instance) const {
    return snapshot_.begin(snapshot_.rewrites)[instance.rewrite];
  }
  const char* label_of(const Instance& instance) const {
    return snapshot_.text(snapshot_.begin(snapshot_.patterns)[rewrite_of(instance).pattern].label);
  }
  uint32_t kernel_at(uint32_t node) const { return kernel_of_[node]; }

  // Which kernels are members of rewrites. False: none.
  bool find_records() {
    bool has_any = false;
    if (!records_.allocate(kernels_.count()) || !params_.allocate(kernels_.count())) return false;
    for (size_t i = 0; i < kernels_.count(); ++i) {
      const KernelNode& node = originals_.nodes[i];
      if (!read_kernel(node.kept, &params_[i])) {
        params_[i] = {};
        continue;
      }
      if (!kernels_[i].is_certain || node.is_disabled) continue;
      records_[i] = find_member(handle_of(params_[i]), generation_);
      has_any = has_any || records_[i] != nullptr;
    }
    return has_any;
  }

  bool number_kernels() {
    if (!kernel_of_.allocate(shape_.nodes.count()) || !seen_.allocate(shape_.nodes.count()) ||
        !room_.allocate(shape_.nodes.count())) {
      return false;
    }
    for (uint32_t& kernel : kernel_of_) kernel = UINT32_MAX;
    for (size_t i = 0; i < kernels_.count(); ++i) {
      if (!kernels_[i].is_certain) continue;
      const uint32_t number = shape_.number_of(kernels_[i].node, static_cast<uint32_t>(i));
      if (number == UINT32_MAX) return false;
      kernel_of_[number] = static_cast<uint32_t>(i);
      ++own_kernel_count_;
    }
    return true;
  }

  // False: no memory.
  bool find_instances(uint32_t index, bool is_one_enough) {
    const Rewrite& rewrite = snapshot_.begin(snapshot_.rewrites)[index];
    for (size_t i = 0; i < kernels_.count(); ++i) {
      if (records_[i] == nullptr || !is_member(*records_[i], rewrite, 0)) continue;
      Instance instance = {};
      instance.rewrite = index;
      instance.nodes[0] = shape_.number_of(kernels_[i].node);
      int trials = kMostTrials;
      if (!place(rewrite, 1, &instance, &trials)) continue;
      if (!instances_.add(instance)) return false;
      if (is_one_enough) break;
    }
    return true;
  }

  // Finds the kernels from `member` on, each of which directly follows one of those found before, and
  // precedes none of them. False: one is missing, or they do not belong together.
  bool place(const Rewrite& rewrite, uint32_t member, Instance* instance, int* trials) {
    if (member == rewrite.member_count) {
      if (fits(rewrite, instance)) return true;
      bind(rewrite, *instance);
      return false;
    }
    for (uint32_t before = 0; before < member; ++before) {
      const uint32_t node = instance->nodes[before];
      for (uint32_t i = shape_.dag.first[node]; i < shape_.dag.first[node + 1]; ++i) {
        const uint32_t next = shape_.dag.next[i];
        const uint32_t kernel = kernel_at(next);
        if (kernel == UINT32_MAX || records_[kernel] == nullptr ||
            !is_member(*records_[kernel], rewrite, member) || contains(*instance, member, next) ||
            precedes(next, *instance, member)) {
          continue;
        }
        if (--*trials < 0) {
          has_given_up_ = true;
          return false;
        }
        instance->nodes[member] = next;
        if (place(rewrite, member + 1, instance, trials)) return true;
      }
    }
    return false;
  }

  static bool contains(const Instance& instance, uint32_t count, uint32_t node) {
    return std::count(instance.nodes, instance.nodes + count, node) != 0;
  }
  bool precedes(uint32_t node, const Instance& instance, uint32_t count) const {
    const uint32_t* const begin = shape_.dag.next + shape_.dag.first[node];
    const uint32_t* const end = shape_.dag.next + shape_.dag.first[node + 1];
    return std::find_first_of(begin, end, instance.nodes, instance.nodes + count) != end;
  }

  bool read(const Instance& instance, RewriteCall* call) const {
    const Rewrite& rewrite = rewrite_of(instance);
    uint32_t kernels[kMaxRewriteKernels];
    NodeParams params[kMaxRewriteKernels];
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      kernels[i] = kernel_at(instance.nodes[i]);
      params[i] = params_[kernels[i]];
      if (handle_of(params[i]) == nullptr) return false;
    }
    return read_merged(generation_, originals_.nodes, rewrite, kernels, params, call);
  }

  bool fits(const Rewrite& rewrite, Instance* instance) {
    RewriteCall call;
    if (!read(*instance, &call)) return false;
    Block<BufferRange> ranges;
    if (!ranges.allocate(rewrite.buffers.count)) return false;
    instance->first_range = static_cast<uint32_t>(ranges_.count());
    if (!read_buffers(call, ranges.begin(), &instance->range_count)) {
      instance->range_count = 0;
      instance->conflict = "the size of a buffer has no value";
      return true;
    }
    for (uint32_t i = 0; i < instance->range_count; ++i) {
      if (!ranges_.add(ranges[i])) return false;
    }
    instance->conflict = find_conflict(ranges.begin(), instance->range_count);
    return true;
  }

  // Finds the holders of addresses in any buffer that some instance declares dead.
  bool collect_holders() {
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
    for (const BufferRange& range : ranges_) {
      if (!range.is_dead) continue;
      if (!dead_.add(range.begin, range.end)) return false;
      if (range.begin < begin) begin = range.begin;
      if (range.end > end) end = range.end;
    }
    dead_.sort();
    Growing<AddressHolder> all;
    const bool are_all = own_kernel_count_ == shape_.nodes.count();
    if (begin < end &&
        !find_holders(originals_, params_, are_all, begin, end, &all, &unreadable_)) {
      return false;
    }
    if (!list_instances()) return false;
    for (const AddressHolder& holder : all) {
      if (!dead_.has_any_in(holder.begin, holder.end)) continue;
      const auto first_owner = static_cast<uint32_t>(owners_.count());
      for (const uint32_t i : instances_of_[holder.kernel]) {
        if (!is_owner(instances_[i], holder)) continue;
        if (!owners_.add(i)) return false;
      }
      const auto owner_count = static_cast<uint32_t>(owners_.count()) - first_owner;
      if (owner_count == 0 && holder.kernel != UINT32_MAX) {
        variant_->nodes[holder.kernel].is_bound = true;
      }
      if (owner_count != 0) {
        if (!holders_.add(Holder{holder, first_owner, owner_count})) return false;
      } else if (!is_unused(holder)) {
        if (!readers_.add(holder) || !strangers_.add(holder.begin, holder.end)) return false;
      }
    }
    strangers_.sort();
    return list_holders();
  }

  // Which instances each kernel belongs to. False: no memory, as below.
  bool list_instances() {
    const auto for_each = [this](const auto& use) {
      for (uint32_t i = 0; i < instances_.count(); ++i) {
        for (uint32_t k = 0; k < rewrite_of(instances_[i]).member_count; ++k) {
          use(kernel_at(instances_[i].nodes[k]), i);
        }
      }
    };
    return instances_of_.list(kernels_.count(), for_each);
  }
  bool list_holders() {
    const auto for_each = [this](const auto& use) {
      for (uint32_t i = 0; i < holders_.count(); ++i) use(holders_[i].holder.kernel, i);
    };
    return holders_of_.list(kernels_.count(), for_each);
  }
  // The kernel, one of the instance's, has the address as its dead buffer, written before it is read.
  bool is_owner(const Instance& instance, const AddressHolder& holder) const {
    if (instance.conflict != nullptr) return false;
    for (uint32_t i = 0; i < instance.range_count; ++i) {
      const BufferRange& range = ranges_[instance.first_range + i];
      if (range.is_dead && holder.begin >= range.begin && holder.end <= range.end) return true;
    }
    return false;
  }

  // False: another node may read the dead buffer.
  bool may_drop(const BufferRange& range, const Instance& instance) const {
    return !strangers_.has_any_in(range.begin, range.end) && !has_rival(range, instance);
  }
  // All owners of such a holder share a kernel with the instance.
  bool has_rival(const BufferRange& range, const Instance& instance) const {
    for (uint32_t i = 0; i < rewrite_of(instance).member_count; ++i) {
      for (const uint32_t rival : instances_of_[kernel_at(instance.nodes[i])]) {
        const Instance& other = instances_[rival];
        for (uint32_t k = 0; &other != &instance && k < rewrite_of(other).member_count; ++k) {
          for (const uint32_t number : holders_of_[kernel_at(other.nodes[k])]) {
            const Holder& one = holders_[number];
            if (one.holder.begin < range.end && range.begin < one.holder.end &&
                !may_hold(one, instance)) {
              return true;
            }
          }
        }
      }
    }
    return false;
  }
  // The instance may drop a dead buffer although the holder has its address: the holder is one of
  // the instance's kernels, or belongs to another rewrite that shares no kernel with it, or never
  // reads it.
  bool may_hold(const Holder& holder, const Instance& instance) const {
    for (uint32_t i = 0; i < holder.owner_count; ++i) {
      const Instance& owner = instances_[owners_[holder.first_owner + i]];
      if (&owner == &instance || !has_common_kernel(owner, instance)) return true;
    }
    return is_unused(holder.holder);
  }
  bool has_common_kernel(const Instance& one, const Instance& other) const {
    for (uint32_t i = 0; i < rewrite_of(one).member_count; ++i) {
      if (contains(other, rewrite_of(other).member_count, one.nodes[i])) return true;
    }
    return false;
  }

  bool is_unused(const AddressHolder& holder) const {
    return holder.kernel != UINT32_MAX &&
           reads_nothing_there(originals_, params_[holder.kernel], holder);
  }

  // Why the kernels cannot become one launch, in words for the log; null: they can.
  const char* find_obstacle(const Instance& instance, GraphReason* reason) {
    const Rewrite& rewrite = rewrite_of(instance);
    *reason = GraphReason::rewrite_changed;
    if (!originals_.may_be_rearranged) return "the host has changed nodes of the graph";
    *reason = GraphReason::rewrite_buffers;
    if (instance.conflict != nullptr) return instance.conflict;
    *reason = GraphReason::rewrite_priority;
    if (!have_one_priority(instance)) return "its kernels have unequal priorities";
    *reason = GraphReason::rewrite_order;
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      if (shape_.has_other_ports[instance.nodes[i]]) return "an edge is of an unknown kind";
    }
    if (!may_become_one(shape_.dag, instance.nodes, rewrite.member_count, seen_.begin(),
                        room_.begin())) {
      return "another node comes between them";
    }
    *reason = GraphReason::rewrite_reader;
    for (uint32_t i = 0; i < instance.range_count; ++i) {
      const BufferRange& range = ranges_[instance.first_range + i];
      if (!range.is_dead) continue;
      if (!has_holders_) return "a node of the graph cannot be looked into";
      if (may_drop(range, instance)) continue;
      is_whole_ = false;
      return "another node has the address of a buffer that is dead";
    }
    return nullptr;
  }

  // The one launch can have one alone, and the driver tells no order among several.
  bool have_one_priority(const Instance& instance) const {
    int first = 0;
    for (uint32_t i = 0; i < rewrite_of(instance).member_count; ++i) {
      const int own = priority_of(originals_.nodes[kernel_at(instance.nodes[i])].kept);
      if (i == 0) first = own;
      if (own != first) return false;
    }
    return true;
  }

  // Its kernels count as that if nothing else knows them.
  void count_as(const Instance& instance, CounterIndex counter) {
    for (uint32_t i = 0; i < rewrite_of(instance).member_count; ++i) {
      CopiedKernel& kernel = kernels_[kernel_at(instance.nodes[i])];
      if (!kernel.is_taken && kernel.refused == kNoCounter) kernel.refused = counter;
    }
  }

  // The node that cannot be looked into, or has an address in a dead buffer of the instance.
  void describe_reader(const Instance& instance, char (&out)[kMostOfHolder]) const {
    if (!has_holders_) return describe_holder(params_, unreadable_, out);
    for (uint32_t i = 0; i < instance.range_count; ++i) {
      const BufferRange& range = ranges_[instance.first_range + i];
      for (const AddressHolder& reader : readers_) {
        if (!range.is_dead || reader.begin >= range.end || reader.end <= range.begin) continue;
        return describe_holder(params_, reader, out);
      }
    }
  }

  void refuse(const Instance& instance, const RewriteCall& call, const char* words,
              GraphReason reason) {
    if (words != told_) {
      char reader[kMostOfHolder] = "";
      if (reason == GraphReason::rewrite_reader) describe_reader(instance, reader);
      log_message(LogLevel::info, "rewrite %s leaves kernels of a graph as they are: %s%s%s",
                  label_of(instance), words, reader[0] == 0 ? "" : ": ", reader);
    }
    told_ = words;
    const CounterIndex counter = counter_of_rewrite(call, Outcome::fallback_graph);
    count_as(instance, counter);
    count_many(counter_of_kept_node(counter, reason), rewrite_of(instance).member_count);
  }

  Absorbed apply(const Instance& instance) {
    const Rewrite& rewrite = rewrite_of(instance);
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      if (kernels_[kernel_at(instance.nodes[i])].is_taken) return Absorbed::none;
    }
    RewriteCall call;
    if (!read(instance, &call)) return Absorbed::none;
    PlannedNode planned;
    memset(&planned.shape, 0, sizeof planned.shape);
    if (rewrite.is_analysis == 0) {
      const LaunchAction action = plan_rewrite(&call, &planned.plan, &known_);
      if (action == LaunchAction::fail) {
        count_as(instance,
                 counter_of(series_of_counter(planned.plan.counter), Outcome::error_fallback));
        return Absorbed::none;
      }
      if (action != LaunchAction::redirect && planned.plan.launch.outcome != Outcome::observed) {
        count_as(instance, planned.plan.counter);
        return Absorbed::none;
      }
    }
    GraphReason reason;
    if (const char* const words = find_obstacle(instance, &reason)) {
      refuse(instance, call, words, reason);
      return Absorbed::none;
    }
    if (rewrite.is_analysis != 0 || !planned.is_redirect()) {
      count_as(instance, rewrite.is_analysis != 0 ? counter_of_rewrite(call, Outcome::observed)
                                                  : planned.plan.counter);
      return Absorbed::none;
    }
    return make(instance, &planned) ? Absorbed::some : Absorbed::failed;
  }

  bool make(const Instance& instance, PlannedNode* planned) {
    const Rewrite& rewrite = rewrite_of(instance);
    const uint32_t first = kernel_at(instance.nodes[0]);
    CUgraphNode nodes[kMaxRewriteKernels];
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      nodes[i] = kernels_[kernel_at(instance.nodes[i])].node;
    }
    shape_replacement(attributes_of(originals_.nodes[first].kept, &originals_.nodes[first].facts),
                      planned);
    planned->shape.runs_in = first + 1;
    if (!give_workspace(variant_, first, true, planned) ||
        !rewrite_node(copy_, nodes[0], *planned) ||
        !merge_nodes(copy_, nodes, rewrite.member_count)) {
      return false;
    }
    become_one(&shape_.dag, instance.nodes, rewrite.member_count);
    if (!remember(instance)) return false;
    const CounterIndex hit = planned->plan.counter;
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      const uint32_t kernel = kernel_at(instance.nodes[i]);
      kernels_[kernel].is_taken = true;
      VariantNode& made = variant_->nodes[kernel];
      made.shape = planned->shape;
      made.solution = solution_number(*planned);
      made.merge = static_cast<uint32_t>(variant_->merges.all.count());
      if (i != 0) made.node = nullptr;
      (void)count_node_as(variant_, kernel,
                          i == 0 ? hit : counter_of(series_of_counter(hit), Outcome::absorbed),
                          false);
    }
    rewritten_[first] = {copy_, nodes[0], planned->plan.launch.decision->snapshot,
                         &solution_of(planned->plan), &variant_->nodes[first].shape};
    return true;
  }

  // False: no memory.
  bool remember(const Instance& instance) {
    Merges& merges = variant_->merges;
    Merge* const merge = merges.all.add();
    if (merge == nullptr) return false;
    merge->rewrite = instance.rewrite;
    for (uint32_t i = 0; i < rewrite_of(instance).member_count; ++i) {
      merge->kernels[i] = kernel_at(instance.nodes[i]);
    }
    merge->first_range = static_cast<uint32_t>(merges.ranges.count());
    merge->range_count = instance.range_count;
    for (uint32_t i = 0; i < instance.range_count; ++i) {
      if (!merges.ranges.add(ranges_[instance.first_range + i])) return false;
    }
    return true;
  }

  // Whether the kernels become this rewrite's depends on their parameters.
  void bind(const Rewrite& rewrite, const Instance& instance) {
    if (variant_ == nullptr) return;
    for (uint32_t i = 0; i < rewrite.member_count; ++i) {
      variant_->nodes[kernel_at(instance.nodes[i])].is_bound = true;
    }
  }
  void remember_proof() {
    Merges& merges = variant_->merges;
    merges.dead.swap(dead_);
    merges.may_stay = is_whole_;
    for (const Instance& instance : instances_) {
      if (!is_within_one(instance)) bind(rewrite_of(instance), instance);
    }
  }
  // All of its kernels run as one, be it for this rewrite or for another.
  bool is_within_one(const Instance& instance) const {
    const uint32_t merge = variant_->nodes[kernel_at(instance.nodes[0])].merge;
    for (uint32_t i = 1; i < rewrite_of(instance).member_count; ++i) {
      if (variant_->nodes[kernel_at(instance.nodes[i])].merge != merge) return false;
    }
    return merge != 0;
  }

  const Originals& originals_;
  CUgraph copy_;
  const Block<CopiedKernel>& kernels_;
  Variant* variant_;
  const Block<RewrittenNode>& rewritten_;
  const Generation& generation_;
  const Snapshot& snapshot_;
  Block<NodeParams> params_;      // of each kernel's original; zeroed: the driver does not tell
  Block<const Record*> records_;  // of each kernel that is a member of something
  GraphShape shape_;
  Block<uint32_t> kernel_of_;    // each node's kernel; UINT32_MAX: it is none
  size_t own_kernel_count_ = 0;  // of the graph itself, without its child graphs
  Block<uint8_t> seen_;
  Block<uint32_t> room_;
  Growing<Instance> instances_;  // by falling benefit of their rewrites
  KnownDecision known_ = {};     // of the rewrite applied last
  Growing<BufferRange> ranges_;
  Growing<Holder> holders_;
  AddressRanges dead_;  // buffers that some instance declares dead
  AddressHolder unreadable_ = {};
  Growing<AddressHolder> readers_;
  AddressRanges strangers_;  // theirs: addresses inside dead buffers, which no instance may drop
  NumbersByKernel instances_of_;
  NumbersByKernel holders_of_;
  Growing<uint32_t> owners_;
  bool has_holders_ = false;
  bool is_whole_ = false;      // what was found depends on nothing but what is remembered
  bool has_given_up_ = false;  // there were too many trials
  const char* told_ = nullptr;
};

}  // namespace

bool may_be_rewritten(CUgraph graph, const Block<KernelNode>& nodes) {
  const ReadSection section;
  if (!has_generation()) return false;
  Block<CopiedKernel> kernels;
  if (!kernels.allocate(nodes.count())) return true;
  for (size_t i = 0; i < nodes.count(); ++i) {
    kernels[i] = {graph, nodes[i].kept, true, false, kNoCounter};
  }
  const Block<CUgraphNode> none_disabled;
  const Block<RewrittenNode> none_rewritten;
  const Originals originals = {graph, nodes, none_disabled, {}, true, false};
  return Absorption(originals, graph, kernels, nullptr, none_rewritten).find(true);
}

Absorbed absorb_kernels(const Originals& originals, CUgraph copy,
                        const Block<CopiedKernel>& kernels, Variant* variant,
                        const Block<RewrittenNode>& rewritten) {
  return Absorption(originals, copy, kernels, variant, rewritten).run();
}

}  // namespace fibshim
