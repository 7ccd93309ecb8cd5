#!/usr/bin/env python3
"""Two GPUs in one process: replacements run on the right one, and every launch is counted.

    two_devices.py               a driver-API program and PyTorch, on a machine with two GPUs
    two_devices.py --simulated   the program, on two simulated GPUs, alike and of unlike SM
    two_devices.py torch         (under the shim, by the above) PyTorch's part

What is launched on device 0 has 4096 elements, on device 1 8192: so the definition's name says what the
counters must have as its device. The program first runs without the shim; what the driver refuses there is not asked
of it under the shim, and said.
"""
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "frameworks"))

from counters import read_counts, read_stats, unshimmed_environment  # noqa: E402
from frameworks import TIMEOUT_S, Child, Run, count_problems, list_sms  # noqa: E402
from parts import HOSTS, Host, TorchEager, Triton, host_input, verdict  # noqa: E402
from report import Report  # noqa: E402

SIZES = (4096, 8192)
DOUBLED = {n: "double" for n in SIZES}

# scenario -> launches that it is asked for on each device, and what it makes of one
SCENARIOS = {"library": (20, 1), "module": (20, 1), "foreign": (20, 1), "contexts": (20, 2), "capture": (5, 1),
             "threads": (2000, 1), "default_stream": (20, 1)}
MAY_BE_REFUSED = ("foreign",)


def scenario_part(scenario):
    part = Host("devices", scenario, f"{scenario}_plus_one")
    part.redirected = DOUBLED
    return part


def torch_parts():
    parts = [TorchEager(), Triton()]
    for part in parts:
        part.redirected = DOUBLED
    return parts


# ---- PyTorch's part, under the shim


def run_torch():
    """{part: {n: [launches, verdict]}}. Streams of both devices in turns, from one thread and from two."""
    import torch
    eager, triton = torch_parts()
    xs = [torch.from_numpy(host_input(n)).to(f"cuda:{device}") for device, n in enumerate(SIZES)]
    streams = [torch.cuda.Stream(device) for device in range(len(SIZES))]
    ys = [[], []]
    for _ in range(20):
        for device in range(len(SIZES)):
            torch.cuda.set_device(1 - device)  # the operator changes to its tensor's
            ys[device].append(torch.add(xs[device], 1))
            with torch.cuda.stream(streams[device]):
                ys[device].append(torch.add(xs[device], 1))

    def launch_often(device):
        mine = [torch.add(xs[device], 1) for _ in range(500)]
        torch.cuda.synchronize(device)
        ys[device] += mine

    threads = [threading.Thread(target=launch_often, args=(device,)) for device in range(len(SIZES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in range(len(SIZES)):
        torch.cuda.synchronize(device)
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = torch.add(xs[device], 1)
            graph.replay()
            graph.replay()
            torch.cuda.synchronize()
            ys[device].append(y)
    result = {eager.name: {n: [len(ys[device]), verdict(n, [y.cpu().numpy() for y in ys[device]])]
                           for device, n in enumerate(SIZES)}}

    triton.start()
    verdicts = collections.defaultdict(set)
    for _ in range(3):
        for device, n in enumerate(SIZES):
            with torch.cuda.device(device):
                verdicts[n].add(triton.launch(n, 5))
    result[triton.name] = {n: [15, " and ".join(sorted(verdicts[n]))] for n in SIZES}
    print(json.dumps(result))


# ---- the run


def device_problems(stats_dir, device_of):
    """Hits that were counted for another device than their definition's; `device_of` has those."""
    return [f"{row['definition']}: {row['count']} hits counted for device {row['device']}"
            for row in read_stats(stats_dir)["counters"]
            if row["outcome"] == "hit" and row["device"] != device_of.get(row["definition"])]


def program_lines(text):
    """{(scenario, device): verdict}; of one that failed the device is "-"."""
    return {tuple(line.split(" ", 2)[:2]): line.split(" ", 2)[2] for line in text.splitlines()}


def run_program(report, run, devices):
    program = os.path.join(HOSTS, "devices")
    arguments = {scenario: f"{scenario}:{times}" for scenario, (times, _) in SCENARIOS.items()}
    settings = {"SIMCUDA_DEVICES": devices} if run.is_simulated else {}
    on = f" on sm_{devices}" if run.is_simulated else ""
    accepted = dict(arguments)
    with report.phase(f"two devices{on}: the program is right without the shim") as problems:
        done = subprocess.run([program, *arguments.values()], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**unshimmed_environment(), **run.environment, **settings}, timeout=TIMEOUT_S)
        lines = program_lines(done.stdout)
        if done.returncode != 0:
            problems.append(f"exit code {done.returncode}: {done.stderr.strip()}")
        for scenario in arguments:
            refusal = lines.get((scenario, "-"))
            if refusal is not None and scenario in MAY_BE_REFUSED:
                print(f"two devices{on}, {scenario}: the driver refuses it: {refusal}")
                del accepted[scenario]
                continue
            got = [lines.get((scenario, device), refusal) for device in "01"]
            if got != ["plus_one"] * 2:
                problems.append(f"{scenario}: {got}")

    child = Child(run, f"program-{devices}", [program, *accepted.values()], run.config, **settings)
    lines = program_lines(child.out)
    for scenario in accepted:
        with report.phase(f"two devices{on}, {scenario}: redirected on both") as problems:
            got = [lines.get((scenario, device), lines.get((scenario, "-"))) for device in "01"]
            if got != ["double"] * 2:
                problems.append(f"{got}")
    with report.phase(f"two devices{on}: the program's launches are counted exactly on each") as problems:
        problems += child.problems()
        expected = {(scenario_part(scenario).definition(n), "hit"): SCENARIOS[scenario][0] * SCENARIOS[scenario][1]
                    for scenario in accepted for n in SIZES}
        problems += count_problems(read_counts(child.stats_dir), expected)
        device_of = {scenario_part(scenario).definition(n): SIZES.index(n) for scenario in accepted for n in SIZES}
        problems += device_problems(child.stats_dir, device_of)


def run_pytorch(report, run, parts):
    child = Child(run, "torch", [sys.executable, os.path.abspath(__file__), "torch"], run.config)
    with report.phase("two devices, PyTorch eager and Triton: redirected on both, counted exactly") as problems:
        problems += child.problems()
        if problems:
            return
        expected = {}
        for part in parts:
            for n, (launches, got) in child.answer()[part.name].items():
                expected[part.definition(int(n)), "hit"] = launches
                print(f"{part.name} on device {SIZES.index(int(n))}: {launches} launches")
                if got != "double":
                    problems.append(f"{part.name} n = {n}: {got}")
        problems += count_problems(read_counts(child.stats_dir), expected)
        device_of = {part.definition(n): SIZES.index(n) for part in parts for n in SIZES}
        problems += device_problems(child.stats_dir, device_of)


def main(arguments):
    if arguments == ["torch"]:
        run_torch()
        return 0
    if arguments not in ([], ["--simulated"]):
        print(__doc__, file=sys.stderr)
        return 2
    report = Report("two devices")
    if not arguments and len(list_sms()) < len(SIZES):
        report.skip("two devices", f"this machine has {len(list_sms())} GPU")
        return report.finish()
    with tempfile.TemporaryDirectory(prefix="fibshim-gpu-") as folder, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:
        run = Run(report, folder, bool(arguments))
        run.hosts = [scenario_part(scenario) for scenario in SCENARIOS]
        run.python_parts = [] if run.is_simulated else torch_parts()
        run.find_kernels(pool)
        run.write_config()
        for devices in ("90,90", "90,80") if run.is_simulated else ("",):
            run_program(report, run, devices)
        if run.python_parts:
            run_pytorch(report, run, run.python_parts)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
