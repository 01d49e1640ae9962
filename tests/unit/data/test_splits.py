"""--split, the per-split paths, and the documents that each split reads."""

import json

import pytest

from megatron_zero.config.data import DataConfig
from megatron_zero.config.data_paths import Blend
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.splits import SplitData, parse_split, split_data, split_ranges


@pytest.mark.parametrize(
    "text,weights",
    [
        ("969, 30, 1", (969.0, 30.0, 1.0)),
        ("969,30,1", (969.0, 30.0, 1.0)),
        ("98/2/0", (98.0, 2.0, 0.0)),
        (" 0.9 0.1 ", (0.9, 0.1, 0.0)),
        ("1", (1.0, 0.0, 0.0)),
    ],
)
def test_split_text_is_read(text, weights):
    assert parse_split(text) == weights


@pytest.mark.parametrize("text", ["", "a,b,c", "1,2,3,4", "-1,1,1", "0,0,0", "inf,1,1", "nan,1,1"])
def test_bad_split_is_named(text):
    with pytest.raises(ConfigError, match="--split " + repr(text)):
        parse_split(text)


def test_ranges_equal_those_of_megatron_core(shared_dir):
    cases = json.loads((shared_dir / "data/goldens/dataset/split_ranges.json").read_text())
    for case in cases:
        ours = split_ranges(parse_split(case["split"]), case["n"])
        for (first, last), theirs in zip(ours, case["core"], strict=True):
            assert first == last if theirs is None else [first, last] == theirs, case


@pytest.mark.parametrize("num_documents", range(30))
def test_ranges_cover_every_document_once(num_documents):
    ranges = split_ranges((7.0, 2.0, 1.0), num_documents)
    assert [i for first, last in ranges for i in range(first, last)] == list(range(num_documents))


# ---- where each split comes from


def test_one_path_is_cut_by_split():
    blend = Blend(("a", "b"), (0.5, 2.0))
    assert split_data(DataConfig(data_path=("0.5", "a", "2", "b"))) == tuple(
        SplitData(name, "--data-path", blend, part) for part, name in enumerate(("train", "valid", "test"))
    )


def test_paths_of_splits_are_read_whole():
    found = split_data(DataConfig(train_data_path=("a", "b"), test_data_path=("c",)))
    assert found == (
        SplitData("train", "--train-data-path", Blend(("a", "b"), None), None),
        SplitData("valid", "--valid-data-path", None, None),
        SplitData("test", "--test-data-path", Blend(("c",), None), None),
    )


def test_words_may_lie_in_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("0.25 a\n0.75 b\n")
    (train, _, _) = split_data(DataConfig(data_args_path=str(path)))
    assert train.blend == Blend(("a", "b"), (0.25, 0.75))


@pytest.mark.parametrize("content,message", [(None, "cannot be read"), (b" \n", "is empty"), (b"\xff", "cannot be read")])
def test_bad_file_of_words_is_named(tmp_path, content, message):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"--data-args-path .*words.txt {message}"):
        split_data(DataConfig(data_args_path=str(path)))


def test_mock_data_has_all_three():
    assert [(data.name, data.mock, data.share) for data in split_data(DataConfig(mock_data=True))] == [
        ("train", True, 0),
        ("valid", True, 1),
        ("test", True, 2),
    ]


@pytest.mark.parametrize(
    "split,documents,bounds",
    [
        ((0.7, 0.2, 0.1), 5, ((0, 4), (4, 5), (5, 5))),
        ((0.1, 5.0, 0.3), 45, ((0, 1), (1, 43), (43, 45))),
        ((1e308, 1e308, 0.0), 10, ((0, 5), (5, 10), (10, 10))),
    ],
)
def test_split_is_cut_alike_by_every_python(split, documents, bounds):
    """Since 3.12 Python's sum() of floats is compensated: 0.7 + 0.2 + 0.1 is 1.0 there, and 0.9999999999999999 before."""
    assert split_ranges(split, documents) == bounds
