#!/usr/bin/env python3
"""Every framework under the shim: a pattern of its own redirects one of its kernels, the result is right and
the counts are exact; first each in a process of its own, then all in one, then in worker processes.

    frameworks.py               all of it, on a real GPU
    frameworks.py --simulated   what needs no framework, on the simulated driver in build/sim
    frameworks.py part NAME...      (under the shim, by the above) launches these parts
    frameworks.py profiled NAME...  the same, and lists what PyTorch's profiler has seen to run

First every framework runs with a folder that fits nothing but finds out what its kernel is called, its
parameters and its image; from that the folder is written that redirects them.
"""
import collections
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from counters import BUILD, FIBSHIM, SHIM, read_counts, read_counts_by_process, unshimmed_environment  # noqa: E402
from folder import Finder, curated_kernel, found_grids, write_folder, write_looking_folder  # noqa: E402
from parts import DRIVER_HOSTS, HOSTS, PYTHON_PARTS, RUNTIME_HOSTS, TIMES, Host, Inductor  # noqa: E402
from report import Report  # noqa: E402

AT_ONCE = 8
TIMEOUT_S = 120
FIRST_SM_WITH_CLUSTERS = 90
START_METHODS = ("fork", "spawn", "forkserver")


# ---- in a process of its own, under the shim


def launch_part(part):
    """What came of a part: n -> verdict, and of each n the kernels that were looked up."""
    finder = Finder(os.environ.get("FIBSHIM_LOG_FILE", ""))
    part.start()
    verdicts = {}
    kernels = {}
    finder.new_kernels()
    for n, times in TIMES.items():
        verdicts[n] = part.launch(n, times)
        kernels[n] = finder.new_kernels()
    return {"verdicts": verdicts, "kernels": kernels, "bystander": part.bystander()}


def run_parts(parts):
    outcomes = {part.name: launch_part(part) for part in parts}
    # Which of its two launchers Inductor has made.
    launchers = collections.Counter()
    if "torch" in sys.modules:
        import gc
        launchers.update(type(one).__name__ for one in gc.get_objects() if type(one).__name__.endswith("CompileResult"))
    return {"parts": outcomes, "launchers": launchers}


def run_profiled(parts):
    """Also what ran in this process, whoever launched it: kernel -> how often."""
    import torch
    torch.cuda.init()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        result = run_parts(parts)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(trace)
        with open(trace) as file:
            events = json.load(file)["traceEvents"]
    result["ran"] = collections.Counter(event["name"] for event in events if event.get("cat") == "kernel")
    return result


# ---- the run


class Child:
    """A program under the shim, run to its end."""

    def __init__(self, run, name, command, config, **settings):
        self.stats_dir = os.path.join(run.folder, "stats", name)
        os.makedirs(self.stats_dir)
        environment = unshimmed_environment()
        environment.update(run.environment, LD_PRELOAD=SHIM, FIBSHIM_CONFIG=config, FIBSHIM_STATS_DIR=self.stats_dir,
                           **settings)
        try:
            done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=TIMEOUT_S)
            self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            self.code = "none: it was ended"
            # Bytes, whatever run() was asked for.
            self.out, self.err = (bytes(text or b"").decode(errors="replace") for text in (late.stdout, late.stderr))
        self.said = [line for line in self.err.splitlines() if line.startswith("fibshim[")]

    def problems(self):
        """What went wrong with the program itself; its output goes to the log then."""
        if self.code != 0:
            print(self.out + self.err)
            return [f"exit code {self.code}"]
        return [f"the shim says: {line}" for line in self.said]

    def answer(self):
        return json.loads(self.out.splitlines()[-1])


def count_problems(counted, expected):
    keys = sorted(set(counted) | set(expected))
    return [f"{definition} {outcome}: counted {counted.get((definition, outcome), 0)},"
            f" launched {expected.get((definition, outcome), 0)}"
            for definition, outcome in keys
            if counted.get((definition, outcome), 0) != expected.get((definition, outcome), 0)]


def verdict_problems(part, outcome, is_redirected=True):
    problems = []
    for n in TIMES:
        wanted = part.redirected.get(n, "plus_one") if is_redirected else "plus_one"
        got = outcome["verdicts"].get(str(n))
        if got != wanted:
            problems.append(f"{part.name} n = {n}: {got}, not {wanted}")
    if outcome.get("bystander") not in (None, "plus_one"):
        problems.append(f"{part.name}: the bystander gave {outcome['bystander']}")
    return problems


def list_sms():
    """The SM of each of the machine's GPUs."""
    done = subprocess.run([os.path.join(HOSTS, "devices"), "list"], env=unshimmed_environment(), text=True,
                          stdout=subprocess.PIPE, check=True)
    return [int(line) for line in done.stdout.split()]


def add_expected(parts):
    expected = collections.Counter()
    for part in parts:
        expected.update(part.expected())
    return expected


class Run:
    def __init__(self, report, folder, is_simulated):
        self.report = report
        self.folder = folder
        self.is_simulated = is_simulated
        self.python_parts = [] if is_simulated else PYTHON_PARTS
        self.hosts = DRIVER_HOSTS if is_simulated else RUNTIME_HOSTS + DRIVER_HOSTS
        if not is_simulated and list_sms()[0] < FIRST_SM_WITH_CLUSTERS:
            for part in self.hosts:
                if part.way == "cluster":
                    report.skip(part.name, f"sm_{list_sms()[0]} launches no clusters")
            self.hosts = [part for part in self.hosts if part.way != "cluster"]
        caches = os.path.join(folder, "caches")
        self.environment = {
            # Both runs load the very cubins that the first has compiled.
            "TRITON_CACHE_DIR": os.path.join(caches, "triton"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "CUPY_CACHE_DIR": os.path.join(caches, "cupy"),
            "JAX_COMPILATION_CACHE_DIR": os.path.join(caches, "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if is_simulated:
            self.environment["LD_LIBRARY_PATH"] = os.path.join(BUILD, "sim")
        self.caches = caches
        self.config = os.path.join(folder, "config")
        self.kernels = {}
        self.rows = []

    def parts(self):
        return self.python_parts + self.hosts

    # -- finding the kernels

    def find_kernels(self, pool):
        found = {part.name: pool.submit(self.find_kernel, part) for part in self.python_parts}
        for part in self.python_parts:
            with self.report.phase(f"{part.name}: its kernel is found, and right on its own") as problems:
                kernels, its_problems = found[part.name].result()
                problems += its_problems
                if not its_problems:
                    self.kernels[part.name] = kernels
        self.python_parts = [part for part in self.python_parts if part.name in self.kernels]

    def find_kernel(self, part):
        log = os.path.join(self.folder, f"{part.name}.log")
        looking = os.path.join(self.folder, f"looking-{part.name}")
        write_looking_folder(looking, part.finds)
        child = Child(self, f"looking-{part.name}", [sys.executable, __file__, "part", part.name], looking,
                      FIBSHIM_LOG="info", FIBSHIM_LOG_FILE=log, **part.environment)
        problems = child.problems()
        if problems:
            return {}, problems
        outcome = child.answer()["parts"][part.name]
        problems = verdict_problems(part, outcome, is_redirected=False)
        kernels = {}
        grids = found_grids(read_counts(child.stats_dir, kind="executions"))
        for n in TIMES:
            fitting = [kernel for kernel in outcome["kernels"][str(n)] if re.search(part.finds, kernel["symbol"])]
            distinct = {json.dumps(kernel, sort_keys=True) for kernel in fitting}
            if len(distinct) > 1:
                problems.append(f"n = {n}: {len(distinct)} kernels fit: {sorted(distinct)}")
            # A shape may have no kernel of its own.
            kernel = fitting[0] if fitting else kernels.get(min(TIMES))
            kernels[n] = kernel and {**kernel, "grid": grids.get(part.runs(TIMES[n]))}
        if kernels[min(TIMES)] is None:
            symbols = sorted({kernel["symbol"] for some in outcome["kernels"].values() for kernel in some})
            problems.append(f"no symbol fits {part.finds!r}; there were {symbols}")
        return kernels, problems

    def check_images(self):
        """The image hashes in the shim's messages are those that `fibshim inspect` prints of the files."""
        with self.report.phase("the cubins on disk have the images that the shim found") as problems:
            files = [file for name in ("triton", "inductor")
                     for file in glob.glob(os.path.join(self.caches, name, "**", "*.cubin"), recursive=True)]
            done = subprocess.run([FIBSHIM, "inspect", "--json", *files], text=True, stdout=subprocess.PIPE,
                                  env=unshimmed_environment())
            on_disk = {(file["image"], kernel["name"]) for file in json.loads(done.stdout)["files"]
                       for kernel in file.get("kernels", [])}
            for name in ("triton", "inductor_static", "inductor_plain"):
                for n, kernel in self.kernels[name].items():
                    if (kernel["image"], kernel["symbol"]) not in on_disk:
                        problems.append(f"{name} n = {n}: {kernel['image']} is none of {len(files)} files")

    # -- with the folder that redirects them

    def write_config(self):
        with self.report.phase("fibshim check finds the folder right") as problems:
            write_folder(self.config, self.parts(), self.kernels)
            done = subprocess.run([FIBSHIM, "check", self.config], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=unshimmed_environment())
            # JAX's kernels are told apart by grid: a pattern for each, of which some have no solution.
            if done.returncode != 0 or not re.search(r": no mistakes(, \d+ notes?)?\n$", done.stdout):
                problems.append(f"exit code {done.returncode}: {done.stdout.strip()}")

    def run_part(self, part):
        child = Child(self, part.name, [sys.executable, __file__, "part", part.name], self.config, **part.environment)
        problems = child.problems()
        if not problems:
            problems += verdict_problems(part, child.answer()["parts"][part.name])
            problems += self.launcher_problems(part, child.answer()["launchers"])
        return self.counted([part], child, problems)

    @staticmethod
    def launcher_problems(part, launchers):
        """Inductor took the launcher that the part is named for."""
        if not isinstance(part, Inductor):
            return []
        kinds = {name.startswith("Static") for name in launchers}
        return [] if kinds == {part.is_static} else [f"Inductor's launchers are {launchers}"]

    def run_host(self, parts):
        """A C++ program, each way into a launch after the other."""
        ways = [f"{part.way}:{n}:{times}" for part in parts for n, times in TIMES.items()]
        child = Child(self, parts[0].flavour, [parts[0].program(), *ways], self.config)
        problems = child.problems()
        if not problems:
            lines = [line.split(" ", 2) for line in child.out.splitlines()]
            for part in parts:
                verdicts = {n: text for way, n, text in lines if way == part.way}
                problems += verdict_problems(part, {"verdicts": verdicts})
        return self.counted(parts, child, problems)

    def run_together(self, parts, how="part"):
        child = Child(self, f"together-{how}", [sys.executable, __file__, how, *(part.name for part in parts)],
                      self.config)
        problems = child.problems()
        if not problems:
            for part in parts:
                problems += verdict_problems(part, child.answer()["parts"][part.name])
            if how == "profiled":
                problems += self.profile_problems(parts, child.answer()["ran"])
        return self.counted(parts, child, problems)

    def profile_problems(self, parts, ran):
        """The kernels that ran are those that the counters tell of."""
        expected = collections.Counter()
        for part in parts:
            own = part.name_in_profile(self.symbol(part))
            for n, times in TIMES.items():
                name = curated_kernel(part, n)[0] if n in part.redirected else own
                expected[name] += part.runs(times)
            expected[own] += part.bystanders
        return [f"{name} ran {ran.get(name, 0)} times, not {times}" for name, times in expected.items()
                if ran.get(name, 0) != times]

    def symbol(self, part):
        if part in self.hosts:
            return f"{part.flavour}_{part.kernel}"
        return self.kernels[part.name][min(TIMES)]["symbol"]

    def counted(self, parts, child, problems):
        """Compares the counters; a row of the table for each part."""
        counted = read_counts(child.stats_dir, kind="executions")
        problems += count_problems({key: count for key, count in counted.items() if count}, add_expected(parts))
        if counted.processes != 1:
            problems.append(f"{counted.processes} processes have counted, not 1")
        rows = []
        for part in parts:
            mine = {outcome: sum(count for (definition, kind), count in counted.items()
                                 if kind == outcome and definition in {part.definition(n) for n in TIMES})
                    for outcome in ("hit", "fallback_no_solution")}
            launches = sum(map(part.runs, TIMES.values()))
            rows.append((part.name, part.found_by, launches, mine["hit"], mine["fallback_no_solution"]))
        return problems, rows

    def run_workers(self, method):
        child = Child(self, f"workers-{method}", [sys.executable, os.path.join(HERE, "workers.py"), method],
                      self.config)
        problems = child.problems()
        if problems:
            return problems
        counted = read_counts_by_process(child.stats_dir)
        part = next(part for part in self.python_parts if part.name == "torch_eager")
        answer = child.answer()
        for process in answer["processes"]:
            expected = {(part.definition(int(n)), part.outcome(int(n))): times
                        for n, times in process["launches"].items()}
            mine = {key: count for key, count in counted.pop(process["pid"], {}).items() if count}
            problems += [f"{process['role']}: {problem}" for problem in count_problems(mine, expected)]
            for n, got in process["verdicts"].items():
                wanted = part.redirected.get(int(n), "plus_one")
                if got != wanted:
                    problems.append(f"{process['role']} n = {n}: {got}, not {wanted}")
        problems += [f"process {pid}, which launched nothing, counted {dict(counts)}"
                     for pid, counts in counted.items() if counts.total() or counts.untracked]
        return problems

    def redirect(self, pool):
        self.write_config()
        hosts = collections.defaultdict(list)
        for part in self.hosts:
            hosts[part.flavour].append(part)
        has_eager = any(part.name == "torch_eager" for part in self.python_parts)
        in_one = [part for part in self.parts() if not part.environment]
        together = {how: pool.submit(self.run_together, in_one, how)
                    for how in ("part", "profiled") if how == "part" or has_eager}
        alone = {part.name: pool.submit(self.run_part, part) for part in self.python_parts}
        programs = {flavour: pool.submit(self.run_host, parts) for flavour, parts in hosts.items()}
        workers = {method: pool.submit(self.run_workers, method) for method in START_METHODS if has_eager}

        for name, run in {**alone, **{f"C++ program {flavour}": run for flavour, run in programs.items()}}.items():
            with self.report.phase(f"{name}: redirected, right, counted exactly") as problems:
                its_problems, rows = run.result()
                problems += its_problems
                self.rows += rows
        names = ", ".join(dict.fromkeys(part.flavour if isinstance(part, Host) else part.name for part in in_one))
        for how, run in together.items():
            also = "" if how == "part" else ", and a profiler saw just these kernels run"
            with self.report.phase(f"together in one process ({names}): redirected, right, counted exactly{also}") \
                    as problems:
                problems += run.result()[0]
        for method, run in workers.items():
            with self.report.phase(f"workers by {method}: each process has exact counts of its own") as problems:
                problems += run.result()

    def print_table(self):
        print(f"{'kernel of':24} {'pattern asks for':27} {'launches':>8} {'hits':>5} {'no solution':>11}")
        for name, found_by, launches, hits, without in self.rows:
            print(f"{name:24} {found_by:27} {launches:>8} {hits:>5} {without:>11}")
        for name, kernels in self.kernels.items():
            kernel = kernels[min(TIMES)]
            print(f"{name}: {kernel['symbol']} {kernel['params']} {kernel['image']}, grids"
                  f" {[kernels[n]['grid'] for n in TIMES]}")


def main(arguments):
    if len(arguments) > 1 and arguments[0] in ("part", "profiled"):
        known = {part.name: part for part in PYTHON_PARTS + RUNTIME_HOSTS + DRIVER_HOSTS}
        parts = [known[name] for name in arguments[1:]]
        print(json.dumps(run_parts(parts) if arguments[0] == "part" else run_profiled(parts)))
        return 0
    if arguments not in ([], ["--simulated"]):
        print(__doc__, file=sys.stderr)
        return 2
    report = Report("frameworks")
    with tempfile.TemporaryDirectory(prefix="fibshim-gpu-") as folder, \
            concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        run = Run(report, folder, bool(arguments))
        run.find_kernels(pool)
        if {"triton", "inductor_static", "inductor_plain"} <= set(run.kernels):
            run.check_images()
        run.redirect(pool)
        run.print_table()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
