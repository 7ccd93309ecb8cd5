#!/usr/bin/env python3
"""Workloads that `fibshim record --tensors` keeps of PyTorch, as flashinfer-bench reads them.

  workloads.py run       launches norms and softmax, eagerly, on two streams, and in a graph
  workloads.py load DIR  reads the dataset with flashinfer-bench's loader and compares it with what run() made:
                         prints PASS, FAIL or, without the package (pip install flashinfer-bench), SKIP
  workloads.py check DIR needs neither GPU nor torch (`make flashinfer-bench`): reads a dataset of RMSNorms of
                         tests/shim/hosts/shadow_host.cc so, and works the recorded outputs out from the inputs
"""
import importlib.util
import json
import sys
import types

ROWS = (1, 7, 64)


def tensors(rows):
    import torch
    generator = torch.Generator(device="cuda").manual_seed(rows)
    x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16, generator=generator)
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16, generator=generator)
    return x, weight


def run():
    import torch
    import torch.nn.functional as F
    stream = torch.cuda.Stream()
    for repeat in range(3):
        for rows in ROWS:
            x, weight = tensors(rows)
            y = F.rms_norm(x, (4096,), weight, 1e-5)
            torch.softmax(torch.randn(rows, 32000, device="cuda", dtype=torch.bfloat16), -1)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x.add_(1)
                F.rms_norm(x, (4096,), weight, 1e-5)
                x.zero_()  # right behind it: what is kept was copied before
            torch.cuda.current_stream().wait_stream(stream)
    x, weight = tensors(7)
    F.rms_norm(x, (4096,), weight, 1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        F.rms_norm(x, (4096,), weight, 1e-5)
    graph.replay()
    torch.cuda.synchronize()


def read_dataset(root):
    """As flashinfer-bench reads it. None, and said: it is not installed."""
    found = importlib.util.find_spec("flashinfer_bench")
    if found is None:
        print("SKIP flashinfer-bench reads the workloads: it is not installed (pip install flashinfer-bench)")
        return None
    # Its data layer alone: the whole package needs all that it can benchmark.
    package = types.ModuleType("flashinfer_bench")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["flashinfer_bench"] = package
    if importlib.util.find_spec("torch") is None:
        # What reads a dataset names torch's types, and calls nothing of it.
        torch, torch_files = types.ModuleType("torch"), types.ModuleType("safetensors.torch")
        names = ("Tensor", "dtype", "bool", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
                 "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "device")
        torch.__dict__.update({name: type(name, (), {}) for name in names})
        sys.modules.update({"torch": torch, "safetensors.torch": torch_files})
    from flashinfer_bench.data import TraceSet
    return TraceSet.from_path(root)


def load(root):
    dataset = read_dataset(root)
    if dataset is None:
        return 0
    import safetensors.torch
    import torch
    import torch.nn.functional as F
    seen = set()
    for trace in dataset.workloads["rmsnorm_h4096"]:
        definition, workload = dataset.definitions[trace.definition], trace.workload
        shapes = dict(zip(definition.inputs, definition.get_input_shapes(workload.axes)))
        rows = workload.axes["batch_size"]
        x, weight = tensors(rows)
        inputs = {}
        for name, given in workload.inputs.items():
            inputs[name] = safetensors.torch.load_file(str(dataset.root / given.path))[given.tensor_key].cuda()
            assert list(inputs[name].shape) == list(shapes[name]), name
        assert torch.equal(inputs["weight"], weight)
        is_first = torch.equal(inputs["hidden_states"], x)
        assert is_first or torch.equal(inputs["hidden_states"], x.add(1))
        path = dataset.root / workload.inputs["weight"].path
        output = safetensors.torch.load_file(str(path))["output.output"].cuda()
        assert torch.equal(output, F.rms_norm(inputs["hidden_states"], (4096,), inputs["weight"], 1e-5))
        assert (rows, is_first) not in seen
        seen.add((rows, is_first))
    assert seen == {(rows, is_first) for rows in ROWS for is_first in (True, False)}, seen
    assert len(dataset.workloads["softmax_v32000"]) > 0
    print(f"PASS flashinfer-bench reads {sum(map(len, dataset.workloads.values()))} workloads, bit for bit")
    return 0


def check(root):
    import numpy
    import safetensors
    dataset = read_dataset(root)
    if dataset is None:
        return 1

    def values(given):
        data = dict(safetensors.deserialize((dataset.root / given["path"]).read_bytes()))[given["tensor_key"]]
        assert data["dtype"] == "BF16", data["dtype"]
        wide = numpy.frombuffer(data["data"], "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(float).reshape(data["shape"])

    # The numbers and outputs that the format does not name stand in the same lines, in keys that the loader passes over.
    lines = (dataset.root / "workloads/rmsnorm/rmsnorm_h128.jsonl").read_text().splitlines()
    ours = {record["workload"]["uuid"]: record["fibshim"] for record in map(json.loads, lines)}
    rows = set()
    for trace in dataset.workloads["rmsnorm_h128"]:
        definition, workload = dataset.definitions[trace.definition], trace.workload
        shapes = dict(zip(definition.inputs, definition.get_input_shapes(workload.axes)))
        given = {name: values({"path": one.path, "tensor_key": one.tensor_key})
                 for name, one in workload.inputs.items()}
        for name, value in given.items():
            assert list(value.shape) == list(shapes[name]), name
        x, extra = given["hidden_states"], ours.pop(workload.uuid)
        wanted = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + extra["scalars"]["eps"]) * given["weight"]
        output = values(extra["outputs"]["output"])
        assert output.shape == wanted.shape and (abs(output - wanted) <= abs(wanted) / 256).all()
        rows.add(workload.axes["batch_size"])
    assert not ours, f"left out: {list(ours)}"
    assert len(rows) > 10, rows
    print(f"PASS flashinfer-bench reads {len(lines)} workloads of {len(rows)} shapes, whose outputs follow from their inputs")
    return 0


def main():
    if sys.argv[1] == "run":
        return run()
    try:
        return {"load": load, "check": check}[sys.argv[1]](sys.argv[2])
    except AssertionError as error:
        print(f"FAIL flashinfer-bench reads the workloads: {error}")
        raise


if __name__ == "__main__":
    sys.exit(main())
