"""What vLLM and SGLang compile at run time for products of tokens with the weights of their experts, in bfloat16
and in fp8 with a scale for each block of 128 x 128. Needs no GPU.

  expert_kernels.py OUT SOURCE HIDDEN:WIDTH:TOPK:EXPERTS CONFIGS FP8_CONFIGS

For the Triton that runs it. SOURCE is the engine's file with `fused_moe_kernel`, CONFIGS its JSON of block sizes by numbers of tokens, of each type. Compiled with the arguments that the engine gives of 1 to 64 tokens: which sizes are multiples of 16, are 1, or are
none at all, is compiled in. OUT/index.json says which cubin is what, and which of the function's arguments its parameters are.
"""
import importlib.util
import json
import pathlib
import re
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor

TOKENS = range(1, 65)
BLOCK = 128  # rows and columns of weights in fp8 that have a scale


class Driver:
    """Triton's, of which only the target is asked."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def kernel_of(source, folder):
    """The engine's function, without what its file imports."""
    text = source.read_text()
    parts = ["import triton\nimport triton.language as tl\n"]
    for name in ("write_zeros_to_output", "fused_moe_kernel"):
        parts.append(re.search(rf"^@triton\.jit\ndef {name}\(.*?(?=^[^\s)])", text, re.S | re.M)[0])
    path = folder / "kernels.py"
    path.write_text("\n\n".join(parts))
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fused_moe_kernel


def values_of(product, tokens, config, sizes, is_naive, is_fp8):
    """The arguments by their names, of either engine."""
    hidden, width, topk = sizes
    is_first = product == "up"
    n, k = (2 * width, hidden) if is_first else (hidden, width)
    tensor = lambda dtype: MockTensor(dtype, (16,))
    type, scale, blocks = (tl.float8e4nv, tensor(tl.float32), k // BLOCK) if is_fp8 else (tl.bfloat16, None, 0)
    swaps = is_fp8 and config["BLOCK_SIZE_M"] < 64 <= config["BLOCK_SIZE_N"]
    return {
        "a_ptr": tensor(type), "b_ptr": tensor(type), "c_ptr": tensor(tl.bfloat16), "a_desc": None, "b_desc": None, "bias_ptr": None,
        "b_bias_ptr": None, "a_scale_ptr": scale, "b_scale_ptr": scale, "add_mask_ptr": None, "topk_weights_ptr": tensor(tl.float32),
        "sorted_token_ids_ptr": None if is_naive else tensor(tl.int32), "expert_ids_ptr": tensor(tl.int32),
        "num_tokens_post_padded_ptr": tensor(tl.int32), "N": n, "K": k, "EM": None, "num_valid_tokens": tokens * topk, "stride_am": k, "stride_ak": 1,
        "stride_be": n * k, "stride_bk": 1, "stride_bn": k, "stride_cm": n, "stride_cn": 1, "group_n": BLOCK * is_fp8, "group_k": BLOCK * is_fp8,
        "stride_asm": blocks, "stride_ask": int(is_fp8), "stride_bse": n // BLOCK * blocks, "stride_bsk": int(is_fp8), "stride_bsn": blocks,
        "naive_block_assignment": is_naive, "MUL_ROUTED_WEIGHT": not is_first, "top_k": topk if is_first else 1, "compute_type": tl.bfloat16,
        "use_fp8_w8a8": is_fp8, "use_int8_w8a8": False, "use_int8_w8a16": False, "per_channel_quant": False, "HAS_BIAS": False, "SWAP_AB": swaps,
        "USE_TD": False, "SPLIT_K": 1, "even_Ks": k % config["BLOCK_SIZE_K"] == 0, "c_sorted": False, "swap_ab": swaps, "FUSE_ADD_TO_OUTPUT": False,
        "MASK_OUTPUT": False, "FUSE_SUM_ALL_REDUCE": False, "ROUTER_TOPK": 1 if is_first else topk, "FUSE_SWIGLU": False, "USE_GDC": True,
        "GDC_EARLY": True, "A_OUTPUT_SLICES": 1, "A_OUTPUT_SLICE_WIDTH": 0, "A_OUTPUT_SLICE_K": 0,
        **{name: size for name, size in config.items() if name.isupper()},
    }


def compile_kernels(out, kernel, configs, sizes, is_fp8):
    """What of them are different, for the index."""
    hidden, width, topk, experts = sizes
    configs = {int(tokens): config for tokens, config in configs.items() if tokens.isdigit()}
    is_vllm = "naive_block_assignment" in kernel.arg_names
    made = {}
    for tokens in TOKENS:
        config = configs[min(configs, key=lambda known: abs(known - tokens))]
        block, choices = config["BLOCK_SIZE_M"], tokens * topk
        is_naive = is_vllm and choices * 4 <= experts
        padded = choices + min(choices, experts + (0 if is_vllm else 1)) * (block - 1)
        length = choices * block if is_naive else min(padded, choices * block) if is_vllm and tokens < block else padded
        for product in ("up", "down"):
            values = values_of(product, tokens, config, (hidden, width, topk), is_naive, is_fp8)
            values["EM"] = length
            if is_vllm and product == "up":
                values["topk_weights_ptr"] = None
            options = {"num_warps": config.get("num_warps", 4), "num_stages": config.get("num_stages", 3)}
            if not is_vllm:
                options["launch_pdl"] = True
            of = [values.get(name, 0) for name in kernel.arg_names]
            compiled = kernel.warmup(*of, grid=(1,), **options)
            key = (product, is_naive, compiled.hash)
            if key not in made:
                file = f"{product}-{'naive' if is_naive else 'sorted'}{'-fp8' * is_fp8}-{tokens}.cubin"
                (out / file).write_bytes(compiled.asm["cubin"])
                kept = [name for name, type in compiled.src.signature.items() if type != "constexpr"]
                made[key] = {"file": file, "product": product, "is_naive": is_naive, "is_fp8": is_fp8, "block_size": block, "arguments": kept}
    return made.values()


def main():
    out, source, sizes = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), tuple(map(int, sys.argv[3].split(":")))
    out.mkdir(parents=True)
    triton.runtime.driver.set_active(Driver())
    kernel = kernel_of(source, out)
    index = []
    for configs, is_fp8 in zip(sys.argv[4:6], (False, True), strict=True):
        index += compile_kernels(out, kernel, json.loads(pathlib.Path(configs).read_text()), sizes, is_fp8)
    (out / "index.json").write_text(json.dumps(index))


main()
