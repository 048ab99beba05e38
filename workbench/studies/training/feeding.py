"""What a model is fed with: one tensor, or the named tensors of padded sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

Batch = Tensor | Mapping[str, Tensor]
"""A tensor with the examples along axis 0, or a dict of such tensors, named as the model's arguments."""


def feed(model: nn.Module, batch: Batch) -> Tensor:
    """What the model makes of a batch."""
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def pad_together(examples: Sequence[tuple[Tensor, int]], name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Sequences (token, …) with their targets as a batch: the argument ``name``, zeros at the end of shorter ones.

    ``attention_mask`` is 1 at real tokens; where none is padded, there is no mask.
    """
    sequences = [sequence for sequence, _ in examples]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    batch = {name: pad_sequence(sequences, batch_first=True)}
    if lengths.min() < lengths.max():
        batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return batch, torch.tensor([target for _, target in examples])


def pad_pairs(
    examples: Sequence[tuple[tuple[Tensor, Tensor], int]], name: str
) -> tuple[dict[str, Tensor], Tensor]:
    """Pairs of sequences as a batch of twice as many rows, the two of a pair under one another; a target a pair."""
    rows = [(sequence, target) for pair, target in examples for sequence in pair]
    return pad_together(rows, name)[0], torch.tensor([target for _, target in examples])


def named_tensors(batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch; a single one is called "input"."""
    return dict(batch) if isinstance(batch, Mapping) else {"input": batch}


def size_of(batch: Batch) -> int:
    """How many examples a batch holds."""
    return len(next(iter(named_tensors(batch).values())))


def placed(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    if isinstance(batch, Mapping):
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return batch.to(device)


def shapes_of(batch: Batch) -> str:
    """The shapes in words: "(1, 3, 32, 32)", or "input_ids (1, 40), attention_mask (1, 40)"."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    return str(tuple(batch.shape))
