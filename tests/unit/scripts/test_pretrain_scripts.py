"""The shipped training scripts, run with a stub in the launcher's place."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "scripts"
SCRIPT_2_7B = SCRIPTS / "ds_pretrain_gpt_2.7B.sh"
SCRIPT_TINY = SCRIPTS / "ds_pretrain_gpt_tiny.sh"

# Every flag of the published 2.7B offload script, those behind its conditions too.
UPSTREAM_FLAG_WORDS = """
--override-opt_param-scheduler --adam-beta1 --adam-beta2 --tensor-model-parallel-size --moe-expert-parallel-size
--num-experts --moe-loss-coeff --moe-train-capacity-factor --moe-eval-capacity-factor --moe-min-capacity
--init-method-std --lr-decay-tokens --lr-warmup-tokens --micro-batch-size --exit-duration-in-mins --rampup-batch-size
--global-batch-size --num-layers --hidden-size --num-attention-heads --seq-length --max-position-embeddings
--train-tokens --train-samples --lr --min-lr --lr-decay-style --split --log-interval --eval-interval --eval-iters
--save-interval --weight-decay --clip-grad --hysteresis --num-workers --fp16 --load --save --tensorboard-queue-size
--log-timers-to-tensorboard --timing-log-level --no-pipeline-parallel --cpu-optimizer --distributed-timeout-minutes
--log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard --tensorboard-dir --checkpoint-activations
--create-moe-param-group --disable-moe-token-dropping --vocab-file --merge-file --data-path --data-impl --deepspeed
--deepspeed_config --pipeline-model-parallel-size --deepspeed-activation-checkpointing
"""
UPSTREAM_FLAGS = UPSTREAM_FLAG_WORDS.split()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a script: exit code, output, and what the stub launcher was given."""

    code: int
    stdout: str
    stderr: str
    words: list[str]

    def flag(self, name: str) -> list[str]:
        """The values that follow a flag on the command line."""
        assert self.words.count(name) == 1, f"{name} is there {self.words.count(name)} times"
        start = self.words.index(name) + 1
        values = []
        for word in self.words[start:]:
            if word.startswith("--"):
                break
            values.append(word)
        return values

    def config(self) -> dict[str, object]:
        loaded: dict[str, object] = json.loads(Path(self.flag("--deepspeed_config")[0]).read_text())
        return loaded


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def clean_environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "OUTPUT_BASEPATH": str(folder / "output"), **extra}


def start(script: Path, folder: Path, *, launcher_body: str = "", **variables: str) -> subprocess.Popen[str]:
    """Start a script whose launcher writes its arguments, NUL-separated, to folder/words."""
    stub = program(folder / "launcher", f"printf '%s\\0' \"$@\" >'{folder}/words'\n{launcher_body}")
    return subprocess.Popen(
        ["bash", str(script)],
        cwd=folder,
        env=clean_environment(folder, {"LAUNCHER": shlex.quote(str(stub)), **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(script: Path, folder: Path, *, launcher_body: str = "", **variables: str) -> Run:
    with start(script, folder, launcher_body=launcher_body, **variables) as process:
        stdout, stderr = process.communicate()
    words = folder / "words"
    given = words.read_text().split("\0")[:-1] if words.exists() else []
    return Run(process.returncode, stdout, stderr, given)


def test_2_7B_defaults_are_those_people_know(tmp_path: Path) -> None:
    done = run(SCRIPT_2_7B, tmp_path)
    assert done.code == 0, done.stderr
    assert done.words[:3] == ["--num_gpus", "8", str(SCRIPTS.parents[1] / "pretrain_gpt.py")]
    expected = {
        "--num-layers": "32",
        "--hidden-size": "2560",
        "--num-attention-heads": "32",
        "--seq-length": "2048",
        "--max-position-embeddings": "2048",
        "--global-batch-size": "512",
        "--micro-batch-size": "2",
        "--lr": "1.6e-4",
        "--min-lr": "1.6e-5",
        "--train-tokens": "300000000000",
        "--train-samples": "439453125",
        "--lr-warmup-tokens": "375000000",
        "--lr-decay-tokens": "260000000000",
        "--exit-duration-in-mins": "30000000",
        "--tensor-model-parallel-size": "1",
        "--pipeline-model-parallel-size": "1",
        "--num-experts": "1",
        "--moe-expert-parallel-size": "1",
        "--split": "98,2,0",
        "--lr-decay-style": "cosine",
    }
    assert {name: done.flag(name) for name in expected} == {name: [value] for name, value in expected.items()}
    assert done.flag("--rampup-batch-size") == ["32", "32", "1953125"]
    config = done.config()
    assert re.search(r"[A-Z_]{4,}", json.dumps(config)) is None
    assert config["train_batch_size"] == 512
    assert config["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.3},
    }
    assert config["bf16"] == {"enabled": True}


def test_2_7B_sends_all_59_flags(tmp_path: Path) -> None:
    done = run(SCRIPT_2_7B, tmp_path, ACTIVATION_CHECKPOINT="true", EP_SIZE="2", MOE_DROP_TOKEN="false")
    flags = {word for word in done.words[3:] if word.startswith("--")}
    assert len(UPSTREAM_FLAGS) == len(set(UPSTREAM_FLAGS)) == 59
    assert set(UPSTREAM_FLAGS) <= flags
    assert flags - set(UPSTREAM_FLAGS) == {"--seed", "--attention-dropout", "--hidden-dropout"}


@pytest.mark.parametrize(
    ("variable", "value", "flags"),
    [
        ("NUM_LAYERS", "6", ["--num-layers"]),
        ("HIDDEN_SIZE", "64", ["--hidden-size"]),
        ("NUM_ATTN_HEADS", "2", ["--num-attention-heads"]),
        ("SEQ_LEN", "1024", ["--seq-length", "--max-position-embeddings"]),
        ("INIT_STD", "0.5", ["--init-method-std"]),
        ("DROPOUT", "0.25", ["--attention-dropout", "--hidden-dropout"]),
        ("ATTENTION_DROPOUT", "0.25", ["--attention-dropout"]),
        ("HIDDEN_DROPOUT", "0.25", ["--hidden-dropout"]),
        ("TRAIN_TOKENS", "4096000", ["--train-tokens"]),
        ("TRAIN_SAMPLES", "77", ["--train-samples"]),
        ("EXIT_DURATION", "5", ["--exit-duration-in-mins"]),
        ("LR", "1e-3", ["--lr"]),
        ("MIN_LR", "1e-5", ["--min-lr"]),
        ("WARMUP_TOKENS", "11", ["--lr-warmup-tokens"]),
        ("LR_DECAY_TOKENS", "12", ["--lr-decay-tokens"]),
        ("SEED", "42", ["--seed"]),
        ("GLOBAL_BATCH_SIZE", "64", ["--global-batch-size"]),
        ("BATCH_SIZE", "4", ["--micro-batch-size"]),
        ("MP_SIZE", "8", ["--tensor-model-parallel-size"]),
        ("PP_SIZE", "2", ["--pipeline-model-parallel-size"]),
        ("NUM_GPUS", "2", ["--num_gpus"]),
        ("EP_SIZE", "4", ["--num-experts", "--moe-expert-parallel-size"]),
        ("EP_PARALLEL_SIZE", "2", ["--moe-expert-parallel-size"]),
        ("MLC", "0.2", ["--moe-loss-coeff"]),
        ("MOE_TRAIN_CAP_FACTOR", "2.0", ["--moe-train-capacity-factor"]),
        ("MOE_EVAL_CAP_FACTOR", "2.0", ["--moe-eval-capacity-factor"]),
        ("MOE_MIN_CAP", "8", ["--moe-min-capacity"]),
        ("LOG_INTERVAL", "3", ["--log-interval"]),
        ("EVAL_ITERS", "3", ["--eval-iters"]),
        ("EVAL_INTERVAL", "3", ["--eval-interval"]),
        ("SAVE_INTERVAL", "3", ["--save-interval"]),
        ("TENSORBOARD_DIR", "/x/tb", ["--tensorboard-dir"]),
        ("CHECKPOINT_PATH", "/x/ckpt", ["--load", "--save"]),
        ("LOG_JSONL", "/x/log.jsonl", ["--log-jsonl"]),
        ("DATA_PATH", "/data/with space/text_document", ["--data-path"]),
        ("VOCAB_PATH", "/x/vocab.json", ["--vocab-file"]),
        ("MERGE_PATH", "/x/merges.txt", ["--merge-file"]),
        ("TOKENIZER_TYPE", "NullTokenizer", ["--tokenizer-type"]),
        ("TOKENIZER_MODEL", "/x/t.model", ["--tokenizer-model"]),
    ],
)
def test_variable_of_the_environment_reaches_its_flags(
    tmp_path: Path, variable: str, value: str, flags: list[str]
) -> None:
    done = run(SCRIPT_2_7B, tmp_path, **{variable: value})
    assert done.code == 0, done.stderr
    assert [done.flag(name)[0] for name in flags] == [value] * len(flags)


@pytest.mark.parametrize(
    ("variables", "present", "absent"),
    [
        ({"ACTIVATION_CHECKPOINT": "false"}, [], ["--checkpoint-activations", "--deepspeed-activation-checkpointing"]),
        ({"RAMPUP_BATCH_SIZE": ""}, [], ["--rampup-batch-size"]),
        ({"OFFLOAD_DEVICE": "none"}, [], ["--cpu-optimizer"]),
        ({"PP_SIZE": "2"}, [], ["--no-pipeline-parallel"]),
        ({"TOKENIZER_TYPE": "NullTokenizer"}, ["--tokenizer-type"], ["--vocab-file", "--merge-file"]),
        ({"PRECISION": "fp32"}, [], ["--fp16", "--bf16"]),
        ({"PRECISION_FLAG": "--bf16"}, ["--bf16"], ["--fp16"]),
    ],
)
def test_switches_follow_their_variables(
    tmp_path: Path, variables: dict[str, str], present: list[str], absent: list[str]
) -> None:
    done = run(SCRIPT_2_7B, tmp_path, **variables)
    assert done.code == 0, done.stderr
    assert set(present) <= set(done.words)
    assert not set(absent) & set(done.words)


@pytest.mark.parametrize(
    ("precision", "fp16", "bf16"), [("bf16", False, True), ("fp16", True, False), ("fp32", False, False)]
)
def test_precision_is_written_to_the_json(tmp_path: Path, precision: str, fp16: bool, bf16: bool) -> None:
    config = run(SCRIPT_2_7B, tmp_path, PRECISION=precision).config()
    assert isinstance(config["fp16"], dict)
    assert isinstance(config["bf16"], dict)
    assert (config["fp16"]["enabled"], config["bf16"]["enabled"]) == (fp16, bf16)


def test_blend_and_extra_arguments_are_split_into_words_without_globbing(tmp_path: Path) -> None:
    done = run(SCRIPT_2_7B, tmp_path, DATA_BLEND="0.3 a 0.7 b", EXTRA_ARGS="--exit-interval 7\n --x  *")
    assert done.flag("--data-path") == ["0.3", "a", "0.7", "b"]
    assert done.words[-4:] == ["--exit-interval", "7", "--x", "*"]


def test_launcher_arguments_can_be_replaced(tmp_path: Path) -> None:
    assert run(SCRIPT_2_7B, tmp_path, LAUNCHER_ARGS="--nproc_per_node 4").words[:2] == ["--nproc_per_node", "4"]
    assert run(SCRIPT_2_7B, tmp_path, LAUNCHER_ARGS="").words[0].endswith("pretrain_gpt.py")


def test_template_of_the_user_is_used_even_with_nothing_to_fill(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"train_batch_size": 512}\n')
    assert run(SCRIPT_2_7B, tmp_path, TEMPLATE_JSON=str(tmp_path / "mine.json")).config() == {"train_batch_size": 512}


def test_name_of_the_host_is_not_taken_for_a_run_name(tmp_path: Path) -> None:
    done = run(SCRIPT_2_7B, tmp_path, NAME="desktop-1", HOSTNAME="desktop-1")
    assert "gpt-2.7B-lr-" in done.flag("--save")[0]
    assert run(SCRIPT_2_7B, tmp_path, NAME="mine", HOSTNAME="desktop-1").flag("--save")[0].endswith("/mine")


@pytest.mark.parametrize(
    ("variables", "pattern"),
    [
        ({"PRECISION": "fp8"}, r"PRECISION=fp8 is not one of bf16, fp16, fp32"),
        ({"TRAIN_TOKENS": "3e9"}, r"TRAIN_TOKENS='3e9' is not a whole number"),
        ({"TEMPLATE_JSON": "/none.json"}, r"TEMPLATE_JSON=/none.json does not exist"),
    ],
)
def test_wrong_variable_stops_before_the_launcher(tmp_path: Path, variables: dict[str, str], pattern: str) -> None:
    done = run(SCRIPT_2_7B, tmp_path, **variables)
    assert done.code == 2
    assert re.search(pattern, done.stderr)
    assert done.words == []


def test_output_path_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(SCRIPT_2_7B, tmp_path, OUTPUT_BASEPATH=str(tmp_path / "file" / "out"))
    assert done.code == 2
    assert "cannot make folders below OUTPUT_BASEPATH=" in done.stderr
    assert done.words == []


def test_exit_code_is_the_launchers_and_the_log_holds_its_output(tmp_path: Path) -> None:
    done = run(SCRIPT_2_7B, tmp_path, launcher_body="echo to stdout; echo to stderr >&2; exit 41")
    assert done.code == 41
    (log,) = (tmp_path / "output" / "log").iterdir()
    assert log.read_text() == "to stdout\nto stderr\n"
    assert done.stdout.endswith("to stdout\nto stderr\n")
    assert str(log) in done.stderr


def test_progress_is_visible_while_the_run_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    with start(SCRIPT_2_7B, tmp_path, launcher_body="echo iteration 1; read <go; echo done") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert "iteration 1\n" in lines  # consumes up to it: the launcher has not ended
        (tmp_path / "go").write_text("\n")
        assert list(lines) == ["done\n"]
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_script_reaches_the_launcher_and_its_last_words_are_kept(
    tmp_path: Path, number: signal.Signals
) -> None:
    # The launcher waits in the shell's own `wait`, since a trap runs only between commands.
    body = "tail -f /dev/null & child=$!; trap 'echo saved; kill $child; exit 9' TERM; echo ready; wait $child"
    with start(SCRIPT_2_7B, tmp_path, launcher_body=body) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert "ready\n" in lines
        process.send_signal(number)
        assert list(lines) == ["saved\n"]
    assert process.returncode == 9
    (log,) = (tmp_path / "output" / "log").iterdir()
    assert log.read_text() == "ready\nsaved\n"


def test_two_runs_at_once_do_not_share_a_config_file(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    processes = []
    for folder, ratio in zip(folders, ("0.25", "0.75"), strict=True):
        folder.mkdir()
        os.mkfifo(folder / "go")
        body = 'cat go >/dev/null; cp "${@: -3:1}" seen.json'
        processes.append(
            start(
                SCRIPT_2_7B,
                folder,
                launcher_body=body,
                OFFLOAD_RATIO=ratio,
                OUTPUT_BASEPATH=str(tmp_path / "output"),
                ACTIVATION_CHECKPOINT="false",
            )
        )
    # Opening waits for the reader: when both are open, both runs have filled their file and neither has read it.
    with (folders[0] / "go").open("w"), (folders[1] / "go").open("w"):
        pass
    for process in processes:
        with process:
            process.communicate()
    ratios = [
        json.loads((folder / "seen.json").read_text())["zero_optimization"]["offload_optimizer"]["ratio"]
        for folder in folders
    ]
    assert ratios == [0.25, 0.75]
    assert len(list((tmp_path / "output" / "config").iterdir())) == 2


@pytest.mark.parametrize("script", [SCRIPT_2_7B, SCRIPT_TINY])
@pytest.mark.parametrize("code", [0, 3])
def test_dry_run_shows_and_checks_and_leaves_nothing(tmp_path: Path, script: Path, code: int) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    python = program(
        environment / "python", "if [[ $2 == megatron_zero.launcher.machine ]]; then echo 0; else exit 9; fi"
    )
    program(environment / "mz", f'echo "checked $*"; python3 -m json.tool "$3" >/dev/null && exit {code}')
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = run(
        script,
        tmp_path,
        LAUNCHER="",
        MZ_PYTHON=str(python),
        DRY_RUN="1",
        TMPDIR=str(scratch),
        EXTRA_ARGS="--exit-interval 3",
    )
    assert done.code == code, done.stderr
    json_text, rest = done.stdout.split("\n# command\n")
    shown, check = rest.split("\n# check\n")
    assert json.loads(json_text.partition("\n")[2])["zero_optimization"]["stage"] == 3
    words = shlex.split(shown.replace("\\\n", " "))
    assert words[:2] == [str(environment / "mz"), "launch"]
    flags = words[words.index(str(SCRIPTS.parents[1] / "pretrain_gpt.py")) + 1 :]
    config = flags[flags.index("--deepspeed_config") + 1]
    assert check.strip() == " ".join(["checked", "check-config", "--config", config, "--", *flags])
    assert flags[-2:] == ["--exit-interval", "3"]
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "output").exists()


def test_script_works_from_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my clone" / "examples" / "scripts"
    folder.mkdir(parents=True)
    for name in ("common.sh", "ds_pretrain_gpt_2.7B.sh", "ds_config_gpt_TEMPLATE.json"):
        (folder / name).write_bytes((SCRIPTS / name).read_bytes())
    done = run(folder / "ds_pretrain_gpt_2.7B.sh", tmp_path, OUTPUT_BASEPATH=str(tmp_path / "out put"))
    assert done.code == 0, done.stderr
    assert str(tmp_path / "my clone" / "pretrain_gpt.py") in done.words
    assert done.config()["train_batch_size"] == 512


def test_tiny_is_the_same_script_shrunk(tmp_path: Path) -> None:
    done = run(SCRIPT_TINY, tmp_path, NUM_GPUS="2", TRAIN_STEPS="10", SCHEDULE_STEPS="20")
    assert done.code == 0, done.stderr
    assert done.words[:2] == ["--num_gpus", "2"]
    assert done.flag("--num-layers") == ["4"]
    global_batch, seq_length = int(done.flag("--global-batch-size")[0]), int(done.flag("--seq-length")[0])
    assert int(done.flag("--train-tokens")[0]) == 10 * global_batch * seq_length
    assert int(done.flag("--train-samples")[0]) == 20 * global_batch
    assert int(done.flag("--lr-decay-tokens")[0]) == 20 * global_batch * seq_length
    assert "--bf16" in done.words
    assert "--fp16" not in done.words
    assert "--rampup-batch-size" not in done.words
    config = done.config()
    assert config["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.5},
    }


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 5, 6, 7, 8, 16, 64])
def test_tiny_global_batch_divides_among_any_number_of_processes(tmp_path: Path, gpus: int) -> None:
    done = run(SCRIPT_TINY, tmp_path, NUM_GPUS=str(gpus))
    global_batch, micro_batch = int(done.flag("--global-batch-size")[0]), int(done.flag("--micro-batch-size")[0])
    assert global_batch >= 16
    assert global_batch % (micro_batch * gpus) == 0


@pytest.mark.parametrize(("visible", "processes"), [(0, "2"), (1, "1"), (4, "4")])
def test_tiny_starts_one_process_per_gpu_and_two_without(tmp_path: Path, visible: int, processes: str) -> None:
    python = program(tmp_path / "python", f"[[ \"$*\" == '-m megatron_zero.launcher.machine' ]] && echo {visible}")
    assert run(SCRIPT_TINY, tmp_path, MZ_PYTHON=str(python)).flag("--num_gpus")[0] == processes


def test_every_variable_that_the_readme_names_is_read_by_a_script() -> None:
    readme = (SCRIPTS.parents[1] / "README.md").read_text()
    rows = [line.split("|")[1] for line in readme.splitlines() if re.match(r"\| `[A-Z]", line)]
    names = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    scripts = "".join(script.read_text() for script in SCRIPTS.glob("*.sh"))
    assert len(names) > 20
    assert {name for name in names if f"${{{name}" not in scripts} == set()


def test_every_script_parses() -> None:
    for script in sorted(SCRIPTS.rglob("*.sh")):
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
