"""A bundle of a text so long that its matrices are pooled, made without a model."""

from __future__ import annotations

import numpy as np

from workbench.apps.explorer.bundle import POOLED, SCHEMA, Bundle, Header, InputCard, LayerCard, ModelCard
from workbench.apps.explorer.sentences import SENTENCES


def pooled_text(tokens: int, heads: int) -> Bundle:
    """Random attention of one layer among so many tokens that it is pooled."""
    rng = np.random.default_rng(0)
    attn = (rng.random((heads, POOLED, POOLED)) ** 8).astype(np.float16)
    card = InputCard(
        id="long", labels=[f"w{i}" for i in range(tokens)], kinds=["word"] * tokens, real=[True] * tokens,
        grid=None, image=None,
    )  # fmt: skip
    header = Header(
        format="attention-bundle", bundle_schema=SCHEMA, version="0", left_out=[], sites=["attn"], inputs=[card],
        model=ModelCard(
            spec="long", checkpoint=None, family="none", modality="text", parameters=0, random_weights=True
        ),
        layers=[LayerCard(index=0, path="", heads=heads, without="", pooled=True)],
        metrics=[], by_layer=[], spectra=[], ablations={}, without_ablations="", removal="",
        sentences=SENTENCES, notes=[],
        max_error={f"inputs.0.layers.0.attn_{name}": 0.0 for name in ("mean", "max")},
    )  # fmt: skip
    return Bundle(header, {f"inputs.0.layers.0.attn_{name}": attn for name in ("mean", "max")})
