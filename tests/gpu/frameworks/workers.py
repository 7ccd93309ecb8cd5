#!/usr/bin/env python3
"""PyTorch in worker processes, under the shim: workers.py fork|spawn|forkserver.

The parent uses CUDA too: after its workers where they are forked (PyTorch refuses a forked child of a
process that has), else before them. One worker is killed with SIGKILL when it has launched, and one child
is forked from the parent when that has used CUDA, and uses none. Prints who launched what, as JSON.
"""
import importlib
import json
import multiprocessing
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

from parts import TorchEager  # noqa: E402

WORKERS = 3


def launch(role, launches):
    """Launches n -> times; what happened, for the parent's list."""
    part = TorchEager()
    part.start()
    verdicts = {n: part.launch(n, times) for n, times in launches.items()}
    return {"role": role, "pid": os.getpid(), "launches": launches, "verdicts": verdicts}


def work(index, pipe):
    pipe.send(launch(f"worker {index}", {4096: 2 + index, 8192: 1 + index, 12288: 3}))
    pipe.recv()  # until told to end, or killed


def run_workers(context):
    started = []
    for index in range(WORKERS):
        mine, its = context.Pipe()
        process = context.Process(target=work, args=(index, its))
        process.start()
        its.close()
        started.append((process, mine))
    answers = [pipe.recv() for _, pipe in started]
    os.kill(started[0][0].pid, signal.SIGKILL)
    for _, pipe in started[1:]:
        pipe.send("end")
    for index, (process, _) in enumerate(started):
        process.join()
        wanted = -signal.SIGKILL if index == 0 else 0
        if process.exitcode != wanted:
            raise RuntimeError(f"worker {index} ended with {process.exitcode}, not {wanted}")
    return answers


def fork_idle_child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return {"role": "idle child", "pid": pid, "launches": {}, "verdicts": {}}


def main(method):
    context = multiprocessing.get_context(method)
    processes = []
    parent = {4096: 7, 8192: 6}
    importlib.import_module("torch")  # before the fork, as servers do
    if method != "fork":
        processes.append(launch("parent", parent))
    processes += run_workers(context)
    if method == "fork":
        processes.append(launch("parent", parent))
    processes.append(fork_idle_child())
    print(json.dumps({"processes": processes}))


if __name__ == "__main__":
    main(sys.argv[1])
