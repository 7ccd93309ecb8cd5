#!/usr/bin/env python3
"""`fibshim rollout` over eight PyTorch processes that replay graphs: a good folder arrives everywhere; one whose kernel is slow, one
whose kernel faults, and one whose results are wrong, of which --check has some compared, are stopped after the first process. Then
one process, which takes a share of its launches first.

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
from planted import folder_with_image, folder_without_last_row
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
    replays = wrong = 0
    print("ready", flush=True)
    while not os.path.exists(end):
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        replays += 1
        wrong += not ((y - want).abs() <= 0.01 + 0.01 * want.abs()).all()
        time.sleep(0.005)
    print(replays, wrong, flush=True)


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
        """How many ended badly, and (replays, wrong results) of each of the others."""
        open(self.end, "w").close()
        outputs = [child.communicate()[0] for child in self.children]
        ended = [child.returncode == 0 for child in self.children]
        return ended.count(False), [tuple(map(int, text.split())) for text, is_fine in zip(outputs, ended) if is_fine]


EIGHT = ["--to", "10%,50%,100%", "--whole"]


def judge(report, name, root, folder, code, expected, in_folder, failed, count=PROCESSES, options=EIGHT, wrong_in=0):
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
        bad, served = processes.finish()
        if bad != failed:
            problems.append(f"{bad} processes ended badly")
        print(f"measured: {name}: wrong results of replays: " + ", ".join(f"{wrong} of {replays}" for replays, wrong in served))
        if sum(wrong > 0 for _, wrong in served) > wrong_in:
            problems.append(f"wrong results in more than {wrong_in} processes")


def main():
    report = Report("rollout")
    with tempfile.TemporaryDirectory() as root:
        data = os.path.join(BUILD, "tests", "data")
        good = shutil.copytree(os.path.join(BUILD, "config", "pytorch"), os.path.join(root, "good"))
        slow = folder_with_image(os.path.join(root, "slow"), SOLUTION, os.path.join(data, "slow_kernels.fatbin"))
        faulty = folder_with_image(os.path.join(root, "faulty"), SOLUTION, os.path.join(data, "faulty_kernels.fatbin"))
        wrong = folder_without_last_row(os.path.join(root, "wrong"), SOLUTION)
        judge(report, "a good folder", root, good, 0, "complete: 8 processes", "good", 0)
        judge(report, "a slow kernel", root, slow, 1, "% longer than before", "first", 0)
        judge(report, "a kernel that faults", root, faulty, 1, "stopped: process", "first", 1)
        judge(report, "a wrong kernel", root, wrong, 1, "shadow checks found a solution wrong", "first", 0,
              options=[*EIGHT, "--check", "1/10"], wrong_in=1)
        judge(report, "a share of one process's launches", root, good, 0, "moved for 50 % of its launches", "good", 0, 1,
              ["--to", "50%,100%"])
    return report.finish()


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[2]) if len(sys.argv) > 1 else main())
