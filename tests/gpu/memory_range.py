#!/usr/bin/env python3
"""What the driver tells of the memory behind a pointer: the whole of what lies behind it, also of memory mapped piece by piece.

  tests/gpu/memory_range.py

The shim takes CU_POINTER_ATTRIBUTE_RANGE_* for that (shim/driver/memory_range.h). Printed beside it: cuMemGetAddressRange.
"""
import ctypes
import os
import subprocess
import sys

RANGE_START_ADDR, RANGE_SIZE = 11, 12
MIB = 1 << 20


def ranges(pointer):
    """(begin, end) by both."""
    cuda = ctypes.CDLL("libcuda.so.1")
    found = []
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    wanted = (ctypes.c_int * 2)(RANGE_START_ADDR, RANGE_SIZE)
    answers = (ctypes.c_void_p * 2)(ctypes.addressof(begin), ctypes.addressof(size))
    assert cuda.cuPointerGetAttributes(2, wanted, answers, ctypes.c_uint64(pointer)) == 0
    found.append((begin.value, begin.value + size.value))
    assert cuda.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), ctypes.c_uint64(pointer)) == 0
    found.append((begin.value, begin.value + size.value))
    return found


def child():
    import torch
    failed = 0
    small = torch.zeros(1000, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        captured = torch.zeros(1000, device="cuda")
    for name, tensor in (("96 MiB", torch.zeros(96 * MIB, dtype=torch.uint8, device="cuda")), ("small", small),
                         ("of a graph's pool", captured)):
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        (known_begin, known_end), (piece_begin, piece_end) = ranges(begin + tensor.nbytes // 2)
        others = [] if tensor is captured else [captured.data_ptr()]
        is_good = known_begin <= begin and end <= known_end and not any(known_begin <= other < known_end for other in others)
        failed += not is_good
        print(f"{'ok  ' if is_good else 'FAIL'} {name}: {begin - known_begin} bytes before it, {known_end - end} behind it; "
              f"cuMemGetAddressRange: {begin - piece_begin}, {piece_end - end}")
    return failed != 0


def main():
    if "--child" in sys.argv:
        return child()
    failed = 0
    for expandable in (False, True):
        print("expandable segments" if expandable else "segments")
        failed += subprocess.run([sys.executable, __file__, "--child"], check=False, env={
            **os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}).returncode != 0
    print("FAIL memory_range" if failed else "PASS memory_range")
    return failed != 0


sys.exit(main())
