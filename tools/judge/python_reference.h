// Runs the definition's own `reference` in a Python that has torch, on the CPU or the GPU as torch
// chooses. One interpreter serves all cases of a definition. Inputs and outputs pass through
// safetensors files, requests through its standard streams.
#pragma once

#include <sys/types.h>

#include <memory>

#include "loader/compile/definition.h"
#include "tools/base/file_descriptor.h"
#include "tools/judge/case_data.h"

namespace fibshim::judge {

class PythonReference {
 public:
  // Fails if the interpreter cannot start or has no torch, or if the reference does not compile.
  static Result<std::unique_ptr<PythonReference>> start(const std::string& python,
                                                        const Definition& definition);
  ~PythonReference();
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;

  // The outputs, by name, as float64. Floating-point inputs are passed in their own type; the
  // reference chooses the type in which it computes.
  Result<std::map<std::string, Tensor>> run(const CaseData& data);

 private:
  PythonReference(const Definition& definition, std::string folder, pid_t process, int to, int from)
      : definition_(definition),
        folder_(std::move(folder)),
        process_(process),
        to_(to),
        from_(from) {}
  Result<std::string> ask(const std::string& request);

  const Definition& definition_;
  std::string folder_;
  pid_t process_;
  tools::FileDescriptor to_, from_;
};

}  // namespace fibshim::judge
