"""PASS and FAIL lines, and the JSON summary that ends every program of the GPU tests.

run.sh counts the lines; a program that dies before its summary counts as one failure more.
"""
import contextlib
import json
import sys
import traceback


class Report:
    def __init__(self, program):
        self.program = program
        self.passed = []
        self.failed = []
        self.skipped = []

    def check(self, name, problems):
        """One PASS or FAIL line. `problems` is a list of strings; empty means fine."""
        if problems:
            self.failed.append(name)
            print(f"FAIL {name}: {problems[0]}" + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
            for problem in problems[1:10]:
                print(f"     {problem}")
        else:
            self.passed.append(name)
            print(f"PASS {name}")
        sys.stdout.flush()

    def skip(self, name, reason):
        """What cannot be had here, and why."""
        self.skipped.append(name)
        print(f"SKIP {name}: {reason}", flush=True)

    @contextlib.contextmanager
    def phase(self, name):
        """Collects problems into the list that it yields; an exception is a problem too."""
        problems = []
        try:
            yield problems
        except Exception as error:  # whatever a phase throws is its failure, not the end of the run
            traceback.print_exc()
            problems.append(f"{type(error).__name__}: {error}")
        self.check(name, problems)

    def finish(self, **extra):
        """Prints the summary; returns the exit code."""
        summary = {"program": self.program, "passed": len(self.passed), "failed": len(self.failed),
                   "skipped": len(self.skipped), "failures": self.failed, **extra}
        print("SUMMARY " + json.dumps(summary))
        return 1 if self.failed or not self.passed + self.skipped else 0
