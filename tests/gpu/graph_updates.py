#!/usr/bin/env python3
"""Executable graphs that a host goes on changing, on a real GPU: executions against CUPTI, results, and a swap.

    graph_updates.py

Runs itself under the shim with build/config/pytorch. By the driver's own calls

  * one exec takes over another captured graph before each of its launches (cuGraphExecUpdate, as llama.cpp does);
  * all kernel nodes of one are set before each of its launches (cuGraphExecKernelNodeSetParams, as tinygrad does);

by turns between two models, in each of two folders and off. What CUPTI sees must be what `fibshim stats` counts, and each launch must give the
bits that its model gives eagerly. Then the process moves without a change by the host, which must reach both.
"""
import ctypes
import os
import sys

from graphs import grown, ours, seen_by_cupti
from report import Report
from swap import HIDDEN, Model, start_in_folders, swap

WORK = "FIBSHIM_GRAPH_UPDATES_TEST_WORK"
LAUNCHES = 12
KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""
    _fields_ = [("func", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kern", ctypes.c_void_p), ("context", ctypes.c_void_p)]


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            result = function(*(ctypes.c_void_p(one) if isinstance(one, int) else one for one in arguments))
            if result != 0:
                raise RuntimeError(f"{name}: error {result}")
        return call


cuda = Driver()


class Captured:
    """A graph of one run of a model, which stays, and the parameters of its kernels."""

    def __init__(self, model):
        torch = model.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model.run()  # what libraries set up for a stream is not to be captured
        stream.synchronize()
        self.keeper = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.keeper, stream=stream):
            self.out = model.run()
        self.raw = self.keeper.raw_cuda_graph()
        count = ctypes.c_size_t()
        cuda.cuGraphGetNodes(self.raw, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        cuda.cuGraphGetNodes(self.raw, nodes, ctypes.byref(count))
        self.kernels = []
        for node in nodes:
            kind, params = ctypes.c_int(), KernelNodeParams()
            cuda.cuGraphNodeGetType(node, ctypes.byref(kind))
            if kind.value == KERNEL_NODE:
                cuda.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(params))
                params.kern = None  # the function is the same kernel's
                self.kernels.append((node, params))

    def instantiate(self):
        made = ctypes.c_void_p()
        cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), self.raw, ctypes.c_ulonglong(0))
        return made.value


def update(made, first, captured):
    told = (ctypes.c_char * 64)()  # CUgraphExecUpdateResultInfo
    cuda.cuGraphExecUpdate_v2(made, captured.raw, told)


def set_nodes(made, first, captured):
    for (node, _), (_, params) in zip(first.kernels, captured.kernels):
        cuda.cuGraphExecKernelNodeSetParams_v2(made, node, ctypes.byref(params))


def inside(work):
    import torch

    report = Report("graph_updates.py")
    models = [Model(1), Model(2)]
    stream = torch.cuda.current_stream().cuda_stream
    bits = lambda out: {hidden: y.view(torch.int16).clone() for hidden, y in out.items()}

    expected = {}
    for name, change in (("taken over", update), ("set", set_nodes)):
        captured = [Captured(model) for model in models]
        made = captured[0].instantiate()

        def problems_of(i, where):
            for y in captured[i].out.values():
                y.zero_()
            cuda.cuGraphLaunch(made, stream)
            torch.cuda.synchronize()
            return [f"model {i}, hidden {hidden}: other bits than an eager run gives in {where}" for hidden, y in captured[i].out.items()
                    if not torch.equal(y.view(torch.int16), expected[where][i][hidden])]

        def change_and_launch():
            for i in range(LAUNCHES):
                change(made, captured[0], captured[i % 2])
                cuda.cuGraphLaunch(made, stream)
            torch.cuda.synchronize()

        last = 0
        for where, move in (("a", None), ("off", ["--off"]), ("a", ["--on"]), ("b", [os.path.join(work, "b")]), ("a", [os.path.join(work, "a")])):
            with report.phase(f"{name} before each launch, in {where}") as problems:
                moved = swap(*move) if move else None
                expected[where] = [bits(model.run()) for model in models]
                problems += problems_of(last, where)
                if moved and (moved["graphs_moved"] != 1 or moved["graphs_kept"] != 0):
                    problems.append(f"the move: {moved}")
                for last in (0, 1):
                    change(made, captured[0], captured[last])
                    problems += problems_of(last, where)
                names, executions = grown(lambda: seen_by_cupti(torch, change_and_launch))
                print(f"{name}, {where}: CUPTI {sum(names.values())}, ours {ours(names)}; executions {executions}")
                if sum(names.values()) != sum(executions.values()) or ours(names) != executions.get("hit", 0):
                    problems.append(f"CUPTI saw {dict(names)}, counted are {executions}")
                if (ours(names) == 0) != (where == "off"):
                    problems.append(f"{ours(names)} of the folder's kernels ran")
        cuda.cuGraphExecDestroy(made)
    return report.finish()


if __name__ == "__main__":
    sys.exit(inside(os.environ[WORK]) if WORK in os.environ else start_in_folders(__file__, WORK))
