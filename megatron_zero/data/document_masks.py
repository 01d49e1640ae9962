"""What --reset-position-ids, --reset-attention-mask and --eod-mask-loss make of the documents packed into a row.

A document ends with its end-of-document id, which still belongs to it. All is decided by position in the *inputs* of a
row, never by a padding id: a row may begin and end in the middle of a document. Megatron's
get_ltor_masks_and_position_ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DocumentRules:
    """eod: the id that ends a document; the flags of that name."""

    eod: int
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False

    @property
    def change_anything(self) -> bool:
        return self.reset_position_ids or self.reset_attention_mask or self.eod_mask_loss


@dataclass(frozen=True, slots=True)
class DocumentMasks:
    """loss_mask: [rows, seq] fp32, 0 where the input is an end of document; None: every token counts.

    position_ids: [rows, seq] int64, from 0 in each document; None: from 0 in the row.
    document_ids: [rows, seq] int64, 0, 1, ... in a row; a token attends to those of its own; None: to all before it.
    """

    loss_mask: NDArray[np.float32] | None = None
    position_ids: NDArray[np.int64] | None = None
    document_ids: NDArray[np.int64] | None = None


def document_masks(tokens: NDArray[np.int64], rules: DocumentRules) -> DocumentMasks:
    """tokens: [rows, seq] inputs."""
    ends = tokens == rules.eod
    begins = np.zeros_like(ends)  # whether the token before ended a document
    begins[:, 1:] = ends[:, :-1]
    position_ids = document_ids = None
    if rules.reset_position_ids:
        places = np.arange(tokens.shape[1])
        position_ids = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    if rules.reset_attention_mask:
        document_ids = np.cumsum(begins, axis=1, dtype=np.int64)
    return DocumentMasks(
        loss_mask=(~ends).astype(np.float32) if rules.eod_mask_loss else None,
        position_ids=position_ids,
        document_ids=document_ids,
    )


def document_masks_reference(tokens: NDArray[np.int64], rules: DocumentRules) -> DocumentMasks:
    """What document_masks gives, a token at a time."""
    loss_mask = np.ones(tokens.shape, dtype=np.float32)
    position_ids, document_ids = (np.zeros(tokens.shape, dtype=np.int64) for _ in range(2))
    for row in range(tokens.shape[0]):
        position = document = 0
        for place in range(tokens.shape[1]):
            position_ids[row, place], document_ids[row, place] = position, document
            position += 1
            if tokens[row, place] == rules.eod:
                loss_mask[row, place] = 0.0
                position, document = 0, document + 1
    return DocumentMasks(
        loss_mask if rules.eod_mask_loss else None,
        position_ids if rules.reset_position_ids else None,
        document_ids if rules.reset_attention_mask else None,
    )
