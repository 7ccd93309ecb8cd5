#!/usr/bin/env python3
"""Proves that the tests see faults: puts each fault of tests/mutations/*.fault into a copy of the tree, builds
what it touches and runs the test that must fail. Prints a table; exit code 1 where a fault was missed.

  tests/mutations/run.py [--build FOLDER] [--keep COPY] [--jobs N] [NAME...]
  tests/mutations/run.py --check      does the text of each fault stand in the tree, and has RESULTS a row of it?
                                      builds nothing

A fault:

  # What is wrong, in one line.
  in shim                      the room, or a file; the text stands there exactly once (white space may differ)
  test shim_tests Suite.Test   the test program, and a GoogleTest filter of what must fail
  - the text as it is, in one line or several
  + the text with the fault

There may be several such replacements. A text that is not found, a fault that does not compile, and a test
that fails without any fault or finds nothing to run are errors, not catches.
"""
import argparse
import concurrent.futures
import glob
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
TIME_LIMIT_S = 300


class Fault:
    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.what = re.search(r"^# (.*)$", text, re.M)[1]
        self.place = re.search(r"^in (\S+)$", text, re.M)[1]
        self.program, self.filter = re.search(r"^test (\S+) (\S+)$", text, re.M).groups()
        self.edits = [[re.sub(r"^[-+] ", "", lines, flags=re.M) for lines in edit]
                      for edit in re.findall(r"((?:^- .*\n)+)((?:^\+ .*\n)+)", text, re.M)]
        if not self.edits:
            raise ValueError(f"{path}: no replacement")

    def find(self, tree, old):
        """The one place of a text: its file, that file's text, and where."""
        place = os.path.join(tree, self.place)
        files = [place] if os.path.isfile(place) else [
            path for ending in ("h", "cc") for path in glob.glob(f"{place}/**/*.{ending}", recursive=True)]
        pattern = re.compile(r"\s+".join(re.escape(word) for word in old.split()))
        found = []
        for path in sorted(files):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            found += [(path, text, match) for match in pattern.finditer(text)]
        if len(found) != 1:
            raise ValueError(f"the text stands {len(found)} times in {self.place}: {old.strip()!r}")
        return found[0]

    def apply(self, tree):
        for old, new in self.edits:
            path, text, match = self.find(tree, old)
            # Later by a second, whatever the clock: make must see it.
            with open(path, "w", encoding="utf-8") as file:
                file.write(text[:match.start()] + new.strip() + text[match.end():])
            later = time.time() + 1
            os.utime(path, (later, later))


def restore(pristine, tree):
    """Makes `tree` what `pristine` is, copying what differs in size or time."""
    for folder, names, files in os.walk(tree):
        kept = os.path.join(pristine, os.path.relpath(folder, tree))
        names[:] = [name for name in names if os.path.join(folder, name) != os.path.join(tree, "build/tests/logs")]
        for name in files:
            if not os.path.lexists(os.path.join(kept, name)):
                os.unlink(os.path.join(folder, name))
    for folder, names, files in os.walk(pristine):
        there = os.path.join(tree, os.path.relpath(folder, pristine))
        os.makedirs(there, exist_ok=True)
        for name in files:
            a, b = os.path.join(folder, name), os.path.join(there, name)
            try:
                one, other = os.lstat(a), os.lstat(b)
                if (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns):
                    continue
                os.unlink(b)
            except FileNotFoundError:
                pass
            shutil.copy2(a, b, follow_symlinks=False)


def make(tree, jobs, *targets):
    command = ["make", "--no-print-directory", f"-j{jobs}", *targets]
    if cxx := os.environ.get("CXX"):
        command.append(f"CXX={cxx}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)


def run_test(tree, program, tests):
    """Up to the first that fails: the exit code, how many tests ran, its name, and the output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FIBSHIM_")}
    if program.startswith("driver_"):
        environment["LD_LIBRARY_PATH"] = os.path.join(tree, "build/sim")
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o711)
        environment["TMPDIR"] = scratch
        ran = subprocess.run(
            [os.path.join(tree, "build/tests/reaper"), "-t", str(TIME_LIMIT_S),
             os.path.join(tree, "build/tests", program), "--gtest_color=no", "--gtest_fail_fast", f"--gtest_filter={tests}"],
            cwd=tree, capture_output=True, text=True, errors="replace", env=environment)
    count = re.search(r"^\[==========\] Running (\d+) tests? ", ran.stdout, re.M)
    skipped = re.search(r"^\[  SKIPPED \] (\d+) tests?", ran.stdout, re.M)
    # One that ends the program has only begun.
    ended = (re.findall(r"^\[  FAILED  \] ([^\s,]+).* \(\d+ ms\)$", ran.stdout, re.M) or
             re.findall(r"^\[ RUN      \] (\S+)", ran.stdout, re.M)[-1:] or [""])
    return (ran.returncode, int(count[1] if count else 0) - int(skipped[1] if skipped else 0), ended[0],
            ran.stdout + ran.stderr)


def try_fault(pristine, tree, fault, jobs):
    """caught, missed or an error, with what there is to say."""
    restore(pristine, tree)
    try:
        fault.apply(tree)
    except ValueError as error:
        return "ERROR", str(error)
    built = make(tree, jobs, f"build/tests/{fault.program}")
    if built.returncode != 0:
        return "ERROR", "it does not build: " + "\n".join((built.stdout + built.stderr).splitlines()[-15:])
    code, count, failed, output = run_test(tree, fault.program, fault.filter)
    if count == 0:
        return "ERROR", f"no test ran\n{output[-2000:]}"
    if code == 0:
        return "missed", ""
    # The same test holds without the fault.
    code, count, _, output = run_test(pristine, fault.program, failed)
    if code != 0 or count == 0:
        return "ERROR", f"{failed} without the fault: {count} tests run, exit code {code}\n{output[-2000:]}"
    return "caught", failed


def check_texts(faults):
    """What does not stand in the tree as a fault has it, and faults of which nobody has kept that they are caught."""
    is_fine = True
    with open(os.path.join(HERE, "RESULTS"), encoding="utf-8") as file:
        results = file.read()
    for fault in faults:
        try:
            for old, _ in fault.edits:
                fault.find(ROOT, old)
        except ValueError as error:
            is_fine = False
            print(f"tests/mutations/{fault.name}.fault: {error}")
        if not re.search(rf"^caught +{re.escape(fault.name)} ", results, re.M):
            is_fine = False
            print(f"tests/mutations/{fault.name}.fault: no row in tests/mutations/RESULTS")
    return 0 if is_fine else 1


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--check", action="store_true", help="only: does the text of each fault stand in the tree?")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    parser.add_argument("--keep", default=None, help="the folder of the copies, kept for a next time")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    faults = [Fault(path) for path in sorted(glob.glob(os.path.join(HERE, "*.fault")))]
    if unknown := set(options.names) - {fault.name for fault in faults}:
        sys.exit("tests/mutations/run.py: no fault " + ", ".join(sorted(unknown)))
    faults = [fault for fault in faults if not options.names or fault.name in options.names]
    if options.check:
        return check_texts(faults)

    work = options.keep or tempfile.mkdtemp(prefix="fibshim-mutations-")
    pristine = os.path.join(work, "pristine")
    trees = queue.Queue()
    for i in range(options.jobs):
        trees.put(os.path.join(work, f"tree{i}"))
    try:
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout.split("\0")
        for path in filter(None, listed):
            source, target = os.path.join(ROOT, path), os.path.join(pristine, path)
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        if not os.path.exists(os.path.join(pristine, "build")):
            shutil.copytree(options.build, os.path.join(pristine, "build"), symlinks=True,
                            ignore=shutil.ignore_patterns("asan", "tsan", "ubsan", "logs", "conform_asan", "wheels", "torch-[0-9]*", "inductor"))
        targets = ["build/tests/reaper"] + sorted({f"build/tests/{fault.program}" for fault in faults})
        built = make(pristine, os.cpu_count(), *targets)
        if built.returncode != 0:
            sys.exit("tests/mutations/run.py: the tree does not build\n" + built.stdout + built.stderr)

        def try_one(fault):
            started = time.monotonic()
            tree = trees.get()
            outcome, why = try_fault(pristine, tree, fault, max(1, os.cpu_count() // options.jobs))
            trees.put(tree)
            print(f"{outcome:7} {fault.name:34} {fault.what} [{fault.program} {fault.filter}] "
                  f"{time.monotonic() - started:.0f} s\n" +
                  ("        " + why.replace("\n", "\n        ") + "\n" if why else ""), end="", flush=True)
            return outcome

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(try_one, faults))
        caught = outcomes.count("caught")
        print(f"{len(faults)} faults: {caught} caught, {outcomes.count('missed')} missed, "
              f"{outcomes.count('ERROR')} errors")
        return 0 if caught == len(faults) else 1
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
