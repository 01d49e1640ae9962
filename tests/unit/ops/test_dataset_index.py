"""The C++ loops equal their references, numpy's generator and what Megatron-core itself made."""

import json

import numpy as np
import pytest

from megatron_zero.ops.dataset_index import (
    build_blend_index,
    build_blend_index_reference,
    build_sample_index,
    build_sample_index_reference,
    shuffle_,
    shuffle_reference_,
)

# ---- sample index


def walked_sample_index(sizes, document_index, num_rows, seq_length):
    """Where every seq_length-th token of the stream lies, found by walking over single tokens."""
    places = [(i, offset) for i, sequence in enumerate(document_index) for offset in range(sizes[sequence])]
    return [places[i * seq_length] for i in range(num_rows)]


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("seq_length", [1, 2, 7, 64])
def test_sample_index_equals_a_walk_over_the_tokens(seed, seq_length, ids):
    random = np.random.RandomState(seed)
    sizes = random.randint(0, 12, size=300).astype(np.int32)  # a foreign file may hold empty sequences
    documents = random.randint(0, 300, size=500).astype(ids)
    rows = int(random.randint(1, int(sizes[documents].sum()) // seq_length))
    index = build_sample_index(sizes, documents, seq_length=seq_length, num_rows=rows)
    assert [tuple(row) for row in index.tolist()] == walked_sample_index(
        sizes.tolist(), documents.tolist(), rows, seq_length
    )
    reference = build_sample_index_reference(sizes, documents, seq_length=seq_length, num_rows=rows)
    assert index.dtype == reference.dtype == np.int32
    np.testing.assert_array_equal(index, reference)
    for threads in (2, 3, 8, 1000):
        index = build_sample_index(sizes, documents, seq_length=seq_length, num_rows=rows, num_threads=threads)
        np.testing.assert_array_equal(index, reference)


@pytest.mark.parametrize("mean,seq_length", [(3, 2048), (1000, 2048), (50_000, 128), (5, 1)])
def test_sample_index_equals_the_reference_on_many_documents(mean, seq_length):
    random = np.random.RandomState(mean)
    sizes = np.maximum(1, random.exponential(mean, 20_000)).astype(np.int32)
    documents = random.permutation(20_000).astype(np.int32)
    rows = (int(sizes.sum(dtype=np.int64)) - 1) // seq_length + 1
    reference = build_sample_index_reference(sizes, documents, seq_length=seq_length, num_rows=rows)
    for threads in (None, 2, 7):
        index = build_sample_index(sizes, documents, seq_length=seq_length, num_rows=rows, num_threads=threads)
        np.testing.assert_array_equal(index, reference)


def test_sizes_may_lie_at_any_address():
    """.idx has no alignment."""
    sizes = np.arange(1, 101, dtype=np.int32)
    block = np.zeros(4 * len(sizes) + 1, dtype=np.uint8)
    block[1:] = sizes.view(np.uint8)
    unaligned = np.frombuffer(block.data, dtype=np.int32, offset=1)
    assert not unaligned.flags.aligned
    documents = np.arange(99, -1, -1, dtype=np.int32)
    np.testing.assert_array_equal(
        build_sample_index(unaligned, documents, seq_length=13, num_rows=300),
        build_sample_index_reference(sizes, documents, seq_length=13, num_rows=300),
    )


def test_token_positions_beyond_2_to_the_31():
    """H27: 64-bit positions in the stream; each offset lies in one sequence and fits int32."""
    sizes = np.full(5, 2**31 - 1, dtype=np.int32)
    documents = np.array([4, 3, 2, 1, 0], dtype=np.int32)
    rows = 5 * (2**31 - 1) // 2**20
    index = build_sample_index(sizes, documents, seq_length=2**20, num_rows=rows)
    assert index.dtype == np.int32
    assert index[-1].tolist() == list(divmod((rows - 1) * 2**20, 2**31 - 1))
    np.testing.assert_array_equal(index, build_sample_index_reference(sizes, documents, seq_length=2**20, num_rows=rows))
    parts = build_sample_index(sizes, documents, seq_length=2**20, num_rows=rows, num_threads=3)
    np.testing.assert_array_equal(parts, index)


def test_sample_longer_than_every_int32():
    sizes = np.full(6, 2**31 - 1, dtype=np.int32)
    documents = np.arange(6, dtype=np.int64)
    index = build_sample_index(sizes, documents, seq_length=2**32 + 5, num_rows=3)
    assert index.tolist() == [[0, 0], [2, 7], [4, 14]]


@pytest.mark.parametrize("builder", [build_sample_index, build_sample_index_reference])
@pytest.mark.parametrize("sizes,documents,rows", [([5, 5], [0, 1], 3), ([5], [], 1), ([0, 0], [0, 1], 1)])
def test_stream_that_ends_too_early_is_refused(builder, sizes, documents, rows):
    with pytest.raises(ValueError, match=rf"do not hold the first tokens|of {len(sizes) and rows}$|not of {rows}"):
        builder(np.array(sizes, np.int32), np.array(documents, np.int32), seq_length=5, num_rows=rows)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("bad", [-1, 2, 2**31 - 1])
def test_the_first_id_that_names_no_sequence_is_refused(bad, threads):
    ids = np.array([0, bad, 0, -7, 1], np.int32)
    with pytest.raises(ValueError, match=f"entry 1 is {bad}; there are 2 sequences"):
        build_sample_index(np.array([5, 5], np.int32), ids, seq_length=5, num_rows=5, num_threads=threads)


def test_no_threads_are_refused():
    with pytest.raises(ValueError, match="0 threads; it takes at least 1"):
        build_sample_index(np.array([5], np.int32), np.array([0], np.int32), seq_length=5, num_rows=1, num_threads=0)


def test_other_element_types_and_layouts_are_refused():
    ids = np.arange(4, dtype=np.int32)
    with pytest.raises(TypeError, match="sizes is int64; allowed: int32"):
        build_sample_index(ids.astype(np.int64), ids, seq_length=5, num_rows=1)
    with pytest.raises(ValueError, match="document_index has shape"):
        build_sample_index(ids, ids[::2], seq_length=5, num_rows=1)
    with pytest.raises(ValueError, match="a sequence length of 0"):
        build_sample_index(ids, ids, seq_length=0, num_rows=1)


# ---- shuffle


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 4, 5, 255, 256, 257, 258, 511, 512, 513, 1000, 4097, 65_537])
def test_shuffle_equals_numpys_and_leaves_its_state(numel, dtype):
    ours, theirs = np.arange(numel, dtype=dtype), np.arange(numel, dtype=dtype)
    random, reference = np.random.RandomState(numel + 7), np.random.RandomState(numel + 7)
    for _ in range(3):  # from a state in the middle of a block, too
        shuffle_(ours, random)
        shuffle_reference_(theirs, reference)
        np.testing.assert_array_equal(ours, theirs)
    assert random.randint(2**31) == reference.randint(2**31)
    assert random.standard_normal() == reference.standard_normal()


def test_a_normal_number_held_back_survives_a_shuffle():
    random, reference = np.random.RandomState(5), np.random.RandomState(5)
    assert random.standard_normal() == reference.standard_normal()  # the second of the pair is kept in the state
    shuffle_(np.arange(10), random)
    reference.shuffle(np.arange(10))
    assert random.standard_normal() == reference.standard_normal()


def test_read_only_and_short_items_are_refused():
    items = np.arange(4, dtype=np.int32)
    items.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        shuffle_(items, np.random.RandomState(1))
    with pytest.raises(TypeError, match="items is int16"):
        shuffle_(np.arange(4, dtype=np.int16), np.random.RandomState(1))


# ---- blends


def normalized(weights):
    return np.array(weights, dtype=np.float64) / np.sum(np.array(weights, dtype=np.float64))


def test_blends_equal_those_of_megatron_core(shared_dir):
    goldens = np.load(shared_dir / "data/goldens/dataset/blending.npz")
    for case, params in json.loads(str(goldens["params"])).items():
        if "weights" in params:
            weights, size, limits = normalized(params["weights"]), params["size"], None
        else:
            limits = np.array(params["exhaustive_sizes"], dtype=np.int64)
            weights, size = normalized(limits), int(limits.sum())
        for builder in (build_blend_index, build_blend_index_reference):
            dataset, sample = builder(weights, size=size, limits=limits)
            np.testing.assert_array_equal(dataset, goldens[f"{case}_dataset_index"])
            np.testing.assert_array_equal(sample, goldens[f"{case}_dataset_sample_index"])


@pytest.mark.parametrize("seed", range(20))
def test_blend_equals_the_reference(seed):
    random = np.random.RandomState(seed)
    weights = normalized(random.uniform(1e-6, 1.0, size=random.randint(1, 12)))
    size = int(random.randint(1, 500))
    limits = None if seed % 2 else random.randint(0, 200, size=len(weights)).astype(np.int64)
    if limits is not None:
        size = min(size, int(limits.sum()))
    ours = build_blend_index(weights, size=size, limits=limits)
    for index, reference in zip(ours, build_blend_index_reference(weights, size=size, limits=limits), strict=True):
        assert index.dtype == reference.dtype
        np.testing.assert_array_equal(index, reference)


@pytest.mark.parametrize("builder", [build_blend_index, build_blend_index_reference])
def test_sets_that_hold_too_little_are_refused(builder):
    with pytest.raises(ValueError, match="hold 5 samples together, not 6"):
        builder(normalized([1, 1]), size=6, limits=np.array([2, 3]))


@pytest.mark.parametrize("sets", [0, 2**15])
def test_number_of_sets_that_int16_cannot_name_is_refused(sets):
    with pytest.raises(ValueError, match=f"{sets} data sets"):
        build_blend_index(np.full(sets, 1.0), size=1)
