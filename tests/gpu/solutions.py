"""The solutions of ready config folders, launched as their JSON says: by the driver, without the shim."""
import ctypes
import glob
import json
import os

import torch

from expressions import evaluate

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name} returns {code}")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a value in a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 3), ("rest", ctypes.c_char * 52)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_mem", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint)]


CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class Kernel:
    """A kernel of an image. `types` are those of its parameters."""

    images = {}

    def __init__(self, image, name, types):
        if image not in Kernel.images:
            module = ctypes.c_void_p()
            with open(image, "rb") as file:
                call("cuModuleLoadData", ctypes.byref(module), file.read())
            Kernel.images[image] = module
        self.function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(self.function), Kernel.images[image], name.encode())
        self.types = types
        self.shared_mem = 48 << 10  # what it may have

    def launch(self, grid, block, values, shared_mem=0, is_dependent=False, cluster=(1, 1, 1)):
        """On PyTorch's current stream. `is_dependent`: it may begin before the kernel before it ends."""
        parameters = [kind(value) for kind, value in zip(self.types, values, strict=True)]
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(value) for value in parameters))
        given = [LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))] if is_dependent else []
        if cluster != (1, 1, 1):
            given.append(LaunchAttribute(CLUSTER_DIMENSION, 0, cluster))
        attributes = (LaunchAttribute * len(given))(*given)
        if shared_mem > self.shared_mem:
            call("cuFuncSetAttribute", self.function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_mem)
            self.shared_mem = shared_mem
        config = LaunchConfig((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_mem,
                              torch.cuda.current_stream().cuda_stream, ctypes.addressof(attributes), len(given))
        call("cuLaunchKernelEx", ctypes.byref(config), self.function, pointers, None)


# Every argument of a kernel that is neither a pointer nor an int32.
TYPES = {
    **dict.fromkeys(("row_stride", "first", "page_stride", "slot_stride", "query_stride", "key_stride",
                     "value_stride", "row_size", "key_slot_stride", "value_slot_stride", "reserved_slot", "cached_head_stride"), ctypes.c_int64),
    **dict.fromkeys(("eps", "least"), ctypes.c_float),
    **dict.fromkeys(("seeds", "seed", "offsets", "offset"), ctypes.c_uint64),
    **dict.fromkeys(("weight_bias", "limit", "alpha", "beta", "top_p", "min_p"), ctypes.c_float),
    **{f"{name}_{unit}_stride": ctypes.c_int64
       for name in ("query", "key", "query_out", "key_out") for unit in ("token", "head")},
}


class Solution:
    def __init__(self, path, sm):
        with open(path) as file:
            record = json.load(file)
        self.definition = record["definition"]
        self.launch_block = record["launch"]
        self.kernel_name = self.launch_block["kernel"]
        images = [image["path"] for image in self.launch_block["images"] if f".sm_{sm}." in image["path"]]
        self.image = os.path.join(os.path.dirname(path), images[0]) if images else None
        self.kernel = None

    def identity(self):
        return json.dumps([os.path.basename(self.image), self.launch_block["kernel"], self.launch_block["arguments"],
                           self.launch_block["grid"], self.launch_block["block"]])

    def launch(self, arguments, is_dependent=False):
        """`arguments`: tensors and numbers by name, the definition's axes among them. A ctypes value has that type."""
        names = self.launch_block["arguments"]
        arguments = {"next_may_begin": 1, **arguments}  # no kernel may depend on it
        typed = {name: type(value) for name, value in arguments.items() if isinstance(value, ctypes._SimpleCData)}
        values = {name: value.data_ptr() if isinstance(value, torch.Tensor) else value.value if name in typed else value
                  for name, value in arguments.items()}
        for where in self.launch_block["where"]:
            if not evaluate(where, values):
                raise RuntimeError(f"{self.definition}: {where} does not hold")
        if self.kernel is None:
            types = [ctypes.c_void_p if arguments[name] is None or isinstance(arguments[name], torch.Tensor)
                     else typed.get(name) or TYPES.get(name, ctypes.c_int32) for name in names]
            self.kernel = Kernel(self.image, self.kernel_name, types)
        grid, block, cluster = (tuple(evaluate(entry, values) for entry in self.launch_block.get(key, (1, 1, 1)))
                                for key in ("grid", "block", "cluster"))
        self.kernel.launch(grid, block, [values[name] for name in names], evaluate(self.launch_block.get("shared_mem", 0), values),
                           is_dependent, cluster)


def load_all(folder, sm=90):
    """The folder's solutions that have an image for the GPU."""
    paths = sorted(glob.glob(os.path.join(folder, "solutions", "**", "*.json"), recursive=True))
    solutions = (Solution(path, sm) for path in paths)
    return [solution for solution in solutions if solution.image is not None]


def load_folder(folder, sm=90):
    """The same by definition."""
    return {solution.definition: solution for solution in load_all(folder, sm)}
