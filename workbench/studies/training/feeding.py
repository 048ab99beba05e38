"""Batches of a model: one tensor, or the named tensors of padded sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

Batch = Tensor | Mapping[str, Tensor]
"""A tensor with the examples along axis 0, or a dict of such tensors, named as the model's arguments."""


def feed(model: nn.Module, batch: Batch) -> Tensor:
    """Return the model's output for a batch."""
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def pad_together(examples: Sequence[tuple[Tensor, int]], name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Pad sequences (token, …) to a batch with their targets: the argument ``name``, with zeros at the end.

    ``attention_mask`` is 1 at real tokens; there is no mask without padding.
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
    """Pad pairs of sequences to a batch of two rows per pair, the two of a pair adjacent; one target per pair."""
    rows = [(sequence, target) for pair, target in examples for sequence in pair]
    return pad_together(rows, name)[0], torch.tensor([target for _, target in examples])


def named_tensors(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name; a single one is named "input"."""
    return dict(batch) if isinstance(batch, Mapping) else {"input": batch}


def size_of(batch: Batch) -> int:
    """Return the number of examples of a batch."""
    return len(next(iter(named_tensors(batch).values())))


def placed(batch: Batch, device: torch.device) -> Batch:
    """Move the batch to a device."""
    if isinstance(batch, Mapping):
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return batch.to(device)


def shapes_of(batch: Batch) -> str:
    """Format the shapes: "(1, 3, 32, 32)", or "input_ids (1, 40), attention_mask (1, 40)"."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    return str(tuple(batch.shape))
