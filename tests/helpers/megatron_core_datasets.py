"""A process of its own that lets Megatron-core build data sets, and writes their samples: a peer for tests.

    python megatron_core_datasets.py CASES.json OUT.npz

A case: words or per_split (as --data-path), split, sizes (of train, valid, test; null: one epoch), seq_length, seed. Out:
CASE_SPLIT, [samples, seq_length + 1] int64, for each split that core builds. Run with -W ignore: its imports warn.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch.distributed as dist
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list


def build(case, cache):
    per_split = case.get("per_split")
    config = GPTDatasetConfig(
        random_seed=case["seed"],
        sequence_length=case["seq_length"],
        blend=None if per_split else get_blend_from_list(case["words"]),
        blend_per_split=[get_blend_from_list(words) for words in per_split] if per_split else None,
        split=case.get("split"),
        path_to_cache=cache,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=SimpleNamespace(vocab_size=50_000, eod=49_999, pad=-1, unique_identifiers={}),
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, case["sizes"], lambda: True, config).build()


def samples(dataset):
    rows = [dataset[index] for index in range(len(dataset))]
    return np.stack([np.append(row["tokens"].numpy(), row["labels"].numpy()[-1]) for row in rows])


def main(cases_path, out_path):
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        out = {}
        for name, case in json.loads(Path(cases_path).read_text()).items():
            datasets = build(case, f"{folder}/{name}")
            for split, dataset in zip(("train", "valid", "test"), datasets, strict=True):
                if dataset is not None and len(dataset) > 0:
                    out[f"{name}_{split}"] = samples(dataset)
        dist.destroy_process_group()
    np.savez(out_path, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
