"""Options and machine -> the command of torchrun."""

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.launcher.options import read_options, split_command_line
from megatron_zero.launcher.plan import LaunchPlan, plan_launch


def plan(
    *argv: str, visible: tuple[str, ...] = (), cores: int = 8, environ: dict[str, str] | None = None
) -> LaunchPlan:
    options = read_options(split_command_line(argv))
    return plan_launch(options, visible=visible, cores=cores, port=4321, environ=environ or {}, python="/py")


def processes(made: LaunchPlan) -> int:
    return int(made.command[made.command.index("--nproc_per_node") + 1])


def test_command_is_torchrun_on_one_node() -> None:
    made = plan("--num_gpus", "2", "t.py", "--lr", "1")
    assert made.command == (
        *("/py", "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "2"),
        *("--master_addr", "127.0.0.1", "--master_port", "4321", "t.py", "--lr", "1"),
    )


@pytest.mark.parametrize(
    ("words", "visible", "count"),
    [
        ([], (), 1),
        (["--num_gpus", "4"], (), 4),
        ([], ("0", "1", "2"), 3),
        (["--num_gpus", "2"], ("0", "1", "2"), 2),
        ([], ("2", "3"), 2),
        (["--include", "localhost:3"], ("2", "3"), 1),
        (["--exclude", "localhost:3"], ("0", "2", "3"), 2),
    ],
)
def test_one_process_per_chosen_gpu(words: list[str], visible: tuple[str, ...], count: int) -> None:
    assert processes(plan(*words, "t.py", visible=visible)) == count


def test_included_gpus_become_cuda_visible_devices_in_visible_order() -> None:
    made = plan("--include", "localhost:0,5", "t.py", visible=("5", "1", "0"))
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "5,0"


def test_unselected_gpus_leave_cuda_visible_devices_alone() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in plan("t.py", visible=("0", "1")).environment


@pytest.mark.parametrize(
    ("words", "visible", "pattern"),
    [
        (["--num_gpus", "3"], ("0", "1"), r"--num_gpus 3, but 2 GPUs are visible \(0, 1\)"),
        (["--num_gpus", "3"], ("0",), r"--num_gpus 3, but 1 GPU is visible \(0\)"),
        (["--include", "localhost:1"], ("0",), r"--include localhost:1: there is no such slot; slots: 0"),
        (["--include", "localhost:1"], ("2", "3"), r"slots: 2, 3"),
        (["--exclude", "localhost:0"], ("0",), r"leaves no GPU of 0"),
        (["--include", "localhost:0"], (), r"no GPU is visible"),
    ],
)
def test_gpus_that_are_not_there_are_told(words: list[str], visible: tuple[str, ...], pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        plan(*words, "t.py", visible=visible)


@pytest.mark.parametrize(("cores", "count", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 8, "1"), (1, 1, "1")])
def test_cores_are_shared_out_as_threads(cores: int, count: int, threads: str) -> None:
    made = plan("--num_gpus", str(count), "t.py", cores=cores)
    assert made.environment == {"OMP_NUM_THREADS": threads}
    assert any(f"OMP_NUM_THREADS={threads}" in note for note in made.notes)


def test_omp_num_threads_of_the_user_stays() -> None:
    assert plan("t.py", environ={"OMP_NUM_THREADS": "7"}).environment == {}


def test_module_and_program_are_passed_to_torchrun() -> None:
    assert plan("--module", "pkg.train", "-x").command[-3:] == ("--module", "pkg.train", "-x")
    assert plan("--no_python", "./train").command[-2:] == ("--no_python", "./train")


def test_shell_line_quotes_what_a_shell_would_split() -> None:
    line = plan("t.py", "two words", "a&b", environ={"OMP_NUM_THREADS": "1"}).shell_line()
    assert line.endswith("t.py 'two words' 'a&b'")


def test_without_a_port_torchrun_takes_a_free_one_itself():
    """Two launches at once cannot choose the same port: nobody looks for one beforehand."""
    options = read_options(split_command_line(["t.py"]))
    plan = plan_launch(options, visible=(), cores=4, port=None, environ={}, python="/py")
    words = list(plan.command)
    assert words[words.index("--rdzv_endpoint") + 1] == "127.0.0.1:0"
    assert words[words.index("--local_addr") + 1] == "127.0.0.1"
    assert "--master_port" not in words
