#!/usr/bin/env python3
"""`fibshim rollout` over eight PyTorch processes that replay graphs: a good folder arrives everywhere; one whose kernel is slow, and
one whose kernel faults, are stopped after the first process. Then one process, which takes a share of its launches first.

    rollout.py                  all of it
    rollout.py --child FILE     (under the shim, by the above) replays until FILE is there
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time

from counters import BUILD, FIBSHIM, SHIM, read_stats, unshimmed_environment
from planted import folder_with_image
from report import Report

PROCESSES = 8
SOLUTION = "fibshim_rmsnorm_h4096"
WATCH_S = 3


def run_child(end):
    import torch
    import torch.nn.functional as F
    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    want = F.rms_norm(x.double(), (4096,), weight.double(), 1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(32):
            y = F.rms_norm(x, (4096,), weight, 1e-6)
    print("ready", flush=True)
    while not os.path.exists(end):
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert ((y - want).abs() <= 0.01 + 0.01 * want.abs()).all()
        time.sleep(0.005)


class Processes:
    def __init__(self, root, count):
        self.root = tempfile.mkdtemp(dir=root)
        self.stats = os.path.join(self.root, "stats")
        self.end = os.path.join(self.root, "end")
        shutil.copytree(os.path.join(BUILD, "config", "pytorch"), os.path.join(self.root, "first"))
        environment = {**unshimmed_environment(), "LD_PRELOAD": SHIM, "FIBSHIM_STATS_DIR": self.stats,
                       "FIBSHIM_CONFIG": os.path.join(self.root, "first")}
        self.children = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--child", self.end], env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                         for _ in range(count)]
        for child in self.children:
            child.stdout.readline()

    def rollout(self, folder, options):
        return subprocess.run([FIBSHIM, "rollout", folder, *options, "--watch", str(WATCH_S), "--slower", "100", "--force",
                               "--dir", self.stats], env=unshimmed_environment(), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def folders(self):
        processes = read_stats(self.stats, "--per-process")["processes"]
        return sorted(os.path.basename(process["folder"]["path"]) for process in processes if process["alive"])

    def finish(self):
        """Those that ended badly."""
        open(self.end, "w").close()
        return sum(child.wait() != 0 for child in self.children)


EIGHT = ["--to", "10%,50%,100%", "--whole"]


def judge(report, name, root, folder, code, expected, in_folder, failed, count=PROCESSES, options=EIGHT):
    with report.phase(name) as problems:
        processes = Processes(root, count)
        begin = time.monotonic()
        done = processes.rollout(folder, options)
        took = time.monotonic() - begin
        print(done.stdout, end="")
        print(f"measured: {name}: {took:.1f} s, {WATCH_S} of them before the first move; "
              f"{done.stdout.count(': moved')} moves of {count} processes")
        if done.returncode != code:
            problems.append(f"exit code {done.returncode}")
        if expected not in done.stdout:
            problems.append(f"nothing says {expected!r}")
        folders = processes.folders()
        if folders != [in_folder] * len(folders):
            problems.append(f"processes are in {folders}")
        bad = processes.finish()
        if bad != failed:
            problems.append(f"{bad} processes ended badly")


def main():
    report = Report("rollout")
    with tempfile.TemporaryDirectory() as root:
        data = os.path.join(BUILD, "tests", "data")
        good = shutil.copytree(os.path.join(BUILD, "config", "pytorch"), os.path.join(root, "good"))
        slow = folder_with_image(os.path.join(root, "slow"), SOLUTION, os.path.join(data, "slow_kernels.fatbin"))
        faulty = folder_with_image(os.path.join(root, "faulty"), SOLUTION, os.path.join(data, "faulty_kernels.fatbin"))
        judge(report, "a good folder", root, good, 0, "complete: 8 processes", "good", 0)
        judge(report, "a slow kernel", root, slow, 1, "% longer than before", "first", 0)
        judge(report, "a kernel that faults", root, faulty, 1, "stopped: process", "first", 1)
        judge(report, "a share of one process's launches", root, good, 0, "moved for 50 % of its launches", "good", 0, 1,
              ["--to", "50%,100%"])
    return report.finish()


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[2]) if len(sys.argv) > 1 else main())
