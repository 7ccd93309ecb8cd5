#!/usr/bin/env python3
"""FlashInfer's own tests of norms, activations and RoPE, without and with the folder for them (config/flashinfer).

  tests/gpu/flashinfer_tests.py BUILD FLASHINFER [--each N] [--seed N] [--seconds N] [--shards N] [FILE...]

FLASHINFER is a folder that flashinfer-python's wheel and, for its norms' default backend, nvidia-cutlass-dsl and
apache-tvm-ffi are unpacked in, with the tests/ of FlashInfer's repository at that version. Of each test function N cases are drawn;
those that would begin after so many seconds are left out. Both sides run at once, each FILE (below tests/) in so many processes, and see the
same random numbers. Every test must have the outcome that it has without the shim, and each FILE must have hits.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import site
import subprocess
import sys
import tempfile
import time
import zlib

from counters import Counts, read_counts

FILES = ("utils/test_norm.py", "utils/test_activation.py", "attention/test_rope.py")


class Sample:
    """A pytest plugin: some of the cases, the same ones and the same random numbers on both sides, and what became of them."""

    def __init__(self, each, seed, shard, shards, deadline):
        self.each, self.seed, self.shard, self.shards, self.deadline = each, seed, shard, shards, deadline
        self.outcomes = {}

    def drawn(self, name, cases):
        random.Random(f"{self.seed} {name}").shuffle(cases)
        return cases[:self.each]

    def pytest_collection_modifyitems(self, items):
        functions = collections.defaultdict(list)
        for item in items:
            functions[item.nodeid.partition("[")[0]].append(item)
        drawn = [item for name, cases in functions.items() for item in self.drawn(name, cases)]
        # What has no parameters is few, and may want much memory: one process runs all of it, at the end.
        alone = [item for item in drawn if "[" not in item.nodeid]
        cases = [item for item in drawn if "[" in item.nodeid]
        items[:] = cases[self.shard::self.shards] + (alone if self.shard == 0 else [])

    def pytest_runtest_setup(self, item):
        import torch
        torch.manual_seed(zlib.crc32(item.nodeid.encode()))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_runtest_logfinish(self):
        import torch
        torch.cuda.empty_cache()

    def pytest_runtest_protocol(self, item):
        if time.time() > self.deadline:
            item.session.shouldstop = "time is up"


def child(file, out, arguments):
    site.addsitedir(os.getcwd())
    import pytest
    sample = Sample(*json.loads(arguments))
    code = pytest.main(["-q", "--tb=line", "-p", "no:cacheprovider", f"tests/{file}"], plugins=[sample])
    pathlib.Path(out).write_text(json.dumps(sample.outcomes))
    return code


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("flashinfer", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("files", nargs="*", default=FILES)
    return parser.parse_intermixed_args()


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    args = parse()
    build = args.build.resolve()
    sides = {"without": {}, "with": {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(build / "config/flashinfer")}}
    outcomes, counts = {side: {} for side in sides}, collections.defaultdict(Counts)
    deadline = time.time() + args.seconds
    with tempfile.TemporaryDirectory() as scratch:
        running = []
        for file in args.files:
            for shard in range(args.shards):
                for side, environment in sides.items():
                    folder = pathlib.Path(scratch, f"{side}-{shard}-{pathlib.Path(file).stem}")
                    folder.mkdir()
                    arguments = json.dumps([args.each, args.seed, shard, args.shards, deadline])
                    running.append((file, side, folder, subprocess.Popen(
                        [sys.executable, os.path.abspath(__file__), "--child", file, folder / "outcomes", arguments], cwd=args.flashinfer,
                        env={**os.environ, **environment, "FIBSHIM_STATS_DIR": str(folder)}, stdout=open(folder / "log", "w"),
                        stderr=subprocess.STDOUT)))
        for file, side, folder, process in running:
            process.wait()
            log = (folder / "log").read_text()
            if not (folder / "outcomes").exists():
                print(f"{side} the shim, a process of {file} ended with {process.returncode}:\n{log[-2000:]}")
                outcomes[side][f"tests/{file}"] = "ended"
                continue
            outcomes[side].update(json.loads((folder / "outcomes").read_text()))
            said = dict.fromkeys(line for line in log.splitlines() if line.startswith("E  ") or "Error" in line or "fibshim[" in line)
            print("".join(f"  {file}, {side} the shim: {line[:300]}\n" for line in list(said)[:3]), end="")
            if side == "with":
                counts[file] += read_counts(folder)
    return judge(args, outcomes, counts)


def judge(args, outcomes, counts):
    passed = True
    for file in args.files:
        both = [test for test in outcomes["without"].keys() & outcomes["with"].keys() if test.startswith(f"tests/{file}")]
        differ = sorted(test for test in both if outcomes["without"][test] != outcomes["with"][test])
        for test in differ:
            print(f"  {test}: {outcomes['without'][test]} without the shim, {outcomes['with'][test]} with it")
        of = collections.Counter(outcomes["without"][test] for test in both)
        ended = any(f"tests/{file}" in side for side in outcomes.values())
        kinds = collections.Counter()
        for (_, outcome), count in counts[file].items():
            kinds[outcome] += count
        good = of["passed"] and not ended and not differ and kinds["hit"] and not kinds["error"]
        passed = passed and good
        print(f"{'PASS' if good else 'FAIL'} flashinfer_tests {file}: {len(both)} tests ({', '.join(f'{n} {kind}' for kind, n in sorted(of.items()))} "
              f"without the shim), {len(differ)} other with it; {kinds['hit']} hits; {dict(kinds)}")
        hits = collections.Counter({name: count for (name, outcome), count in counts[file].items() if outcome == "hit"})
        print("  hits: " + ", ".join(f"{name} {count}" for name, count in hits.most_common(12)))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
