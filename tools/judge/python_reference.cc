#include "tools/judge/python_reference.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "loader/compile/compile_expression.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"
#include "tools/judge/inputs.h"
#include "tools/judge/workloads.h"
#include "tools/base/try.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

// Reads requests, one JSON object a line, and answers each with one: {} or {"error": ...}. The
// reference may print: so descriptor 1 is redirected to stderr, and answers go to a copy of it.
constexpr char kScript[] = R"py(
import json, os, struct, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def answer(value):
    answers.write(json.dumps(value) + "\n")
    answers.flush()
try:
    import torch
    types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
             "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
             "U8": torch.uint8, "BOOL": torch.bool}
    for name, key in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"), ("U16", "uint16"),
                      ("U32", "uint32"), ("U64", "uint64")):
        if hasattr(torch, key):
            types[name] = getattr(torch, key)
except BaseException as error:
    answer({"error": "".join(traceback.format_exception_only(type(error), error)).strip()})
    sys.exit(0)
answer({})
def load(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = bytearray(os.path.getsize(path) - 8 - size)
        file.readinto(data)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=end - begin) \
            if end > begin else torch.empty(0, dtype=torch.uint8)
        if begin % 8:
            raw = raw.clone()
        tensors[name] = raw.view(types[entry["dtype"]]).reshape(entry["shape"])
    return tensors
type_names = {dtype: name for name, dtype in types.items()}
def save(path, tensors):
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in type_names:
            raise TypeError('"%s" is a tensor of %s, which no definition has' % (name, tensor.dtype))
        tensor = tensor.cpu().contiguous()
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        header[name] = {"dtype": type_names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + raw.size]}
        at += raw.size
        parts.append(raw)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for raw in parts:
            file.write(raw)
for line in sys.stdin:
    try:
        request = json.loads(line)
        if "reference" in request:
            definition, scope = request, {"__name__": "reference"}
            exec(compile(definition["reference"], definition["name"] + " reference", "exec"), scope)
            run = scope["run"]
            answer({})
            continue
        tensors = load(request["inputs"])
        device = "cuda" if torch.cuda.is_available() else "cpu"
        arguments = {}
        for name in definition["inputs"]:
            if name in tensors:
                arguments[name] = tensors[name].to(device)
            elif name in request["scalars"]:
                arguments[name] = request["scalars"][name]
        with torch.no_grad():
            result = run(**arguments)
        names = list(definition["outputs"])
        if isinstance(result, dict):
            outputs = {name: result[name] for name in names}
        else:
            values = list(result) if isinstance(result, (tuple, list)) else [result]
            if len(values) != len(names):
                raise ValueError("the reference returns %d values, the definition has %d outputs"
                                 % (len(values), len(names)))
            outputs = dict(zip(names, values))
        outputs = {name: torch.as_tensor(value) for name, value in outputs.items()}
        save(request["outputs"], outputs)
        answer({})
    except BaseException as error:
        answer({"error": "".join(traceback.format_exception_only(type(error), error)).strip()})
)py";

}  // namespace

Result<std::unique_ptr<PythonInterpreter>> PythonInterpreter::start(const std::string& python) {
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::operating_system, python + ": " + why);
  };
  std::string folder = std::filesystem::temp_directory_path().string() + "/fibshim-judge-XXXXXX";
  int to[2], from[2];
  if (mkdtemp(folder.data()) == nullptr || pipe2(to, O_CLOEXEC) != 0 ||
      pipe2(from, O_CLOEXEC) != 0) {
    return failed(strerror(errno));
  }
  const std::string script = folder + "/serve.py";
  std::ofstream(script) << kScript;
  const pid_t process = fork();
  if (process < 0) return failed(strerror(errno));
  if (process == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    execlp(python.c_str(), python.c_str(), script.c_str(), nullptr);
    dprintf(STDOUT_FILENO, "{\"error\": \"cannot run it: %s\"}\n", strerror(errno));
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<PythonInterpreter> interpreter(
      new PythonInterpreter(python, folder, process, to[1], from[0]));
  const auto greeting = interpreter->read_answer();
  if (!greeting) return failed(greeting.error().message);
  return interpreter;
}

PythonInterpreter::~PythonInterpreter() {
  to_ = tools::FileDescriptor(-1);  // the interpreter ends at the end of its input
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

Result<void> PythonInterpreter::ask(const std::string& request) {
  const std::string line = request + "\n";
  for (size_t at = 0; at < line.size();) {
    const ssize_t written = write(to_.get(), line.data() + at, line.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail(ErrorCode::operating_system, "the interpreter ended");
    at += static_cast<size_t>(written);
  }
  return read_answer();
}

Result<void> PythonInterpreter::read_answer() {
  std::string line;
  char next = 0;
  while (line.size() < kMaxNameLength * 128) {
    const ssize_t got = read(from_.get(), &next, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(ErrorCode::operating_system, "the interpreter ended");
    if (next == '\n') break;
    line += next;
  }
  const Json answer = tools::parse_json<Json>(line);
  if (answer.is_discarded()) return fail(ErrorCode::operating_system, "it answered: " + line);
  if (answer.contains("error")) {
    return fail(ErrorCode::operating_system, answer["error"].get<std::string>());
  }
  return {};
}

Result<std::unique_ptr<PythonReference>> PythonReference::make(PythonInterpreter* interpreter,
                                                               const Definition& definition) {
  std::unique_ptr<PythonReference> made(new PythonReference(interpreter, definition));
  FIBSHIM_TRY(made->define(definition.reference));
  return made;
}

Result<void> PythonReference::define(std::string text) {
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::operating_system, "reference of " + definition_.name.name + ": " + why);
  };
  if (text.empty()) return failed("the definition has none");
  Json inputs = Json::object(), outputs = Json::object();
  for (const DefinitionArgument& argument : definition_.arguments) {
    (argument.is_output ? outputs : inputs)[argument.name] = kDtypes[argument.dtype].name;
  }
  const Json request = {{"name", definition_.name.name},
                        {"inputs", inputs},
                        {"outputs", outputs},
                        {"reference", text}};
  if (const auto done = interpreter_->ask(tools::json_line(request)); !done) {
    return failed(interpreter_->python() + ": " + done.error().message);
  }
  text_ = std::move(text);
  return {};
}

Result<std::map<std::string, Tensor>> PythonReference::run(const CaseData& data) {
  if (const double* const eps = find_eps(data.scalars); eps != nullptr) {
    auto text = reference_with_eps(definition_, *eps);
    if (text && *text != text_) FIBSHIM_TRY(define(std::move(*text)));
  }
  std::map<std::string, const Tensor*> inputs;
  Json scalars = Json::object();
  for (const DefinitionArgument& argument : definition_.arguments) {
    if (argument.is_output) continue;
    if (const auto tensor = data.tensors.find(argument.name); tensor != data.tensors.end()) {
      inputs[argument.name] = &tensor->second;
    } else if (const auto value = data.scalars.find(argument.name); value != data.scalars.end()) {
      if (is_floating(kDtypes[argument.dtype].scalar)) {
        scalars[argument.name] = value->second;
      } else {
        scalars[argument.name] = static_cast<int64_t>(value->second);
      }
    }
  }
  const std::string& folder = interpreter_->folder();
  const std::string from = folder + "/inputs", to = folder + "/outputs";
  FIBSHIM_TRY(write_safetensors(from, inputs));
  const Json request = {{"inputs", from}, {"outputs", to}, {"scalars", scalars}};
  if (const auto done = interpreter_->ask(tools::json_line(request)); !done) {
    return fail(ErrorCode::operating_system,
                "reference of " + definition_.name.name + ": " + done.error().message);
  }
  std::map<std::string, Tensor> outputs;
  for (const DefinitionArgument& argument : definition_.arguments) {
    if (!argument.is_output) continue;
    outputs[argument.name] = FIBSHIM_TRY(read_safetensor(to, argument.name));
  }
  return outputs;
}

std::string PythonReference::find_other_eps(const CaseData& numbers,
                                            const VerifyBlock& verify) const {
  const double* const eps = find_eps(numbers.scalars);
  const VerifyArgument* const told = verify.find_argument("eps");
  const bool is_told = told != nullptr && told->kind == VerifyArgument::Kind::value;
  const double own = is_told ? told->value : eps_of(definition_);
  if (eps == nullptr || reference_with_eps(definition_, *eps) || is_same_eps(*eps, own)) return "";
  return fmt::format(
      "its launches have eps {}, and the definition's reference does not state its own as \"EPS = "
      "{}\", where it could be replaced",
      *eps, own);
}

}  // namespace fibshim::judge
