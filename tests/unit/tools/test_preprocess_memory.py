"""Memory of preprocess_data does not grow with the number of documents (H26)."""

import subprocess
import sys
from pathlib import Path

from megatron_zero.data.indexed_dataset import IndexedDataset

TOOL = Path(__file__).parents[3] / "tools" / "preprocess_data.py"
DOCUMENTS = 2_000_000
WORKERS = 2
# ru_maxrss counts KiB of the largest process that was waited for, workers of the tool among them.
MEASURE = """
import resource, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def test_two_million_documents_of_one_word(tmp_path):
    source = tmp_path / "words.jsonl"
    source.write_bytes(b'{"text": "7"}\n' * DOCUMENTS)
    done = subprocess.run(
        [
            *(sys.executable, "-c", MEASURE, str(TOOL), "--input", str(source), "--output-prefix", str(tmp_path / "out")),
            *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", "--append-eod", "--workers", str(WORKERS)),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert int(done.stdout) * (WORKERS + 1) < 1_500_000_000
    dataset = IndexedDataset(tmp_path / "out_text_document")
    assert dataset.num_documents == len(dataset) == DOCUMENTS
    assert (dataset.sizes == 2).all()
    assert dataset.get(DOCUMENTS - 1).tolist() == [7, 100]
