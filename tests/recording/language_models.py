"""Tiny language models of transformers with random weights, one for each family that carries a state."""

import torch

COMMON = {"vocab_size": 32, "hidden_size": 16}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_chunk_size": 8}

FAMILIES = {
    "mamba": ("Mamba", COMMON | {"state_size": 4, "num_hidden_layers": 2}),
    "mamba2": (
        "Mamba2",
        COMMON
        | {"state_size": 4, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "falcon_mamba": ("FalconMamba", COMMON | {"state_size": 4, "num_hidden_layers": 2}),
    "rwkv": ("Rwkv", COMMON | {"attention_hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}),
    "xlstm": (
        "xLSTM",  # its widths are rounded up to multiples of 64
        {"vocab_size": 32, "hidden_size": 64, "embedding_dim": 64, "num_hidden_layers": 2, "num_blocks": 2}
        | {"num_heads": 2, "qk_dim_factor": 1.0},
    ),
    "recurrent_gemma": (
        "RecurrentGemma",
        COMMON | ATTENTION | {"lru_width": 16, "num_hidden_layers": 3, "attention_window_size": 64},
    ),
    "qwen3_next": (
        "Qwen3Next",
        COMMON
        | ATTENTION
        | {"num_hidden_layers": 4, "head_dim": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 2, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "lfm2": (
        "Lfm2",
        COMMON | ATTENTION | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    ),
    "bamba": ("Bamba", COMMON | ATTENTION | MAMBA2 | {"num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "jamba": (
        "Jamba",
        COMMON
        | ATTENTION
        | {"num_hidden_layers": 4, "mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1},
    ),
    "zamba2": (
        "Zamba2",
        COMMON
        | {"num_hidden_layers": 3, "intermediate_size": 32, "num_attention_heads": 2, "mamba_d_state": 4}
        | {"n_mamba_heads": 4, "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1}
        | {"layers_block_type": ["mamba", "hybrid", "mamba"]},
    ),
}
"""For each family the beginning of its classes' names, and a small configuration."""


def tiny_model(family):
    """Return a causal language model of a family, random weights of seed 0."""
    import transformers

    name, options = FAMILIES[family]
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**options)).eval()
