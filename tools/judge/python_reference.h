// Runs the definition's own `reference` in a Python that has torch, on the CPU or the GPU as torch
// chooses. Inputs and outputs pass through safetensors files, requests through its standard
// streams.
#pragma once

#include <sys/types.h>

#include <memory>

#include "loader/compile/definition.h"
#include "tools/base/file_descriptor.h"
#include "tools/judge/case_data.h"
#include "tools/lint/verify_block.h"

namespace fibshim::judge {

// One interpreter serves all definitions, one after the other, since importing torch takes seconds.
// It may be started before a worker process is, which then uses it in its parent's place.
class PythonInterpreter {
 public:
  // Fails if the interpreter cannot start or has no torch.
  static Result<std::unique_ptr<PythonInterpreter>> start(const std::string& python);
  ~PythonInterpreter();
  PythonInterpreter(const PythonInterpreter&) = delete;
  PythonInterpreter& operator=(const PythonInterpreter&) = delete;

  // Sends a line, and waits for the one that answers it.
  Result<void> ask(const std::string& request);

  const std::string& python() const { return python_; }
  const std::string& folder() const { return folder_; }  // for files that are exchanged

 private:
  PythonInterpreter(std::string python, std::string folder, pid_t process, int to, int from)
      : python_(std::move(python)),
        folder_(std::move(folder)),
        process_(process),
        to_(to),
        from_(from) {}
  Result<void> read_answer();

  std::string python_, folder_;
  pid_t process_;
  tools::FileDescriptor to_, from_;
};

class PythonReference {
 public:
  // Fails if the definition has no reference, or one that does not compile. The interpreter must
  // outlive it, and have no other reference meanwhile.
  static Result<std::unique_ptr<PythonReference>> make(PythonInterpreter* interpreter,
                                                       const Definition& definition);

  // The outputs, by name, as float64. Floating-point inputs are passed in their own type; the
  // reference chooses the type in which it computes. An eps that the reference states is replaced by the launch's, among the
  // data's scalars.
  Result<std::map<std::string, Tensor>> run(const CaseData& data);

  // Why it may have another eps than a launch with these numbers; "" if it has the same.
  std::string find_other_eps(const CaseData& numbers, const VerifyBlock& verify) const;

 private:
  PythonReference(PythonInterpreter* interpreter, const Definition& definition)
      : interpreter_(interpreter), definition_(definition) {}

  Result<void> define(std::string text);

  PythonInterpreter* interpreter_;
  const Definition& definition_;
  std::string text_;  // of the reference as the interpreter has it
};

}  // namespace fibshim::judge
