"""Which family of operations a kernel belongs to, by the name that a demangler or a profiler tells."""
import functools
import re

# By the function's name, without template arguments; the first that fits. What fits none is left out.
FAMILIES = {name: re.compile(words, re.IGNORECASE) for name, words in {
    "": r"gemm|marlin|moe_q|moe_vec",
    "KV write": r"reshape_and_cache|concat_and_cache|store_kv|set_kv|kv_buffer|append_?paged",
    "RoPE": r"rotary|rope",
    "quantised norm": r"norm\w*quant|quant\w*norm|norm.*_quant",
    "norm": r"rms_?norm|layer_?norm|qk_?norm",
    "quantisation": r"scaled_fp8_quant|segmented_max|token_group_quant|scale_1x128",
    "activation": r"act_and_mul|silu|gelu|activation_kernel|relu",
    "MoE routing": r"topk_?gating|router|group\w*_topk|moe_align|moe_sum|moe_?topk|expert",
    "sampling": r"sampl|top_?k|top_?p|penalt|softmax",
    "attention": r"paged_attention|merge_attn|merge_?state|cascade|fmha|mla",
    "matrix product": r"nvjet|splitKreduce|matmul_ogs",
}.items()}


def function_name(demangled):
    name = re.sub(r"^(void|std::enable_if.*?>::type) ", "", demangled.replace("(anonymous namespace)", ""))
    return re.split(r"[<(]", name, maxsplit=1)[0]


@functools.cache
def family_of(demangled):
    name = function_name(demangled)
    return next((family for family, words in FAMILIES.items() if words.search(name)), None)
