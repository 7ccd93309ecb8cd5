#!/usr/bin/env python3
"""What a rewrite saves on a real GPU: chains of two, three and eight small kernels in a captured graph, and as one kernel each.

    rewrite_chains.py

The kernels and their folder are those of the conformance suite's random graphs (tests/conformance/hosts/graph_kernels.cu): of 64
elements, so what one takes is its place in the chain. One process under the shim; `fibshim swap --off` and `--on` move its graphs.
"""
import ctypes
import os
import statistics
import sys
import tempfile

from counters import BUILD
from report import Report
from swap import start_inside, stats, swap

WORK = "FIBSHIM_CHAINS_TEST_WORK"
CHAINS = ("ab", "abc", "bbbbbbbb")
ELEMENTS, PLACES, REPLAYS = 64, 50, 20
MIB = 1 << 20


class Chains:
    """One behind the other in a graph, each on what the one before gives."""

    def __init__(self, torch, kernels, letters):
        self.torch, self.letters = torch, letters
        generator = torch.Generator(device="cuda").manual_seed(len(letters))
        self.memory = torch.randint(-2**31, 2**31 - 1, (2 * MIB // 4,), dtype=torch.int32, device="cuda", generator=generator)
        begin = -self.memory.data_ptr() % MIB // 4
        # What lies in the upper half of a MiB nobody reads but the chain: so the folder says.
        kept = iter(self.memory[begin:begin + MIB // 8].split(ELEMENTS))
        dropped = iter(self.memory[begin + MIB // 8:begin + MIB // 4].split(ELEMENTS))
        value, other = next(kept), next(kept)
        self.outputs = []
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            for place in range(PLACES):
                for at, letter in enumerate(letters):
                    to = next(kept if at == len(letters) - 1 else dropped)
                    pointers = [one.data_ptr() for one in (value, other, to)]
                    kernels[letter].launch((1, 1, 1), (64, 1, 1), [*pointers, ELEMENTS, place + at])
                    value = to
                self.outputs.append(value)
        self.graph = graph

    def results(self):
        for one in self.outputs:
            one.zero_()
        self.graph.replay()
        return self.torch.stack(self.outputs)

    def us(self):
        """Of one chain: the median of many replays."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(REPLAYS):
            begin.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / PLACES)
        return statistics.median(times)


def inside():
    import torch

    from solutions import Kernel

    report = Report("rewrite_chains.py")
    torch.zeros(1, device="cuda")
    image = os.path.join(BUILD, "tests", "conformance", "graphs.fatbin")
    types = [ctypes.c_void_p] * 3 + [ctypes.c_int32] * 2
    kernels = {letter: Kernel(image, f"graph_{letter}", types) for letter in "abc"}
    chains = [Chains(torch, kernels, letters) for letters in CHAINS]
    for one in chains:
        one.graph.replay()
    swap("--off")
    own = [(one.results(), one.us()) for one in chains]
    swap("--on")
    for one, (expected, own_us) in zip(chains, own):
        count = len(one.letters)
        with report.phase(f"a chain of {count} is one kernel") as problems:
            before = stats()["executions"]
            if not torch.equal(one.results(), expected):
                problems.append("other bits than its kernels give")
            after = stats()["executions"]
            found = {outcome: after[outcome] - before[outcome] for outcome in ("hit", "absorbed")}
            if found != {"hit": PLACES, "absorbed": PLACES * (count - 1)}:
                problems.append(f"of {PLACES} chains {found} were counted")
            us = one.us()
            print(f"measured: a chain of {count}: {own_us:.2f} us, as one kernel {us:.2f}; "
                  f"{(own_us - us) / (count - 1):.2f} us saved by each node that is gone")
    return report.finish()


def outside():
    with tempfile.TemporaryDirectory() as work:
        os.symlink(os.path.join(BUILD, "tests", "conformance", "graphs_config"), os.path.join(work, "a"))
        return start_inside(__file__, work, os.path.join(work, "stats"), WORK)


if __name__ == "__main__":
    sys.exit(inside() if WORK in os.environ else outside())
