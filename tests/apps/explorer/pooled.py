"""Bundles made without a model: a text so long that its matrices are pooled, and a model of many heads."""

from __future__ import annotations

import numpy as np

from workbench.apps.explorer.bundle import POOLED, SCHEMA, Bundle, Header, InputCard, LayerCard, ModelCard
from workbench.apps.explorer.sentences import SENTENCES


def pooled_text(tokens: int, heads: int) -> Bundle:
    """Random attention of one layer among so many tokens that it is pooled."""
    rng = np.random.default_rng(0)
    attn = (rng.random((heads, POOLED, POOLED)) ** 8).astype(np.float16)
    return _text(
        tokens,
        [LayerCard(index=0, path="", heads=heads, without="", pooled=True)],
        {f"attn_{name}": attn for name in ("mean", "max")},
    )


def many_heads(layers: int, heads: int, tokens: int, whole: int) -> Bundle:
    """Random attention of the first tokens of a text of ``whole`` tokens, in every head of every layer."""
    rng = np.random.default_rng(0)
    attn = rng.dirichlet(np.full(tokens, 0.3), (heads, tokens)).astype(np.float16)
    cards = [
        LayerCard(index=index, path="", heads=heads, without="", pooled=False) for index in range(layers)
    ]
    return _text(tokens, cards, {"attn": attn}, whole)


def _text(tokens: int, layers: list[LayerCard], arrays: dict[str, np.ndarray], whole: int = 0) -> Bundle:
    card = InputCard(
        id="long", labels=[f"w{i}" for i in range(tokens)], kinds=["word"] * tokens, real=[True] * tokens,
        grid=None, image=None, whole=whole,
    )  # fmt: skip
    held = {
        f"inputs.0.layers.{layer.index}.{name}": array for layer in layers for name, array in arrays.items()
    }
    header = Header(
        format="attention-bundle", bundle_schema=SCHEMA, version="0", left_out=[], sites=["attn"], inputs=[card],
        model=ModelCard(
            spec="long", checkpoint=None, family="none", modality="text", parameters=0, random_weights=True
        ),
        layers=layers,
        metrics=[], by_layer=[], spectra=[], ablations={}, without_ablations="", removal="",
        sentences=SENTENCES, notes=[],
        max_error=dict.fromkeys(held, 0.0),
    )  # fmt: skip
    return Bundle(header, held)
