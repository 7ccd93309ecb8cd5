#include "shim/plan/fit.h"

#include "shim/abi/program.h"

namespace fibshim {
namespace {

struct Params {
  const Param* params;
  uint32_t count;

  bool contain(uint32_t index, uint32_t offset, uint32_t bytes) const {
    return index < count && uint64_t{offset} + bytes <= params[index].size;
  }

  bool contain_all_of(const Snapshot& snapshot, Program program) const {
    const Step* const steps = snapshot.begin(program);
    for (uint32_t i = 0; i < program.count; ++i) {
      if (!reads_existing_params(steps[i], [this](uint32_t index, uint32_t offset, uint32_t bytes) {
            return contain(index, offset, bytes);
          })) {
        return false;
      }
    }
    return true;
  }
};

bool has_layout(const Snapshot& snapshot, const Pattern& pattern, const Params& params) {
  if (pattern.has_params == 0) return true;
  if (pattern.param_sizes.count != params.count) return false;
  const uint16_t* const sizes = snapshot.begin(pattern.param_sizes);
  for (uint32_t i = 0; i < params.count; ++i) {
    if (sizes[i] != params.params[i].size) return false;
  }
  return true;
}

bool reads_within(const Snapshot& snapshot, const Pattern& pattern, const Params& params) {
  if (!params.contain_all_of(snapshot, pattern.where)) return false;
  const KeyPart* const key = snapshot.begin(pattern.key);
  for (uint32_t i = 0; i < pattern.key.count; ++i) {
    if (!params.contain_all_of(snapshot, key[i].program)) return false;
  }
  return true;
}

bool has_image(const Snapshot& snapshot, const Pattern& pattern, const ImageHashes* image) {
  if (pattern.images.count == 0) return true;
  if (image == nullptr) return false;
  const bool has_code = !(image->code == ImageHash{});
  const ImageHash* const images = snapshot.begin(pattern.images);
  for (uint32_t i = 0; i < pattern.images.count; ++i) {
    if (images[i] == image->file || (has_code && images[i] == image->code)) return true;
  }
  return false;
}

}  // namespace

Fit fit_pattern(const Snapshot& snapshot, const Pattern& pattern, const Param* params,
                uint32_t param_count, const ImageHashes* image) {
  const Params own = {params, param_count};
  if (!has_layout(snapshot, pattern, own) || !reads_within(snapshot, pattern, own)) {
    return Fit::other_layout;
  }
  return has_image(snapshot, pattern, image) ? Fit::fits : Fit::other_image;
}

bool fits_program(const Snapshot& snapshot, Program program, const Param* params,
                  uint32_t param_count) {
  return Params{params, param_count}.contain_all_of(snapshot, program);
}

bool fits_binding(const Snapshot& snapshot, const Binding& binding, const Param* params,
                  uint32_t param_count) {
  const Params own = {params, param_count};
  if (!own.contain_all_of(snapshot, binding.where)) return false;
  for (const GeometryMap& geometry : binding.geometry) {
    if (geometry.kind == GeometryMap::Kind::program &&
        !own.contain_all_of(snapshot, geometry.program)) {
      return false;
    }
  }
  const ArgumentMap* const arguments = snapshot.begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    const bool is_read =
        argument.kind == ArgumentMap::Kind::pass || argument.kind == ArgumentMap::Kind::shifted;
    if (is_read && !own.contain(argument.param, argument.offset, argument.size)) return false;
    if (!own.contain_all_of(snapshot, argument.program)) return false;
  }
  return binding.arguments.count <= kMaxParams;
}

}  // namespace fibshim
