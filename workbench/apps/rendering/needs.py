"""Needs of notebooks before they are rendered: a device, weights and data.

No list is kept by hand. A parameter names models, or inputs, if its default, a preset or its value does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from workbench.apps.rendering.notebooks import Notebook, find_notebooks, resolve_parameters
from workbench.core.errors import InputError, MissingResource, WorkbenchError

HERE, _HUB, MISSING = "here", "hub", "missing"
_GIGABYTE = 1e9
_IMAGE = 6.74e9 / 50_000  # bytes: the archive of ImageNet's validation images over their number
_SWEEP, _WIKITEXT = "sweep:", "wikitext-103"
_N = 25  # inputs, where a notebook says nothing


class Need(NamedTuple):
    """A device, weights or data that a render needs.

    ``kind`` is device, weights, data, hub or disk; ``state`` here, bundled, installed package, hub (to be fetched),
    random or missing.
    """

    kind: str
    name: str
    state: str
    gigabytes: float | None
    note: str


class Pass(NamedTuple):
    """A model that runs over inputs; without inputs only its weights are read."""

    model: str
    inputs: str | None
    n: int


def render_needs(
    names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    preset: str = "default",
    device: str | None = None,
) -> list[Need]:
    """List the needs of `render` with the same arguments: device, weights, data and disk.

    Weights are located and not read; the hub is only contacted.

    Raises the errors of `render` before anything runs.
    """
    from workbench.models.loading import find_device

    notebooks = find_notebooks(names)
    values = resolve_parameters(notebooks, parameters or {}, preset, named=names is not None)
    passes = {item.name: passes_of(item, item.filled(values[item.name])) for item in notebooks}
    try:
        hardware = str(find_device(device))
        needs = [Need("device", hardware, HERE, None, _hardware(hardware))]
    except MissingResource as reason:
        needs = [Need("device", str(device), MISSING, None, str(reason))]
    weights: dict[str, set[str]] = {}
    data: dict[str, dict[str, int]] = {}
    for name, runs in passes.items():
        for run in runs:
            weights.setdefault(run.model, set()).add(name)
            if run.inputs:
                data.setdefault(run.inputs, {})[name] = run.n
    needs += [_weights(model, len(by)) for model, by in weights.items()]
    needs += [_data(spec, max(by.values()), len(by)) for spec, by in data.items()]
    return [*needs, *_hub(needs)]


def _hardware(device: str) -> str:
    """Return the name of a GPU, or the number of threads."""
    import torch

    return (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else f"{torch.get_num_threads()} threads"
    )


# Names in parameters ----------------------------------------------------------------------------------------


def passes_of(notebook: Notebook, values: Mapping[str, Any]) -> list[Pass]:
    """Pair the models and inputs of a notebook's parameters as notebooks do.

    ``text_model`` runs over ``text_inputs``, and so with any prefix; every other model runs over the inputs without the
    prefix of a model.
    """
    models, inputs = roles(notebook, values)
    own_inputs = {name: _prefixed_name(name, "inputs") for name in models if name != "model"}
    common = [name for name in inputs if name not in own_inputs.values()]
    passes = []
    for name, specs in models.items():
        input_names = [own_inputs[name]] if own_inputs.get(name) in inputs else common
        n = int(values.get(_prefixed_name(name, "n")) or values.get("n") or _N)
        for number, spec in enumerate(specs):
            over = [
                input_spec for key in input_names for input_spec in _matching(inputs[key], number, len(specs))
            ]
            passes += [Pass(spec, input_spec, n) for input_spec in over] or [Pass(spec, None, 0)]
    return passes


def roles(notebook: Notebook, values: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the specs of each parameter that names models, and of each that names inputs."""
    models, inputs = {}, {}
    for name, parameter in notebook.parameters.items():
        presets = (preset.get(name) for preset in notebook.presets.values())
        specs = {text for value in (parameter.default, values.get(name), *presets) for text in _texts(value)}
        if specs & _model_names():
            models[name] = _texts(values.get(name))
        elif any(map(_names_inputs, specs)):
            inputs[name] = _texts(values.get(name))
    return models, inputs


def _texts(value: Any) -> list[str]:
    """Return the texts of a value: itself, or those in a list or in a dict's values."""
    several = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    )
    return [item for item in several if isinstance(item, str)]


@cache
def _model_names() -> frozenset[str]:
    from workbench.models import catalog

    entries = [*catalog.bundled_models(), *catalog.CATALOG]
    return frozenset(name for entry in entries for name in (entry.alias, entry.spec, *entry.also))


def _names_inputs(text: str) -> bool:
    from workbench.data.pools import INPUT_SPECS

    scheme, colon, _ = text.partition(":")
    open_ended = {
        spec.partition(":")[0] for spec in INPUT_SPECS if spec.isupper() or spec.partition(":")[2].isupper()
    }
    return text in INPUT_SPECS or (bool(colon) and (scheme in open_ended or text.startswith(_SWEEP)))


def _prefixed_name(model: str, what: str) -> str:
    """Return ``text_inputs`` for ``text_model``, ``masked_inputs`` for ``masked``."""
    prefix = model.removesuffix("model").rstrip("_")
    return f"{prefix}_{what}" if prefix else what


def _matching(specs: list[str], number: int, models: int) -> list[str]:
    """Return the inputs spec of a model if there is one per model, else all of them."""
    return [specs[number]] if len(specs) == models else specs


# Availability -----------------------------------------------------------------------------------------------


def _weights(model: str, notebooks: int) -> Need:
    from workbench.models.weights import find_weights

    try:
        location = find_weights(model)
    except InputError as reason:
        return Need("weights", model, MISSING, None, str(reason))
    size = None if location.bytes is None else location.bytes / _GIGABYTE
    return Need("weights", model, location.where, size, f"{location.why}; {_for(notebooks)}")


def _data(spec: str, n: int, notebooks: int) -> Need:
    from workbench.data.pools import WIKITEXT, WIKITEXT_REVISION, open_pool
    from workbench.models import hub

    size = n * _IMAGE / _GIGABYTE if spec.startswith("imagenet:") else None
    what = f"{_for(notebooks)}; {n} inputs"
    if spec.startswith(_SWEEP):
        there = Path(spec.removeprefix(_SWEEP)).expanduser().is_dir()
        return Need("data", spec, HERE if there else MISSING, None, "a sweep's folder")
    if spec == _WIKITEXT:
        repository, name = WIKITEXT
        cached = [
            hub.cached_file(repository, [name], "dataset", revision) for revision in (WIKITEXT_REVISION, None)
        ]
        problem = None if any(cached) else hub.obstacle()
        if problem is not None:
            return Need("data", spec, MISSING, None, f"{what}; {repository} is not cached")
        return Need("data", spec, HERE if any(cached) else _HUB, None, what)
    try:
        pool = open_pool(spec)
    except WorkbenchError as reason:
        return Need("data", spec, MISSING, size, f"{what}; {str(reason).splitlines()[0]}")
    if len(pool) < n:
        return Need("data", spec, MISSING, size, f"{what}, and {pool.where} has {len(pool)}")
    return Need("data", spec, HERE, size, f"{what} of {len(pool)}")


def _hub(needs: Iterable[Need]) -> Iterator[Need]:
    """Yield the needs of a download: the hub and the disk space."""
    from workbench.models import hub

    away = [
        need for need in needs if need.state == _HUB or (need.kind == "weights" and need.state == MISSING)
    ]
    wanted = sum(need.gigabytes or 0.0 for need in away)
    if not wanted:
        return
    problem = hub.obstacle()
    remedy = "; connect this machine, or set HF_HOME to a cache that holds them"
    yield Need(
        "hub",
        "Hugging Face",
        MISSING if problem else HERE,
        None,
        problem + remedy if problem else "answers",
    )
    folder = Path(hub.cache_folder())
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(there).free / _GIGABYTE
    yield Need(
        "disk",
        str(folder),
        HERE if wanted < free else MISSING,
        wanted,
        f"to fetch; {free:.0f} GB are free",
    )


def _for(notebooks: int) -> str:
    return f"for {notebooks} notebook{'s' if notebooks > 1 else ''}"
