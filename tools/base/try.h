// FIBSHIM_TRY(): the value of a tl::expected; if that is an error, the enclosing function returns
// it.
#pragma once

#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

namespace fibshim::tools {

template <class Expected>
auto value_of(Expected expected) {
  if constexpr (!std::is_void_v<typename Expected::value_type>) return std::move(*expected);
}

}  // namespace fibshim::tools

#define FIBSHIM_TRY(...)                                                     \
  __extension__({                                                            \
    auto tried_value = (__VA_ARGS__);                                        \
    if (!tried_value) return tl::unexpected(std::move(tried_value).error()); \
    ::fibshim::tools::value_of(std::move(tried_value));                      \
  })
