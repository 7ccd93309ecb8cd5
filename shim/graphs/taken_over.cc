#include "shim/graphs/taken_over.h"

#include <algorithm>
#include <atomic>
#include <stdlib.h>
#include <string.h>

#include "shim/abi/snapshot.h"
#include "shim/driver/driver.h"
#include "shim/launch/learn.h"

namespace fibshim {

// The parameter layout of one function.
struct TakenOver::Layout {
  const void* handle;
  uint32_t count;
  uint32_t bytes;  // of all parameters
  Param* params() { return reinterpret_cast<Param*>(this + 1); }
  const Param* params() const { return reinterpret_cast<const Param*>(this + 1); }
  size_t size() const { return sizeof(Layout) + count * sizeof(Param); }
};

namespace {

// Average over all nodes. There are two sets, in blocks of powers of two.
constexpr size_t kMostBytesOfNode = 384;
// Layouts beyond the number of nodes: those of functions that the graph no longer has.
constexpr size_t kMostLayouts = 64;

constinit std::atomic<bool> g_has_user_objects{false};

// Reads a struct from copied bytes, which need not be aligned.
template <class Params>
Params read_as(const char* bytes) {
  Params params;
  memcpy(&params, bytes, sizeof params);
  return params;
}

template <class Params, class Get>
bool get_params(Get get, CUgraphNode node, char* bytes) {
  Params params;
  memset(&params, 0, sizeof params);
  if (get == nullptr || get(node, &params) != CUDA_SUCCESS) return false;
  memcpy(bytes, &params, sizeof params);
  return true;
}

// Sets a node's parameters unless it has them already: not every value that can be read can be set.
template <class Params, class Get, class Set>
bool set_params(Get get, Set set, CUgraphNode node, const char* bytes) {
  char before[sizeof(Params)];
  if (!get_params<Params>(get, node, before) || set == nullptr) return false;
  const auto params = read_as<Params>(bytes);
  return memcmp(before, bytes, sizeof before) == 0 || set(node, &params) == CUDA_SUCCESS;
}

}  // namespace

void remember_user_objects() { g_has_user_objects.store(true, std::memory_order_relaxed); }
bool has_user_objects() { return g_has_user_objects.load(std::memory_order_relaxed); }

// Returns room for `count` bytes of a node. Null: no memory, or too much of it.
char* TakenOver::add(size_t place, size_t count) {
  constexpr size_t kAlignment = 8;
  Set& set = next();
  const size_t begin = set.used;
  const size_t end = begin + (count + kAlignment - 1) / kAlignment * kAlignment;
  if (end > set.bytes.count() && !grow(&set, end)) {
    unwritable_ = updating_;
    return nullptr;
  }
  set.nodes[place].at = begin;
  set.used = end;
  return set.bytes.begin() + begin;
}

bool TakenOver::grow(Set* set, size_t bytes) {
  const size_t most = kMostBytesOfNode * set->nodes.count();
  const size_t wanted = std::max(bytes, 2 * set->bytes.count());
  Block<char> larger;
  if (bytes > most || !larger.allocate_unset(std::min(wanted, most))) return false;
  if (set->used != 0) memcpy(larger.begin(), set->bytes.begin(), set->used);
  set->bytes.swap(larger);
  return true;
}

void TakenOver::Set::release() {
  (void)nodes.allocate(0);
  (void)bytes.allocate(0);
  used = 0;
}

void TakenOver::release_layouts(size_t from) {
  for (size_t i = from; i < layouts_.count(); ++i) {
    g_graph_pool.release(layouts_[i], layouts_[i]->size());
  }
  layouts_.shorten(from);
}

void TakenOver::forget() {
  release_layouts(0);
  layouts_.clear();
  lasting_layouts_ = 0;
  (void)places_.allocate(0);
  places_of_kernels_.clear();
  (void)edges_.allocate(0);
  for (Set& set : sets_) set.release();
  (void)plans_.allocate(0);
  (void)nodes_.allocate(0);
  is_behind_ = false;
}

bool TakenOver::begin(CUgraph graph, CUgraph copy, const Block<KernelNode>& nodes) {
  if (has_user_objects()) return false;
  updating_ = graph;
  unwritable_ = nullptr;
  if (is_unwritable_) return false;
  release_layouts(lasting_layouts_);
  if (!lists_same(graph) && (!learn(graph, copy, nodes) || !lists_same(graph))) return false;
  next().release();
  if (!next().nodes.allocate(places_.count()) || !next().bytes.allocate_unset(sets_[last_].used)) {
    return false;
  }
  has_changed_others_ = false;
  for (size_t i = 0; i < places_.count(); ++i) {
    if (places_[i].kernel == SIZE_MAX && !write_other(i)) return false;
  }
  return true;
}

bool TakenOver::learn(CUgraph graph, CUgraph copy, const Block<KernelNode>& nodes) {
  Block<CUgraphNode> listed;
  Block<CUgraphNode> kept;
  // Set values that are not in the copy yet first, since they refer to the old places.
  if (is_behind_ && !bring_up_to_date()) return false;
  forget();
  if (list_nodes(graph, &listed) && list_nodes(copy, &kept) && listed.count() == kept.count() &&
      learn_nodes(listed, kept, nodes) && learn_edges(graph, copy, listed)) {
    return true;
  }
  forget();
  return false;
}

// Pairs the graph's nodes with those of the copy: kernels in their order, and all other nodes,
// which may be listed elsewhere in the copy, in theirs. learn_edges() checks whether that is right.
bool TakenOver::learn_nodes(const Block<CUgraphNode>& listed, const Block<CUgraphNode>& kept,
                            const Block<KernelNode>& nodes) {
  const size_t count = listed.count();
  if (!places_.allocate(count)) return false;
  size_t next_kept = 0;
  for (size_t i = 0; i < count; ++i) {
    Place& place = places_[i];
    place.kernel = SIZE_MAX;
    if (!find_type(listed[i], &place.type)) return false;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
    switch (place.type) {
      case CU_GRAPH_NODE_TYPE_KERNEL: {
        place.kernel = places_of_kernels_.count();
        uint32_t* const added = places_of_kernels_.add();
        if (added == nullptr || place.kernel >= nodes.count()) return false;
        *added = static_cast<uint32_t>(i);
        place.kept = nodes[place.kernel].kept;
        break;
      }
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
      case CU_GRAPH_NODE_TYPE_EMPTY:
        for (; type == CU_GRAPH_NODE_TYPE_KERNEL; ++next_kept) {
          if (next_kept == count || !find_type(kept[next_kept], &type)) return false;
          place.kept = kept[next_kept];
        }
        if (type != place.type) return false;
        break;
      default: unwritable_ = updating_; return false;
    }
  }
  return places_of_kernels_.count() == nodes.count();
}

namespace {

int compare_edges(const void* one, const void* other) {
  return memcmp(one, other, sizeof(TakenOver::Edge));
}

}  // namespace

bool TakenOver::learn_edges(CUgraph graph, CUgraph copy, const Block<CUgraphNode>& listed) {
  Block<CUgraphNode> kept;
  // This needs a driver that reports edges.
  if (FIBSHIM_REAL(cuGraphGetEdges_v2) == nullptr || !kept.allocate(places_.count())) return false;
  for (size_t i = 0; i < places_.count(); ++i) kept[i] = places_[i].kept;
  Block<Edge> sorted;
  Block<Edge> sorted_kept;
  if (!read_edges(graph, listed, &edges_) || !read_edges(copy, kept, &sorted_kept) ||
      edges_.count() != sorted_kept.count() || !sorted.allocate(edges_.count())) {
    return false;
  }
  const size_t count = edges_.count();
  if (count != 0) {
    memcpy(sorted.begin(), edges_.begin(), count * sizeof(Edge));
    qsort(sorted.begin(), count, sizeof(Edge), compare_edges);
    qsort(sorted_kept.begin(), count, sizeof(Edge), compare_edges);
    if (memcmp(sorted.begin(), sorted_kept.begin(), count * sizeof(Edge)) != 0) return false;
  }
  return true;
}

// Reads the edges of a graph with these nodes.
bool TakenOver::read_edges(CUgraph graph, const Block<CUgraphNode>& nodes, Block<Edge>* out) {
  GraphEdges edges;
  Block<HostNode> places;
  if (!edges.read(graph) || !out->allocate(edges.data.count()) ||
      !sort_nodes(nodes.begin(), nodes.count(), &places)) {
    return false;
  }
  for (size_t i = 0; i < edges.data.count(); ++i) {
    const size_t from = find_host_node(places, edges.from[i]);
    const size_t to = find_host_node(places, edges.to[i]);
    if (from == SIZE_MAX || to == SIZE_MAX) return false;
    (*out)[i] = {static_cast<uint32_t>(from), static_cast<uint32_t>(to), edges.data[i]};
  }
  return true;
}

// True if the graph has the same edges between the same places. Then the copy, with the written
// values, equals this graph, whichever nodes the driver pairs with each other.
bool TakenOver::lists_same(CUgraph graph) {
  const auto get_nodes = FIBSHIM_REAL(cuGraphGetNodes);
  const auto get_edges = FIBSHIM_REAL(cuGraphGetEdges_v2);
  // One more place than expected, so that a larger graph is noticed.
  size_t node_count = places_.count() + 1;
  size_t edge_count = edges_.count() + 1;
  Block<CUgraphNode> from;
  Block<CUgraphNode> to;
  Block<CUgraphEdgeData> data;
  if (places_.count() == 0 || !nodes_.allocate_unset(node_count) ||
      !from.allocate_unset(edge_count) || !to.allocate_unset(edge_count) ||
      !data.allocate_unset(edge_count) ||
      get_nodes(graph, nodes_.begin(), &node_count) != CUDA_SUCCESS ||
      node_count != places_.count() ||
      get_edges(graph, from.begin(), to.begin(), data.begin(), &edge_count) != CUDA_SUCCESS ||
      edge_count != edges_.count()) {
    return false;
  }
  for (size_t i = 0; i < edge_count; ++i) {
    const Edge& edge = edges_[i];
    if (nodes_[edge.from] != from[i] || nodes_[edge.to] != to[i] ||
        memcmp(&edge.data, &data[i], sizeof edge.data) != 0) {
      return false;
    }
  }
  return true;
}

bool TakenOver::write_other(size_t place) {
  CUgraphNode const node = nodes_[place];
  const CUgraphNodeType type = places_[place].type;
  CUgraphNodeType own_type;
  if (!find_type(node, &own_type) || own_type != type) return false;
  if (type == CU_GRAPH_NODE_TYPE_EMPTY) return true;
  const bool is_copy = type == CU_GRAPH_NODE_TYPE_MEMCPY;
  const size_t size = is_copy ? sizeof(CUDA_MEMCPY3D) : sizeof(CUDA_MEMSET_NODE_PARAMS);
  const auto read = [&](CUgraphNode from, char* to) {
    return is_copy ? get_params<CUDA_MEMCPY3D>(FIBSHIM_REAL(cuGraphMemcpyNodeGetParams), from, to)
                   : get_params<CUDA_MEMSET_NODE_PARAMS>(FIBSHIM_REAL(cuGraphMemsetNodeGetParams),
                                                         from, to);
  };
  char* const bytes = add(place, size);
  if (bytes == nullptr || !read(node, bytes)) return false;
  char of_copy[sizeof(CUDA_MEMCPY3D)];
  static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) <= sizeof of_copy);
  const Set& last = sets_[last_];
  const char* const before = is_behind_ ? last.bytes.begin() + last.nodes[place].at : of_copy;
  has_changed_others_ |=
      (!is_behind_ && !read(places_[place].kept, of_copy)) || memcmp(before, bytes, size) != 0;
  return true;
}

// Null: the driver does not report it, or there is no memory.
const TakenOver::Layout* TakenOver::layout_of(const void* handle) {
  for (const Layout* const known : layouts_) {
    if (known->handle == handle) return known;
  }
  if (layouts_.count() > kMostLayouts + places_.count()) return nullptr;
  Param params[kMaxParams];
  Layout found = {handle, 0, 0};
  if (!find_params(handle, params, &found.count)) return nullptr;
  for (uint32_t i = 0; i < found.count; ++i) {
    const uint32_t end = params[i].offset + params[i].size;
    if (end > found.bytes) found.bytes = end;
  }
  auto* const layout = static_cast<Layout*>(g_graph_pool.allocate(found.size()));
  if (layout == nullptr) return nullptr;
  *layout = found;
  memcpy(layout->params(), params, found.count * sizeof *params);
  Layout** const added = layouts_.add();
  if (added == nullptr) {
    g_graph_pool.release(layout, found.size());
    return nullptr;
  }
  return *added = layout;
}

namespace {

// Copies bytes. Returns true if they equal those at `before`. Most have the size of pointers or
// 32-bit numbers, for which no function is called.
template <class Word>
bool copy_word(char* to, const void* from, const char* before) {
  const auto word = read_as<Word>(static_cast<const char*>(from));
  memcpy(to, &word, sizeof word);
  return word == read_as<Word>(before);
}
bool copy_bytes(char* to, const void* from, const char* before, size_t size) {
  if (size == sizeof(uint64_t)) return copy_word<uint64_t>(to, from, before);
  if (size == sizeof(uint32_t)) return copy_word<uint32_t>(to, from, before);
  memcpy(to, from, size);
  return memcmp(to, before, size) == 0;
}

}  // namespace

bool TakenOver::write_kernel(size_t kernel, const NodeParams& params, bool* is_same) {
  const size_t place = places_of_kernels_[kernel];
  const Set& last = sets_[last_];
  const Layout* const before = last.nodes.count() == 0 ? nullptr : last.nodes[place].layout;
  const void* const handle = handle_of(params);
  const bool is_before = before != nullptr && before->handle == handle;
  const Layout* const layout = is_before ? before : layout_of(handle);
  if (layout == nullptr || params.extra != nullptr ||
      (params.kernelParams == nullptr && layout->count != 0)) {
    return false;
  }
  next().nodes[place].layout = layout;
  char* const bytes = add(place, sizeof params + layout->bytes);
  if (bytes == nullptr) return false;
  // If the node had another kernel there is nothing to compare with: the bytes are compared with
  // themselves, and `*is_same` becomes false.
  const char* const old = is_before ? last.bytes.begin() + last.nodes[place].at : bytes;
  memcpy(bytes, &params, sizeof params);
  memset(bytes + offsetof(NodeParams, kernelParams), 0, sizeof(void*));  // points into the driver
  bool is_all_same = is_before && memcmp(bytes, old, sizeof params) == 0;
  const Param* const end = layout->params() + layout->count;
  void* const* from = params.kernelParams;
  for (const Param* param = layout->params(); param != end; ++param, ++from) {
    const size_t at = sizeof params + param->offset;
    is_all_same &= copy_bytes(bytes + at, *from, old + at, param->size);
  }
  *is_same = is_all_same;
  return true;
}

void TakenOver::commit(Block<KeptPlan>* plans, uint64_t changes) {
  plans_.swap(*plans);
  plans_changes_ = changes;
  last_ = 1 - last_;
  next().release();
  lasting_layouts_ = layouts_.count();
  is_behind_ = true;
}

bool TakenOver::bring_up_to_date() {
  if (!is_behind_) return true;
  const Set& set = sets_[last_];
  const auto set_kernel = FIBSHIM_REAL(cuGraphKernelNodeSetParams_v2);
  for (size_t i = 0; i < places_.count(); ++i) {
    CUgraphNode const kept = places_[i].kept;
    const char* const bytes = set.bytes.begin() + set.nodes[i].at;
    bool is_set = true;
    switch (places_[i].type) {
      case CU_GRAPH_NODE_TYPE_KERNEL: {
        void* pointers[kMaxParams];
        const NodeParams params = read_written(set, i, pointers);
        is_set = set_kernel != nullptr && set_kernel(kept, &params) == CUDA_SUCCESS;
        break;
      }
      case CU_GRAPH_NODE_TYPE_MEMCPY:
        is_set = set_params<CUDA_MEMCPY3D>(FIBSHIM_REAL(cuGraphMemcpyNodeGetParams),
                                           FIBSHIM_REAL(cuGraphMemcpyNodeSetParams), kept, bytes);
        break;
      case CU_GRAPH_NODE_TYPE_MEMSET:
        is_set = set_params<CUDA_MEMSET_NODE_PARAMS>(FIBSHIM_REAL(cuGraphMemsetNodeGetParams),
                                                     FIBSHIM_REAL(cuGraphMemsetNodeSetParams), kept,
                                                     bytes);
        break;
      default: break;
    }
    if (!is_set) return false;
  }
  is_behind_ = false;
  return true;
}

NodeParams TakenOver::read_written(const Set& set, size_t place, void** pointers) {
  const Layout& layout = *set.nodes[place].layout;
  char* const bytes = set.bytes.begin() + set.nodes[place].at;
  auto params = read_as<NodeParams>(bytes);
  for (uint32_t i = 0; i < layout.count; ++i) {
    pointers[i] = bytes + sizeof params + layout.params()[i].offset;
  }
  params.kernelParams = layout.count == 0 ? nullptr : pointers;
  return params;
}

const Param* TakenOver::written_layout(size_t kernel, uint32_t* count) const {
  const Layout& layout = *next().nodes[places_of_kernels_[kernel]].layout;
  *count = layout.count;
  return layout.params();
}

NodeParams TakenOver::written_kernel(size_t kernel, void** pointers) const {
  return read_written(next(), places_of_kernels_[kernel], pointers);
}

}  // namespace fibshim
