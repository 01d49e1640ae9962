"""Train every cell of the layout grid and compare it with one process; resumable.

    python tests/run_layout_grid.py --results grid.jsonl                    # all 2080 cells, one at a time
    python tests/run_layout_grid.py --results grid.jsonl --jobs 4 --match zero3

A line is appended per cell. Run again with the same file, what passed at the same commit is not repeated. Exits 1 if a cell
differs or fails. Workers stay alive between cells; a job keeps up to 15 processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.layout_grid import VALUES, Cell, Outcome, all_cells, check_outcomes, run_cell  # noqa: E402
from helpers.spawn import PoolSet  # noqa: E402
from helpers.tiny_run import write_corpus  # noqa: E402
from tqdm import tqdm  # noqa: E402

CELL_TIMEOUT_S = 300.0


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    passed = already_passed(options.results, commit)
    cells = [cell for cell in all_cells() if options.match in str(cell)]
    todo = [cell for cell in cells if str(cell) not in passed]
    print(f"{len(cells)} cells, {len(cells) - len(todo)} passed before at {commit or 'no commit'}")
    failures = 0
    with tempfile.TemporaryDirectory() as folder, open(options.results, "a", encoding="utf-8") as results:
        corpus = write_corpus(Path(folder))
        idle: SimpleQueue[PoolSet] = SimpleQueue()
        sets = [PoolSet() for _ in range(options.jobs)]
        for each in sets:
            idle.put(each)
        references = {family: reference(family, corpus, Path(folder), sets[0]) for family in VALUES["family"]}

        def work(cell: Cell) -> dict[str, Any]:
            pools = idle.get()
            started = time.perf_counter()
            try:
                argv = cell.arguments(corpus, Path(folder) / f"{cell}.json")
                outcomes = pools(cell.world_size).run(run_cell, argv, parallel=cell.parallel(), timeout_s=CELL_TIMEOUT_S)
                check_outcomes(outcomes, references[cell.family])
                error = None
            except Exception as raised:  # of any kind: the line says it, and the other cells go on
                error = f"{type(raised).__name__}: {raised}"
            finally:
                idle.put(pools)
            seconds = round(time.perf_counter() - started, 3)
            return {"cell": str(cell), "commit": commit, "passed": error is None, "error": error, "seconds": seconds}

        with ThreadPoolExecutor(options.jobs) as threads, tqdm(total=len(todo), unit="cell", mininterval=1.0) as bar:
            for future in as_completed([threads.submit(work, cell) for cell in todo]):
                line = future.result()
                results.write(json.dumps(line) + "\n")
                results.flush()
                bar.update()
                if not line["passed"]:
                    failures += 1
                    bar.write(f"{line['cell']}: {line['error'].splitlines()[0]}")
        for each in sets:
            each.close()
    print(f"{len(cells) - failures} of {len(cells)} cells agree with one process")
    return 1 if failures else 0


def reference(family: str, corpus: Path, folder: Path, pools: PoolSet) -> Outcome:
    cell = Cell(1, 1, 0, None, False, "none", 1, family)
    argv = cell.arguments(corpus, folder / f"reference-{family}.json")
    outcome: Outcome = pools(1).run(run_cell, argv, timeout_s=CELL_TIMEOUT_S)[0]
    return outcome


def already_passed(results: Path, commit: str) -> set[str]:
    if not results.exists() or not commit or commit.endswith("-dirty"):
        return set()
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line["cell"] for line in lines if line["passed"] and line["commit"] == commit}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="JSON lines; appended to")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--match", default="", help="only cells whose name holds this, e.g. tp2-dp2")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
