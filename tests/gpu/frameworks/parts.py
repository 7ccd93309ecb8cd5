"""What each framework launches here: y = x + 1 over n floats, by a kernel that a pattern can know.

A Part launches, and says how a pattern reads its kernel. For n = 4096 the folder's solution computes
2x instead, so that the result proves the redirect; for 8192 it computes the same as the framework; for
12288 there is none, and the framework's own kernel runs. Importing this imports no framework.
"""
import ctypes
import os

import numpy

from counters import BUILD

HOSTS = os.path.join(BUILD, "tests", "frameworks")

# n -> launches; n -> what y holds afterwards when the folder is in force.
TIMES = {4096: 5, 8192: 3, 12288: 2}
REDIRECTED = {4096: "double", 8192: "plus_one"}


def verdict(n, ys):
    """What every launch has written, given an array for each."""
    x = numpy.arange(2, n + 2, dtype=numpy.float32)
    ys = [numpy.asarray(y) for y in ys]
    for name, expected in (("plus_one", x + 1), ("double", 2 * x)):
        if ys and all(numpy.array_equal(y, expected) for y in ys):
            return name
    return "neither, or not the same each time"


def host_input(n):
    return numpy.arange(2, n + 2, dtype=numpy.float32)


class Part:
    name = ""
    found_by = "symbol, params"  # what the pattern asks for
    finds = None  # the symbol, a regular expression, where the kernel must be looked for first
    redirected = REDIRECTED
    counted = tuple(TIMES)  # the n that a pattern knows
    bystanders = 0  # launches by bystander()
    environment = {}  # settings that hold for its whole process: not for one that runs all parts

    def start(self):
        """Imports what it needs."""

    def launch(self, n, times):
        """Launches, and returns the verdict."""
        raise NotImplementedError

    def bystander(self):
        """Launches what no pattern may take, and returns the verdict; None: nothing of that kind."""
        return None

    def patterns(self, kernels):
        """What differs between patterns, and what is added to the part's name for their labels. `kernels`:
        n -> what was found of it."""
        kernel = kernels[min(TIMES)]
        yield {"match": {"symbol": kernel["symbol"], "params": kernel["params"]}, **self.layout(kernel["params"])}

    def layout(self, params):
        return expect_layout(params, [8, 8, 4])

    def definition(self, n):
        return f"plus_one_{self.name}_n{n}"

    def runs(self, times):
        """How often a kernel runs, and is counted, for that many launches."""
        return times

    def name_in_profile(self, symbol):
        return symbol

    def outcome(self, n):
        return "hit" if n in self.redirected else "fallback_no_solution"

    def expected(self):
        """(definition, outcome) -> launches."""
        return {(self.definition(n), self.outcome(n)): self.runs(times)
                for n, times in TIMES.items() if n in self.counted}


def expect_layout(params, leading, extra=0):
    """A kernel (x, y, int n), with `extra` pointers of the compiler's own after them."""
    if params != leading + [8] * extra:
        raise ValueError(f"the kernel's params are {params}, not {leading + [8] * extra}")
    return {"axes": {"n": {"arg": 2, "type": "int32"}},
            "arguments": {"x": {"arg": 0, "dtype": "float32"}, "y": {"arg": 1, "dtype": "float32"}}}


class TorchEager(Part):
    """ATen's vectorized elementwise kernel: (int N, functor, pointers as one array by value, y first)."""
    name = "torch_eager"
    finds = r"vectorized_elementwise_kernel.*CUDAFunctorOnSelf_addIf"

    def name_in_profile(self, symbol):
        demangle = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
        demangle.restype = ctypes.c_char_p
        return demangle(symbol.encode(), None, None, None).decode()

    def start(self):
        import torch
        self.torch = torch

    def launch(self, n, times):
        x = self.torch.from_numpy(host_input(n)).cuda()
        ys = [self.torch.add(x, 1) for _ in range(times)]
        return verdict(n, [y.cpu().numpy() for y in ys])

    def layout(self, params):
        if len(params) != 3 or params[0] != 4 or params[2] != 16:
            raise ValueError(f"the kernel's params are {params}, not [4, the functor, 16]")
        return {"axes": {"n": {"arg": 0, "type": "int32"}},
                "arguments": {"y": {"arg": 2, "offset": 0, "dtype": "float32"},
                              "x": {"arg": 2, "offset": 8, "dtype": "float32"}}}


class Inductor(Part):
    """torch.compile, one kernel a shape, with the launcher that `is_static` says. Variants are not timed:
    those launches would be counted too."""

    def start(self):
        import torch
        import torch._inductor.config as config
        self.torch = torch
        self.config = config
        self.compiled = torch.compile(self.function, dynamic=False)

    def setting(self, *names):
        """The name that this PyTorch has for a setting: it was renamed when other devices came."""
        return next(name for name in names if hasattr(self.config, name))

    def settings(self):
        use = self.setting("use_static_triton_launcher", "use_static_cuda_launcher")
        strict = self.setting("strict_static_triton_launcher", "strict_static_cuda_launcher")
        return {use: self.is_static, strict: self.is_static, "triton.autotune_pointwise": False, "compile_threads": 1}

    def launch(self, n, times):
        x = self.torch.from_numpy(host_input(n)).cuda()
        with self.config.patch(self.settings()):
            ys = [self.compiled(x) for _ in range(times)]
        return verdict(n, [y.cpu().numpy() for y in ys])

    def layout(self, params):
        return expect_layout(params, [8, 8, 4], extra=len(params) - 3)


class InductorStatic(Inductor):
    """By the images of two of its three kernels: all have one name, the third is left alone."""
    name = "inductor_static"
    finds = r"triton_poi_fused_add\w*"
    found_by = "symbol, params, image"
    counted = tuple(REDIRECTED)
    is_static = True

    @staticmethod
    def function(x):
        return x + 1.0

    def patterns(self, kernels):
        kernel = kernels[min(TIMES)]
        match = {"symbol": kernel["symbol"], "params": kernel["params"],
                 "image": [kernels[n]["image"] for n in self.counted]}
        yield {"match": match, **self.layout(kernel["params"])}


class InductorPlain(Inductor):
    name = "inductor_plain"
    finds = r"triton_poi_fused_sub\w*"
    is_static = False

    @staticmethod
    def function(x):
        return x - (-1.0)


class InductorGraph(Inductor):
    """Captured into a CUDA graph, but for one launch that warms up."""
    name = "inductor_graph"
    finds = r"triton_poi_fused_neg\w*"
    is_static = True
    replays = 3

    def runs(self, times):
        return 1 + self.replays * (times - 1)

    @staticmethod
    def function(x):
        return -(-x - 1.0)

    def launch(self, n, times):
        x = self.torch.from_numpy(host_input(n)).cuda()
        graph = self.torch.cuda.CUDAGraph()
        with self.config.patch(self.settings()):
            ys = [self.compiled(x)]
            with self.torch.cuda.graph(graph):
                ys += [self.compiled(x) for _ in range(times - 1)]
        for _ in range(self.replays):
            graph.replay()
        self.torch.cuda.synchronize()
        return verdict(n, [y.cpu().numpy() for y in ys])


class Triton(Part):
    """By the image of one of two kernels that have one name and one layout."""
    bystanders = 4
    name = "triton"
    finds = "triton_plus_one"
    found_by = "symbol, params, image"

    def start(self):
        import torch
        from triton_kernel import triton_plus_one
        self.torch = torch
        self.kernel = triton_plus_one

    def launch(self, n, times, block=256):
        x = self.torch.from_numpy(host_input(n)).cuda()
        ys = [self.torch.zeros_like(x) for _ in range(times)]
        for y in ys:
            self.kernel[(n // block,)](x, y, n, BLOCK=block)
        return verdict(n, [y.cpu().numpy() for y in ys])

    def bystander(self):
        return self.launch(min(TIMES), self.bystanders, block=512)

    def patterns(self, kernels):
        kernel = kernels[min(TIMES)]
        match = {"symbol": kernel["symbol"], "params": kernel["params"], "image": [kernel["image"]]}
        yield {"match": match, **self.layout(kernel["params"])}

    def layout(self, params):
        return expect_layout(params, [8, 8, 4], extra=len(params) - 3)


class CuPy(Part):
    name = "cupy"
    finds = "cupy_plus_one"
    source = """extern "C" __global__ void cupy_plus_one(const float* x, float* y, int n) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = x[i] + 1;
    }"""

    def start(self):
        import cupy
        self.cupy = cupy
        self.kernel = cupy.RawKernel(self.source, "cupy_plus_one")

    def launch(self, n, times):
        x = self.cupy.asarray(host_input(n))
        ys = [self.cupy.zeros_like(x) for _ in range(times)]
        for y in ys:
            self.kernel((n // 256,), (256,), (x, y, numpy.int32(n)))
        return verdict(n, [self.cupy.asnumpy(y) for y in ys])


class Jax(Part):
    """XLA compiles a kernel for each shape, and the shape stands in no argument. Here all three have one
    name, one layout and, the shapes being multiples of a block, one image: the grid tells them apart."""
    name = "jax"
    finds = r"\w*add\w*"
    found_by = "symbol, params, image, grid"

    def start(self):
        import jax
        self.jax = jax
        self.compiled = jax.jit(self.function)

    def function(self, x):
        return x + 1

    def launch(self, n, times):
        x = self.jax.device_put(host_input(n))
        ys = [self.compiled(x) for _ in range(times)]
        return verdict(n, [numpy.asarray(y) for y in ys])

    def patterns(self, kernels):
        for n in TIMES:
            kernel = kernels[n]
            if kernel["params"] != [8, 8]:
                raise ValueError(f"the kernel's params are {kernel['params']}, not [8, 8]")
            yield {"suffix": f"-{n}",
                   "match": {"symbol": kernel["symbol"], "params": kernel["params"], "image": [kernel["image"]]},
                   "axes": {"n": {"value": n}, "blocks": {"grid": "x"}},
                   "arguments": {"x": {"arg": 0, "dtype": "float32"}, "y": {"arg": 1, "dtype": "float32"}},
                   "where": [f"blocks == {kernel['grid']}"]}


class JaxGraph(Jax):
    """The same inside the CUDA graphs that XLA makes. It makes a graph's node at the first call, and sets it
    anew where a later call's output lies elsewhere."""
    name = "jax_graph"
    environment = {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"}
    replays = 3

    def function(self, x):
        return self.jax.numpy.maximum(x, 1) + 1  # another image than the above

    def launch(self, n, times):
        x = self.jax.device_put(host_input(n))
        kept = [self.compiled(x) for _ in range(times)]
        copies = [numpy.array(self.compiled(x)) for _ in range(1 + self.replays)]
        return verdict(n, [numpy.asarray(y) for y in kept] + copies)

    def runs(self, times):
        return times + 1 + self.replays


class Host(Part):
    """One way into a launch of a C++ host: a program, and a library for ctypes."""

    def __init__(self, flavour, way, kernel):
        self.flavour = flavour
        self.way = way
        self.kernel = kernel
        self.name = f"{flavour}_{way}"

    def program(self):
        return os.path.join(HOSTS, self.flavour)

    def start(self):
        self.run = ctypes.CDLL(os.path.join(HOSTS, self.flavour + ".so")).run_plus_one
        self.run.restype = ctypes.c_char_p

    def launch(self, n, times):
        return self.run(self.way.encode(), n, times).decode()

    def patterns(self, kernels):
        yield {"match": {"symbol": f"{self.flavour}_{self.kernel}", "params": [8, 8, 4]}, **self.layout([8, 8, 4])}


WAYS = {"launch": "plus_one", "cooperative": "cooperative_plus_one", "cluster": "cluster_plus_one"}
RUNTIME_HOSTS = [Host(flavour, way, kernel) for flavour in ("static", "shared", "per_thread")
                 for way, kernel in WAYS.items()]
DRIVER_HOSTS = [Host("driver", way, kernel) for way, kernel in {
    **WAYS, "library": "library_plus_one", "cooperative_ex": "cooperative_ex_plus_one"}.items()]
PYTHON_PARTS = [TorchEager(), InductorStatic(), InductorPlain(), InductorGraph(), Triton(), CuPy(), Jax(), JaxGraph()]
