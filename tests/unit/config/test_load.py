"""argv to LoadedConfig, and its two printed forms."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from helpers.config_cases import SCRIPT_TEMPLATE, minimal_argv, script_argv

from megatron_zero.config.derive import DerivedSizes
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.load import format_arguments, format_provenance, load_run_config
from megatron_zero.config.tree import walk_knobs


def test_the_script_of_thread_003_loads_as_its_author_meant(tmp_path: Path) -> None:
    loaded = load_run_config(script_argv(tmp_path))
    config = loaded.config
    assert (config.precision.bf16, config.precision.fp16) == (True, False)
    assert config.zero.stage == 3
    assert (config.zero.offload_optimizer.device, config.zero.offload_optimizer.ratio) == ("cpu", 0.1)
    assert (config.adam.adam_beta1, config.adam.adam_beta2, config.adam.clip_grad) == (0.9, 0.95, 1.0)
    assert config.recompute.full
    assert loaded.warnings == ("bf16 is on from ds_config_gpt.json:28; overrides --fp16",)
    sizes = DerivedSizes.of(config, world_size=8, vocab_size=50257)
    assert (sizes.dp, sizes.num_microbatches, sizes.padded_vocab_size) == (8, 32, 50304)
    assert sizes.batch_schedule.num_microbatches(0) == 2
    assert sizes.run.num_samples[0] == 439453125
    assert (sizes.run.tokens - 300_000_000_000) // 2048 in range(512)
    assert sizes.run.lr_decay_tokens == 260_000_000_000


def test_a_json_batch_does_not_clash_with_the_ramp(tmp_path: Path) -> None:
    """H39."""
    argv = minimal_argv(
        "--global-batch-size 16 --rampup-batch-size 4 4 32 --train-samples 72",
        json='{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}',
        folder=tmp_path,
    )
    del argv[argv.index("--train-iters") : argv.index("--train-iters") + 2]
    loaded = load_run_config(argv)
    assert loaded.warnings == ()
    assert DerivedSizes.of(loaded.config, world_size=2, vocab_size=50).run.train_iterations == 8


def test_both_sides_report_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(minimal_argv("--split-transformers --hiden-size 3", json=SCRIPT_TEMPLATE, folder=tmp_path))
    text = str(caught.value)
    assert text.startswith("7 problems:")
    assert all(part in text for part in ("--split-transformers", "--hiden-size", "ds.json:2", "ds.json:28"))


def test_a_missing_json_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--deepspeed_config nowhere\.json: no such file"):
        load_run_config(minimal_argv("--deepspeed --deepspeed_config nowhere.json"))


def test_no_json_is_needed_and_stage_0_is_the_default() -> None:
    loaded = load_run_config(minimal_argv())
    assert loaded.config.zero.stage == 0
    assert loaded.sources["zero.stage"] == "default"


def test_every_field_has_a_source_and_a_line_of_provenance(tmp_path: Path) -> None:
    loaded = load_run_config(script_argv(tmp_path))
    lines = format_provenance(loaded).splitlines()
    paths = [path for path, _ in walk_knobs()]
    assert list(loaded.sources) == paths
    assert [line.split(" = ")[0] for line in lines] == paths
    assert "zero.offload_optimizer.ratio = 0.1  [ds_config_gpt.json:11]" in lines
    assert "model.num_layers = 32  [--num-layers]" in lines
    assert "train.seed = 1234  [default]" in lines


def test_the_argument_dump_has_megatrons_shape(tmp_path: Path) -> None:
    lines = format_arguments(load_run_config(script_argv(tmp_path))).splitlines()
    assert lines[0] == "------------------------ arguments ------------------------"
    assert lines[-1] == "-------------------- end of arguments ---------------------"
    assert "  hidden_size ..................................... 2560" in lines
    assert "  rampup_batch_size ............................... [32, 32, 1953125]" in lines
    names = [line.split()[0] for line in lines[1:-1]]
    assert names == sorted(names, key=str.lower)
    assert len(names) == len(set(names)) == sum(1 for _ in walk_knobs())


def test_the_loaded_tree_is_frozen() -> None:
    config = load_run_config(minimal_argv()).config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.zero.stage = 1  # type: ignore[misc]
    hash(config)
