"""Launcher command lines: what parses, what is refused and in which words."""

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.launcher.flags import FLAGS, help_text
from megatron_zero.launcher.options import LaunchOptions, read_options, split_command_line


def parse(*argv: str) -> LaunchOptions:
    return read_options(split_command_line(argv))


def test_arguments_after_the_script_stay_as_typed() -> None:
    tail = ("--num_gpus", "9", "--", "-x", "--lr=1e-4", "", "two words", "--deepspeed_config", "a/b.json")
    options = parse("--num_gpus", "2", "train.py", *tail)
    assert options.script == "train.py"
    assert options.script_args == tail
    assert options.num_processes == 2


@pytest.mark.parametrize(
    "words", [["--num_gpus", "3"], ["--num-gpus=3"], ["--num_accelerators=3"], ["--num_gpus=1", "--num_gpus=3"]]
)
def test_spellings_of_one_flag_mean_the_same(words: list[str]) -> None:
    assert parse(*words, "train.py").num_processes == 3


def test_minus_one_means_every_visible_gpu() -> None:
    assert parse("--num_gpus", "-1", "train.py").num_processes is None
    assert parse("train.py").num_processes is None


def test_double_dash_ends_the_launcher_flags() -> None:
    options = parse("--quiet", "--", "-odd-name.py", "--", "x")
    assert (options.script, options.script_args) == ("-odd-name.py", ("--", "x"))


def test_values_that_mean_one_machine_are_accepted() -> None:
    options = parse("--num_nodes", "1", "--node_rank=0", "--launcher", "local", "--no_local_rank", "train.py")
    assert options.script == "train.py"


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["--num_gpu", "2", "t.py"], r"unknown launcher flag --num_gpu; did you mean --num_gpus\?"),
        (["--zzz", "t.py"], r"unknown launcher flag --zzz; `mz launch --help`"),
        (["--num_gpus"], r"--num_gpus needs a value \(N\)"),
        (["--num_gpus", "two", "t.py"], r"--num_gpus 'two' is not a whole number"),
        (["--num_gpus", "0", "t.py"], r"--num_gpus 0 starts nothing"),
        (["--num_gpus", "-2", "t.py"], r"--num_gpus -2 is out of range"),
        (["--master_port", "70000", "t.py"], r"--master_port 70000 is out of range: 1 to 65535"),
        (["--quiet=1", "t.py"], r"--quiet is a switch"),
        ([], r"no script"),
        (["--num_gpus", "2"], r"no script"),
        (["--num_nodes", "2", "t.py"], r"--num_nodes 2 is not built yet"),
        (["--hostfile", "hosts", "t.py"], r"--hostfile hosts is not built yet"),
        (["-H", "hosts", "t.py"], r"--hostfile hosts is not built yet"),
        (["--launcher", "pdsh", "t.py"], r"--launcher pdsh is not built yet"),
        (["--force_multi", "t.py"], r"--force_multi is not built yet"),
        (["--autotuning", "run", "t.py"], r"--autotuning run is not supported: set the batch sizes by hand"),
        (["--nproc_per_node=2", "t.py"], r"torchrun's name, here it is --num_gpus"),
        (["--include", "0,1", "t.py"], r"write localhost:SLOT"),
        (["--include", "worker-1:0", "t.py"], r"other hosts are not built yet"),
        (["--include", "localhost:0@b:1", "t.py"], r"other hosts are not built yet"),
        (["--include", "localhost:", "t.py"], r"names no slot"),
        (["--include", "localhost", "t.py"], r"names no slot"),
        (["--exclude", "localhost:1,1", "t.py"], r"names a slot twice"),
        (["--include", "localhost:0", "--exclude", "localhost:1", "t.py"], r"--include and --exclude both choose"),
        (["--num_gpus", "1", "--include", "localhost:0", "t.py"], r"--num_gpus and --include both choose"),
        (["--module", "--no_python", "t.py"], r"exclude each other"),
    ],
)
def test_wrong_command_line_is_told(words: list[str], pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        parse(*words)


def test_all_refused_flags_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as fault:
        parse("--hostfile", "h", "--ssh_port", "22", "--elastic_training", "t.py")
    assert [line.split()[0] for line in str(fault.value).splitlines()] == [
        "--hostfile",
        "--ssh_port",
        "--elastic_training",
    ]


def test_every_flag_is_on_the_help_page() -> None:
    page = help_text()
    assert all(flag.name in page for flag in FLAGS)


def test_no_two_flags_share_a_spelling() -> None:
    spellings = [name.replace("_", "-") for flag in FLAGS for name in flag.names]
    assert len(spellings) == len(set(spellings))
