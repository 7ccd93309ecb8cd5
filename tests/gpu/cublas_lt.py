"""Matrix products through the C interface of a given libcublasLt, without PyTorch, which brings a cuBLAS of its own.

As PyTorch asks for them: y[M,N] = x[M,K] * w[N,K]^T, with a bias, or added to y; sums in float32, the heuristics' first algorithm,
and 32 MiB of workspace. Memory, streams and graphs are the driver's.
"""
import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p

WORKSPACE = 32 << 20
TYPES = {"bf16": 14, "fp16": 2}
FLOAT32, COMPUTE_FLOAT32, TRANSPOSED, EPILOGUE_BIAS = 0, 68, 1, 4
TRANSA, EPILOGUE, BIAS_POINTER = 3, 7, 8  # of cublasLtMatmulDescAttributes_t
MAX_WORKSPACE_BYTES = 1  # of cublasLtMatmulPreferenceAttributes_t


class HeuristicResult(ctypes.Structure):
    _fields_ = [("algo", c_uint64 * 8), ("workspace_bytes", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)]


class NodeParams(ctypes.Structure):
    _fields_ = [("func", c_void_p), ("geometry", ctypes.c_uint * 7), ("params", ctypes.POINTER(c_void_p)),
                ("extra", ctypes.POINTER(c_void_p)), ("kern", c_void_p), ("ctx", c_void_p)]


def checked(library):
    def call(name, *arguments):
        code = getattr(library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")
    return call


def packed_buffer(extra):
    """Of pairs of a key and a pointer, which end with 0 (CU_LAUNCH_PARAM_END)."""
    return next(extra[key + 1] for key in range(0, 8, 2) if extra[key] == 1)  # CU_LAUNCH_PARAM_BUFFER_POINTER


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call = checked(self.library)
        self.context, self.stream = c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuStreamCreate", byref(self.stream), 1)

    def allocate(self, size, data=None):
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        if data is not None:
            self.call("cuMemcpyHtoD_v2", pointer, data, c_size_t(size))
        return pointer

    def free(self, *pointers):
        for pointer in pointers:
            self.call("cuMemFree_v2", pointer)

    def write(self, pointer, data):
        self.call("cuMemcpyHtoD_v2", pointer, data, c_size_t(len(data)))
        self.call("cuCtxSynchronize")

    def read(self, pointer, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuStreamSynchronize", self.stream)
        self.call("cuMemcpyDtoH_v2", data, pointer, c_size_t(size))
        return data.raw

    def capture(self, work):
        graph = c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", self.stream, byref(graph))
        return graph

    def replay(self, graph):
        exe = c_void_p()
        self.call("cuGraphInstantiateWithFlags", byref(exe), graph, c_uint64(0))
        self.call("cuGraphLaunch", exe, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        self.call("cuGraphExecDestroy", exe)

    def kernels(self, graph):
        """Of each kernel node: its name, and its parameters' offsets and bytes."""
        count = c_size_t()
        self.call("cuGraphGetNodes", graph, None, byref(count))
        nodes = (c_void_p * count.value)()
        self.call("cuGraphGetNodes", graph, nodes, byref(count))
        found = []
        for node in map(c_void_p, nodes):
            kind, own, name, values = c_int(), NodeParams(), ctypes.c_char_p(), []
            self.call("cuGraphNodeGetType", node, byref(kind))
            if kind.value != 0:
                continue
            self.call("cuGraphKernelNodeGetParams_v2", node, byref(own))
            self.call("cuFuncGetName", byref(name), c_void_p(own.func))
            offset, size = c_size_t(), c_size_t()
            while self.library.cuFuncGetParamInfo(c_void_p(own.func), c_size_t(len(values)), byref(offset), byref(size)) == 0:
                at = own.params[len(values)] if own.params else packed_buffer(own.extra) + offset.value
                values.append((offset.value, ctypes.string_at(at, size.value)))
            found.append((name.value.decode(), values))
        return found


class Lt:
    def __init__(self, path, driver):
        library = ctypes.CDLL(path)
        library.cublasLtGetVersion.restype = c_size_t
        self.version, self.call, self.driver, self.handle = library.cublasLtGetVersion(), checked(library), driver, c_void_p()
        self.call("cublasLtCreate", byref(self.handle))
        self.workspace = driver.allocate(WORKSPACE)

    def product(self, m, n, k, w, x, y, dtype="bf16", bias=None, adds=False):
        """A function that launches it. Column by column, as cuBLAS counts, w is K x N and transposed, x K x M, y N x M."""
        descriptor, preference = c_void_p(), c_void_p()
        set_attribute = lambda name, value: self.call("cublasLtMatmulDescSetAttribute", descriptor, name, byref(value),
                                                      c_size_t(ctypes.sizeof(value)))
        self.call("cublasLtMatmulDescCreate", byref(descriptor), COMPUTE_FLOAT32, FLOAT32)
        set_attribute(TRANSA, c_int(TRANSPOSED))
        if bias is not None:
            set_attribute(EPILOGUE, c_int(EPILOGUE_BIAS))
            set_attribute(BIAS_POINTER, bias)
        layouts = [c_void_p() for _ in range(3)]
        for layout, rows, columns in zip(layouts, (k, k, n), (n, m, m)):
            self.call("cublasLtMatrixLayoutCreate", byref(layout), TYPES[dtype], c_uint64(rows), c_uint64(columns), c_int64(rows))
        of_w, of_x, of_y = layouts
        self.call("cublasLtMatmulPreferenceCreate", byref(preference))
        self.call("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES, byref(c_size_t(WORKSPACE)), c_size_t(8))
        result, found = HeuristicResult(), c_int()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, descriptor, of_w, of_x, of_y, of_y, preference, 1, byref(result), byref(found))
        if found.value == 0:
            raise RuntimeError("cuBLAS knows no algorithm")
        return lambda: self.call("cublasLtMatmul", self.handle, descriptor, byref(c_float(1)), w, of_w, x, of_x, byref(c_float(adds)), y, of_y,
                                 y, of_y, byref(result), self.workspace, c_size_t(WORKSPACE), self.driver.stream)
