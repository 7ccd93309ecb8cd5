#!/usr/bin/env python3
"""Workers of Python's multiprocessing, forked and spawned, each using CUDA through ctypes.

`workers.py fork|spawn COUNT`: the parent and every worker launch a tracked and an untracked kernel, and
state what they ran and what their counters must say, as host.h's state() does.
"""
import ctypes
import multiprocessing
import os
import sys

IMAGE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "conform.fatbin")


def use_cuda(launches):
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} returns {result}")

    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    marks = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemHostAlloc", ctypes.byref(marks), ctypes.c_size_t(64), 1)
    ctypes.memset(marks, 0, 64)
    with open(IMAGE, "rb") as file:
        call("cuModuleLoadData", ctypes.byref(module), file.read())
    values = (marks, ctypes.c_int(1), ctypes.c_int(7))
    params = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    for name in (b"conform_step", b"conform_free"):
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), module, name)
        for _ in range(launches):
            call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, params, None)
    call("cuCtxSynchronize")
    line = f"state {os.getpid()} ran:conform_free={launches} ran:curated_n1={launches}"
    os.write(1, f"{line} hit={launches} untracked={launches}\n".encode())


def main():
    how, count = sys.argv[1], int(sys.argv[2])
    workers = multiprocessing.get_context(how)
    processes = [workers.Process(target=use_cuda, args=(i + 1,)) for i in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode != 0 for process in processes):
        sys.exit("a worker ended badly")
    use_cuda(10)


if __name__ == "__main__":
    main()
