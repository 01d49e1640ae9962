"""A process of its own in which Megatron-core's IndexedDataset reads and writes pairs: a peer for tests.

    python megatron_core_files.py FOLDER

CASES.json in FOLDER: {name: [dtype, documents]}. Writes theirs_NAME.bin/.idx of each case, and READ.npz with what is read
from ours_NAME: NAME_elements (end to end), NAME_lengths, NAME_documents. Its mappings may not be closed while arrays
live, which it says at the interpreter's end: run with -W ignore, and not inside a test's process.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder


def write(prefix, dtype, documents):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.from_numpy(np.array(sequence, dtype=np.float64)))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def read(prefix):
    """Each sequence is read whole, and again in two parts, which must be the whole."""
    dataset = IndexedDataset(str(prefix))
    sequences = []
    for index in range(len(dataset)):
        whole = np.array(dataset[index])
        middle = len(whole) // 2
        parts = dataset.get(index, offset=0, length=middle), dataset.get(index, offset=middle)
        assert np.concatenate(parts).tolist() == whole.tolist()
        sequences.append(whole)
    return np.concatenate(sequences), np.array(dataset.sequence_lengths), np.array(dataset.document_indices)


def main(folder):
    folder = Path(folder)
    out = {}
    for name, (dtype, documents) in json.loads((folder / "CASES.json").read_text()).items():
        write(folder / f"theirs_{name}", dtype, documents)
        for what, array in zip(("elements", "lengths", "documents"), read(folder / f"ours_{name}"), strict=True):
            out[f"{name}_{what}"] = array
    np.savez(folder / "READ.npz", **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
