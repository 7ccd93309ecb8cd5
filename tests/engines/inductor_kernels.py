"""What torch.compile makes in vLLM's default mode before the first attention and between two: norms, also of sums, silu·mul, rotary
embedding. Needs no GPU.

  inductor_kernels.py OUT HIDDEN:EPS:WIDTH:Q_HEADS:KV_HEADS:HEAD:POSITIONS:TOKENS[:norms][:bias][:part][:gemma][:gpt_oss][:fp16][:fp8_token|:fp8_static]...

For the PyTorch that runs it. Inductor gets what it asks of a device from here, and Triton its target, sm_90. The code is compiled with each of
the configurations that Inductor tries at run time, and with the ptxas of PyTorch's wheel where it has one, as Inductor's workers do. OUT/index.json says which
cubin is what. The operations are vLLM's: it replaces its own norms by these after Inductor has put the others in order, hence
`reorder_for_locality`. The names of norms are vLLM's, too, where PyTorch names them by their parts. No heads: no rotary embedding. No width: experts,
whose router is in vLLM's op with them. norms: the heads of query and key are normed before it. bias: of a
model with weights in 4 bits, whose product adds none, the rotation alone: the key is rotated with it, then all rows get it, and the query is rotated. part: what one of several GPUs has of a model,
which sums its embeddings, too, before they are normed. gemma: Gemma 3's layers, whose attention and activation have a norm behind them, too, whose norms'
weights are less by 1, and whose activation is GELU. gpt_oss: gpt-oss's layers, whose router is in front of vLLM's op,
and whose cosines and sines are in fp32. fp16: instead of bfloat16. fp8_token, fp8_static: products in fp8, whose rows are brought to it before, with a scale for each token or with
one that the model has.

The code of norms and activations depends on their sizes and epsilon alone. That of the rotary embedding checks positions: it has their number,
and the line of its own source. TOKENS, the most of a batch, decides whether one kernel rotates query and key.
"""
import functools
import importlib.util
import json
import os
import pathlib
import re
import sys

import torch

os.environ.update(TORCHINDUCTOR_FX_GRAPH_CACHE="0", TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER="0")
PTXAS = pathlib.Path(torch.__file__).parent / "bin/ptxas"
if PTXAS.exists():  # some versions have none, and use Triton's
    os.environ["TRITON_PTXAS_PATH"] = str(PTXAS)
import torch._dynamo
import torch._dynamo.device_interface
import torch._inductor.config
import torch._inductor.runtime.triton_helpers
import torch._inductor.scheduler
import torch.nn.functional as F
import torch.utils._triton
import triton
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget

PROPERTIES = {"type": "cuda", "index": 0, "multi_processor_count": 132, "cc": 90, "major": 9, "regs_per_multiprocessor": 65536,
              "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "warp_size": 32}


class Device:
    """As torch.cuda.get_device_properties() has it of an H200."""

    name, major, minor, warp_size = "NVIDIA H200", 9, 0, 32
    multi_processor_count, regs_per_multiprocessor, max_threads_per_multi_processor, max_threads_per_block = 132, 65536, 2048, 1024
    total_memory, L2_cache_size = 150 << 30, 60 << 20
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49152, 232448, 233472
    gcnArchName = ""


class Driver:
    """Triton's, of which only the target is asked."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        return torch.device("cuda", 0)


class Generated(Exception):
    """The code is there, and is not to be run."""


def pretend_to_have_a_gpu():
    interface = torch._dynamo.device_interface.CudaInterface
    for owner in (torch.cuda, interface, interface.Worker):
        owner.get_device_properties = staticmethod(lambda device=None: Device)
        owner.current_device = staticmethod(lambda: 0)
    interface.get_compute_capability = staticmethod(lambda device=None: 90)
    interface.is_bf16_supported = staticmethod(lambda *_, **__: True)
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_name = lambda device=None: Device.name
    torch.cuda.device_count = lambda: 1
    torch.cuda._lazy_init = lambda: None
    known = {name: PROPERTIES.get(name) for name in DeviceProperties._fields}
    DeviceProperties.create = classmethod(lambda cls, device: cls(**known))
    triton.runtime.driver.set_active(Driver())
    torch._inductor.runtime.triton_helpers.set_driver_to_gpu = lambda: None
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("torch._inductor", "torch.utils._triton")) and hasattr(module, "has_triton"):
            module.has_triton = lambda *_: True


def norm_of_sum(x, residual, weight, eps):
    total = x.to(torch.float32) + residual.to(torch.float32)
    kept = total.to(x.dtype)
    variance = total.pow(2).mean(dim=-1, keepdim=True)
    return ((total * torch.rsqrt(variance + eps)).to(weight.dtype) * weight).to(x.dtype), kept


def norm(x, weight, eps):
    rows = x.to(torch.float32)
    variance = rows.pow(2).mean(dim=-1, keepdim=True)
    return ((rows * torch.rsqrt(variance + eps)).to(weight.dtype) * weight).to(x.dtype)


def norm_of_heads(x, weight, eps):
    return norm(x.view(x.shape[0], -1, weight.shape[0]), weight, eps).view(x.shape)


def rotate(x, cos_sin):
    cos, sin = (part.unsqueeze(-2).to(x.dtype) for part in cos_sin.chunk(2, dim=-1))
    head = cos_sin.shape[-1]
    heads = x.view(x.shape[0], -1, head)
    rotated, rest = heads[..., :head], heads[..., head:]
    first, second = torch.chunk(rotated, 2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated, rest), dim=-1).reshape(x.shape)


EXPERTS = 32  # of gpt-oss 20B; no code depends on it
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
FP8 = torch.finfo(torch.float8_e4m3fn)
# How vLLM, whose versions share this PyTorch, looks for the largest of a row: since 0.32 by amax.
LARGEST_BY = {"2.11": ("max",), "2.13": ("max", "amax")}.get(torch.__version__.rpartition(".")[0], ("amax",))


def quantize(x, scale):
    """As QuantFP8.forward_native does, to fp8 with one scale, or with a scale for each token, of the largest by amax or max."""
    if isinstance(scale, str):
        largest = x.abs().amax(dim=-1) if scale == "amax" else x.abs().max(dim=-1)[0]
        scale = (largest.unsqueeze(-1).to(torch.float32) / FP8.max).clamp(min=1.0 / (FP8.max * 512.0))
    return (x.to(torch.float32) * scale.to(torch.float32).reciprocal()).clamp(FP8.min, FP8.max).to(torch.float8_e4m3fn), scale


def linear(x, weight):
    """Of a weight, or of one in fp8 with its scale and that of the rows, if it is static."""
    if not isinstance(weight, tuple):
        return F.linear(x, weight)
    weight, weight_scale, scale = weight
    rows, scale = quantize(x, scale)
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype, device=x.device)
    torch.ops._C.cutlass_scaled_mm(out, rows, weight, scale, weight_scale, None)
    return out


def define_products():
    """vLLM's ops of matrices in fp8 and in 4 bits, as far as Inductor looks at them."""
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()")
    torch.library.register_fake("_C::cutlass_scaled_mm", lambda *_: None, lib=library)
    library.define("machete_mm(Tensor a, Tensor b) -> Tensor")
    torch.library.register_fake("_C::machete_mm", lambda a, b: a.new_empty(a.shape[0], b.shape[0]), lib=library)
    return library


def define_sums():
    """The same of the sum over all GPUs."""
    library = torch.library.Library("vllm", "FRAGMENT")
    library.define("all_reduce(Tensor tensor, str group_name) -> Tensor")
    torch.library.register_fake("vllm::all_reduce", lambda tensor, _: torch.empty_like(tensor), lib=library)
    return library


def define_experts():
    """vLLM's op, as far as Inductor looks at it, with and without the router in it: what it may write to is not what the router gets."""
    library = torch.library.Library("vllm", "FRAGMENT")
    for name, hidden_states in (("moe_forward", "Tensor(a!)"), ("routed_moe_forward", "Tensor")):
        library.define(f"{name}({hidden_states} hidden_states, Tensor router_logits) -> Tensor", tags=(torch.Tag.needs_exact_strides,))
        torch.library.register_fake(f"vllm::{name}", lambda hidden_states, router_logits: torch.empty_like(hidden_states), lib=library)
    return library


def between_attentions(model, is_last):
    """What follows an attention, up to the next one or to the model's last norm."""
    eps, is_gemma = model["eps"], model["is_gemma"]
    whole = (lambda weight: weight.float() + 1.0) if is_gemma else (lambda weight: weight)
    summed = (lambda x: torch.ops.vllm.all_reduce(x, "tp:0")) if model["is_part"] and model["scales"] else (lambda x: x)
    activate = (lambda x: F.gelu(x, approximate="tanh")) if is_gemma else F.silu

    def run(attention, residual, o, norm1, gate_up, down, norm2, qkv_weight, q_norm, k_norm, positions, cache, *behind):
        x = summed(linear(attention.view(attention.shape[0], -1), o))
        if is_gemma:
            x = norm(x, whole(behind[0]), eps)
        x, residual = norm_of_sum(x, residual, whole(norm1), eps)
        if width := model["width"]:
            both = linear(x, gate_up)
            x = summed(linear(activate(both[..., :width]) * both[..., width:], down))
        else:
            x = torch.ops.vllm.routed_moe_forward(x, linear(x, gate_up)) if model["is_gpt_oss"] else torch.ops.vllm.moe_forward(x, x)
        if is_gemma:
            x = norm(x, whole(behind[1]), eps)
        x, residual = norm_of_sum(x, residual, whole(norm2), eps)
        if is_last:
            return x
        if not model["q_heads"]:
            return x, residual
        q, k, v = linear(x, qkv_weight).split([model["head"] * model["q_heads"], *[model["head"] * model["kv_heads"]] * 2], dim=-1)
        cos_sin = cache.to(q.dtype).index_select(0, positions.flatten())
        if not model["has_norms"]:
            return rotate(q, cos_sin), rotate(k, cos_sin), v, residual
        q, k = norm_of_heads(q, whole(q_norm), eps), norm_of_heads(k, whole(k_norm), eps)
        k = rotate(k, cos_sin)  # before q: so it was recorded
        return rotate(q, cos_sin), k, v, residual

    return run


def first_norm(model):
    """Of embedded rows, which a product follows: where that is in fp8, with the norm."""
    def run(x, weight, qkv_weight):
        rows = norm(x, weight, model["eps"])
        return linear(rows, qkv_weight) if model["scales"] else rows

    return run


def rotation_with_bias(model):
    """Of rows to which the product has added no bias."""
    heads = [model["q_heads"], *[model["kv_heads"]] * 2]

    def run(x, weight, bias, positions, cache):
        rows = torch.ops._C.machete_mm(x, weight).add_(bias)
        q, k, v = rows.split([model["head"] * count for count in heads], dim=-1)
        cos_sin = cache.index_select(0, positions.flatten())
        q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        return tuple(x.view(x.shape[0], -1, model["head"]) for x in (k, v, q))

    return run


def tensor(dtype, *shape):
    return torch.empty(shape, dtype=dtype, device="cuda")


def weight_of(model, outputs, inputs):
    if model["scales"] is None:
        return tensor(model["dtype"], outputs, inputs)
    weight = tensor(torch.float8_e4m3fn, outputs, inputs).t()
    return weight, tensor(torch.float32, outputs, 1), tensor(torch.float32) if model["scales"] == "static" else model["scales"]


def inputs_of_norm(model):
    """And which of them have the tokens."""
    hidden, row = model["hidden"], model["head"] * (model["q_heads"] + 2 * model["kv_heads"])
    return [tensor(model["dtype"], model["tokens"], hidden), tensor(model["dtype"], hidden), weight_of(model, row, hidden)], (0,)


def inputs_between(model):
    hidden, width, tokens, head = model["hidden"], model["width"], model["tokens"], model["head"]
    of_model = functools.partial(tensor, model["dtype"])
    q_heads = model["q_heads"] or hidden // head
    row = head * (q_heads + 2 * model["kv_heads"])
    cache = tensor(torch.float32 if model["is_gpt_oss"] else model["dtype"], model["positions"], head)
    return [of_model(tokens, q_heads, head), of_model(tokens, hidden), weight_of(model, hidden, q_heads * head), of_model(hidden),
            weight_of(model, EXPERTS if model["is_gpt_oss"] else 2 * width, hidden), weight_of(model, hidden, width), of_model(hidden), weight_of(model, row, hidden),
            of_model(head), of_model(head), tensor(torch.int64, tokens), cache, of_model(hidden), of_model(hidden)], (0, 1, 10)


def inputs_of_rotation(model):
    of_model, row = functools.partial(tensor, model["dtype"]), model["head"] * (model["q_heads"] + 2 * model["kv_heads"])
    return [of_model(model["tokens"], model["hidden"]), of_model(row, model["hidden"]), of_model(row), tensor(torch.int64, model["tokens"]),
            of_model(model["positions"], model["head"])], (0, 3)


def generated_code(function, inputs_of, model):
    found = []

    def keep(graph):
        code = graph.codegen()[0]
        found.append(getattr(code, "value", code))
        raise Generated

    GraphLowering.compile_to_module = GraphLowering._compile_to_module = keep
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs, of_tokens = inputs_of(model)
        for place in of_tokens:
            torch._dynamo.mark_dynamic(inputs[place], 0)
        try:
            torch.compile(function, fullgraph=True)(*inputs)
        except Exception as error:
            if not found:
                raise error
    return found[-1]


def registers_of(cubin):
    """Of its only kernel: EIATTR_REGCOUNT in .nv.info, whose values are a symbol and the number."""
    found, = re.findall(rb"\x04\x2f\x08\0.{4}(.{4})", cubin, re.DOTALL)
    return int.from_bytes(found, "little")


def with_registers(result):
    """As if it were loaded."""
    result.kernel.n_regs = registers_of(result.kernel.asm["cubin"])
    return result


# By what kernels that write fp8 read, and the types of what they write.
IN_FP8 = {
    "rows fp8e4nv fp32": "quant_fp8_per_token",
    "gates fp8e4nv fp32": "silu_and_mul_fp8_per_token",
    "rows weight fp8e4nv fp32": "rms_norm_fp8_per_token",
    "rows rows weight fp8e4nv fp32": "add_rms_norm_fp8_per_token",
    "rows rows rows weight bf16 bf16 fp8e4nv fp32": "add2_rms_norm_sum_fp8_per_token",
    "elements scale fp8e4nv": "quant_fp8_static",
    "gates scale fp8e4nv": "silu_and_mul_fp8_static",
    "rows weight scale fp8e4nv": "rms_norm_fp8_static",
    "rows rows weight scale fp8e4nv": "add_rms_norm_fp8_static",
    "rows rows rows weight scale bf16 fp8e4nv": "add2_rms_norm_sum_fp8_static",
}


def kind_in_fp8(name, source, model):
    """As kind_of(), of a kernel that writes fp8."""
    types = re.findall(r"'(\w+_ptr\d+)': '\*(\w+)'", source)
    is_norm, is_activation = "rsqrt" in name, "silu" in name
    size = model["hidden"] if is_norm else model["width"] if is_activation else model["head"] * model["q_heads"]
    gates = {f"{place} + {2 * size}*{row}": "gates" for place, row in (("r0_1", "x0"), ("x0", "x1"))}
    shapes = {f"r0_1 + {size}*x0": "rows", "r0_1": "weight", "0": "scale", "x0": "elements"} | gates
    read = re.findall(r"load\((in_ptr\d+) \+ \((.*?)\)[,)]", source)
    shape_of = {pointer: shapes.get(place, "?") for pointer, place in reversed(read)}  # by where it is read first
    words = [shape_of[pointer] if pointer in shape_of else kind for pointer, kind in types]
    kind = IN_FP8.get(" ".join(words))
    if is_norm:  # vLLM's operation instead of PyTorch's
        name = re.sub("_(add|mean|pow|rsqrt)(?=_)", "", name)
        name = name.replace("_mul_", "_fused_add_rms_norm_mul_") if kind and "add" in kind else re.sub("_reciprocal(?=_)", "_reciprocal_rms_norm", name)
    return kind, {"width" if is_activation else "hidden_size": size} | ({"eps": model["eps"]} if is_norm else {}), name


def kind_of(name, source, model):
    """What a kernel is, by its parameters, with its sizes; and vLLM's name of it."""
    pointers = re.findall(r"'(\w+_ptr\d+)': '\*", source)
    hidden = model["hidden"]
    if "'*fp8e4nv'" in source:
        return kind_in_fp8(name, source, model)
    if model["is_gemma"] and f"r0_numel = {hidden}\n" in source:
        shapes = {f"r0_1 + {hidden}*x0": "rows", "r0_1": "weight", "x0": "sums"}
        read = dict(re.findall(r"load\((in_ptr\d+) \+ \((.*?)\),", source))
        of_three = "rows weight rows sums weight rows weight"
        norms = {"rows weight rows weight out_ptr0 out_ptr2": "norm_add_rms_norm", f"{of_three} out_ptr1 out_ptr3": "norm_add2_rms_norm",
                 f"{of_three} out_ptr1 out_ptr2 out_ptr4": "norm_add2_rms_norm_sum"}
        kind = norms.get(" ".join([*(shapes.get(read[one], "?") for one in sorted(read)), *pointers[len(read):]]))
        return kind, {"hidden_size": hidden, "eps": model["eps"]}, f"{name[:10]}_fused__to_copy_add_fused_add_rms_norm_rms_norm_0"
    first = model["head"] * model["q_heads"]  # of the key's elements
    row = first + 2 * model["head"] * model["kv_heads"]
    sizes = {"row": row, "q_heads": model["q_heads"], "kv_heads": model["kv_heads"], "head": model["head"]}
    reads_key, halves = f"({first} + ", source.split("elif pid < ")
    if pointers == ["in_ptr0", "out_ptr0", "out_ptr1"]:
        return "qk_sums" if len(halves) == 2 and reads_key in halves[1] else None, sizes, name
    of_heads = {("triton_poi", 11): "qk_rope_both", ("triton_poi", 7): "qk_rope", ("triton_red", 7): "qk_norm_rope_both",
                ("triton_per", 5): "qk_norm_rope"}.get((name[:10], len(pointers)))
    if of_heads:
        if of_heads.endswith("_both"):
            half_of_key = 0 if of_heads == "qk_rope_both" else 1
            of_heads = of_heads if len(halves) == 2 and reads_key in halves[half_of_key] else None
        else:
            of_heads += "_key" if reads_key in source else "_query"
        return of_heads, sizes | {"eps": model["eps"], "family": "gemma_" if model["is_gemma"] else "-", "positions": model["positions"]}, name
    if name.startswith(("triton_red", "triton_per")):
        norms = {"in_ptr0 in_ptr1 out_ptr1": ("rms_norm", "rms_norm_0"), "in_ptr0 in_ptr1 in_ptr2 out_ptr1": ("add_rms_norm", "fused_add_rms_norm_0"),
                 "in_ptr0 in_ptr1 in_ptr2 out_ptr1 out_ptr2": ("add_rms_norm_copy", "fused_add_rms_norm_moe_forward_0"),
                 "in_out_ptr0 in_ptr0 in_ptr1 in_ptr2": ("add2_rms_norm", "fused_add_rms_norm_2"),
                 "in_ptr0 in_ptr1 in_ptr2 in_ptr3 out_ptr1": ("add2_rms_norm_apart", "fused_add_rms_norm_3"),
                 "in_ptr0 in_ptr1 in_ptr2 in_ptr3 out_ptr1 out_ptr2": ("add2_rms_norm_sum", "fused_add_rms_norm_2")}
        kind, known_as = norms.get(" ".join(pointers), (None, None))
        if kind and not re.search(rf"(tmp\d+) = tmp\d+ \* tmp\d+\n(.*\n)*.*store\({pointers[-1] if kind != 'add2_rms_norm' else pointers[0]} \+ .*, \1, ", source):
            kind = None  # what is times the weight is the last output
        if kind == "add_rms_norm_copy" and not re.search(r"store\(out_ptr1( \+ .*,) (tmp\d+), .*\n.*store\(out_ptr2\1 \2, ", source):
            kind = None
        return kind, {"hidden_size": model["hidden"], "eps": model["eps"]}, f"{name[:10]}_fused_{known_as}"
    if "silu" in name or "gelu" in name:
        return "silu_and_mul" if "silu" in name else "gelu_tanh_and_mul", {"width": model["width"]}, name
    if model["has_bias"] and pointers == ["in_out_ptr0", "in_ptr0"]:
        return "add_bias", sizes, name  # which checks no positions
    sizes["positions"] = model["positions"]
    if model["has_bias"]:
        kind = {(5, True): "rope_key_bias", (4, False): "rope_query_biased"}.get((len(pointers), reads_key in source))
        return kind, sizes, name
    if model["is_gpt_oss"]:
        return f"rope_{'key' if reads_key in source else 'query'}_float" if len(pointers) == 4 else None, sizes, name
    if len(pointers) == 5:
        return "rope_both" if len(halves) == 2 and reads_key in halves[1] else None, sizes, name
    return "rope_key" if reads_key in source else "rope_query", sizes, name


def compile_kernels(text, model, out, index):
    for name, source in re.findall(r"(\w+) = async_compile\.triton\('\w+', '''(.*?)'''", text, re.DOTALL):
        kind, sizes, known_as = kind_of(name, source, model)
        if kind is None:
            raise ValueError(f"{name} is no kernel that is known here: {source}")
        stem = "-".join([kind, *(str(size) for size in sizes.values()), *(["max"] if kind.endswith("per_token") and model["scales"] == "max" else []),
                         *(["fp16"] if model["dtype"] is torch.float16 else [])])
        path = out / f"{stem}.py"
        if path.exists() and path.read_text() == source:
            continue
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, name)
        # With what Inductor adds where a configuration has so many registers that few blocks fit on an SM.
        precompile = kernel._precompile_config
        kernel._precompile_config = lambda config: with_registers(precompile(config))
        kernel.compile_results = list(map(kernel._precompile_config, kernel.configs))
        kernel._make_launchers = lambda: None
        kernel._dynamic_scale_rblock()
        for result in kernel.compile_results:
            config, compiled = result.config, result.kernel
            cubin = f"{stem}-{'-'.join(map(str, config.kwargs.values()))}-{config.num_warps}-{config.num_stages}.cubin"
            if not any(one["file"] == cubin for one in index):
                (out / cubin).write_bytes(compiled.asm["cubin"])
                index.append({"file": cubin, "kind": kind, "sizes": sizes, "type": TYPES[model["dtype"]], "name": known_as, "elements": config.kwargs["XBLOCK"],
                              "threads": 32 * config.num_warps, "shared_mem": compiled.metadata.shared})


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(out / "triton")
    pretend_to_have_a_gpu()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.enable_auto_functionalized_v2 = False
    # vLLM combines kernels where that is measured to be faster, which kernels as small as these always are taken to be.
    torch._inductor.config.combo_kernels = torch._inductor.config.benchmark_combo_kernel = True
    torch._inductor.scheduler.Scheduler.speedup_by_combo_kernel = lambda *_: True
    libraries = define_experts(), define_products(), define_sums()  # the ops exist as long as these
    index = []
    for words in sys.argv[2:]:
        names = ("hidden", "eps", "width", "q_heads", "kv_heads", "head", "positions", "tokens")
        numbers, flags = words.split(":")[:len(names)], words.split(":")[len(names):]
        model = {name: float(word) if name == "eps" else int(word) for name, word in zip(names, numbers, strict=True)}
        model |= {"has_bias": "bias" in flags, "has_norms": "norms" in flags or "gemma" in flags, "is_gemma": "gemma" in flags, "is_part": "part" in flags,
                  "is_gpt_oss": "gpt_oss" in flags, "dtype": torch.float16 if "fp16" in flags else torch.bfloat16}
        torch._inductor.config.reorder_for_locality = model["has_bias"]
        if model["has_bias"]:
            compile_kernels(generated_code(rotation_with_bias(model), inputs_of_rotation, model), model, out, index)
            continue
        for scales in LARGEST_BY if "fp8_token" in flags else ["static" if "fp8_static" in flags else None]:
            model["scales"] = scales
            if model["is_part"]:  # alone, a GPU norms the rows where it looks them up
                compile_kernels(generated_code(first_norm(model), inputs_of_norm, model), model, out, index)
            for is_last in (False, True):
                compile_kernels(generated_code(between_attentions(model, is_last), inputs_between, model), model, out, index)
    (out / "index.json").write_text(json.dumps(index, indent=1))


if __name__ == "__main__":
    main()
