#include "shim/graphs/address_holders.h"

#include <stdio.h>
#include <string.h>

#include "shim/abi/program.h"
#include "shim/driver/driver.h"
#include "shim/launch/learn.h"
#include "shim/launch/rewrite_plan.h"
#include "shim/plan/parameter_words.h"
#include "shim/registry/generation.h"

namespace fibshim {
namespace {

class Search {
 public:
  Search(uint64_t begin, uint64_t end, Growing<AddressHolder>* out)
      : begin_(begin), end_(end), out_(out) {}

  bool scan_kernel(const NodeParams& params, uint32_t index) {
    const void* const handle = handle_of(params);
    const Layout* const layout = handle == nullptr ? nullptr : layout_of(handle);
    if (layout == nullptr) return false;
    const auto add_word = [&](uint64_t word, uint32_t param, uint32_t offset) {
      return word >= end_ || add({word, word + 1, index, param, offset});
    };
    return for_each_word(params.kernelParams, params.extra, layout->params, layout->count,
                         add_word);
  }

  // Scans all nodes of a graph and of its child graphs except kernels.
  bool scan_others(CUgraph graph) {
    Block<CUgraphNode> nodes;
    if (!list_nodes(graph, &nodes)) return false;
    for (const CUgraphNode node : nodes) {
      CUgraphNodeType type;
      CUgraph child = nullptr;
      if (!find_type(node, &type)) return false;
      switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
        case CU_GRAPH_NODE_TYPE_EMPTY:
        case CU_GRAPH_NODE_TYPE_HOST:    // does not access device memory
        case CU_GRAPH_NODE_TYPE_MEMSET:  // reads nothing
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: break;
        case CU_GRAPH_NODE_TYPE_GRAPH:
          if (!find_child(node, &child) || !scan_others(child)) return false;
          break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
          if (!scan_copy(node)) return false;
          break;
        default: return false;
      }
    }
    return true;
  }

 private:
  struct Layout {
    const void* handle;
    uint32_t count;
    Param params[kMaxParams];
  };

  // Returns the layout of a kernel's parameters. There are usually only a few kernels. Null:
  // unknown, or no memory.
  const Layout* layout_of(const void* handle) {
    for (const Layout* const known : layouts_) {
      if (known->handle == handle) return known;
    }
    auto* const layout = static_cast<Layout*>(g_graph_pool.allocate(sizeof(Layout)));
    if (layout == nullptr) return nullptr;
    layout->handle = handle;
    const bool is_known = find_params(handle, layout->params, &layout->count);
    Layout** const added = is_known ? layouts_.add() : nullptr;
    if (added == nullptr) {
      g_graph_pool.release(layout, sizeof(Layout));
      return nullptr;
    }
    return *added = layout;
  }

  bool add(const AddressHolder& found) {
    if (found.begin >= end_ || found.end <= begin_) return true;
    AddressHolder* const holder = out_->add();
    if (holder != nullptr) *holder = found;
    return holder != nullptr;
  }
  // Adds what a copy reads, from the beginning of the memory to the end of the last row.
  bool scan_copy(CUgraphNode node) {
    const auto get = FIBSHIM_REAL(cuGraphMemcpyNodeGetParams);
    CUDA_MEMCPY3D copy;
    memset(&copy, 0, sizeof copy);
    if (get == nullptr || get(node, &copy) != CUDA_SUCCESS) return false;
    if (copy.srcMemoryType == CU_MEMORYTYPE_ARRAY) return true;
    if (copy.Height == 0 || copy.Depth == 0 || copy.WidthInBytes == 0) return true;
    const uint64_t begin = copy.srcMemoryType == CU_MEMORYTYPE_HOST
                               ? reinterpret_cast<uint64_t>(copy.srcHost)
                               : copy.srcDevice;
    const uint64_t row = copy.srcPitch == 0 ? copy.srcXInBytes + copy.WidthInBytes : copy.srcPitch;
    const uint64_t rows = copy.srcHeight == 0 ? copy.srcY + copy.Height : copy.srcHeight;
    const uint64_t last = ((copy.Depth - 1 + copy.srcZ) * rows + copy.Height - 1 + copy.srcY) * row;
    return add(
        {begin, begin + last + copy.srcXInBytes + copy.WidthInBytes, UINT32_MAX, UINT32_MAX, 0});
  }

 public:
  ~Search() {
    for (Layout* const layout : layouts_) g_graph_pool.release(layout, sizeof(Layout));
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

 private:
  const uint64_t begin_;
  const uint64_t end_;
  Growing<AddressHolder>* out_;
  Growing<Layout*> layouts_;
};

}  // namespace

void describe_holder(const Block<NodeParams>& params, const AddressHolder& holder,
                     char (&out)[kMostOfHolder]) {
  if (holder.kernel == UINT32_MAX) {
    (void)snprintf(out, sizeof out,
                   holder.begin == holder.end ? "a node that is no kernel" : "a copy");
    return;
  }
  const NodeParams& kernel = params[holder.kernel];
  const auto of_kernel = FIBSHIM_REAL(cuKernelGetName);
  const auto of_function = FIBSHIM_REAL(cuFuncGetName);
  const char* name = nullptr;
  if (kernel.kern != nullptr && of_kernel != nullptr) (void)of_kernel(&name, kernel.kern);
  if (kernel.func != nullptr && of_function != nullptr) (void)of_function(&name, kernel.func);
  if (name == nullptr) name = "a kernel";
  if (holder.param == UINT32_MAX) {
    (void)snprintf(out, sizeof out, "%s", name);
  } else {
    (void)snprintf(out, sizeof out, "%s, parameter %u, byte %u", name, holder.param, holder.offset);
  }
}

bool find_holders(const Originals& originals, const Block<NodeParams>& params, bool are_all,
                  uint64_t begin, uint64_t end, Growing<AddressHolder>* out,
                  AddressHolder* unreadable) {
  Search search(begin, end, out);
  *unreadable = {0, 0, UINT32_MAX, UINT32_MAX, 0};
  for (uint32_t i = 0; i < originals.nodes.count(); ++i) {
    if (search.scan_kernel(params[i], i)) continue;
    unreadable->kernel = i;
    return false;
  }
  return are_all || search.scan_others(originals.graph);
}

namespace {

// A solution that the pattern leads to: it takes all tensors of the definition. Null: there is
// none.
const Binding* find_binding(const Candidate& candidate) {
  const Snapshot& snapshot = *candidate.snapshot;
  if (&snapshot != current_generation()->snapshot) return nullptr;
  const Route* const routes = snapshot.begin(candidate.pattern->routes);
  for (uint32_t i = 0; i < candidate.pattern->routes.count; ++i) {
    for (uint32_t k = 0; k < routes[i].count; ++k) {
      const Binding& binding = snapshot.begin(snapshot.bindings)[routes[i].binding + k];
      if (binding.state == BindingState::ready) return &binding;
    }
  }
  return nullptr;
}

}  // namespace

bool reads_nothing_there(const Originals& originals, const NodeParams& params,
                         const AddressHolder& holder) {
  KernelNode& node = originals.nodes[holder.kernel];
  PlannedNode planned;
  plan_copied_node(node.kept, params, &node.facts, &planned);
  const LaunchPlan& launch = planned.plan.launch;
  if (!holds_for_node(launch, params, attributes_of(node.kept, &node.facts).cluster)) return false;
  const Binding* const binding = find_binding(*launch.candidate);
  if (binding == nullptr) return false;
  const Snapshot& snapshot = *launch.candidate->snapshot;
  const ArgumentMap* const arguments = snapshot.begin(binding->arguments);
  const auto is_elsewhere = [&](uint32_t param, uint32_t offset, uint32_t bytes) {
    return param != holder.param || offset >= holder.offset + sizeof(CUdeviceptr) ||
           holder.offset >= offset + bytes;
  };
  for (uint32_t i = 0; i < binding->arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    const bool is_read =
        argument.kind == ArgumentMap::Kind::pass || argument.kind == ArgumentMap::Kind::shifted;
    if (is_read && !is_elsewhere(argument.param, argument.offset, argument.size)) return false;
    const Step* const steps = snapshot.begin(argument.program);
    for (uint32_t k = 0; k < argument.program.count; ++k) {
      if (!reads_existing_params(steps[k], is_elsewhere)) return false;
    }
  }
  return true;
}

}  // namespace fibshim
