"""A text with a model's continuation as one input, with the attention rows that chose every new token."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.core.errors import InputError

if TYPE_CHECKING:
    from workbench.captures import Capture
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

MOST_TOKENS = 256
"""Tokens that are written at once, at most."""
LONG = "the text is long: what tokens that were written attend to is of one pass over all of it, not of each step"
_SITES = ("attn",)


def continued(model: LoadedModel, sample: Inputs, count: int) -> tuple[Inputs, Capture]:
    """Return a text, also one with an image, with its greedy continuation by the model, and the capture of these steps.

    Raises `InputError` for inputs without a text, for a count out of range, and what
    `workbench.captures.capture_generation` raises.
    """
    from workbench.captures import capture_generation
    from workbench.captures.token_labels import image_marks

    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_TOKENS:
        raise InputError(f"a model writes 1 to {MOST_TOKENS} tokens at once, a whole number; got {count!r}")
    if sample.texts is None:
        raise InputError(
            f"{model.spec} is given {sample.ids[0]}, which is no text that it could go on writing"
        )
    options: dict[str, Any] = {}
    if getattr(model.module, "generation_config", None) is not None:
        options["do_sample"] = False
        if marks := image_marks(model.module):
            options["suppress_tokens"] = marks  # a written one would stand for a patch that no image has
    steps = capture_generation(model, sample, count, sites=_SITES, logits=False, **options)
    written = steps.generated
    assert written is not None
    assert steps.tokens is not None
    ids = written.sequences
    if model.module.training or len(ids) != 1:
        raise InputError(f"{sample.ids[0]} is not one text")
    batch = {name: _with_last(name, value, ids) for name, value in written.batch.items()}
    text = sample.texts[0] + str(model.tokenizer.decode(ids[0, written.prompt_tokens :].tolist()))
    prompt = int(steps.tokens.mask[0, : written.prompt_tokens].sum())
    written_input = replace(
        sample,
        ids=[f"{sample.ids[0]}, its first {prompt} tokens continued"],
        batch=batch if isinstance(sample.batch, dict) else batch["input_ids"],
        tokens=replace(
            sample.tokens, labels=steps.tokens.labels, kinds=steps.tokens.kinds, mask=steps.tokens.mask
        ),
        texts=[text],
        digests=[hashlib.sha256(text.encode()).digest()],
    )
    return written_input, steps


def _with_last(name: str, value: Tensor, ids: Tensor) -> Tensor:
    """Return a tensor of the batch that lacks the last token, for all tokens."""
    if not isinstance(value, Tensor) or value.shape[:2] != (1, ids.shape[1] - 1):
        return value
    last = ids[:, -1:] if name == "input_ids" else value[:, -1:] + (name == "position_ids")
    return torch.cat([value, last.to(value)], dim=1)


def put_steps(text_capture: Capture, steps: Capture) -> None:
    """Put the rows of the steps into the matrices of the whole text: those that the tokens were chosen by.

    A long text has no matrix: its rows stay those of one pass over the text, and a note reports this.
    """
    written = steps.generated
    assert written is not None
    rows = slice(written.prompt_tokens - 1, written.sequences.shape[1] - 1)
    for record in text_capture:
        step_rows = next((each.attn for each in steps if each.index == record.index), None)
        attn = record.attn
        if step_rows is not None and attn is None and record.q is not None and LONG not in text_capture.notes:
            text_capture.notes.append(LONG)
        if step_rows is None or attn is None or step_rows.shape[-2:] != attn[:, :, rows, :-1].shape[-2:]:
            continue
        record.attn = attn.clone()  # what was captured is a tensor of inference
        record.attn[:, :, rows, :-1] = step_rows.to(attn)
        record.attn[:, :, rows, -1] = 0
