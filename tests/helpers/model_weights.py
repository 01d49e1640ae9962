"""Weights of the peers' models under our names and in our layout."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig

CORE_NAMES = {
    "embedding.word_embeddings.weight": "embedding.word.weight",
    "embedding.position_embeddings.weight": "embedding.position.weight",
    "decoder.final_layernorm": "final_norm",
    "output_layer.weight": "head.weight",
    "input_layernorm": "input_norm",
    "pre_mlp_layernorm": "post_attention_norm",
    "self_attention.linear_qkv": "attention.qkv",
    "self_attention.linear_proj": "attention.dense",
    "mlp.linear_fc1": "mlp.fc1",
    "mlp.linear_fc2": "mlp.fc2",
    "decoder.layers": "layers",
}

NEOX_NAMES = {
    "gpt_neox.embed_in.weight": "embedding.word.weight",
    "gpt_neox.final_layer_norm": "final_norm",
    "embed_out.weight": "head.weight",  # until transformers 4
    "lm_head.weight": "head.weight",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_attention_norm",
    "attention.query_key_value": "attention.qkv",
    "mlp.dense_h_to_4h": "mlp.fc1",
    "mlp.dense_4h_to_h": "mlp.fc2",
    "gpt_neox.layers": "layers",
}


def from_core(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Megatron-core's GPTModel: linear weights are output x input; qkv goes group by group, as ours."""
    found = {}
    for name, value in weights.items():
        for theirs, ours in CORE_NAMES.items():
            name = name.replace(theirs, ours)
        found[name] = _laid_out(name, value, config)
    return found


def from_llama(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """transformers' LlamaForCausalLM: linear weights are output x input; q, k, v and gate, up are apart."""
    found = {
        "embedding.word.weight": weights["model.embed_tokens.weight"],
        "final_norm.weight": weights["model.norm.weight"],
        "head.weight": weights["lm_head.weight"],
    }
    layers = 1 + max(int(index) for name in weights for index in re.findall(r"layers\.(\d+)\.", name))
    for layer in range(layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        q, k, v = (
            weights[f"{theirs}.self_attn.{kind}_proj.weight"].unflatten(0, (config.num_groups, -1, config.head_dim))
            for kind in "qkv"
        )
        gate, up = (weights[f"{theirs}.mlp.{kind}_proj.weight"] for kind in ("gate", "up"))
        for name, value in {
            "input_norm.weight": weights[f"{theirs}.input_layernorm.weight"],
            "attention.qkv.weight": torch.cat([q, k, v], 1).flatten(0, 2),
            "attention.dense.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            "post_attention_norm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            "mlp.fc1.weight": torch.cat([gate, up]),
            "mlp.fc2.weight": weights[f"{theirs}.mlp.down_proj.weight"],
        }.items():
            found[f"{ours}.{name}"] = _laid_out(name, value, config)
    return found


def from_neox(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """transformers' GPTNeoXForCausalLM: linear weights are output x input; qkv goes head by head, as ours."""
    found = {}
    for name, value in weights.items():
        for theirs, ours in NEOX_NAMES.items():
            name = name.replace(theirs, ours)
        found[name] = _laid_out(name, value, config)
    return found


def _laid_out(name: str, value: Tensor, config: ModelConfig) -> Tensor:
    """Row-parallel weights are input x output with us; a gated fc1 is [2, width, ...]."""
    if re.search(r"(dense|fc2)\.weight$", name):
        return value.T
    if config.swiglu and re.search(r"fc1\.(weight|bias)$", name):
        return value.unflatten(0, (2, -1))
    return value


def put(stage: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill every parameter; rows of vocabulary padding with 0."""
    parameters = dict(stage.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].zero_()
            parameters[name][: len(value)].copy_(value)
