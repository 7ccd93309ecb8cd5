#!/usr/bin/env python3
"""Contexts that a kernel spoils: what the shim says of a replacement's fault, and of the program's own.

    poison.py                          all of it, each case in a process of its own
    poison.py redirected|own|nothing   (under the shim, by the above) a PyTorch program that ends so
"""
import ctypes
import os
import subprocess
import sys
import tempfile

from counters import BUILD, SHIM, unshimmed_environment
from planted import folder_with_image
from report import Report

SOLUTION = "fibshim_rmsnorm_h4096"
DEFINITION = "rmsnorm_h4096"
FAULTY = os.path.join(BUILD, "tests", "data", "faulty_kernels.fatbin")
TIMEOUT_S = 120


def norm(torch):
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    return torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)


def out_of_range(torch):
    """PyTorch's own index kernel asserts."""
    table = torch.arange(4, device="cuda")
    index = torch.tensor([100], device="cuda")
    torch.cuda.synchronize()
    return table[index]


def see_lost_context():
    """A hooked call that returns the error: the shim reports the context there."""
    driver = ctypes.CDLL("libcuda.so.1")
    module = ctypes.c_void_p()
    driver.cuModuleLoadData(ctypes.byref(module), b"")


def run_child(part):
    """Exit status 3: PyTorch has raised what the driver returned."""
    import torch
    stream = torch.cuda.current_stream()
    if part == "own":
        norm(torch)
        torch.cuda.synchronize()
    try:
        result = norm(torch) if part == "redirected" else out_of_range(torch)
        stream.synchronize()
        result.cpu()
    except RuntimeError as error:
        print(f"RAISED {error}".splitlines()[0], flush=True)
        see_lost_context()
        os._exit(3)  # the interpreter's end would call into the lost context
    return 0


def problems_of(part, folder, code, expected, environment):
    """Runs a child. `code`: what PyTorch's message must name; `expected`: in the shim's lines, in order."""
    child_environment = {**unshimmed_environment(), "LD_PRELOAD": SHIM, "FIBSHIM_CONFIG": folder, **environment}
    child = subprocess.run([sys.executable, os.path.abspath(__file__), part], env=child_environment,
                           capture_output=True, text=True, timeout=TIMEOUT_S)
    said = [line for line in child.stderr.splitlines() if line.startswith("fibshim[")]
    problems = []
    if child.returncode != 3 or code not in child.stdout:
        problems.append(f"exit status {child.returncode}, {child.stdout!r}, expected one that names {code!r}")
    lost = [line for line in said if " is lost, " in line]
    if len(lost) != 1:
        problems.append(f"the context was reported {len(lost)} times: {said}")
    at = 0
    for part_of_line in expected:
        while at < len(said) and part_of_line not in said[at]:
            at += 1
        if at == len(said):
            problems.append(f"no line {part_of_line!r} (in its place) in {said}")
            break
    return problems


def main():
    report = Report("poison")
    named = f"{DEFINITION} (solution {SOLUTION} of "
    illegal = "returns CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    asserted = "returns CUDA_ERROR_ASSERT (710)"
    good = os.path.join(BUILD, "config", "pytorch")
    with tempfile.TemporaryDirectory() as root:
        faulty = folder_with_image(os.path.join(root, "config"), SOLUTION, FAULTY)
        cases = [
            ("a replacement that faults is named", "redirected", faulty, "illegal memory access",
             [illegal, "replacements that have run there: ", "compute-sanitizer or"]),
            ("a fault of the program's own, redirected launches before it", "own", good, "device-side assert",
             [asserted, "replacements that have run there: ", "compute-sanitizer or"]),
            ("a fault of the program's own, nothing redirected", "nothing", good, "device-side assert",
             [asserted, "no replacement has run there"]),
        ]
        for name, part, folder, code, expected in cases:
            with report.phase(name) as problems:
                stats = {"FIBSHIM_STATS_DIR": tempfile.mkdtemp(dir=root)}
                if len(expected) == 3:
                    expected[1] += named + os.path.realpath(folder)
                problems += problems_of(part, folder, code, expected, stats)
    return report.finish()


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[1]) if len(sys.argv) > 1 else main())
