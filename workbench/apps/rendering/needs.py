"""What notebooks need before they are rendered: a device, weights, data, and about how many hours.

Nothing of it is listed by hand. A parameter names models, or inputs, where its default, a preset or its value is one;
what is computed are the analyses that the notebook's code names.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from workbench.apps.rendering.notebooks import Notebook, find_notebooks, resolve_parameters
from workbench.core.errors import InputError, MissingResource, WorkbenchError

HERE, HUB, MISSING, ESTIMATE = "here", "hub", "missing", "estimate"
_GIGABYTE = 1e9
_IMAGE = 6.74e9 / 50_000  # bytes: the archive of ImageNet's validation images over their number
_SWEEP, _WIKITEXT = "sweep:", "wikitext-103"
_N = 25  # inputs, where a notebook says nothing
_MODEL, _INPUTS = "timm:deit_tiny_patch16_224", "bundled:photos"  # of the probe


class Need(NamedTuple):
    """A thing that a render needs, or an estimate of its hours.

    ``kind`` is device, weights, data, hub, disk, notebook or all; ``state`` here, bundled, installed package, hub (to
    be fetched), random, missing or estimate.
    """

    kind: str
    name: str
    state: str
    gigabytes: float | None
    hours: float | None
    note: str


class Pass(NamedTuple):
    """A model that runs over inputs; without any where its weights alone are read."""

    model: str
    checkpoint: str | None
    inputs: str | None
    n: int


def render_needs(
    names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    preset: str = "default",
    device: str | None = None,
) -> list[Need]:
    """What `render` with the same arguments needs: device, weights, data, disk, and an estimate of its hours.

    Weights are looked for and not read; the hub is asked whether it answers. The estimate is measured on the device: a
    forward pass of one block of each size with random weights, and every analysis on one layer of DeiT-tiny, scaled by
    layers, heads, inputs and the square of their tokens. It takes one pass of each analysis over each model. What a
    notebook does besides, such as attacks and drawing, is not in it.

    Raises what `render` raises before anything runs.
    """
    from workbench.models.loading import find_device

    notebooks = find_notebooks(names)
    values = resolve_parameters(notebooks, parameters or {}, preset, named=names is not None)
    passes = {item.name: passes_of(item, item.filled(values[item.name])) for item in notebooks}
    probe = None
    try:
        probe = Probe(str(find_device(device)))
        needs = [Need("device", probe.device, HERE, None, None, probe.words)]
    except MissingResource as reason:
        needs = [Need("device", str(device), MISSING, None, None, str(reason))]
    weights: dict[tuple[str, str | None], set[str]] = {}
    data: dict[str, dict[str, int]] = {}
    for name, runs in passes.items():
        for run in runs:
            weights.setdefault((run.model, run.checkpoint), set()).add(name)
            if run.inputs:
                data.setdefault(run.inputs, {})[name] = run.n
    needs += [_weights(model, checkpoint, len(by)) for (model, checkpoint), by in weights.items()]
    needs += [_data(spec, max(by.values()), len(by)) for spec, by in data.items()]
    needs += _hub(needs)
    if probe is not None:
        estimates = [_estimate(item, values[item.name], passes[item.name], probe) for item in notebooks]
        needs += estimates
        if len(estimates) > 1:
            total = sum(need.hours or 0.0 for need in estimates)
            needs.append(
                Need("all", f"{len(estimates)} notebooks", ESTIMATE, None, total, "one after another")
            )
    return needs


# What parameters name ---------------------------------------------------------------------------------------


def passes_of(notebook: Notebook, values: Mapping[str, Any]) -> list[Pass]:
    """Models and inputs that a notebook's parameters name, paired as notebooks pair them.

    ``text_model`` runs over ``text_inputs``, and so with any prefix that inputs have; every other model over the inputs
    that are nobody's own. ``checkpoint`` is that of ``model``.
    """
    models, inputs = roles(notebook, values)
    own = {name: _beside(name, "inputs") for name in models if name != "model"}
    common = [name for name in inputs if name not in own.values()]
    passes = []
    for name, specs in models.items():
        given = [own[name]] if own.get(name) in inputs else common
        n = int(values.get(_beside(name, "n")) or values.get("n") or _N)
        for number, spec in enumerate(specs):
            checkpoint = values.get("checkpoint") if name == "model" else None
            over = [one for key in given for one in _matching(inputs[key], number, len(specs))]
            passes += [Pass(spec, checkpoint, one, n) for one in over] or [Pass(spec, checkpoint, None, 0)]
    return passes


def roles(notebook: Notebook, values: Mapping[str, Any]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The specs under each parameter that names models, and under each that names inputs."""
    models, inputs = {}, {}
    for name, parameter in notebook.parameters.items():
        presets = (preset.get(name) for preset in notebook.presets.values())
        known = {text for value in (parameter.default, values.get(name), *presets) for text in _texts(value)}
        if known & _model_names():
            models[name] = _texts(values.get(name))
        elif any(map(_names_inputs, known)):
            inputs[name] = _texts(values.get(name))
    return models, inputs


def _texts(value: Any) -> list[str]:
    """The texts of a value: itself, or those of a list or of the values of a table."""
    several = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    )
    return [one for one in several if isinstance(one, str)]


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


def _beside(model: str, what: str) -> str:
    """``text_inputs`` for ``text_model``, ``masked_inputs`` for ``masked``."""
    prefix = model.removesuffix("model").rstrip("_")
    return f"{prefix}_{what}" if prefix else what


def _matching(specs: list[str], number: int, models: int) -> list[str]:
    """One inputs spec for each model where there are as many, else all of them."""
    return [specs[number]] if len(specs) == models else specs


# What is here -----------------------------------------------------------------------------------------------


def _weights(model: str, checkpoint: str | None, notebooks: int) -> Need:
    from workbench.models.weights import find_weights

    label = model if checkpoint is None else f"{model} ({checkpoint})"
    try:
        found = find_weights(model, checkpoint)
    except InputError as reason:
        return Need("weights", label, MISSING, None, None, str(reason))
    size = None if found.bytes is None else found.bytes / _GIGABYTE
    return Need("weights", label, found.where, size, None, f"{found.why}; {_for(notebooks)}")


def _data(spec: str, n: int, notebooks: int) -> Need:
    from workbench.data.pools import WIKITEXT, WIKITEXT_REVISION, open_pool
    from workbench.models import hub

    size = n * _IMAGE / _GIGABYTE if spec.startswith("imagenet:") else None
    what = f"{_for(notebooks)}; {n} inputs"
    if spec.startswith(_SWEEP):
        there = Path(spec.removeprefix(_SWEEP)).expanduser().is_dir()
        return Need("data", spec, HERE if there else MISSING, None, None, "a sweep's folder")
    if spec == _WIKITEXT:
        repository, name = WIKITEXT
        found = [hub.cached_file(repository, [name], "dataset", one) for one in (WIKITEXT_REVISION, None)]
        problem = None if any(found) else hub.obstacle()
        if problem is not None:
            return Need("data", spec, MISSING, None, None, f"{what}; {repository} is not cached")
        return Need("data", spec, HERE if any(found) else HUB, None, None, what)
    try:
        pool = open_pool(spec)
    except WorkbenchError as reason:
        return Need("data", spec, MISSING, size, None, f"{what}; {str(reason).splitlines()[0]}")
    if len(pool) < n:
        return Need("data", spec, MISSING, size, None, f"{what}, and {pool.where} has {len(pool)}")
    return Need("data", spec, HERE, size, None, f"{what} of {len(pool)}")


def _hub(needs: Iterable[Need]) -> Iterator[Need]:
    """The hub, where something is to be fetched from it, and the room for that."""
    from workbench.models import hub

    away = [need for need in needs if need.state == HUB or (need.kind == "weights" and need.state == MISSING)]
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
        None,
        f"to fetch; {free:.0f} GB are free",
    )


def _for(notebooks: int) -> str:
    return f"for {notebooks} notebook{'s' * (notebooks > 1)}"


# How long ---------------------------------------------------------------------------------------------------


def _estimate(notebook: Notebook, values: Mapping[str, Any], passes: list[Pass], probe: Probe) -> Need:
    from workbench.models.weights import size_of

    samples = notebook.filled(values).get("null_samples", null_samples_of(notebook))
    named = analyses_of(notebook)
    costs = {name: probe.analysis(name, samples) for name in named}
    seconds, unknown = 0.0, []
    for run in passes:
        size = size_of(run.model)
        if size is None:
            unknown.append(run.model)
            continue
        longer = (size.tokens / probe.tokens) ** 2
        a_head = longer * sum(cost for cost in costs.values() if cost is not None)
        seconds += max(1, run.n) * size.layers * (size.heads * a_head + bool(run.n) * probe.block(size))
    runs = len({run.model for run in passes})
    notes = [f"{runs} model{'s' * (runs != 1)}", ", ".join(named) or "forward passes alone"]
    left = [name for name, cost in costs.items() if cost is None]
    notes += [f"without {', '.join(left)}, which the probe cannot measure"] if left else []
    notes += [f"without {', '.join(unknown)}, whose size the hub alone knows"] if unknown else []
    return Need("notebook", notebook.name, ESTIMATE, None, seconds / 3600, "; ".join(notes))


def analyses_of(notebook: Notebook) -> list[str]:
    """The analyses that a notebook's code names; of one that asks for claims, those that claims are tested with."""
    from workbench.analyses.registry import ANALYSES
    from workbench.papers.published import stated_claims

    found: dict[str, None] = {}
    for node in _nodes(notebook.path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ANALYSES:
            found[node.value] = None
        elif getattr(node, "id", "") == "measured_claims" or (
            isinstance(node, ast.Attribute)
            and (getattr(node.value, "id", ""), node.attr) == ("workbench", "claims")
        ):
            found |= {name: None for name in stated_claims()["analysis"] if name in ANALYSES}
    return [*found]


def null_samples_of(notebook: Notebook) -> int | None:
    """How large a null distribution a notebook's code asks for, where it says a number."""
    for node in _nodes(notebook.path):
        said: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Dict):
            said = [
                (getattr(key, "value", None), value)
                for key, value in zip(node.keys, node.values, strict=True)
            ]
        elif isinstance(node, ast.keyword):
            said = [(node.arg, node.value)]
        for name, value in said:
            if name == "null_samples" and isinstance(value, ast.Constant) and isinstance(value.value, int):
                return value.value
    return None


def _nodes(path: Path) -> Iterator[ast.AST]:
    """The syntax of a notebook's code, but for cells that are no plain Python."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            try:
                yield from ast.walk(ast.parse("".join(cell["source"])))
            except (SyntaxError, ValueError):
                continue


class Probe:
    """Times on a device: of a block of a size, and of a head of an analysis at 197 tokens of 64 features."""

    def __init__(self, device: str) -> None:
        self.device, self.tokens = device, 197
        self.blocks: dict[Any, float] = {}
        self.analyses: dict[Any, float | None] = {}

    @property
    def words(self) -> str:
        """What it is measured on."""
        import torch

        if self.device.startswith("cuda"):
            return torch.cuda.get_device_name(self.device)
        return f"{torch.get_num_threads()} threads"

    def block(self, size: Any) -> float:
        """Seconds for an input through a transformer block of this size."""
        import torch
        from torch import nn

        width, key = size.heads * size.head_dim, (size.heads, size.head_dim, size.tokens)
        if key not in self.blocks:
            module = nn.TransformerEncoderLayer(
                width, size.heads, 4 * width, activation="gelu", batch_first=True
            )
            module = module.eval().to(self.device)
            batch = torch.randn(4, size.tokens, width, device=self.device)
            self._timed(lambda: module(batch))  # warms up
            self.blocks[key] = self._timed(lambda: module(batch)) / len(batch)
        return self.blocks[key]

    def analysis(self, name: str, null_samples: int | None) -> float | None:
        """Seconds for a head of one input; None for what a small vision transformer does not have."""
        from workbench.analyses.registry import ANALYSES
        from workbench.runs.analyze import analyze

        known = ANALYSES[name].options
        if "null_samples" not in known:
            null_samples = None
        if (name, null_samples) not in self.analyses:
            loaded, one = self.example
            given: dict[str, Any] = {"inputs": one, "layers": "0"} if ANALYSES[name].sites else {}
            heads = loaded.num_heads * (1 if given else loaded.num_layers)

            def run(samples: int | None) -> None:
                options: dict[str, Any] = {} if samples is None else {"null_samples": samples}
                analyze(name, model=loaded, cache=False, **given, **options)

            try:
                run(
                    None if null_samples is None else min(null_samples, 2)
                )  # what is imported and begun only once
                self.analyses[name, null_samples] = self._timed(lambda: run(null_samples)) / heads
            except WorkbenchError:
                self.analyses[name, null_samples] = None
        return self.analyses[name, null_samples]

    @cached_property
    def example(self) -> tuple[Any, Any]:
        """DeiT-tiny with random weights, and a photograph."""
        from workbench.data.batches import inputs
        from workbench.models.loading import load

        loaded = load(_MODEL, pretrained=False, device=self.device)
        return loaded, inputs(_INPUTS, loaded, n=1)

    def _timed(self, call: Callable[[], Any]) -> float:
        import torch

        started = time.perf_counter()
        with torch.inference_mode():
            call()
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started
