#!/usr/bin/env python3
"""The C++ engine under the shim, each way that it can take to the driver: right numbers, the expected
counts and no word from the shim. On the real driver, or with --simulated on the one in build/sim.

Every run is a process of its own with counters of its own; several run at the same time.
"""
import concurrent.futures
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

from counters import BUILD, SHIM, read_counts, unshimmed_environment
from report import Report

HIDDEN = (128, 2048, 4096, 5120, 7168, 8192)
AT_ONCE = 8
LAUNCHES = 20


def definition(hidden, dtype):
    return f"rmsnorm_h{hidden}" + ("" if dtype == "bf16" else f"_{dtype}")


class Case:
    """One run: the program, its options, what must be counted and how often kernels run."""

    def __init__(self, options, expected, original_runs=0, curated_runs=0, program="engine", config="pytorch",
                 driver="sim"):
        self.options = options
        self.expected = expected
        self.original_runs = original_runs  # the simulated driver knows these two
        self.curated_runs = curated_runs
        self.program = program
        self.config = config
        self.driver = driver  # the simulated one's folder

    def name(self):
        return " ".join([self.program, *(option[2:] for option in self.options)])


def redirected(options, hidden, dtype, launches=LAUNCHES, times=1, hits=None, **more):
    """`launches` by each thread in each round, `times` over; a replay of a graph is no launch."""
    options = [*options, f"--hidden={hidden}", f"--dtype={dtype}", f"--launches={launches}"]
    runs = launches * times
    return Case(options, {(definition(hidden, dtype), "hit"): runs if hits is None else hits}, curated_runs=runs,
                **more)


def ways_to_the_driver(program, resolves, **more):
    """Everything that the shim tells apart, crossed; the rest is drawn for each run, always alike."""
    draw = random.Random(1)
    for resolve, module, api, passed, form in itertools.product(
            resolves, ("--module=module", "--module=library"), ("--api=launch", "--api=ex"),
            ("--pass=params", "--pass=extra"), ([], ["--ptsz"])):
        options = [*resolve, module, api, passed, *form, "--load=" + draw.choice(("data", "file")),
                   "--lookup=" + draw.choice(("name", "enumerate")),
                   "--stream=" + draw.choice(("created", "default"))]
        yield redirected(options, draw.choice(HIDDEN), draw.choice(("bf16", "fp16")), program=program, **more)


def all_cases(is_simulated):
    cases = list(ways_to_the_driver("engine", [[f"--resolve={way}"] for way in ("dlsym", "getproc4", "getproc5")]))
    if is_simulated:
        # The real libcuda.so.1 defines no symbol version that dlvsym could be asked for, and the
        # simulated one only in its second build: nothing to run on the real driver.
        cases += ways_to_the_driver("engine", [["--resolve=dlvsym"]], driver=os.path.join("sim", "versioned"))
    cases += ways_to_the_driver("engine_linked", [[]])
    for hidden, dtype in itertools.product(HIDDEN, ("bf16", "fp16")):
        cases.append(redirected(["--capture"], hidden, dtype, hits=1))  # without warm-up
    for module, api in itertools.product(("module", "library"), ("launch", "ex")):
        options = ["--threads=8", f"--module={module}", f"--api={api}"]
        cases.append(redirected(options, 4096, "bf16", launches=500, times=8))
    # Handles come and go, and their values are reused.
    cases.append(redirected(["--rounds=50"], 2048, "fp16", times=50))
    cases.append(redirected(["--rows=1000"], 128, "bf16", config="demo"))
    cases.append(Case(["--hidden=4100", "--launches=7"], {("rmsnorm_h4100", "fallback_no_solution"): 7},
                      original_runs=7))
    cases.append(Case(["--kernel=engine_rms_norm_bf16", "--launches=7"], {}, original_runs=7))
    return cases


def run_case(case, parent, is_simulated):
    """What went wrong, as a list of strings."""
    stats_dir = tempfile.mkdtemp(dir=parent)
    environment = unshimmed_environment()
    environment.update(LD_PRELOAD=SHIM, FIBSHIM_CONFIG=os.path.join(BUILD, "config", case.config),
                       FIBSHIM_STATS_DIR=stats_dir)
    if is_simulated:
        environment["LD_LIBRARY_PATH"] = os.path.join(BUILD, case.driver)
    command = [os.path.join(BUILD, "tests", "hosts", case.program), *case.options]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120)
    problems = []
    if done.returncode != 0:
        problems.append(f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()}")
    else:
        said = json.loads(done.stdout)
        if not said["ok"]:
            problems.append(f"wrong: {done.stdout.strip()}")
        if said["simulated"] != is_simulated:
            problems.append(f"ran on {said['device']}, simulated: {said['simulated']}")
        if is_simulated and (said["ran_original"], said["ran_curated"]) != (case.original_runs, case.curated_runs):
            problems.append(f"the original ran {said['ran_original']} times, not {case.original_runs};"
                            f" the curated kernel {said['ran_curated']}, not {case.curated_runs}")
        if "--capture" in case.options:
            # The host reads the kernel back that it launched, whatever the node runs.
            if said["captured_kernel"] != said["kernel"]:
                problems.append(f"the captured node reads back as {said['captured_kernel']!r}")
            captured = said.get("captured_original"), said.get("captured_curated")
            if is_simulated and captured != (0, 1):
                problems.append(f"captured {captured[0]} originals and {captured[1]} curated kernels, not 0 and 1")
    problems += [f"the shim says: {line}" for line in done.stderr.split("\n") if line.startswith("fibshim[")]
    counted = {key: count for key, count in read_counts(stats_dir).items() if count}
    if counted != case.expected:
        problems.append(f"counted {counted}, launched {case.expected}")
    return problems


def main(arguments):
    if arguments not in ([], ["--simulated"]):
        print(__doc__, file=sys.stderr)
        return 2
    report = Report("engine matrix")
    with tempfile.TemporaryDirectory(prefix="fibshim-gpu-") as parent, \
            concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        is_simulated = bool(arguments)
        cases = all_cases(is_simulated)
        runs = [pool.submit(run_case, case, parent, is_simulated) for case in cases]
        for case, run in zip(cases, runs):
            with report.phase(case.name()) as problems:
                problems += run.result()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
