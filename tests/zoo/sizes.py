"""Tiny sizes for any configuration class: what a field is called says how small it may be."""

from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING

from tests.zoo.own import DROP, NEEDED, OWN

VOCAB_SIZE = 193
CONTEXT_LEN = 256
ORIGINAL_LEN = 32
WINDOW = 24

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "decoder_vocab_size": VOCAB_SIZE,
    "audio_vocab_size": VOCAB_SIZE,
    "unpadded_vocab_size": VOCAB_SIZE,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "type_vocab_size": 2,
    # Widths.
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "emb_dim": 64,
    "embedding_dim": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 64,
    "input_embedding_size": 48,
    "output_embedding_size": 80,
    "pronunciation_embed_dim": 32,
    "shape_embed_dim": 32,
    "shape_vocab_size": 64,
    "pronunciation_vocab_size": 64,
    "backbone_hidden_size": 64,
    "attention_hidden_size": 64,
    "hidden_size_per_layer_input": 16,
    "lru_width": 64,
    "router_hidden_size": 32,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "prefix_dense_intermediate_size": 96,
    "dense_intermediate_size": 96,
    "shared_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "shared_experts_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 48,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "feed_forward_size": 96,
    "n_inner": 96,
    "dff": 96,
    "dim_ff": 96,
    "d_inner": 96,
    "dim_model_base": 32,
    "block_multiple_of": 32,
    # Depths.
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_layers_per_stack": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_blocks": 2,
    "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "max_window_layers": 2,
    "num_kv_shared_layers": 0,
    # Heads.
    "num_attention_heads": 4,
    "swa_num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "swa_num_key_value_heads": 2,
    "num_kv_heads": 2,
    "num_query_groups": 2,
    "head_dim": 16,
    "global_head_dim": 16,
    "swa_head_dim": 16,
    "dim_head": 16,
    "d_head": 16,
    "kv_channels": 16,
    "attention_head_size": 16,
    "attention_head_dim": 16,
    "rotary_dim": 8,
    # Latent attention and its indexers.
    "kv_lora_rank": 24,
    "q_lora_rank": 24,
    "o_lora_rank": 24,
    "o_groups": 2,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 24,
    "v_head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 16,
    "index_block_size": 8,
    "index_topk_blocks": 4,
    # Experts.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "top_k_experts": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "zero_expert_num": 2,
    "moe_layer_start_index": 0,
    "moe_layer_end_index": 1,
    # Lengths and thresholds: all well below the text that is compared.
    "max_position_embeddings": CONTEXT_LEN,
    "n_positions": CONTEXT_LEN,
    "n_ctx": CONTEXT_LEN,
    "max_seq_len": CONTEXT_LEN,
    "context_length": CONTEXT_LEN,
    "model_max_length": CONTEXT_LEN,
    "max_target_positions": CONTEXT_LEN,
    "max_source_positions": 64,
    "original_max_position_embeddings": ORIGINAL_LEN,
    "sliding_window_size": WINDOW,
    "attention_window_size": WINDOW,
    "window_size": WINDOW,
    "local_attention": WINDOW,
    "keep_window_size": WINDOW,
    "attention_chunk_size": ORIGINAL_LEN,
    "floor_scale": 16,
    "log_scaling_n_floor": ORIGINAL_LEN,
    "rel_extent": ORIGINAL_LEN,
    "d_rel": 8,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    # State space and linear attention.
    "state_size": 8,
    "ssm_state_size": 8,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_dt_rank": 8,
    "time_step_rank": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    # Odds and ends.
    "altup_num_inputs": 2,
    "laurel_rank": 8,
    "gated_norm_rank": 8,
    "hc_lowrank": 16,
    "ngram_vocab_size_base": 500,
    "adapter_rank": 8,
    "adapter_in_dim": 64,
    "adapter_input_size": 64,
    "adapter_out_dim": 64,
    "hidden_dropout_prob": 0.0,
    # Scalars that do nothing at their defaults.
    "embedding_multiplier": 2.0,
    "logits_scaling": 1.7,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.31,
    "query_pre_attn_scalar": 20,
    "lm_head_multiplier": 1.3,
    "routed_scaling_factor": 1.5,
    "moe_routed_scaling_factor": 1.5,
    "router_scaling_factor": 1.5,
    "route_scale": 1.5,
    # Tokens that mean something lie within the vocabulary.
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "sep_token_id": 1,
    "eod_token_id": 1,
    "cls_token_id": 0,
    "mask_token_id": 0,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def tiny_args(model_type: str) -> dict[str, Any]:
    """The arguments that make a type's configuration tiny."""
    return shrunk(defaults(model_type)) | OWN.get(model_type, {})


@cache
def defaults(model_type: str) -> dict[str, Any]:
    """A type's own fields and their default values."""
    told: dict[str, Any] = CONFIG_MAPPING[model_type](**NEEDED.get(model_type, {})).to_dict()
    return told


@cache
def config_of(model_type: str) -> dict[str, Any]:
    """The fields of a type's tiny configuration."""
    args = {name: size for name, size in tiny_args(model_type).items() if size is not DROP}
    told: dict[str, Any] = CONFIG_MAPPING[model_type](**args).to_dict()
    return told


def shrunk(told: dict[str, Any]) -> dict[str, Any]:
    """The arguments that make a configuration with these fields a tiny one."""
    args = {name: size for name, size in SIZES.items() if name in told}
    if told.get("per_layer_config"):
        args["per_layer_config"] = {}
    if told.get("kv_lora_rank"):
        args |= {"num_key_value_heads": 4, "head_dim": 8}
    for name, inner in told.items():
        if isinstance(inner, dict) and "model_type" in inner:
            args[name] = {"model_type": inner["model_type"], **shrunk(inner)}
    return args
