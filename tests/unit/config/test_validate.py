"""Rules of the merged configuration: each is broken alone, and the message names the setting as it was written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers.config_cases import minimal_argv

from megatron_zero.config.data import NEEDED, TokenizerConfig
from megatron_zero.config.fields import ConfigError, knobs
from megatron_zero.config.load import LoadedConfig, load_run_config


def message(extra: str, **rest: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(minimal_argv(extra, **rest))  # type: ignore[arg-type]
    return str(caught.value)


def without(*flags: str) -> list[str]:
    """The minimal command line less these flags and their values."""
    words = iter(minimal_argv())
    kept: list[str] = []
    for flag, value in zip(words, words, strict=True):
        if flag not in flags:
            kept += [flag, value]
    return kept


def test_the_minimal_run_is_valid() -> None:
    loaded = load_run_config(minimal_argv())
    assert isinstance(loaded, LoadedConfig)
    assert loaded.warnings == loaded.notes == ()


@pytest.mark.parametrize(
    "extra, parts",
    [
        ("--num-layers 0", ("--num-layers 0", "at least 1")),
        ("--micro-batch-size -2", ("--micro-batch-size -2", "at least 1")),
        ("--eval-interval 0", ("--eval-interval 0", "at least 1")),
        ("--eval-iters -1", ("--eval-iters -1", "at least 0")),
        ("--lr -1", ("--lr -1.0", "at least 0")),
        ("--adam-eps 0", ("--adam-eps 0.0", "above 0")),
        ("--distributed-timeout-minutes 0", ("--distributed-timeout-minutes 0.0", "above 0")),
        ("--seed -1", ("--seed -1", "at least 0")),
        ("--seed 4294967296", ("--seed 4294967296", "below 2**32")),
        ("--exit-interval 0", ("--exit-interval 0", "at least 1")),
        ("--log-interval 0", ("--log-interval 0", "at least 1")),
        ("--attention-dropout 1", ("--attention-dropout 1.0", "below 1")),
        ("--hidden-dropout -0.1", ("--hidden-dropout -0.1", "at least 0")),
        ("--adam-beta2 1", ("--adam-beta2 1.0", "below 1")),
        ("--hidden-size 66", ("--hidden-size 66", "--num-attention-heads 4", "64 or 68")),
        ("--seq-length 64", ("--seq-length 64", "--max-position-embeddings 32")),
        ("--train-samples 8", ("--train-iters 6", "--train-samples 8", "exclude each other")),
        ("--rampup-batch-size 4 4 32", ("--rampup-batch-size 4 4 32", "--train-iters 6")),
        ("--tensor-model-parallel-size 8", ("--tensor-model-parallel-size 8", "query heads", "nearest valid: 8")),
        ("--pipeline-model-parallel-size 2", ("--pipeline-model-parallel-size 2", "not built yet")),
        ("--pipeline-model-parallel-size 2 --no-pipeline-parallel", ("contradicts --no-pipeline-parallel",)),
        ("--cpu-optimizer", ("derived: --cpu-optimizer", "stage 0", "--zero-stage")),
        ("--deepspeed", ("--deepspeed needs --deepspeed_config",)),
        ("--deepspeed_config x.json", ("only read with --deepspeed",)),
        ("--min-lr 1", ("--min-lr 1.0", "--lr 0.001")),
        ("--lr-warmup-tokens 2000 --lr-decay-tokens 1000", ("--lr-warmup-tokens 2000", "--lr-decay-tokens 1000")),
        ("--lr-warmup-tokens 1000 --lr-decay-tokens 1000", ("--lr-warmup-tokens 1000", "--lr-decay-tokens 1000")),
        ("--lr-decay-tokens 0", ("--lr-decay-tokens 0", "at least 1")),
        ("--save out", ("--save out", "--save-interval")),
        ("--data-path 0.3 a 0 b", ("--data-path 0.3 a 0 b", "above 0")),
        ("--data-path 0.3 a 0.7", ("--data-path 0.3 a 0.7", "pairs")),
        ("--mock-data", ("--data-path and --mock-data are given", "one of them")),
        ("--split 0,1,0", ("--split 0,1,0", "train")),
        ("--tokenizer-type GPT2BPETokenizer", ("GPT2BPETokenizer needs --vocab-file and --merge-file",)),
        ("--tokenizer-type SentencePieceTokenizer", ("needs --tokenizer-model",)),
        ("--tokenizer-type Llama2Tokenizer", ("Llama2Tokenizer needs --tokenizer-model",)),
        ("--tokenizer-type HFTokenizer", ("HFTokenizer needs --tokenizer-model",)),
        ("--tokenizer-type HuggingFaceTokenizer", ("HuggingFaceTokenizer needs --tokenizer-model",)),
    ],
)
def test_each_broken_rule_names_setting_value_and_rule(extra: str, parts: tuple[str, ...]) -> None:
    text = message(extra)
    assert "problems" not in text, text
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    "ramp, part",
    [
        ("4 3 32", "8 - 4 = 4 must be a multiple of 3"),
        ("4 4", "takes three numbers"),
        ("", "--rampup-batch-size: expected at least one argument"),
    ],
)
def test_a_ramp_is_three_numbers_that_reach_the_batch(ramp: str, part: str) -> None:
    argv = [*without("--train-iters"), "--train-samples", "72", "--rampup-batch-size", *ramp.split()]
    with pytest.raises(ConfigError, match=re.escape(part)):
        load_run_config(argv)


@pytest.mark.parametrize(
    "flag",
    [
        "--num-layers",
        "--hidden-size",
        "--num-attention-heads",
        "--seq-length",
        "--max-position-embeddings",
        "--lr",
        "--data-path",
    ],
)
def test_a_missing_required_setting_is_named(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is required"):
        load_run_config(without(flag))


def test_a_missing_batch_run_length_or_vocabulary_is_named() -> None:
    with pytest.raises(ConfigError, match="--micro-batch-size is required"):
        load_run_config(without("--micro-batch-size", "--global-batch-size"))
    with pytest.raises(ConfigError, match="--train-iters, --train-samples or --train-tokens"):
        load_run_config(without("--train-iters"))
    with pytest.raises(ConfigError, match="NullTokenizer needs --vocab-size"):
        load_run_config(without("--vocab-size"))


def test_all_broken_rules_come_in_one_message() -> None:
    text = message("--num-layers 0 --adam-eps 0 --save out")
    assert text.startswith("3 problems:")
    assert all(flag in text for flag in ("--num-layers 0", "--adam-eps 0.0", "--save out"))


def test_a_value_of_the_json_is_named_by_its_key_and_line(tmp_path: Path) -> None:
    text = message("", json='{\n"gradient_clipping": -1}', folder=tmp_path)
    assert text == "gradient_clipping -1.0 (ds.json:2): must be at least 0"


@pytest.mark.parametrize("ratio", ["-0.1", "1.5"])
def test_a_ratio_outside_0_to_1_is_refused(tmp_path: Path, ratio: str) -> None:
    """H2."""
    block = f'{{"zero_optimization": {{"stage": 1, "offload_optimizer": {{"device": "cpu", "ratio": {ratio}}}}}}}'
    assert f"offload_optimizer.ratio {ratio}" in message("", json=block, folder=tmp_path)


@pytest.mark.parametrize(
    "flags", ["--save {}/x --save-interval 1", "--tensorboard-dir {}/x/y", "--log-jsonl {}/x.jsonl"]
)
def test_an_output_below_a_regular_file_is_refused_before_anything_is_made(tmp_path: Path, flags: str) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    text = message(flags.format(blocker))
    assert f"{blocker} is not a folder" in text
    assert flags.split()[0] in text
    assert os.listdir(tmp_path) == ["file"]


def test_an_output_that_is_itself_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert "is not a folder" in message(f"--tensorboard-dir {file}")
    assert "is a folder" in message(f"--log-jsonl {tmp_path}")


def test_outputs_that_do_not_exist_yet_are_fine_and_are_not_made(tmp_path: Path) -> None:
    new = tmp_path / "a" / "b"
    load_run_config(
        minimal_argv(f"--save {new} --load {new} --save-interval 5 --log-jsonl {new}.jsonl --tensorboard-dir {new}")
    )
    assert os.listdir(tmp_path) == []


def test_settings_that_do_nothing_are_warned_of() -> None:
    assert len(load_run_config(minimal_argv("--save-interval 5")).warnings) == 1
    assert len(load_run_config(minimal_argv("--exit-interval 5")).warnings) == 1


@pytest.mark.parametrize(
    "extra", ["--train-tokens 1000", "--lr 0", "--zero-stage 3", "--zero-stage 3 --cpu-optimizer", "--bf16"]
)
def test_legal_combinations_pass(extra: str) -> None:
    load_run_config(minimal_argv(extra))


@pytest.mark.parametrize(
    "extra,granularity,method,layers",
    [
        ("", None, "uniform", 1),
        ("--checkpoint-activations", "full", "uniform", 1),
        ("--checkpoint-activations --deepspeed-activation-checkpointing --checkpoint-num-layers 2", "full", "uniform", 2),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "full", "block", 2),
        ("--activations-checkpoint-method block", "full", "block", 1),
        ("--recompute-granularity selective", "selective", "uniform", 1),
        ("--recompute-activations", "selective", "uniform", 1),
    ],
)
def test_spellings_of_recompute(extra: str, granularity: str | None, method: str, layers: int) -> None:
    recompute = load_run_config(minimal_argv(extra)).config.recompute
    assert (recompute.granularity, recompute.method, recompute.recompute_num_layers) == (granularity, method, layers)


@pytest.mark.parametrize(
    "extra,says",
    [
        ("--recompute-activations --checkpoint-activations", "--checkpoint-activations recompute whole layers"),
        ("--recompute-granularity selective --recompute-method block", "--recompute-method block recompute whole"),
        ("--recompute-granularity full --recompute-activations", "--recompute-activations the attention core only"),
        ("--recompute-num-layers 2", "add --recompute-granularity full"),
        ("--recompute-activations --recompute-num-layers 2", "add --recompute-granularity full"),
        ("--checkpoint-activations --recompute-num-layers 99", "is above --num-layers"),
        ("--checkpoint-activations --recompute-num-layers 0", "must be at least 1"),
        ("--recompute-granularity some", "--recompute-granularity"),
    ],
)
def test_recompute_flags_that_clash_are_named(extra: str, says: str) -> None:
    assert says in message(extra)


@pytest.mark.parametrize(
    "extra,says",
    [
        ("--num-key-value-heads 3", "what fits: 1, 2, 4"),
        ("--group-query-attention --num-query-groups 3", "is not a multiple of the 3 key and value heads"),
        ("--num-key-value-heads 2 --group-query-attention --num-query-groups 4", "say the same thing differently"),
        ("--swiglu --squared-relu", "--swiglu and --squared-relu are 2 activations"),
        ("--swiglu --openai-gelu", "--swiglu and --openai-gelu are 2 activations"),
        ("--swiglu --squared-relu --openai-gelu", "--swiglu and --squared-relu and --openai-gelu are 3 activations"),
        ("--swiglu --hidden-size 20", "give --ffn-hidden-size"),
        ("--position-embedding-type none --use-rotary-position-embeddings", "--use-rotary-position-embeddings and"),
        ("--position-embedding-type learned_absolute --no-position-embedding", "--no-position-embedding and"),
        ("--position-embedding-type alibi", "must be one of learned_absolute, rope, none"),
        ("--position-embedding-type yarn", "--position-embedding-type yarn: out of scope: use rope"),
        ("--position-embedding-type mrope", "it is for images: use rope"),
        ("--use-rotary-position-embeddings --rotary-percent 0.2", "of a head of 16 channels is 3"),
        ("--use-rotary-position-embeddings --rotary-percent 1.5", "must be above 0 and at most 1"),
        ("--use-rotary-position-embeddings --rotary-position-embeddings-theta 0", "must be above 0"),
        ("--normalization batchnorm", "--normalization"),
        ("--kv-channels 0", "--kv-channels 0: must be at least 1"),
        ("--ffn-hidden-size 0", "--ffn-hidden-size 0: must be at least 1"),
        ("--num-attention-heads 5", "or give the width of a head with --kv-channels"),
        ("--tensor-model-parallel-size 3", "query heads (--num-attention-heads), 4; nearest valid"),
        ("--tensor-model-parallel-size 4 --num-key-value-heads 2", "key and value heads (--num-key-value-heads), 2"),
        ("--tensor-model-parallel-size 4 --ffn-hidden-size 130", "the MLP's inner width (--ffn-hidden-size), 130;"),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel --checkpoint-activations --partition-activations",
            "divided over tensor parallel already",
        ),
    ],
)
def test_shapes_that_cannot_be_are_named(extra: str, says: str) -> None:
    assert says in message(extra)


@pytest.mark.parametrize(
    "extra,wanted",
    [
        ("", ("learned_absolute", 4, 16, 256, "gelu_tanh")),
        ("--use-rotary-position-embeddings", ("rope", 4, 16, 256, "gelu_tanh")),
        ("--position-embedding-type rope --rotary-base 500000", ("rope", 4, 16, 256, "gelu_tanh")),
        ("--no-position-embedding", ("none", 4, 16, 256, "gelu_tanh")),
        ("--num-key-value-heads 2 --swiglu", ("learned_absolute", 2, 16, 128, "swiglu")),
        ("--group-query-attention --num-query-groups 2", ("learned_absolute", 2, 16, 256, "gelu_tanh")),
        ("--group-query-attention", ("learned_absolute", 1, 16, 256, "gelu_tanh")),
        ("--group-query-attention --num-key-value-heads 2", ("learned_absolute", 2, 16, 256, "gelu_tanh")),
        ("--use-rotary-position-embeddings --no-position-embedding", ("rope", 4, 16, 256, "gelu_tanh")),
        ("--num-query-groups 2", ("learned_absolute", 4, 16, 256, "gelu_tanh")),
        ("--kv-channels 24 --ffn-hidden-size 100", ("learned_absolute", 4, 24, 100, "gelu_tanh")),
        ("--no-bias-gelu-fusion", ("learned_absolute", 4, 16, 256, "gelu_erf")),
        ("--no-bias-gelu-fusion --openai-gelu", ("learned_absolute", 4, 16, 256, "gelu_tanh")),
        ("--squared-relu", ("learned_absolute", 4, 16, 256, "squared_relu")),
    ],
)
def test_what_the_shape_flags_mean_together(extra: str, wanted: tuple[object, ...]) -> None:
    model = load_run_config(minimal_argv(extra)).config.model
    assert (model.positions, model.num_groups, model.head_dim, model.mlp_width, model.activation) == wanted


def test_flags_without_effect_are_told() -> None:
    for extra, flag in (
        ("--num-query-groups 2", "--num-query-groups"),
        ("--rotary-percent 0.25", "--rotary-percent 0.25"),
        ("--no-position-embedding --rotary-base 500000", "--rotary-position-embeddings-theta 500000"),
        ("--swiglu --no-bias-gelu-fusion", "--no-bias-gelu-fusion"),
        ("--sequence-parallel", "--sequence-parallel"),
        ("--checkpoint-in-cpu", "--checkpoint-in-cpu"),
    ):
        (warning,) = load_run_config(minimal_argv(extra)).warnings
        assert flag in warning and "no effect" in warning


def test_gelu_without_biases_tells_of_megatrons_other_form() -> None:
    """Megatron's fused path needs biases: without them its GELU is the erf form."""
    (warning,) = load_run_config(minimal_argv("--disable-bias-linear")).warnings
    assert "Megatron takes the erf form" in warning and "--no-bias-gelu-fusion" in warning
    for extra in ("--no-bias-gelu-fusion", "--openai-gelu", "--swiglu", "--squared-relu"):
        assert load_run_config(minimal_argv(f"--disable-bias-linear {extra}")).warnings == ()


@pytest.mark.parametrize("word", ["RMSNorm", "rmsnorm", "RMSNORM", "RmsNorm"])
def test_normalization_is_read_in_any_case(word: str) -> None:
    model = load_run_config(minimal_argv(f"--normalization {word}")).config.model
    assert model.normalization == "rmsnorm" and model.is_rmsnorm


def test_split_beside_paths_that_are_not_cut_is_named() -> None:
    argv = [*without("--data-path"), "--train-data-path", "a"]
    load_run_config(argv)
    with pytest.raises(ConfigError, match="--split 9,1,0: has no effect beside --train-data-path"):
        load_run_config([*argv, "--split", "9,1,0"])


def test_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--data-cache-path" in message(f"--data-cache-path {tmp_path / 'file' / 'cache'}")


def test_every_tokenizer_type_has_its_required_files() -> None:
    assert set(NEEDED) == set(knobs(TokenizerConfig)["tokenizer_type"].choices or ())


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (
            "--tokenizer-model m",
            "--tokenizer-model m: --tokenizer-type NullTokenizer does not use it; it takes --vocab-size",
        ),
        (
            "--trust-remote-code",
            "--trust-remote-code: --tokenizer-type NullTokenizer does not use it; it takes --vocab-size",
        ),
        (
            "--tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m",
            "--vocab-size 50: --tokenizer-type GPT2BPETokenizer does not use it; it takes --vocab-file and --merge-file",
        ),
        (
            "--tokenizer-type HFTokenizer --tokenizer-model m --trust-remote-code",
            "--vocab-size 50: --tokenizer-type HFTokenizer does not use it; it takes --tokenizer-model and"
            " --trust-remote-code",
        ),
    ],
)
def test_a_flag_that_the_tokenizer_does_not_use_is_a_warning(flags: str, warning: str) -> None:
    assert load_run_config(minimal_argv(flags)).warnings == (warning,)
