// Compares the declarations of shim/record/cupti_api.h with the header of the toolkit that is
// installed here.
#include <gtest/gtest.h>

#include "shim/record/cupti_api.h"

#if __has_include(<cupti.h>)

#include <cupti.h>

namespace fibshim {
namespace {

#define SAME_IN(theirs, ours, cupti)                                      \
  static_assert(offsetof(CuptiKernel, ours) == offsetof(theirs, cupti) && \
                sizeof(CuptiKernel::ours) >= sizeof(theirs::cupti));
#define SAME(ours, cupti) \
  SAME_IN(CUpti_ActivityKernel9, ours, cupti) SAME_IN(CUpti_ActivityKernel10, ours, cupti)
SAME(kind, kind)
SAME(start, start)
SAME(end, end)
SAME(device_id, deviceId)
SAME(grid, gridX)
SAME(block, blockX)
SAME(dynamic_shared_memory, dynamicSharedMemory)
SAME(name, name)
SAME(graph_node_id, graphNodeId)
SAME(graph_id, graphId)
SAME(cluster, clusterX)
#undef SAME

static_assert(kCuptiConcurrentKernel == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(kCuptiFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
static_assert(kCuptiMultipleSubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(kCuptiSuccess == CUPTI_SUCCESS);

TEST(CuptiLayout, TheInstalledVersionIsKnown) { EXPECT_TRUE(is_known_cupti(CUPTI_API_VERSION)); }

}  // namespace
}  // namespace fibshim

#endif
