// Plans the commonest launches by the FastForm that the loader has made. Header-only, pure and
// inlined into the launch path: no loop over what the launch does not have, and no call unless a
// value is an expression. It decides as plan_launch() does; the tests compare the two.
#pragma once

#include "shim/abi/program.h"
#include "shim/abi/snapshot.h"
#include "shim/plan/plan.h"
#include "shim/registry/record.h"

namespace fibshim {

// Reads the key of a pattern whose key is one parameter or nothing. Not for KeyKind::computed.
inline int64_t read_fast_key(const FastKey& key, void* const* params) {
  using program_detail::read_bytes;
  if (key.kind == KeyKind::none) return 0;
  const char* const at = static_cast<const char*>(params[key.param]) + key.offset;
  return __builtin_expect(key.kind == KeyKind::int32, 1) ? read_bytes<int32_t>(at)
                                                         : read_bytes<int64_t>(at);
}

// The pointers may have any bits: an address from 2^63 on can be aligned, but has no value that
// could be compared with 0.
inline bool fast_checks_hold(const FastChecks& checks, void* const* params) {
  using program_detail::read_bytes;
  uint64_t bits = 0;
  for (uint32_t i = 0; i < checks.aligned_count; i += 2) {
    bits |= read_bytes<uint64_t>(params[checks.aligned[i]]);
    bits |= read_bytes<uint64_t>(params[checks.aligned[i + 1]]);
  }
  if ((bits & checks.alignment_mask) != 0) return false;
  for (uint32_t i = 0; i < checks.not_null_count; ++i) {
    if (read_bytes<int64_t>(params[checks.not_null[i]]) <= 0) return false;
  }
  return true;
}

// Reads the value that choices depend on. `geometry_of(i)`: the launch's, in the plain order.
template <class GeometryOf>
inline int64_t read_fast_value(const FastRange& value, void* const* params,
                               const GeometryOf& geometry_of) {
  using program_detail::read_bytes;
  if (value.source == FastRange::Source::geometry) return geometry_of(value.at);
  if (value.source == FastRange::Source::always) return 0;
  const char* const at = static_cast<const char*>(params[value.at]) + value.offset;
  if (value.type == ValueType::int32) return read_bytes<int32_t>(at);
  if (value.type == ValueType::uint32) return read_bytes<uint32_t>(at);
  return read_bytes<int64_t>(at);
}

// Returns the launch's decision, or null if it has none. Requires choices.is_fast.
template <class GeometryOf>
inline const Decision* choose_fast(const Choices& choices, void* const* params,
                                   const GeometryOf& geometry_of) {
  const auto value = static_cast<uint64_t>(read_fast_value(choices.value, params, geometry_of));
  for (uint32_t i = 0; i < choices.count; ++i) {
    const Choices::Choice& choice = choices.list[i];
    if (value - static_cast<uint64_t>(choice.low) <= choice.span) return choice.decision;
  }
  return nullptr;
}

// `geometry_of(i)`: the launch's own value, in the plain order. Returns false if the source is no
// valid dimension (0, or beyond INT32_MAX).
template <class GeometryOf>
inline bool make_fast_dimension(const FastDimension& dimension, void* const* params,
                                const GeometryOf& geometry_of, uint32_t* geometry) {
  const uint32_t source = dimension.source == FastDimension::Source::param
                              ? program_detail::read_bytes<uint32_t>(params[dimension.at])
                              : geometry_of(dimension.at);
  uint32_t less_one = source - 1;
  if (less_one >= uint32_t{INT32_MAX}) return false;
  if (dimension.shift != FastDimension::kNotComputed) {
    less_one = dimension.divisor == 0 ? less_one >> dimension.shift : less_one / dimension.divisor;
    if (less_one >= dimension.most) less_one = dimension.most - 1;
  }
  geometry[dimension.target] = less_one + 1;
  return true;
}

// Returns false if a dimension is invalid; plan_launch() then says what the launch is counted as.
template <class GeometryOf>
inline bool make_fast_geometry(const FastForm& form, void* const* params,
                               const GeometryOf& geometry_of,
                               uint32_t (&geometry)[kPlainGeometryCount]) {
  __builtin_memcpy(geometry, form.geometry, sizeof geometry);
  if (form.dimension_count == 0) return true;
  static_assert(kMaxFastDimensions == 2);
  return make_fast_dimension(form.dimensions[0], params, geometry_of, geometry) &&
         (form.dimension_count == 1 ||
          make_fast_dimension(form.dimensions[1], params, geometry_of, geometry));
}

// Returns the replacement's arguments: the original's own array, or `room`.
inline void** make_fast_arguments(const FastForm& form, void** params,
                                  void* (&room)[kMaxFastArguments]) {
  if (form.argument_count == 0) return params;
  for (uint32_t i = 0; i < form.argument_count; i += 8) {
#pragma GCC unroll 8
    for (uint32_t k = 0; k < 8; ++k) room[i + k] = params[form.arguments[i + k]];
  }
  return room;
}

// Composes what a decision whose checks hold is launched with: the geometry, in the plain order, and
// the arguments, which may be in `room`. FastWay::direct. False: as for make_fast_geometry().
template <class GeometryOf>
inline bool compose_direct(const FastForm& form, void** params, const GeometryOf& geometry_of,
                           uint32_t (&geometry)[kPlainGeometryCount],
                           void* (&room)[kMaxFastArguments], void*** arguments) {
  if (!make_fast_geometry(form, params, geometry_of, geometry)) return false;
  *arguments = make_fast_arguments(form, params, room);
  return true;
}

// The same for FastWay::computed. False: a value cannot be computed or is out of range.
inline bool compose_computed(const Decision& decision, const LaunchView& view,
                             uint32_t (&geometry)[kPlainGeometryCount], void** pointers,
                             int64_t* values, void*** arguments) {
  __builtin_memcpy(geometry, decision.fast.geometry, sizeof geometry);
  for (uint32_t left = decision.fast.has_dynamic; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(__builtin_ctz(left));
    const uint32_t target = index == kSharedMem ? kPlainSharedMem : index;
    if (!compute_dimension(decision, index, view, &geometry[target])) return false;
  }
  return choose_arguments(decision, view, pointers, values, arguments);
}

// Adds a cluster of one block to a geometry in the plain order.
inline void widen_geometry(const uint32_t (&plain)[kPlainGeometryCount],
                           uint32_t (&geometry)[kGeometryCount]) {
  __builtin_memcpy(geometry, plain, kPlainSharedMem * sizeof *plain);
  for (uint32_t i = kClusterX; i <= kClusterZ; ++i) geometry[i] = 1;
  geometry[kSharedMem] = plain[kPlainSharedMem];
}

}  // namespace fibshim
