"""Kernels of our own in a fatbin, launched on PyTorch's current stream by the driver, so that graphs capture them."""
import ctypes

import torch


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_mem", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(Attribute)), ("attribute_count", ctypes.c_uint)]


CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
MAY_BEGIN_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MOST_SHARED_MEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernels:
    def __init__(self, path):
        torch.zeros(1, device="cuda")  # makes the context
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoad", ctypes.byref(self.module), str(path).encode())
        self.functions = {}

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def function(self, name, shared_mem):
        if name not in self.functions:
            made = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(made), self.module, name.encode())
            self.functions[name] = made
        if shared_mem > 48 << 10:
            self.call("cuFuncSetAttribute", self.functions[name], MOST_SHARED_MEM, shared_mem)
        return self.functions[name]

    def launch(self, name, grid, block, arguments, shared_mem=0, may_begin_early=False, cluster=1):
        """`arguments`: ctypes values; tensors stand for where they lie."""
        values = [ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else one for one in arguments]
        params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        wanted = [Attribute(MAY_BEGIN_EARLY, 0, (ctypes.c_uint * 16)(1))] * may_begin_early
        wanted += [Attribute(CLUSTER, 0, (ctypes.c_uint * 16)(cluster, 1, 1))] * (cluster > 1)
        attributes = (Attribute * max(len(wanted), 1))(*wanted)
        config = Config((grid, 1, 1), (block, 1, 1), shared_mem, torch.cuda.current_stream().cuda_stream, attributes, len(wanted))
        self.call("cuLaunchKernelEx", ctypes.byref(config), self.function(name, shared_mem), params, None)
