"""Evaluate models under a protocol, and return the numbers as one tidy frame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
from annotated_types import Ge, Le

from workbench._version import __version__
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import accept
from workbench.frames.metric import METRICS
from workbench.frames.provenance import versions
from workbench.frames.results import UNTRAINED_NOTE, shared
from workbench.studies.evaluation.protocols import PROTOCOLS, Protocol, Request, mean_corruption_error
from workbench.studies.records import EVALUATION_COLUMNS, conform_evaluation

if TYPE_CHECKING:
    from workbench.models.loading import LoadedModel

_TEST_SETS = {"digits": "bundled:digits", "photos": "task:photos", "prose": "bundled:prose"}
"""Training task of a model → its test set."""


def evaluate(
    models: str | LoadedModel | Sequence[str | LoadedModel],
    protocol: str = "clean",
    inputs: str | None = None,
    *,
    epsilons: Sequence[float] | None = None,
    n: int | str | None = None,
    seed: int = 0,
    reference: str | LoadedModel | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    outcomes: bool = False,
) -> pd.DataFrame:
    """Evaluate one or several models under one protocol of ``PROTOCOLS``, on the same inputs.

    One row per number: ``kind`` is the norm of an attack, the type of a corruption or of an out-of-distribution image;
    ``low`` and ``high`` are a 95 % interval over inputs, if any. Remarks are in ``frame.attrs["notes"]``, the origin of
    the numbers in ``frame.attrs["provenance"]``.

    Args:
        models: specs (``bundled:NAME``, ``file:CHECKPOINT``, …) or results of ``load``.
        protocol: a name in ``PROTOCOLS``.
        inputs: labelled images or texts as ``workbench.inputs`` takes them, ``task:photos``, or ``segmentation:FOLDER``
            (in ADE20K's layout; also ``segmentation:mosaics``); by default the test set of the model's training task
            (for language models the held-out files of the bundled prose).
        epsilons: budgets; the protocol's by default.
        n: number of inputs chosen with `seed`, or "all"; 25 by default.
        seed: random seed of inputs and attacks.
        reference: a model whose errors divide those of the others under ``corruptions``, for the metric ``mCE``.
        settings: other values of the protocol's settings, ``{"steps": 40}``.
        device: "cpu", "cuda", …
        outcomes: add a column with the outcome of every input ("0110…", in the same order for every model), as
            McNemar's test needs it.

    Raises:
        UnknownName: an unknown protocol or setting.
        InputError: a budget or setting out of range, a model or inputs unfit for the protocol, or outputs that are not
            finite.
        MissingResource: the attack library is not installed.
    """
    from workbench.models.loading import load

    chosen, budgets, complete = check_request(protocol, epsilons, settings or {})
    request = Request(budgets, seed, complete)
    if reference is not None and protocol != "corruptions":
        raise InputError(f"reference belongs to protocol corruptions; {protocol!r} has no use for it")
    chosen_models = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
    if not chosen_models:
        raise InputError("name at least one model to evaluate")
    frames, notes = [], []
    for model in chosen_models:
        loaded = load(model, device=device) if isinstance(model, str) else model
        frames.append(_evaluate_model(loaded, chosen, request, inputs, n, outcomes))
        notes += frames[-1].attrs["notes"]
    if reference is not None:
        loaded = load(reference, device=device) if isinstance(reference, str) else reference
        against = _evaluate_model(loaded, chosen, request, inputs, n, outcomes)
        for number, frame in enumerate(frames):
            frames[number], mce_notes = _with_mce(frame, against)
            notes += mce_notes
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs["provenance"] = shared([frame.attrs["provenance"] for frame in frames])
    joined.attrs["notes"] = list(dict.fromkeys(notes))
    return joined


def check_request(
    protocol: str, epsilons: Sequence[float] | None, settings: Mapping[str, Any]
) -> tuple[Protocol, tuple[float, ...], dict[str, Any]]:
    """Return the requested protocol, its budgets and all its settings.

    Raises before anything is loaded if the request is invalid.
    """
    if protocol not in PROTOCOLS:
        raise UnknownName("protocol", protocol, PROTOCOLS)
    chosen = PROTOCOLS[protocol]
    complete = chosen.defaults
    for name, value in settings.items():
        if name not in chosen.settings:
            if not chosen.settings:
                raise InputError(f"protocol {protocol!r} has no settings, got {name}={value!r}")
            raise UnknownName(f"setting of protocol {protocol!r}", name, chosen.settings)
        try:
            complete[name] = chosen.settings[name].accept(value)
        except ValueError as error:
            raise InputError(f"{name} of protocol {protocol!r} is {error}, got {value!r}") from None
    if epsilons is None:
        return chosen, chosen.budgets, complete
    if not chosen.budgets:
        raise InputError(f"protocol {protocol!r} has no budget; leave epsilon out")
    if not epsilons:
        raise InputError("name at least one epsilon")
    budgets = []
    for epsilon in epsilons:
        try:
            budgets.append(accept(Annotated[float, Ge(0), Le(chosen.largest)], epsilon))
        except ValueError as error:
            raise InputError(
                f"epsilon of protocol {protocol!r} is {error} ({chosen.budget}), got {epsilon!r}"
            ) from None
    return chosen, tuple(budgets), complete


def _evaluate_model(
    model: LoadedModel,
    protocol: Protocol,
    request: Request,
    inputs: str | None,
    n: int | str | None,
    outcomes: bool,
) -> pd.DataFrame:
    """Return the evaluation of one model, in the columns of this module."""
    from workbench.studies.evaluation.perplexity import open_texts
    from workbench.studies.evaluation.pixel_models import open_images

    takes = [name for name, measure in (("image", protocol.images), ("text", protocol.texts)) if measure]
    if model.modality not in takes:
        needed = "a language model" if takes == ["text"] else "an image classifier"
        raise InputError(f"protocol {protocol.name!r} is for {needed}; {model.spec} takes {model.modality}s")
    request = replace(request, notes=[], model=model)  # the notes of one model
    spec = inputs or _test_set(model)
    started = time.perf_counter()
    rows: Iterator[dict[str, Any]]
    if model.modality == "image":
        classifier, images = open_images(model, spec, n, request.seed)
        measure = protocol.scenes if images.targets.ndim > 1 else protocol.images
        if measure is None:
            able = ", ".join(name for name, row in PROTOCOLS.items() if row.scenes)
            raise InputError(
                f"protocol {protocol.name!r} is for one class an image; a segmentation takes {able}"
            )
        rows, identity, notes = (
            measure(classifier, images, request),
            images.identity,
            images.notes,
        )
    else:
        assert protocol.texts is not None
        texts = open_texts(model, spec, n, request.seed)
        rows, identity, notes = protocol.texts(model, texts, request), texts.identity, texts.notes
    named = {
        "model": model.spec, "checkpoint": model.checkpoint, "inputs": spec, "n": identity["n"],
        "seed": request.seed, "protocol": protocol.name,
    }  # fmt: skip
    frame = _frame([{**named, **row} for row in rows], outcomes)
    frame.attrs["notes"] = [f"{spec}: {note}" for note in notes]
    if model.has_random_weights:
        frame.attrs["notes"].append(f"{model.spec} {UNTRAINED_NOTE}")
    frame.attrs["notes"] += [f"{model.spec}: {protocol.name}: {note}" for note in request.notes]
    frame.attrs["provenance"] = shared(
        {
            "evaluation": protocol.name,
            "model": model.identity,
            "inputs": identity,
            "seed": request.seed,
            "epsilons": list(request.budgets),
            "settings": dict(request.settings),
            "seconds": round(time.perf_counter() - started, 2),
            "versions": versions(),
        }
    )
    return frame


def _test_set(model: LoadedModel) -> str:
    """Return a model's default test set: that of its task, or prose for any language model."""
    from workbench.models.checkpoints import read_checkpoint
    from workbench.models.loading import bundled_checkpoint, resolve
    from workbench.studies.evaluation.pixel_models import SCENES
    from workbench.studies.training.tasks.embedded import PREFIX

    if model.modality == "text":
        return _TEST_SETS["prose"]
    scheme, name = resolve(model.spec)
    task, source = None, ""
    if scheme in ("bundled", "file"):
        trained = None if model.has_random_weights else model.checkpoint
        path = bundled_checkpoint(name, trained) if scheme == "bundled" else name
        about = read_checkpoint(path)[1]
        task, source = about.get("task"), str(about.get("data", {}).get("source", ""))
    if task == "segmentation" and source.startswith(PREFIX):
        return SCENES + source.removeprefix(PREFIX)
    if task not in _TEST_SETS:
        raise InputError(
            f"say with inputs what to evaluate {model.spec} on: bundled:digits, imagenet:FOLDER with a folder "
            "per class, or segmentation:FOLDER in ADE20K's layout"
        )
    return _TEST_SETS[task]


def _frame(rows: list[dict[str, Any]], outcomes: bool = False) -> pd.DataFrame:
    """Return rows as a frame with our columns, in order and with fixed types; absent ones are null."""
    filled = [{**row, "unit": METRICS[row["metric"]].unit or None, "version": __version__} for row in rows]
    columns = (*EVALUATION_COLUMNS, "outcomes") if outcomes else EVALUATION_COLUMNS
    return conform_evaluation(pd.DataFrame(filled), columns)


def _with_mce(frame: pd.DataFrame, reference: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Add a row with the errors relative to the reference's to a frame of corruption errors; return notes too."""

    def errors(table: pd.DataFrame) -> dict[str, float]:
        rows = table[(table["metric"] == "corruption_error") & table["kind"].notna()]
        return dict(zip(rows["kind"], rows["value"], strict=True))

    model_errors, others = errors(frame), errors(reference)
    value, left_out = mean_corruption_error(model_errors, others)
    base = reference["model"].iloc[0]
    notes = [f"mCE leaves out {', '.join(left_out)}: {base} makes no error there"] if left_out else []
    if model_errors.keys() != others.keys():
        odd = ", ".join(sorted(model_errors.keys() ^ others.keys()))
        notes.append(
            f"mCE leaves out {odd}: the images of {base} and {frame['model'].iloc[0]} differ in size"
        )
    same = {name: frame[name].iloc[0] for name in ("model", "checkpoint", "inputs", "n", "seed", "protocol")}
    row = _frame([{**same, "metric": "mCE", "value": value}])
    joined = pd.concat([frame, row], ignore_index=True)
    joined.attrs = {**frame.attrs, "provenance": shared({**frame.attrs["provenance"], "reference": base})}
    return joined, notes
