"""Models that the tests of whole engines make of random weights: the configurations of published ones, with as many layers as wanted.

Their embeddings are never those of the output, too, as some are: of random ones each token would only foresee itself. Numbers of positions are the
published ones, but llama's, since torch.compile's kernels have them.
"""
import json
import pathlib

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 12288, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 40960, "rope_theta": 1000000.0, "attention_bias": False}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2, "vocab_size": 151936, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 32768, "rope_theta": 1000000.0}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256, "vocab_size": 262208, "max_position_embeddings": 131072,
          "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 1024, "attention_bias": False,
          "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 2, "eos_token_id": 1}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
           "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
           "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000, "swiglu_limit": 7.0, "hidden_act": "silu", "attention_bias": True,
           "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                            "original_max_position_embeddings": 4096},
           "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 199998, "eos_token_id": 200002,
           "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                        "model.embed_tokens", "lm_head"]}}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}
MODELS = {
    "gemma3_4b": {**GEMMA3, "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 10240},
    "gemma3_12b": {**GEMMA3, "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 15360},
    "gemma3_27b": {**GEMMA3, "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504,
                   "query_pre_attn_scalar": 168},
    "gpt_oss_20b": GPT_OSS,
    "llama": LLAMA,
    "llama_1b": {**LLAMA, "hidden_size": 2048, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
                 "max_position_embeddings": 131072},
    "llama_3b": {**LLAMA, "hidden_size": 3072, "num_attention_heads": 24, "intermediate_size": 8192, "vocab_size": 128256,
                 "max_position_embeddings": 131072},
    "llama_70b": {**LLAMA, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28672, "vocab_size": 128256,
                  "max_position_embeddings": 131072},
    "llama_gptq": {**LLAMA, "quantization_config": GPTQ},
    "llama_fp8_blocks": {**LLAMA, "quantization_config": FP8_BLOCKS},
    "qwen2_0.5b": {**QWEN2, "hidden_size": 896, "num_attention_heads": 14, "head_dim": 64, "intermediate_size": 4864},
    "qwen2_1.5b": {**QWEN2, "hidden_size": 1536, "num_attention_heads": 12, "intermediate_size": 8960},
    "qwen2_3b": {**QWEN2, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 11008},
    "qwen2_7b": {**QWEN2, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
    "qwen3": QWEN3,
    "qwen3_awq": {**QWEN3, "quantization_config": AWQ},
    "qwen3_fp8_blocks": {**QWEN3, "quantization_config": FP8_BLOCKS},
    "qwen3_0.6b": {**QWEN3, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 3072, "vocab_size": 151936},
    "qwen3_4b": {**QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "vocab_size": 151936, "max_position_embeddings": 262144},
    "qwen3_1.7b": {**QWEN3, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 6144, "vocab_size": 151936},
    "qwen3_32b": {**QWEN3, "hidden_size": 5120, "num_attention_heads": 64, "intermediate_size": 25600, "vocab_size": 151936},
    "qwen3_moe": {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_key_value_heads": 4,
                  "moe_intermediate_size": 768, "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}
MODELS |= {"qwen2_7b_awq": {**MODELS["qwen2_7b"], "torch_dtype": "float16", "quantization_config": AWQ},
           **{f"{name}_fp16": {**MODELS[name], "torch_dtype": "float16"} for name in ("llama_gptq", "qwen3_awq")}}
MODELS["qwen3_moe_fp8_blocks"] = {**MODELS["qwen3_moe"], "quantization_config": {
    **FP8_BLOCKS, "modules_to_not_convert": ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(48))]}}


def mixtral(experts):
    """Of so many experts, of which a token takes two, and with the weights of one large layer between them."""
    return {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": experts,
            "intermediate_size": LLAMA["intermediate_size"] * 8 // experts}


def write(folder, model, layers):
    pathlib.Path(folder, "config.json").write_text(json.dumps({**model, "num_hidden_layers": layers}))


def about(name):
    return f"{name} with rows of {MODELS[name]['hidden_size']}"


def fill(model, *_, **__):
    """The engines' own random weights are so small that all tokens are about as likely. Of tensor parallel ranks each has its part of
    a weight, and the whole of a norm's. Gemma adds 1 to a norm's weights, and multiplies embeddings by the root of their size."""
    import torch
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    is_gemma = "Gemma" in type(model).__name__
    norms, rest = (torch.Generator("cuda").manual_seed(seed) for seed in (1234, 1235 + rank))
    for name, parameter in model.named_parameters():
        if name.endswith(("scale", "scale_inv")):
            parameter.data.fill_(0.02 if parameter.is_floating_point() else 121)  # else an exponent, of 1/64
            continue
        if name.endswith("scales"):  # of 4 bits, and for AWQ what is added then
            parameter.data.uniform_(0.003, 0.006, generator=rest)
            continue
        if name.endswith("qzeros") and parameter.is_floating_point():
            parameter.data.normal_(-0.036, 0.005, generator=rest)
            continue
        if not parameter.is_floating_point():  # 4 bits, from 1 to 15
            values = parameter.data.view(torch.uint8)
            values.random_(generator=rest)
            values |= (values & 15 == 0) * 8
            values |= (values < 16) * 128
            continue
        if parameter.element_size() == 1:  # fp8, scaled by the above
            parameter.data.copy_(torch.empty(parameter.shape, dtype=torch.bfloat16, device=parameter.device).normal_(generator=rest))
            continue
        is_norm = "norm" in name
        mean, deviation = (0.0 if is_gemma else 1.0, 0.1) if is_norm else (0.0, 1.0 if "embed" in name and not is_gemma else 0.02)
        parameter.data.normal_(mean, deviation, generator=norms if is_norm else rest)
    torch.cuda.synchronize()
