"""The data sets of a run: splits, blends (H32), mock data, cached indices, and the errors before the first step."""

import json

import numpy as np
import pytest

from megatron_zero.config.data import DataConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data import blend
from megatron_zero.data import datasets as data_sets
from megatron_zero.data.blend import BlendedDataset, normalize, sample_targets, with_surplus
from megatron_zero.data.datasets import CACHE_FOLDER, SplitRequest, build_datasets
from megatron_zero.data.gpt_dataset import Documents, GPTDataset
from megatron_zero.data.index_cache import IndexCache
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter

SEED = 1234
SEQ = 8


def write(prefix, documents, vocab_size=50_000):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with IndexedDatasetWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document([document])
    return str(prefix)


def constant(value, *, documents, length=10):
    """Documents that hold one value throughout, so that a token names its source."""
    return [[value] * length] * documents


def build(num_samples=(10, 0, 0), *, optional=(False, False, False), vocab_size=50_000, tell=lambda line: None, **config):
    requests = tuple(SplitRequest(*request) for request in zip(num_samples, optional, strict=True))
    return build_datasets(
        DataConfig(**config), requests, seq_length=SEQ, seed=SEED, vocab_size=vocab_size, eod=vocab_size - 1, tell=tell
    )


def rows(dataset):
    return np.stack([dataset[i] for i in range(len(dataset))])


# ---- splits


def test_splits_read_their_own_documents(tmp_path):
    prefix = write(tmp_path / "a", [[i] * 10 for i in range(20)])
    datasets = build((40, 5, 5), data_path=(prefix,), split="8,1,1")
    for dataset, owned in zip(datasets.all(), (range(16), range(16, 18), range(18, 20)), strict=True):
        assert set(rows(dataset).ravel().tolist()) <= set(owned)


def test_split_of_which_nothing_is_asked_is_none(tmp_path):
    datasets = build((5, 0, 0), data_path=(write(tmp_path / "a", constant(1, documents=10)),), split="98,2,0")
    assert len(datasets.train) >= 5
    assert datasets.valid is None
    assert datasets.test is None


def test_empty_split_that_is_asked_for_is_named_with_numbers(tmp_path):
    prefix = write(tmp_path / "a", [*constant(1, documents=10), [], []])
    with pytest.raises(ConfigError, match=r"'98,2,0' leaves valid none of the 10 documents .* but 7 valid samples .*eval"):
        build((5, 7, 0), data_path=(prefix,), split="98,2,0")


def test_optional_split_without_documents_is_skipped_and_told(tmp_path):
    """H51: split 99,1,0 on 10 documents."""
    prefix = write(tmp_path / "a", constant(1, documents=10))
    datasets = build((5, 0, 4), optional=(False, False, True), data_path=(prefix,), split="99,1,0")
    assert datasets.test is None
    (note,) = datasets.notes
    assert "'99,1,0' leaves test none of the 10 documents" in note
    assert "goes without its test evaluation" in note


def test_each_split_may_have_its_own_data(tmp_path):
    train, valid = (write(tmp_path / name, constant(i + 1, documents=5)) for i, name in enumerate("ab"))
    datasets = build(
        (20, 3, 4), optional=(False, False, True), train_data_path=(train,), valid_data_path=("2", valid, "1", train)
    )
    assert set(rows(datasets.train).ravel().tolist()) == {1}
    assert {row[0] for row in rows(datasets.valid).tolist()} == {1, 2}
    assert datasets.test is None
    assert "--test-data-path is not given" in datasets.notes[0]


def test_split_without_data_that_is_asked_for_is_named(tmp_path):
    train = write(tmp_path / "a", constant(1, documents=5))
    with pytest.raises(ConfigError, match=r"--valid-data-path is not given, .* 3 valid samples"):
        build((20, 3, 0), train_data_path=(train,))


def test_data_set_without_tokens_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"leaves train none of the 0 documents"):
        build((5, 0, 0), data_path=(write(tmp_path / "a", [[], []]),), split="1")


@pytest.mark.parametrize("name,hint", [("nowhere", ""), ("nowhere.idx", r"did you type PREFIX\.bin or \.idx")])
def test_missing_file_is_named_with_the_flag(tmp_path, name, hint):
    prefix = write(tmp_path / "a", constant(1, documents=5))
    with pytest.raises(ConfigError, match=rf"--data-path .*{name}: there is no file .*{name}\.idx.*{hint}"):
        build(data_path=("1", prefix, "1", str(tmp_path / name)))


def test_bin_without_its_idx_is_told(tmp_path):
    """A first run of preprocess_data that was killed between its two renames."""
    prefix = write(tmp_path / "a", constant(1, documents=5))
    (tmp_path / "a.idx").unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*a\.idx.*a\.bin alone is no pair .*make the pair again"):
        build(data_path=(prefix,))


def test_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "d.idx").mkdir()
    with pytest.raises(ConfigError, match=r"--data-path .*d: .*d\.idx cannot be read: Is a directory"):
        build(data_path=(str(tmp_path / "d"),))


# ---- blends


def test_requests_equal_those_of_megatron_core(shared_dir):
    for case in json.loads((shared_dir / "data/goldens/dataset/blend_sample_requests.json").read_text()):
        shares = normalize(case["weights"])
        for split, size in enumerate(case["sizes"]):
            targets = sample_targets(shares, size)
            assert list(targets) == [of_set[split] for of_set in case["core_target"]], case
            assert [with_surplus(target) for target in targets] == [
                of_set[split] for of_set in case["core_with_surplus_0_005"]
            ], case


def test_equal_weights_give_equal_samples(tmp_path):
    """H32: A has 10 documents, B 20; a weight is a share of the samples."""
    a, b = (write(tmp_path / name, constant(i, documents=10 * (i + 1))) for i, name in enumerate("ab"))
    datasets = build((300, 0, 0), data_path=("1", a, "1", b), split="1")
    first = rows(datasets.train)[:, 0]
    assert ((first == 0).sum(), (first == 1).sum()) == (150, 150)
    assert datasets.train.samples_of_parts == (150, 150)
    lines = list(datasets.describe())
    assert lines[0] == f"train: 150 samples from {a} (weight 0.5): 10 documents, 100 tokens, 12 epochs"
    assert lines[1] == f"train: 150 samples from {b} (weight 0.5): 20 documents, 200 tokens, 6 epochs"


def test_samples_of_each_set_are_counted_when_a_blend_is_made_and_never_again(tmp_path, monkeypatch):
    """Of 10^9 entries a count reads 2 GB, which every rank would do."""
    a, b = (write(tmp_path / name, constant(i, documents=10)) for i, name in enumerate("ab"))
    words = {"data_path": ("1", a, "2", b), "split": "1"}
    monkeypatch.setattr(blend, "COUNT_ENTRIES", 7)
    made = build((100, 0, 0), **words)
    expected = tuple(sum(int(entry) == part for entry in made.train.dataset_index) for part in range(2))
    assert made.train.samples_of_parts == expected

    def count(*arguments):
        raise AssertionError("a rank that finds the index counts it again")

    monkeypatch.setattr(blend, "samples_of_sets", count)
    found = build((100, 0, 0), **words)
    assert found.train.samples_of_parts == expected
    assert list(found.describe()) == list(made.describe())


def test_lengths_of_a_split_are_added_up_once(tmp_path, monkeypatch):
    a, b = (write(tmp_path / name, constant(i, documents=30)) for i, name in enumerate("ab"))
    made = []

    class Counted(Documents):
        def __init__(self, source, sequences, **rest):
            super().__init__(source, sequences, **rest)
            made.append((source.prefix, sequences))

    monkeypatch.setattr(data_sets, "Documents", Counted)
    build((20, 5, 5), data_path=("1", a, "2", b), split="8,1,1")
    assert made == [(prefix, sequences) for sequences in (range(24), range(24, 27), range(27, 30)) for prefix in (a, b)]


def test_weight_too_small_for_one_sample_is_no_error(tmp_path):
    """H32: 1e-9 gives 0 or 1 sample."""
    a, b = (write(tmp_path / name, constant(i, documents=10)) for i, name in enumerate("ab"))
    train = build((300, 0, 0), data_path=("1e-9", a, "1", b), split="1").train
    assert train.samples_of_parts[0] in (0, 1)
    assert len(rows(train)) >= 300


def test_parts_keep_their_own_order(tmp_path):
    a, b = (write(tmp_path / name, [[100 * i + j] * 10 for j in range(20)]) for i, name in enumerate("ab"))
    blended = build((90, 0, 0), data_path=("2", a, "1", b), split="1").train
    for part in range(2):
        mine = [blended[i].tolist() for i in range(len(blended)) if blended.dataset_index[i] == part]
        assert mine == [blended.parts[part][i].tolist() for i in range(len(mine))]


def test_prefixes_without_weights_give_one_epoch_each(tmp_path):
    a, b = (write(tmp_path / name, constant(i, documents=10 * (i + 1))) for i, name in enumerate("ab"))
    train = build((36, 0, 0), data_path=(a, b), split="1").train  # 12 + 24 samples in one epoch
    assert train.samples_of_parts == (12, 24)
    assert [len(part) for part in train.parts] == [12, 24]
    assert len(train) == 36


def test_prefixes_without_weights_go_on_in_the_same_proportion(tmp_path):
    a, b = (write(tmp_path / name, constant(i, documents=10 * (i + 1))) for i, name in enumerate("ab"))
    train = build((360, 0, 0), data_path=(a, b), split="1").train
    assert train.samples_of_parts == (120, 240)


def test_sets_too_small_for_any_sample_have_no_proportion(tmp_path):
    a, b = (write(tmp_path / name, [[1, 2, 3]]) for name in "ab")
    with pytest.raises(ConfigError, match=r"none of the 2 data sets holds --seq-length . 1 tokens.*give weights"):
        build((3, 0, 0), data_path=(a, b), split="1")
    assert len(rows(build((3, 0, 0), data_path=("1", a, "1", b), split="1").train)) >= 3


def test_many_sets_and_few_samples_never_run_dry(tmp_path):
    """Rounding up asks for more than the surplus covers: the big set is laid out as far as it is read."""
    big = write(tmp_path / "big", constant(0, documents=3))
    words = ["1000", big]
    for i in range(60):
        words += ["0.001", write(tmp_path / f"small{i}", constant(i + 1, documents=3))]
    train = build((20, 0, 0), data_path=tuple(words), split="1").train
    assert len(rows(train)) == len(train) >= 20


def test_one_weighted_prefix_is_a_blend_of_one(tmp_path):
    a = write(tmp_path / "a", [[j] * 10 for j in range(20)])
    weighted, plain = (build((10, 0, 0), data_path=words, split="1").train for words in (("0.7", a), (a,)))
    assert isinstance(weighted, BlendedDataset)
    assert isinstance(plain, GPTDataset)
    np.testing.assert_array_equal(rows(weighted)[:10], rows(plain)[:10])


def test_fingerprint_follows_data_and_weights(tmp_path):
    a, b = (write(tmp_path / name, constant(1, documents=10 + i)) for i, name in enumerate("ab"))
    words = [("1", a, "1", b), ("2", a, "2", b), ("1", a, "2", b), ("1", b, "1", a), ("1", a, "1", a)]
    prints = [build((30, 0, 0), data_path=each, split="1").train.fingerprint for each in words]
    assert prints[0] == prints[1]  # the same shares
    assert len(set(prints)) == 4


def test_foreign_token_in_a_part_is_named(tmp_path):
    a, b = write(tmp_path / "a", constant(1, documents=5)), write(tmp_path / "b", constant(99, documents=5))
    train = build((20, 0, 0), data_path=("1", a, "1", b), split="1", vocab_size=99).train
    with pytest.raises(ConfigError, match=r"b\.bin: token id 99 at byte .* 0 to 98"):
        rows(train)


# ---- made-up data


def test_mock_data_needs_no_files():
    datasets = build((20, 3, 3), mock_data=True, vocab_size=100)
    again = build((20, 3, 3), mock_data=True, vocab_size=100)
    for first, second in zip(datasets.all(), again.all(), strict=True):
        for index in range(20):
            np.testing.assert_array_equal(first[index], second[index])
            assert first[index].shape == (SEQ + 1,)
            assert 0 <= first[index].min() <= first[index].max() < 100


# ---- cached indices


def index_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_indices_are_kept_beside_the_data_and_found_again(tmp_path):
    prefix = write(tmp_path / "a", [[j] * 10 for j in range(20)])
    first = build((10, 2, 0), data_path=(prefix,), split="8,2,0")
    files = index_files(tmp_path / CACHE_FOLDER)
    assert len(files) == 8  # three arrays and a description, of train and of valid
    second = build((10, 2, 0), data_path=(prefix,), split="8,2,0")
    assert index_files(tmp_path / CACHE_FOLDER) == files
    np.testing.assert_array_equal(rows(first.train), rows(second.train))
    np.testing.assert_array_equal(rows(first.valid), rows(second.valid))


def test_named_folder_takes_the_indices_of_all_parts(tmp_path):
    a, b = (write(tmp_path / name / "data", constant(1, documents=10 + i)) for i, name in enumerate("ab"))
    build((10, 0, 0), data_path=("1", a, "1", b), data_cache_path=str(tmp_path / "cache"), split="1")
    assert len(list((tmp_path / "cache").glob("*.json"))) == 3  # two parts and the blend
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["data.bin", "data.idx"]


def test_data_folder_that_cannot_be_written_is_told_and_works(tmp_path):
    """A file stands where the folder would: unlike a read-only folder, it stops root too."""
    prefix = write(tmp_path / "data" / "a", constant(1, documents=10))
    (tmp_path / "data" / CACHE_FOLDER.parent).write_text("")
    lines = []
    datasets = build((10, 0, 0), data_path=(prefix,), split="1", tell=lines.append)
    assert len(rows(datasets.train)) >= 10
    assert "--data-cache-path" in lines[0]
    build((10, 0, 0), data_path=(prefix,), split="1", data_cache_path=str(tmp_path / "cache"))
    assert list((tmp_path / "cache").glob("*.json"))


def test_other_content_of_the_same_prefix_is_built_anew(tmp_path):
    for length in (10, 11):
        prefix = write(tmp_path / "a", [[j] * length for j in range(20)])
        cached = build((10, 0, 0), data_path=(prefix,), split="1")
        fresh = build((10, 0, 0), data_path=(prefix,), split="1", data_cache_path=str(tmp_path / f"cache{length}"))
        np.testing.assert_array_equal(rows(cached.train), rows(fresh.train))


@pytest.mark.parametrize("changes", [{"split": "7,3,0"}, {"num_samples": (90, 0, 0)}])
def test_what_changes_the_order_has_its_own_files(tmp_path, changes):
    prefix = write(tmp_path / "a", [[j] * 10 for j in range(20)])
    for arguments in (
        {"num_samples": (10, 0, 0), "split": "8,2,0"},
        {"num_samples": (10, 0, 0), "split": "8,2,0"} | changes,
    ):
        build(data_path=(prefix,), **arguments)
    assert len(list((tmp_path / CACHE_FOLDER).glob("*.json"))) == 2


def test_more_samples_of_the_same_epochs_share_files(tmp_path):
    prefix = write(tmp_path / "a", [[j] * 10 for j in range(20)])
    for num_samples in (5, 6):
        build((num_samples, 0, 0), data_path=(prefix,), split="1")
    assert len(list((tmp_path / CACHE_FOLDER).glob("*.json"))) == 1


def test_fingerprint_follows_what_the_split_leaves(tmp_path):
    """The same pair whole, or but for its last document: other samples, and a resume should say so."""
    a = write(tmp_path / "a", constant(1, documents=20))
    whole = build((10, 0, 0), data_path=None, train_data_path=(a,)).train
    cut, uncut = (build((10, 0, 0), data_path=(a,), split=split).train for split in ("95,5,0", "100,0,0"))
    assert whole.fingerprint == uncut.fingerprint != cut.fingerprint


def test_weights_whose_sum_overflows_are_shares_too():
    np.testing.assert_array_equal(normalize([1e308, 1e308]), [0.5, 0.5])


def test_order_that_fits_no_memory_is_named():
    def part(index, wanted):
        raise AssertionError("nothing is laid out")

    with pytest.raises(ConfigError, match=r"the order of 1000000000000\d* samples of a blend would take"):
        blend.blend(
            part, weights=[1, 1], one_epoch=[10, 10], num_samples=10**13, name="train", cache=IndexCache(None)
        )
