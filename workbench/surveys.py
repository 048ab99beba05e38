"""Frames for figures: one analysis over several models, and attention itself as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.errors import InputError, MissingResource
from workbench.pipeline import analyze
from workbench.results import join_frames
from workbench.selection import Numbers, parse_numbers

if TYPE_CHECKING:
    from workbench.batches import Inputs
    from workbench.models import LoadedModel
    from workbench.recording import Capture


def survey(name: str, runs: Iterable[tuple[str | None, str | None]], **arguments: Any) -> pd.DataFrame:
    """Run `analyze` for several (model, inputs) pairs and put the frames under one another.

    A pair whose model is None is left out. A model, or an input, that this machine cannot have (no network, an
    optional package not installed) is listed in ``frame.attrs["absent"]``, ``{model: reason}``, so that a figure
    can say so in its place. ``frame.attrs["notes"]`` holds the notes of all runs, each beginning with its model.

    Raises `InputError` without any pair, `MissingResource` if no model is here, and what `analyze` raises.
    """
    pairs = [(model, inputs) for model, inputs in runs if model is not None]
    if not pairs:
        raise InputError("no model to run; give at least one (model, inputs) pair")
    frames, absent, notes = [], {}, []
    for model, inputs in pairs:
        try:
            frame = analyze(name, model=model, inputs=inputs, **arguments)
        except MissingResource as error:
            absent[model] = str(error)
        else:
            frames.append(frame)
            notes += [f"{model}: {note}" for note in frame.attrs["notes"]]
    if not frames:
        raise MissingResource("; ".join(f"{model}: {reason}" for model, reason in absent.items()))
    joined = join_frames(frames)
    joined.attrs |= {"absent": absent, "notes": notes}
    return joined


def attention_frame(
    model: LoadedModel, inputs: Inputs, capture: Capture, heads: Numbers = None, query: int | None = None
) -> pd.DataFrame:
    """The attention of one input as rows: layer, head, query, key (numbers and labels) and value.

    ``capture`` is of ``inputs``, whose first input is taken, with the site `attn`. ``query`` keeps one query token;
    otherwise all of them. Tokens of padding are left out. Raises `InputError` where attn was not captured, or a
    head does not exist.
    """
    tokens = capture.tokens
    if tokens is None or any(record.attn is None for record in capture):
        raise InputError("the capture holds no attention; capture it with sites=('attn',)")
    labels = tokens.labels[0]
    real = [place for place, here in enumerate(tokens.mask[0].tolist()) if here]
    parts = []
    for record in capture:
        assert record.attn is not None  # looked at above
        attn = record.attn[0].double().cpu().numpy()
        chosen = parse_numbers("head", heads, attn.shape[0])
        # Class attention has one query, the class token, which is the first of the tokens.
        queries = [0] if attn.shape[1] == 1 else real if query is None else [query]
        rows = pd.MultiIndex.from_product([chosen, queries, real], names=["head", "query", "key"]).to_frame(
            index=False
        )
        rows["value"] = attn[rows["head"], 0 if attn.shape[1] == 1 else rows["query"], rows["key"]]
        rows.insert(0, "layer", record.index)
        parts.append(rows)
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.assign(
        query_label=[labels[place] for place in frame["query"]],
        key_label=[labels[place] for place in frame["key"]],
    )
    frame.insert(0, "input", inputs.ids[0])
    frame.insert(0, "model", model.spec)
    frame.attrs["provenance"] = [
        {"analysis": "attention", "model": model.identity, "inputs": inputs.identity, "seed": inputs.seed}
    ]
    return frame
