"""Small trainings of every kind, with and without a watch."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CLASSES = 41, 7


def vit(**options):
    import timm

    torch.manual_seed(0)
    return timm.models.vision_transformer.VisionTransformer(
        img_size=12, patch_size=4, embed_dim=8, depth=2, num_heads=2, num_classes=CLASSES, **options
    )


def gpt2(**options):
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=12, n_layer=2, n_head=3, n_positions=16, bos_token_id=0, eos_token_id=0,
        **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def images(n=5):
    return torch.randn(n, 3, 12, 12, generator=torch.manual_seed(1))


def padded_texts(lengths=(9, 4, 7)):
    ids = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=torch.manual_seed(2))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


class Sequences(nn.Module):
    """A user's own model with everything that a forward pass may disturb: dropout, BatchNorm, a cache of its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 3, 8, dropout=0.3, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(6, CLASSES)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.seen += len(x)  # in place, in whatever mode
        self.table = torch.full((x.shape[1],), float(self.seen))  # and replaced
        return self.head(self.encoder(self.norm(x.mT).mT).mean(1))


def own_model():
    torch.manual_seed(0)
    return Sequences()


def sequences(n=5):
    return torch.randn(n, 4, 6, generator=torch.manual_seed(3))


def train(model, batches, watch=None, accumulate=1, autocast=False, frozen=()):
    """A plain loop with noise from every source of randomness; returns the weights at its end."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global state is what a watch must leave as it is
    model.train()
    for path in frozen:
        model.get_submodule(path).eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    if watch is not None:
        watch.step(0)
    for number, batch in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(**batch) if isinstance(batch, dict) else model(batch)
            logits = output if isinstance(output, torch.Tensor) else output.logits
            logits = logits.flatten(0, -2)
            random_factor = random.random() + np.random.rand()  # noqa: NPY002 - the global state is what a watch must leave as it is
            targets = torch.randint(0, logits.shape[-1], (len(logits),))
            (F.cross_entropy(logits.float(), targets) * random_factor / accumulate).backward()
            if watch is not None:
                watch.step(number + 1)  # while gradients are held, under autocast
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(first, second):
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
