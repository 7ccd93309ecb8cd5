// User objects, which graphs keep alive for the host. Copies of a graph and executable graphs hold
// references to the same objects. The real driver calls the destructor on a thread of its own, this
// one at once.
#include "tests/driver/graph.h"

namespace simcuda {
namespace {

void release(UserObject* object, unsigned count) {
  object->references -= std::min(count, object->references);
  if (object->references != 0) return;
  object->destroy(object->data);
  delete object;
}

UserObject* object_of(CUuserObject handle) { return reinterpret_cast<UserObject*>(handle); }

CUresult create(CUuserObject* handle, void* data, CUhostFn destroy, unsigned count,
                unsigned flags) {
  if (handle == nullptr || destroy == nullptr || count == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = reinterpret_cast<CUuserObject>(new UserObject{destroy, data, count});
  return CUDA_SUCCESS;
}

CUresult retain(CUuserObject handle, unsigned count) {
  if (handle == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object_of(handle)->references += count;
  return CUDA_SUCCESS;
}

CUresult give_up(CUuserObject handle, unsigned count) {
  if (handle == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  release(object_of(handle), count);
  return CUDA_SUCCESS;
}

CUresult retain_by(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
  Graph* const graph = find_graph(graph_handle);
  if (graph == nullptr || handle == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  UserObject* const object = object_of(handle);
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->references += count;
  graph->objects.insert(graph->objects.end(), count, object);
  return CUDA_SUCCESS;
}

CUresult release_by(CUgraph graph_handle, CUuserObject handle, unsigned count) {
  Graph* const graph = find_graph(graph_handle);
  if (graph == nullptr || handle == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  UserObject* const object = object_of(handle);
  for (unsigned i = 0; i < count; ++i) {
    const auto place = std::find(graph->objects.begin(), graph->objects.end(), object);
    if (place == graph->objects.end()) return CUDA_ERROR_INVALID_VALUE;
    graph->objects.erase(place);
    release(object, 1);
  }
  return CUDA_SUCCESS;
}

}  // namespace

void hold_objects(Graph& graph, const UserObjects& objects) {
  for (UserObject* object : objects) ++object->references;
  graph.objects.insert(graph.objects.end(), objects.begin(), objects.end());
}

void release_objects(const UserObjects& objects) {
  for (UserObject* object : objects) release(object, 1);
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

ENTRY_LOCKED(cuUserObjectCreate,
             (CUuserObject * object, void* data, CUhostFn destroy, unsigned count, unsigned flags),
             create(object, data, destroy, count, flags))
ENTRY_LOCKED(cuUserObjectRetain, (CUuserObject object, unsigned count), retain(object, count))
ENTRY_LOCKED(cuUserObjectRelease, (CUuserObject object, unsigned count), give_up(object, count))
ENTRY_LOCKED(cuGraphRetainUserObject,
             (CUgraph graph, CUuserObject object, unsigned count, unsigned flags),
             retain_by(graph, object, count, flags))
ENTRY_LOCKED(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned count),
             release_by(graph, object, count))

}  // extern "C"
