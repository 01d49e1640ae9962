"""The commands of README.md and docs/preprocessing.md work as they stand, from a folder that holds their inputs only."""

import gzip
import re
import shlex

import pytest
from helpers.bpe_files import write_bpe_files
from helpers.tools import TOOLS, load_tool

from megatron_zero.data.indexed_dataset import IndexedDataset

preprocess_data = load_tool("preprocess_data")


def first_command(document, tool):
    """The words of the first call of a tool in a text, its continued lines joined."""
    text = (TOOLS.parent / document).read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(rf"^python tools/{tool}\.py (.*)$", text, re.MULTILINE)
    assert found is not None, f"{document} shows no call of {tool}"
    return shlex.split(found[1])


@pytest.mark.parametrize("document", ["README.md", "docs/preprocessing.md"])
def test_first_command_makes_the_pair_where_there_is_no_folder_for_it(tmp_path, monkeypatch, capsys, document):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    vocab_file.rename(tmp_path / "gpt2-vocab.json")
    merge_file.rename(tmp_path / "gpt2-merges.txt")
    (tmp_path / "my.jsonl").write_text('{"text": "the abc"}\n')
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "the abc"}\n'))
    monkeypatch.chdir(tmp_path)
    words = first_command(document, "preprocess_data")
    words[words.index("--workers") + 1] = "1"  # only the number of processes
    assert preprocess_data.main(words) == 0
    assert "wrote data/my_text_document.bin and .idx" in capsys.readouterr().out
    assert IndexedDataset("data/my_text_document").num_documents == 1
