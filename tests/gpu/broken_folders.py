#!/usr/bin/env python3
"""Config folders that are broken, missing or invalid: what `fibshim check` says of each, and what a
PyTorch program under the shim does with them, strict and lenient.

Every mistake is made in a copy of build/config/pytorch. The programs run at the same time, each with
one folder that has all the mistakes, one a hidden size.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

from counters import BUILD, FIBSHIM, SHIM, read_counts, unshimmed_environment
from report import Report

SMS = (80, 90, 100)
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_rms_norm.py")


class Solution:
    """The bf16 solution of one hidden size inside a copied folder, for editing."""

    def __init__(self, root, hidden):
        self.hidden = hidden
        self.name = f"rmsnorm_h{hidden}"
        self.folder = os.path.join(root, "solutions", "fibshim", "rmsnorm")
        self.file = os.path.join(self.folder, f"fibshim_{self.name}.json")
        # It shares its family's images: from here on it has copies, so that only it breaks.
        for sm in SMS:
            shutil.copyfile(os.path.join(self.folder, f"rmsnorm.sm_{sm}.cubin"), self.image(sm))
            self.replace(f'"path": "rmsnorm.sm_{sm}.cubin"', f'"path": "{self.name}.sm_{sm}.cubin"')

    def image(self, sm):
        return os.path.join(self.folder, f"{self.name}.sm_{sm}.cubin")

    def replace(self, old, new):
        with open(self.file) as file:
            text = file.read()
        if old not in text:
            raise ValueError(f"{self.file}: no {old!r} to replace")
        with open(self.file, "w") as file:
            file.write(text.replace(old, new))

    def write_image(self, sm, data, states_its_sum=True):
        with open(self.image(sm), "rb") as file:
            old_sum = hashlib.sha256(file.read()).hexdigest()
        with open(self.image(sm), "wb") as file:
            file.write(data)
        if states_its_sum:
            self.replace(old_sum, hashlib.sha256(data).hexdigest())

    def images(self):
        data = {}
        for sm in SMS:
            with open(self.image(sm), "rb") as file:
                data[sm] = file.read()
        return data


def truncate_cubin(solution):
    for sm, data in solution.images().items():
        solution.write_image(sm, data[: len(data) // 2])


def exchange_cubin(solution):
    for sm, data in solution.images().items():
        solution.write_image(sm, data[:-1] + bytes([data[-1] ^ 1]), states_its_sum=False)


def mix_up_sms(solution):
    data = solution.images()
    for sm in SMS:  # no two images may have one sum while they move
        solution.write_image(sm, b"%d" % sm)
    for sm, other in zip(SMS, SMS[1:] + SMS[:1]):
        solution.write_image(sm, data[other])


def misname_kernel(solution):
    solution.replace(f'"kernel": "{solution.name}_bf16"', f'"kernel": "{solution.name}_none"')


def swap_arguments(solution):
    solution.replace('"rstd", "eps"', '"eps", "rstd"')


# mistake, its hidden size, the rule that finds it, what stands at the place that is named
MISTAKES = (
    ("truncated cubin", 128, truncate_cubin, "image-invalid", ".cubin"),
    ("wrong sha256", 2048, exchange_cubin, "image-sha256", "sha256"),
    ("wrong SM", 4096, mix_up_sms, "image-sm", ".cubin"),
    ("missing kernel", 5120, misname_kernel, "kernel-missing", "_none"),
    ("parameter sizes that do not fit", 7168, swap_arguments, "kernel-params", "arguments"),
)


def copy_folder(parent, name):
    root = os.path.join(parent, name)
    shutil.copytree(os.path.join(BUILD, "config", "pytorch"), root)
    return root


def check_folder(root):
    done = subprocess.run([FIBSHIM, "check", root], env=unshimmed_environment(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def wrong_diagnostics(output, code, solution, rule, token):
    """What `check` should have said and did not."""
    if code != 1:
        return [f"exit code {code}, not 1"]
    problems = []
    found = re.findall(r"^(.+?):(\d+):(\d+): error: (.+) \[([a-z0-9-]+)\]$", output, re.M)
    mine = [row for row in found if os.path.abspath(row[0]) == solution.file and row[4] == rule]
    if not mine:
        return [f"no [{rule}] at {solution.file}: {output.strip()!r}"]
    with open(solution.file) as file:
        lines = file.read().split("\n")
    for _, line, column, _, _ in mine:
        text = lines[int(line) - 1] if 0 < int(line) <= len(lines) else ""
        if token not in text or not 1 <= int(column) <= len(text):
            problems.append(f"[{rule}] points at line {line}, column {column}: {text.strip()!r}")
    return problems


def make_key(parent):
    """The path of a new public key, and that of its secret one."""
    name = os.path.join(parent, "signer")
    subprocess.run(["minisign", "-G", "-W", "-p", name + ".pub", "-s", name + ".key"],
                   env=unshimmed_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return name + ".pub", name + ".key"


def sign(secret_key, folder):
    subprocess.run([FIBSHIM, "check", "--write-manifest", folder], env=unshimmed_environment(),
                   stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["minisign", "-S", "-s", secret_key, "-m", os.path.join(folder, "fibshim.manifest")],
                   env=unshimmed_environment(), stdout=subprocess.DEVNULL, check=True)


def check_each(report, parent):
    with report.phase("check: the folder as it is built is fine") as problems:
        code, output = check_folder(os.path.join(BUILD, "config", "pytorch"))
        if code != 0:
            problems.append(f"exit code {code}: {output.strip()}")
    for mistake, hidden, make, rule, token in MISTAKES:
        with report.phase(f"check: {mistake} is found with its place") as problems:
            root = copy_folder(parent, rule)
            solution = Solution(root, hidden)
            make(solution)
            code, output = check_folder(root)
            print(output.strip().split("\n")[0])
            problems += wrong_diagnostics(output, code, solution, rule, token)


class Run:
    """One PyTorch program under the shim, started at once."""

    def __init__(self, parent, name, config, arguments, **settings):
        self.name = name
        self.stats_dir = os.path.join(parent, f"stats-{name}")
        os.mkdir(self.stats_dir)
        environment = unshimmed_environment()
        environment.update(LD_PRELOAD=SHIM, FIBSHIM_CONFIG=config, FIBSHIM_STATS_DIR=self.stats_dir, **settings)
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, PROGRAM, *arguments], env=environment,
                                        stdout=self.out, stderr=self.err)

    def finish(self, report):
        """Passes its lines on, and returns what the shim said."""
        code = self.process.wait()
        self.out.seek(0)
        self.err.seek(0)
        error_text = self.err.read()
        lines = 0
        for line in self.out.read().split("\n"):
            if line.startswith(("PASS ", "FAIL ")):
                lines += 1
                verdict, _, text = line.partition(" ")
                report.check(f"{self.name}: {text}", [] if verdict == "PASS" else ["see its line"])
            elif line:
                print(f"  {line}")
        said = [line for line in error_text.split("\n") if line.startswith("fibshim[")]
        if code != 0 or not lines:
            print(error_text)
            report.check(f"{self.name}: the program ends well", [f"exit code {code}"])
        return said


def main():
    report = Report("broken folders")
    with tempfile.TemporaryDirectory(prefix="fibshim-gpu-") as parent:
        check_each(report, parent)

        all_broken = copy_folder(parent, "all-broken")
        for _, hidden, make, _, _ in MISTAKES:
            make(Solution(all_broken, hidden))
        invalid = copy_folder(parent, "invalid")
        pattern = os.path.join(invalid, "patterns", "torch-rms-norm-bf16.json")
        with open(pattern, "a") as file:
            file.write("}\n")
        missing = os.path.join(parent, "missing")

        # Signed, then changed in what only the signature tells.
        public_key, secret_key = make_key(parent)
        changed = copy_folder(parent, "changed")
        sign(secret_key, changed)
        changed_pattern = os.path.join(changed, "patterns", "torch-rms-norm-bf16.json")
        with open(changed_pattern, "a") as file:
            file.write("\n")

        strict = Run(parent, "strict", all_broken, ["broken", "strict"])
        lenient = Run(parent, "lenient", all_broken, ["broken", "lenient"], FIBSHIM_ON_ERROR="fallback")
        with_missing = Run(parent, "missing folder", missing, ["plain"])
        with_invalid = Run(parent, "invalid folder", invalid, ["plain"])
        with_changed = Run(parent, "changed folder", changed, ["plain"], FIBSHIM_REQUIRE_KEY=public_key)

        for run in (strict, lenient):
            said = run.finish(report)
            print("\n".join(f"  {line}" for line in said))
            with report.phase(f"{run.name}: each broken solution is given a reason, once") as problems:
                for mistake, hidden, *_ in MISTAKES:
                    name = f"fibshim_rmsnorm_h{hidden}"
                    errors = [line for line in said
                              if re.match(r"fibshim\[\d+\] error: ", line) and re.search(rf"{name}\b", line)]
                    if len(errors) != 1:
                        problems.append(f"{mistake} ({name}): {len(errors)} error lines")

        for run, place in ((with_missing, re.escape(missing)), (with_invalid, re.escape(pattern) + r":\d+:\d+: "),
                           (with_changed, re.escape(changed_pattern) + ": error: not the file that was signed")):
            said = run.finish(report)
            print("\n".join(f"  {line}" for line in said))
            with report.phase(f"{run.name}: exactly one warning, which names the place") as problems:
                if len(said) != 1:
                    problems.append(f"{len(said)} lines")
                elif not re.match(r"fibshim\[\d+\] warn: ", said[0]) or not re.search(place, said[0]):
                    problems.append(f"said: {said[0]}")
                if read_counts(run.stats_dir).total():
                    problems.append("launches were counted")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
