// Whether bytes that come from a file are a snapshot that can be read without leaving them: every
// offset, count, index and enumerator is within bounds, and every program runs in the stack that
// the launch path has. It says nothing about whether the snapshot makes sense.
#ifndef FIBSHIM_LOADER_CHECK_SNAPSHOT_LAYOUT_H_
#define FIBSHIM_LOADER_CHECK_SNAPSHOT_LAYOUT_H_

#include <string_view>

namespace fibshim {

// `block`: a snapshot's movable part, aligned to 8 bytes.
bool is_sound_layout(std::string_view block);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_CHECK_SNAPSHOT_LAYOUT_H_
