"""Logits, loss and gradients equal Hugging Face's GPT-2 with the same weights, in fp32."""

import json
import re

import numpy as np
import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.config.training import RecomputeConfig
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.recompute import plan_recompute

NAMES = {
    "wte.weight": "embedding.word.weight",
    "wpe.weight": "embedding.position.weight",
    "ln_f.weight": "final_norm.weight",
    "ln_f.bias": "final_norm.bias",
    "ln_1": "input_norm",
    "ln_2": "post_attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.dense",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def our_name(theirs):
    if theirs in NAMES:
        return NAMES[theirs]
    layer, module, kind = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", theirs).groups()
    return f"layers.{layer}.{NAMES[module]}.{kind}"


def to_ours(theirs, value, num_heads):
    """Their linear weights are input x output, with q, k and v side by side; our qkv rows go head by head."""
    value = torch.from_numpy(value)
    if re.search(r"(c_attn|c_fc)\.weight", theirs):  # rows of c_proj are inputs with us, too
        value = value.T
    if "c_attn" in theirs:
        parts = value.reshape(3, num_heads, -1, *value.shape[1:])
        value = parts.transpose(0, 1).reshape(value.shape)
    return value.contiguous()


@pytest.fixture(scope="module")
def golden(shared_dir):
    return np.load(shared_dir / "data/goldens/model/hf_gpt2_tiny.npz")


@pytest.fixture(scope="module")
def num_heads(golden):
    return int(json.loads(str(golden["params"]))["n_head"])


@pytest.mark.parametrize("recompute", [False, True])
def test_logits_loss_and_gradients(golden, num_heads, recompute):
    weights = {k[2:]: golden[k] for k in golden.files if k.startswith("w:")}
    vocab, hidden = weights["wte.weight"].shape
    layers = 1 + max(int(k.split(".")[1]) for k in weights if k.startswith("h."))
    config = ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=num_heads,
        seq_length=golden["input_ids"].shape[1],
        max_position_embeddings=weights["wpe.weight"].shape[0],
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    padded = vocab + 7
    plan = plan_recompute(RecomputeConfig(checkpoint_activations=recompute), num_layers=layers)
    stage = GPTStage(config, vocab_size=vocab, padded_vocab_size=padded, plan=plan)
    parameters = dict(stage.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()
        for theirs, value in weights.items():
            parameters[our_name(theirs)][: len(value) if "wte" in theirs else None].copy_(
                to_ours(theirs, value, num_heads)
            )
    tokens = torch.from_numpy(golden["input_ids"]).long()
    logits = stage(tokens)
    torch.testing.assert_close(logits, torch.from_numpy(golden["logits_f32"]), rtol=0, atol=1e-5)
    loss = stage(tokens[:, :], labels=tokens.roll(-1, 1), loss_mask=last_masked(tokens))
    assert abs(loss.item() - float(golden["loss_f64"])) <= 1e-5
    loss.backward()
    for theirs in weights:
        expected = to_ours(theirs, golden[f"grad:{theirs}"], num_heads)
        ours = parameters[our_name(theirs)].grad
        if "wte" in theirs:
            assert not ours[vocab:].any(), "padding rows must get exactly no gradient"
            ours = ours[:vocab]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()), msg=theirs)


def last_masked(tokens):
    """Their loss shifts inside: the last position has no label."""
    mask = torch.ones(tokens.shape)
    mask[:, -1] = 0.0
    return mask
