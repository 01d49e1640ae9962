"""Command lines and JSON texts shared by the configuration tests: a minimal run, and the 2.7B script of thread 003."""

from __future__ import annotations

from pathlib import Path

MINIMAL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
    " --micro-batch-size 2 --global-batch-size 8 --train-iters 6 --lr 1e-3 --data-path data"
    " --tokenizer-type NullTokenizer --vocab-size 50"
)

# The flags of ds_pretrain_gpt_2.7B.sh as its shell expands them; MP_SIZE is 1 until tensor parallelism is built.
SCRIPT_FLAGS = (
    "--override-opt_param-scheduler --adam-beta1 0.9 --adam-beta2 0.95 --tensor-model-parallel-size 1"
    " --moe-expert-parallel-size 1 --num-experts 1 --moe-loss-coeff 0.01 --moe-train-capacity-factor 1.0"
    " --moe-eval-capacity-factor 1.0 --moe-min-capacity 4 --init-method-std 0.011 --lr-decay-tokens 260000000000"
    " --lr-warmup-tokens 375000000 --micro-batch-size 2 --exit-duration-in-mins 30000000"
    " --rampup-batch-size 32 32 1953125 --global-batch-size 512 --num-layers 32 --hidden-size 2560"
    " --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --train-tokens 300000000000"
    " --train-samples 439453125 --lr 1.6e-4 --min-lr 1.6e-5 --lr-decay-style cosine --split 98,2,0"
    " --log-interval 10 --eval-interval 100 --eval-iters 10 --save-interval 1000 --weight-decay 0.1 --clip-grad 1.0"
    " --hysteresis 2 --num-workers 0 --fp16 --load {folder}/checkpoint --save {folder}/checkpoint"
    " --tensorboard-queue-size 1 --log-timers-to-tensorboard --timing-log-level 1 --no-pipeline-parallel"
    " --cpu-optimizer --distributed-timeout-minutes 60 --log-batch-size-to-tensorboard"
    " --log-validation-ppl-to-tensorboard --tensorboard-dir {folder}/tensorboard --checkpoint-activations"
    " --create-moe-param-group --disable-moe-token-dropping --vocab-file vocab.json --merge-file merges.txt"
    " --data-path data --data-impl mmap --deepspeed --deepspeed_config {folder}/ds_config_gpt.json"
    " --pipeline-model-parallel-size 1 --deepspeed-activation-checkpointing"
)

SCRIPT_TEMPLATE = """\
{
  "train_batch_size" : CONFIG_BATCH_SIZE,
  "train_micro_batch_size_per_gpu": CONFIG_MBSIZE,
  "steps_per_print": LOG_INTERVAL,

  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true,
      "ratio": 0.1
    }
  },

  "gradient_clipping": 1.0,
  "prescale_gradients":false,

  "fp16": {
    "enabled": CONFIG_FP16_ENABLED,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 11
  },

  "bf16": {
    "enabled": CONFIG_BF16_ENABLED
  },

  "wall_clock_breakdown" : false
}
"""


def filled_script_json() -> str:
    """The template as the script's sed lines leave it."""
    text = SCRIPT_TEMPLATE.replace("CONFIG_BATCH_SIZE", "512").replace("CONFIG_MBSIZE", "2")
    text = text.replace("LOG_INTERVAL", "10").replace("CONFIG_FP16_ENABLED", "false")
    return text.replace("CONFIG_BF16_ENABLED", "true")


def script_argv(folder: Path) -> list[str]:
    """The script's command line, with its JSON written below `folder`."""
    (folder / "ds_config_gpt.json").write_text(filled_script_json(), encoding="utf-8")
    return SCRIPT_FLAGS.format(folder=folder).split()


def minimal_argv(extra: str = "", *, json: str | None = None, folder: Path | None = None) -> list[str]:
    """MINIMAL with more flags after it; `json` is written to folder/ds.json and named."""
    words = f"{MINIMAL} {extra}".split()
    if json is not None:
        assert folder is not None
        (folder / "ds.json").write_text(json, encoding="utf-8")
        words += ["--deepspeed", "--deepspeed_config", str(folder / "ds.json")]
    return words
