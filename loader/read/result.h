// Errors are values: every function of the loader that can fail returns a Result.
// Exceptions stay inside the loader's own functions; none crosses a header of this room.
#pragma once

#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace fibshim {

// The CUresult that a launch must return for an error. Spelled out here so that the loader needs no
// CUDA header.
enum class ErrorCode : int {
  success = 0,
  invalid_value = 1,        // CUDA_ERROR_INVALID_VALUE
  invalid_image = 200,      // CUDA_ERROR_INVALID_IMAGE
  no_binary_for_gpu = 209,  // CUDA_ERROR_NO_BINARY_FOR_GPU
  file_not_found = 301,     // CUDA_ERROR_FILE_NOT_FOUND
  operating_system = 304,   // CUDA_ERROR_OPERATING_SYSTEM
  not_found = 500,          // CUDA_ERROR_NOT_FOUND
};

// A failure: what went wrong, as a sentence without a final stop, and where in the input (bytes
// from its start; 0 if no place is to blame).
struct Error {
  ErrorCode code;
  std::string message;
  size_t offset = 0;
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message, size_t offset = 0) {
  return tl::unexpected<Error>(Error{code, std::move(message), offset});
}

}  // namespace fibshim
