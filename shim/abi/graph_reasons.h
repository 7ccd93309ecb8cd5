// Why a kernel node of a graph keeps its original although a solution is for it (outcome fallback_graph), as one table:
// the shim counts and logs by it, `fibshim stats` prints by it. The numbers are part of the counters file's format:
// append, never renumber, and no more than kOutcomeSlots.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class GraphReason : uint8_t {
  device_launch,
  device_update,
  unchecked,
  not_copied,
  not_in_place,
  refused,
  disabled,
  set_after_update,
  set_unknown,
  set_child,
  rewrite_order,
  rewrite_buffers,
  rewrite_reader,
  rewrite_changed,
  rewrite_priority,
};

struct GraphReasonInfo {
  GraphReason reason;
  const char* name;
  const char* meaning;
};

inline constexpr GraphReasonInfo kGraphReasons[] = {
    {GraphReason::device_launch, "device_launch", "the device may launch the graph"},
    {GraphReason::device_update, "device_update", "the device may change nodes of the graph"},
    {GraphReason::unchecked, "unchecked",
     "each launch is to be checked (FIBSHIM_SHADOW), which needs a copy of the graph"},
    {GraphReason::not_copied, "not_copied", "the driver does not copy or describe the graph"},
    {GraphReason::not_in_place, "not_in_place",
     "the driver does not copy the graph, and the replacement needs more than other parameters"},
    {GraphReason::refused, "refused",
     "the driver refused the replacement, or there was no memory for it"},
    {GraphReason::disabled, "disabled", "the graph was updated while nodes of it were disabled"},
    {GraphReason::set_after_update, "set_after_update",
     "the host set a node after an update from a graph with other nodes"},
    {GraphReason::set_unknown, "set_unknown", "the host set a node that the shim has no copy of"},
    {GraphReason::set_child, "set_child", "the host set a child graph that the copy cannot follow"},
    {GraphReason::rewrite_order, "rewrite_order",
     "a rewrite: another node comes between its kernels, or an edge is of an unknown kind"},
    {GraphReason::rewrite_buffers, "rewrite_buffers",
     "a rewrite: its buffers overlap, or the size of one is not known"},
    {GraphReason::rewrite_reader, "rewrite_reader",
     "a rewrite: another node may read a buffer that it leaves out"},
    {GraphReason::rewrite_changed, "rewrite_changed",
     "a rewrite: the host has changed nodes of the graph"},
    {GraphReason::rewrite_priority, "rewrite_priority",
     "a rewrite: its kernels have unequal priorities"},
};
inline constexpr uint32_t kGraphReasonCount = sizeof(kGraphReasons) / sizeof(kGraphReasons[0]);

constexpr const char* meaning_of(GraphReason reason) {
  return kGraphReasons[static_cast<uint32_t>(reason)].meaning;
}

}  // namespace fibshim
