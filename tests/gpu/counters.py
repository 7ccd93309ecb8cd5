"""The counts of `fibshim stats --json`, and differences between two looks at them."""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("FIBSHIM_TEST_BUILD", os.path.join(ROOT, "build"))
FIBSHIM = os.path.join(BUILD, "bin", "fibshim")
SHIM = os.path.join(BUILD, "lib", "libfibshim.so")


def unshimmed_environment():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


class Counts(collections.Counter):
    """(definition, outcome) -> launches that a pattern knew; `untracked` is apart."""

    untracked = 0
    processes = 0


def read_stats(stats_dir, *options):
    """`fibshim stats --json` of all processes that counted below `stats_dir`."""
    done = subprocess.run([FIBSHIM, "stats", "--json", "--dir", stats_dir, *options], env=unshimmed_environment(),
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # That nothing was counted yet is an answer here, and no news for whoever reads the log.
    said = [line for line in done.stderr.splitlines() if not line.startswith("fibshim stats: no counters in ")]
    if said:
        print("\n".join(said), file=sys.stderr)
    done.check_returncode()
    return json.loads(done.stdout)


def add_up(rows, kind="count"):
    """`kind`: "executions" are also those in graphs."""
    counts = Counts()
    for row in rows:
        if row["outcome"] == "untracked":
            counts.untracked += row[kind]
        else:
            counts[row["definition"], row["outcome"]] += row[kind]
    return counts


def read_counts(stats_dir, pid=None, kind="count"):
    """What all processes below `stats_dir` counted, or one of them."""
    stats = read_stats(stats_dir, *([] if pid is None else ["--pid", str(pid)]))
    counts = add_up(stats["counters"], kind)
    counts.processes = len(stats["processes"])
    return counts


def read_counts_by_process(stats_dir):
    """Process id -> Counts."""
    return {process["pid"]: add_up(process["counters"])
            for process in read_stats(stats_dir, "--per-process")["processes"]}


class Watch:
    """What this process launches while the block runs; `problems` gets every difference from `expected`."""

    def __init__(self, problems, expected):
        self.problems = problems
        self.expected = collections.Counter(expected)

    def look(self):
        return read_counts(os.environ["FIBSHIM_STATS_DIR"], os.getpid())

    def __enter__(self):
        self.before = self.look()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        after = self.look()
        counted = collections.Counter(after)
        counted.subtract(self.before)
        self.untracked = after.untracked - self.before.untracked
        for key in sorted(set(counted) | set(self.expected)):
            if counted[key] != self.expected[key]:
                self.problems.append(f"{key[0]} {key[1]}: counted {counted[key]}, launched {self.expected[key]}")


def read_arguments(description):
    """BUILD CUBINS [--keep FILE], of a test of decode attention; and CHILD, which run_side() adds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("cubins")
    parser.add_argument("child", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--keep", metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/flash_attention`")
    return parser.parse_args()


def run_side(arguments, environment):
    """This very program again, as a process that writes JSON into the file which is its last argument: what it wrote, and its counts."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run([sys.executable, sys.argv[0], *arguments, out], check=True,
                       env={**os.environ, **environment, "FIBSHIM_STATS_DIR": folder})
        with open(out) as file:
            return json.load(file), read_counts(folder)
