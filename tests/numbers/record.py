"""Record what every analysis and every mechanism gives, on fixed inputs, as one table of numbers.

    python -m tests.numbers.record FILE [SECTION …] [--batch-size N]

The file of this folder, ``base.parquet``, was recorded so; ``compare.py`` says what has changed since. The script
needs nothing of this package but public names of the workbench, and runs on any of its commits (``compare.py`` runs it
on an older one): what is called otherwise there is looked up in ``names.csv``. So it imports no module beside it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import importlib
import inspect
import math
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import workbench
import workbench.attention

HERE = Path(__file__).parent
NAMES = HERE / "names.csv"
PLACE = ["section", "source", "analysis", "case", "error"]
"""What the recorder calls a row's origin, whatever the workbench calls it by now; and the error in its place."""
NUMBERS = ["value", "null_mean", "null_low", "null_high", "z"]
DROPPED = ["version"]

MODELS = {
    "vit": ("bundled:digits-vit", "bundled:digits", {"n": 2}),
    "tost": ("bundled:digits-tost", "bundled:digits", {"n": 2}),
    "characters": ("bundled:prose-softmax", "bundled:prose", {"n": 2, "max_length": 64}),
    "minilm": ("all-MiniLM-L6-v2", "bundled:prose", {"n": 2, "max_length": 64}),
    # what the four above cannot have: a pursuit, a Primal kernel, positions and contents with bandwidths, padding
    "rpc": ("bundled:digits-rpc-sym", "bundled:digits", {"n": 2}),
    "primal": ("bundled:digits-primal", "bundled:digits", {"n": 2}),
    "bilateral": ("bundled:digits-bilateral", "bundled:digits", {"n": 2}),
    "tssa-causal": ("bundled:prose-tssa-causal", "bundled:prose", {"n": 2, "max_length": 64}),
    "padded": ("all-MiniLM-L6-v2", "text:lines.txt", {"n": 3, "max_length": 64}),
}
ALL_OPTIONS = {"vit", "tost", "characters"}
"""Models on which every option of `OPTIONS` is tried; on the others the first."""
LAYERS = {"vit": "0,2", "minilm": "1,4"}

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "gram-spectrum": [
        {"draws": 2, "max_rank": 8},
        {"standardize": "per-token", "normalize": "trace", "max_rank": 4},
    ],
    "attention-map": [{"draws": 2}],
    "class-attention": [
        {"draws": 2},
        {"draws": 2, "rollout": True, "tokens": True},
        {"per_head": True, "query": "mean", "draws": 0},
    ],
    "token-similarity": [
        {},
        {
            "null": "permutation", "draws": 2, "sites": "all", "prefix": "both", "mean_token": "both",
            "effective_rank": True, "rate": "fit",
        },
    ],
    "value-similarity": [
        {"draws": 2},
        {"draws": 2, "per_head": True, "null": "permutation", "standardize": "per-token"},
    ],
    "eigenvector-test": [
        {"draws": 2},
        {"draws": 2, "per_head": True, "null": "gaussian", "standardize": "per-token"},
    ],
    "projection-error": [
        {"draws": 2},
        {"draws": 2, "per_head": True, "null": "gaussian", "standardize": "per-token"},
    ],
    "membership": [{"draws": 2}, {"draws": 2, "per_head": True}],
    "coding-rate": [{}, {"eps": 0.5, "membership": "uniform", "normalize": "none"}],
    "subspaces": [{"draws": 2}, {"draws": 0, "projection": "q"}],
    "attention-patterns": [{}],
    "position-logits": [{"draws": 2}, {"draws": 2, "per_head": True}],
    "attention-spectrum": [
        {"draws": 2, "max_rank": 6},
        {"draws": 2, "max_rank": 3, "per_head": True, "null": "permutation"},
    ],
    "softmax-sensitivity": [{"draws": 2}, {"draws": 2, "per_head": True, "sigma": 0.5}],
    "robust-components": [{}, {"per_head": True}],
    "filter-kernels": [{"draws": 0}, {"draws": 2, "per_head": True, "content": "heads"}],
    "snr": [{}, {"per_head": True, "centre": True, "noise": "impulse-noise", "severity": 2}],
}  # fmt: skip
"""What is asked of each analysis; of one that is not here, what it does by itself."""

LINES = (
    "The tide had gone out before dawn, and along the whole shore nothing moved but the thin grass on the dunes, "
    "which bent and rose again as if somebody were walking through it whom nobody could see, slowly, without a hurry.",
    "She counted the stairs as she went down, forty in all, though the notice at the door had promised only thirty "
    "eight, and wondered which two of them had been built since then.",
    "Rivers are patient, said the old man, and rivers are deaf: you may tell them what you like about the sea and the "
    "mountains and the mills, and they will go on as before, past every bridge and every town, to where they have "
    "always gone.",
)


# Names that differ between commits ---------------------------------------------------------------------------------


class Name(NamedTuple):
    """A row of ``names.csv``: what was ``old`` is called ``new`` now, in the analysis of that label or everywhere."""

    where: str
    old: str
    new: str
    analysis: str


@cache
def names() -> list[Name]:
    """The table of renamed names."""
    with NAMES.open(encoding="utf-8", newline="") as file:
        return [Name(**row) for row in csv.DictReader(file)]


def spellings(where: str, old: str, analysis: str = "") -> list[str]:
    """What ``old`` may be called, the newest name first and it itself last."""
    new = [
        name.new
        for name in names()
        if (name.where, name.old) == (where, old) and name.analysis in ("", analysis)
    ]
    return [*new, old]


def renamed(where: str, old: str, known: Any, analysis: str = "") -> str:
    """What ``old`` is called on the commit that runs: the newest of its names that is ``known`` there."""
    return next((name for name in spellings(where, old, analysis) if name in known), old)


def renamed_options(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an analysis by their names of this commit."""
    known = workbench.ANALYSES[analysis_name(label)].options
    return {renamed("option", key, known, label): value for key, value in options.items()}


def load(key: str) -> Any:
    """One of `MODELS`."""
    *newer, oldest = spellings("model", MODELS[key][0])
    for spec in newer:
        try:
            return workbench.load(spec)
        except workbench.WorkbenchError:
            continue
    return workbench.load(oldest)


def public(name: str) -> Callable[..., Any]:
    """A function of the workbench by its dotted name, or where it lives now."""
    for place in spellings("function", name):
        module, _, attribute = place.rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"{name} is nowhere; say in {NAMES.name} (where: function) what it is called now")


def mechanism(name: str) -> Callable[..., Any]:
    """A free function of ``workbench.attention`` by its name, whatever file it is in."""
    package = workbench.attention
    for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(part.name)
        for candidate in spellings("mechanism", name):
            found = vars(module).get(candidate)
            if found is not None and found.__module__ == module.__name__:
                return found
    raise LookupError(f"{name} is nowhere; say in {NAMES.name} (where: mechanism) what it is called now")


def call(function: Callable[..., Any], *given: Any, analysis: str = "", **settings: Any) -> Any:
    """Call with arguments, options and their values by their names of this commit.

    Whether a value has a new spelling there is only known from the error, which names what it does not accept.
    """
    own = {*inspect.signature(function).parameters}
    if hasattr(workbench, "RunSettings"):
        own |= {field.name for field in dataclasses.fields(workbench.RunSettings)}
    options = workbench.ANALYSES[found].options if (found := analysis_name(analysis)) else {}
    chosen, older = {}, {}
    for key, value in settings.items():
        argument = renamed("argument", key, own) in own
        where = "argument" if argument else "option"
        name = renamed(where, key, own if argument else options, analysis)
        chosen[name] = value
        if isinstance(value, str) and (other := spellings(f"{where}.{key}", value, analysis)[0]) != value:
            chosen[name], older[name] = other, value
    while True:
        try:
            return function(*given, **chosen)
        except workbench.WorkbenchError as error:
            unknown = [name for name in older if repr(chosen[name]) in str(error)]
            if not unknown:
                raise
            chosen |= {name: older.pop(name) for name in unknown}


def analysis_name(label: str) -> str:
    """What the registry calls an analysis on this commit; "" where it has none of that name."""
    name = renamed("analysis", label, workbench.ANALYSES)
    return name if name in workbench.ANALYSES else ""


def analyze(label: str, **settings: Any) -> pd.DataFrame:
    """`workbench.analyze` by the names of this commit."""
    return call(workbench.analyze, analysis_name(label) or label, analysis=label, **settings)


# Rows --------------------------------------------------------------------------------------------------------------


class Recording:
    """Collects rows; ``batch_size`` is that of every run over inputs (numbers must not depend on it)."""

    def __init__(self, batch_size: int = 8, folder: Path | None = None) -> None:
        self.batch_size = batch_size
        self.folder = folder or Path(tempfile.mkdtemp(prefix="numbers-"))
        self.frames: list[pd.DataFrame] = []

    def add(
        self, section: str, source: str, analysis: str, case: str, make: Callable[[], pd.DataFrame]
    ) -> None:
        """The rows that ``make`` gives, or the class of the error it ends in."""
        place = {"section": section, "source": source, "analysis": analysis, "case": case, "error": None}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                frame = make()
        except Exception as error:  # that an analysis does not apply to a model is one of the facts
            frame = pd.DataFrame([{"error": type(error).__name__}])
            place.pop("error")
        self.frames.append(frame.drop(columns=DROPPED, errors="ignore").assign(**place))

    def tensors(
        self, section: str, source: str, analysis: str, case: str, make: Callable[[], Mapping[str, Any]]
    ) -> None:
        """The numbers in the tensors that ``make`` gives by name."""

        def rows() -> pd.DataFrame:
            parts = []
            for name, tensor in make().items():
                flat = np.asarray(torch.as_tensor(tensor).detach().double().flatten())
                parts.append(pd.DataFrame({"metric": name, "rank": range(len(flat)), "value": flat}))
            return pd.concat(parts, ignore_index=True)

        self.add(section, source, analysis, case, rows)

    def frame(self) -> pd.DataFrame:
        """All rows under one another; what is text is text, and numbers are float64."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas, of columns that are empty in some of the frames
            joined = pd.concat([frame.astype(object) for frame in self.frames], ignore_index=True)
        kinds = {
            name: "Int64" if name in ("layer", "head", "rank") else "string"
            for name in joined
            if name not in NUMBERS
        }
        joined = joined.astype(kinds | {name: "float64" for name in NUMBERS if name in joined})
        first = [name for name in PLACE if name in joined]
        return joined[first + [name for name in joined if name not in first]]


def label(options: Mapping[str, Any]) -> str:
    """Options as a case is called."""
    return " ".join(f"{key}={value}" for key, value in options.items()) or "as it is"


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, float64, the same ones for ever."""
    # of numpy, which keeps the stream of a seed between its versions
    return torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).standard_normal(shape))


# Models over inputs ------------------------------------------------------------------------------------------------


def chosen_inputs(recording: Recording, key: str, model: Any) -> Any:
    _, spec, settings = MODELS[key]
    if spec == "text:lines.txt":
        path = recording.folder / "lines.txt"
        path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
        spec = f"text:{path}"
    return call(workbench.inputs, spec, model, seed=0, preprocessing="paper", **settings)


def of_model(recording: Recording, key: str) -> None:
    """Every registered analysis of one model."""
    model = load(key)
    given = chosen_inputs(recording, key, model)
    for analysis in labels():
        asked = OPTIONS.get(analysis, [{}])
        for options in asked if key in ALL_OPTIONS else asked[:1]:
            layers = LAYERS.get(key, "0,1")
            if analysis == "filter-kernels":  # whose bandwidths are fitted, which takes long
                layers = layers[0]
            if options.get("rollout") or analysis == "relevance":  # which begin at the first layer
                layers = "0-2"
            settings: dict[str, Any] = {"model": model, "layers": layers, **options}
            if takes_inputs(analysis):
                joint = analysis in ("patching", "patch-pca")  # numbers of all inputs of a batch
                size = max(2, recording.batch_size) if joint else recording.batch_size
                settings |= {"inputs": given, "batch_size": size}
            recording.add(
                "model", key, analysis, label(options), lambda a=analysis, s=settings: analyze(a, **s)
            )
    recording.tensors("model", key, "capture", "sites", lambda: captured(model, given))
    if key == "vit":
        ways_of_asking(recording, model, given)


def labels() -> list[str]:
    """The analyses by the names that they are recorded under: those of `OPTIONS`, then what else is registered."""
    known = {analysis_name(analysis) for analysis in OPTIONS}
    return [*OPTIONS, *(name for name in workbench.ANALYSES if name not in known)]


def takes_inputs(analysis: str) -> bool:
    return analysis not in ("subspaces", "qk-ov-circuits")  # of weights


def captured(model: Any, given: Any) -> dict[str, Tensor]:
    """Mean and root mean square per head of every site of every layer."""
    sites = (
        "input",
        "q",
        "k",
        "v",
        "scale",
        "attn",
        "output",
        "before_attn",
        "update",
        "after_attn",
        "hidden",
    )
    try:
        called = {site: spellings("site", site)[0] for site in sites}
        taken = workbench.capture(model, given, sites=list(called.values()))
    except workbench.WorkbenchError:
        called = {site: site for site in sites}
        taken = workbench.capture(model, given, sites=list(sites))
    held: dict[str, Tensor] = {}
    for record in taken:
        for site, attribute in called.items():
            value = getattr(record, attribute, None)
            if value is None:
                continue
            value = torch.as_tensor(value).double()
            axes = [axis for axis in range(value.ndim) if not (value.ndim == 4 and axis == 1)]
            root = value.square().mean(axes).sqrt() if axes else value.abs()
            held[f"{site} layer {record.index}"] = torch.stack([value.mean(axes) if axes else value, root])
    return held


def ways_of_asking(recording: Recording, model: Any, given: Any) -> None:
    """The other arguments of `analyze`, on the ViT."""
    inputs = MODELS["vit"][1]
    named = {"model": model.spec, "inputs": inputs, "preprocessing": "paper", "seed": 3, "n": 3}
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "by name": ("gram-spectrum", named | {"max_rank": 3, "draws": 2, "layers": "1"}),
        "a checkpoint": (
            "projection-error",
            named | {"model": f"{model.spec}@epoch-000", "draws": 0, "layers": [-1]},
        ),
        "float64": ("value-similarity", named | {"dtype": "float64", "draws": 2, "layers": "1"}),
        "the model's preprocessing": ("attention-map", named | {"preprocessing": "model", "draws": 0}),
        "heads": ("softmax-sensitivity", named | {"heads": "0,2", "draws": 2, "per_head": True}),
        "all layers": ("token-similarity", named | {"draws": 0}),
        "photographs": ("token-similarity", named | {"inputs": "bundled:photos", "model": model, "n": 2}),
    }
    for way, (analysis, settings) in ways.items():
        settings = settings | {"batch_size": recording.batch_size}
        recording.add("model", "vit", analysis, way, lambda a=analysis, s=settings: analyze(a, **s))
    for analysis in labels():
        if takes_inputs(analysis) and analysis != "filter-kernels":
            first = OPTIONS.get(analysis, [{}])[0]
            recording.add(
                "model", "vit", analysis, f"{label(first)} per_input=False",
                lambda a=analysis, o=first: analyze(
                    a, model=model, inputs=given, layers="0,2", per_input=False,
                    batch_size=recording.batch_size, **o,
                ),
            )  # fmt: skip


# Files of queries, keys and values ---------------------------------------------------------------------------------


def qkv_files(folder: Path) -> dict[str, Path]:
    """Three layers of all heads alike; padded; and grouped keys under a causal mask."""
    shape = (2, 3, 2, 9, 4)  # layer, batch, head, token, head_dim
    parts = {name: numbers(*shape, seed=seed).numpy() for seed, name in enumerate("qkv")}
    real = np.arange(9) < np.array([9, 7, 6])[:, None]
    grouped = {name: value[:, :2, :1] if name != "q" else value[:, :2] for name, value in parts.items()}
    causal = np.broadcast_to(np.tril(np.ones((9, 9), dtype=bool)), (2, 2, 9, 9))
    contents: dict[str, dict[str, Any]] = {
        "plain": parts,
        "padded": parts | {"mask": real, "scale": np.array([0.5, 0.7])},
        "grouped": grouped | {"mask": causal},
    }
    paths = {}
    for name, arrays in contents.items():
        paths[name] = folder / f"{name}.npz"
        np.savez(paths[name], **{key: np.ascontiguousarray(value) for key, value in arrays.items()})
    return paths


def of_qkv(recording: Recording) -> None:
    """Every analysis of files of queries, keys and values in float64: no model runs."""
    for name, path in qkv_files(recording.folder).items():
        for analysis in labels():
            asked = OPTIONS.get(analysis, [{}])
            for options in asked if name == "plain" else asked[:1]:
                recording.add(
                    "qkv", name, analysis, label(options),
                    lambda a=analysis, o=options, p=path: analyze(
                        a, qkv=p, batch_size=recording.batch_size, **o
                    ),
                )  # fmt: skip


# Sweep and watch ---------------------------------------------------------------------------------------------------


def of_sweep(recording: Recording) -> None:
    """Two workers over shards of two models, read back; and rows per input, in this process."""
    asked = {
        "gram-spectrum": {"max_rank": 4},
        "value-similarity": {"draws": 2},
        "token-similarity": {},
        "membership": {"draws": 2},
    }
    specs = [load(key).spec for key in ("vit", "characters")]
    shared = {"layers": "0,2", "seed": 0, "preprocessing": "paper"}
    for case, per_input, workers in (("two workers", False, 2), ("per input", True, 1)):
        folder = recording.folder / case.replace(" ", "-")
        analyses = [(analysis_name(name), renamed_options(name, options)) for name, options in asked.items()]
        call(
            workbench.sweep, specs, ["bundled:digits", "bundled:prose"], analyses, folder, n=4, shards=2,
            workers=workers, per_input=per_input, batch_size=min(2, recording.batch_size), **shared,
        )  # fmt: skip
        for key, spec in zip(("vit", "characters"), specs, strict=True):
            for analysis, options in asked.items():
                settings = {**options, **shared, **({"per_input": True} if per_input else {})}
                recording.add(
                    "sweep", key, analysis, case,
                    lambda a=analysis, m=spec, f=folder, s=settings: read_sweep(a, m, f, s),
                )  # fmt: skip


def read_sweep(analysis: str, model: str, folder: Path, settings: Mapping[str, Any]) -> pd.DataFrame:
    """What a sweep measured of a model, as `analyze` would give it. The one place that knows how a sweep is read."""
    many = getattr(workbench, "analyze_many", None)
    if many is None:
        return analyze(analysis, model=model, inputs=f"sweep:{folder}", **settings)
    return call(many, analysis_name(analysis), [(model, f"sweep:{folder}")], analysis=analysis, **settings)


def of_watch(recording: Recording) -> None:
    """A small vision transformer that takes five steps of gradient descent."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=12, patch_size=4, embed_dim=8, depth=2, num_heads=2, num_classes=7, class_token=True
    )
    fill(model)
    images = numbers(5, 3, 12, 12, seed=1).float()
    classes = torch.arange(5)
    analyses = {
        "projection-error": {"draws": 0},
        "token-similarity": {"draws": 0},
        "membership": {"draws": 0},
    }
    folder = recording.folder / "watch"
    watch = call(
        workbench.watch, model, images, out=folder, every=2, max_cost=None, name="small",
        analyses={analysis_name(name): renamed_options(name, options) for name, options in analyses.items()},
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for step in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
        watch.step(step)
    read = public("workbench.read_watch")

    def rows(analysis: str) -> pd.DataFrame:
        return read(folder, analysis_name(analysis)).drop(columns="step", errors="ignore")

    for analysis in analyses:
        recording.add("watch", "small", analysis, "five steps", lambda a=analysis: rows(a))


# Mechanisms --------------------------------------------------------------------------------------------------------

BATCH, HEADS, TOKENS, WIDTH = 2, 2, 6, 3


def of_functions(recording: Recording) -> None:
    """Every free function of the mechanisms on fixed tensors."""
    q, k, v, x = (numbers(BATCH, HEADS, TOKENS, WIDTH, seed=seed) for seed in (0, 1, 2, 3))
    real = torch.arange(TOKENS) < torch.tensor([TOKENS, TOKENS - 2])[:, None]
    position_q, position_k = (numbers(TOKENS, WIDTH, seed=seed) for seed in (4, 5))
    s = numbers(TOKENS, TOKENS, seed=6)
    we, wr = (numbers(HEADS, 4, 2, seed=seed) for seed in (7, 8))
    full, full_r = (numbers(HEADS, WIDTH, 2, seed=seed) for seed in (9, 10))
    lam = numbers(HEADS, 2, seed=11).abs() + 0.5
    temperature = numbers(HEADS, 1, 1, seed=12).abs() + 0.5
    e, r = (numbers(BATCH, HEADS, TOKENS, 2, seed=seed) for seed in (13, 14))
    matrix = numbers(6, 2, seed=15) @ numbers(2, 5, seed=16)
    matrix[1, 2] += 7.0
    causal, masked = {"causal": True}, {"mask": real}
    cases: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
        "softmax_attention": [((q, k, v), o) for o in ({}, masked, causal, {"scale": 0.3})],
        "bilateral_attention": [
            ((q, k, v, position_q, position_k), o)
            for o in ({}, {"h_p": 0.7, "h_y": 1.3}, {"h_p": math.inf}, masked)
        ],
        "position_logits": [((position_q, position_k), o) for o in ({}, {"h_p": 0.7})],
        "nonlocal_attention": [((q, k, v), o) for o in ({}, {"h_y": 1.3}, masked)],
        "alibi_attention": [((q, k, v), o) for o in ({}, {"scale": 0.3}, masked)],
        "alibi_slopes": [((8,), {}), ((12,), {})],
        "alibi_logits": [((numbers(HEADS, seed=17).abs(), TOKENS), {})],
        "twicing_attention": [((q, k, v), o) for o in ({}, {"scale": 0.3}, masked)],
        "log_bilateral_filter": [
            ((position_q, position_k, q, k), o) for o in ({}, {"h_p": 0.7, "h_y": 1.3})
        ],
        "log_filter_constant": [((1.5, 4), {})],
        "sinusoidal_positions": [((TOKENS, 4), {}), ((TOKENS, 6), {"base": 100.0})],
        "subspace_attention": [((q,), o) for o in ({}, causal, masked, {"scale": 0.3})],
        "primal_features": [((q, k), o) for o in ({}, causal, masked)],
        "primal_scores": [
            ((q, k, full, full_r), {}), ((q, k, full, full_r), causal), ((q, k, we, wr), {"x": x}),
            ((q, k, we, wr), {"x": x, "mask": real}),
        ],
        "primal_kernel": [
            ((q, k), {}), ((q, k), causal), ((q, k), {"x": x, "samples": 4}), ((q, k), masked),
        ],
        "sampled_tokens": [((x, 4), {}), ((x, 4), masked)],
        "ksvd_loss": [
            ((e, r, full, full_r, lam), o)
            for o in ({}, masked, {"convention": "code"}, {"convention": "code", "mask": real})
        ],
        "ksvd_penalty": [
            (([numbers(BATCH, HEADS, seed=18), numbers(BATCH, HEADS, seed=19)],), {}),
            (([numbers(seed=18), numbers(seed=19)],), {"convention": "code"}),
        ],
        "boosted_residual": [((q[:, 0], k[:, 0], v[:, 0], t), {}) for t in (0.0, 0.3)],
        "residual_lipschitz": [((1.7, 5), {}), ((1.7, 5, 0.4), {})],
        "principal_component_pursuit": [((matrix,), o) for o in ({}, {"lambd": 0.3, "mu": 0.5, "max_iter": 7})],
        "shrink": [((q, torch.tensor(0.4, dtype=torch.float64)), {})],
        "rpc_attention": [
            ((k, v), {"details": True} | o)
            for o in (
                {}, {"q": q}, {"num_iter": 2, "lambd": 2.0}, {"convention": "code"}, causal, masked,
                {"lambd": math.inf},
            )
        ],
        "scaled_attention": [((q, k, v, s), o) for o in ({}, masked, causal)],
        "scaled_values": [((v, s), {}), ((v, s), {"mask": real[:, None, None, :]})],
        "exact_scaling": [((k,), o) for o in ({}, {"scale": 0.3}, masked)],
        "log_exact_scaling": [((k,), o) for o in ({}, {"scale": 0.3}, masked)],
        "token_statistics_attention": [
            ((q, temperature), o)
            for o in (
                {}, causal, masked, {"convention": "code"}, {"bias": numbers(HEADS, TOKENS, 1, seed=20), **causal},
            )
        ],
        "token_membership": [((q, temperature), o) for o in ({}, causal, masked, {"convention": "code"})],
        "cross_covariance_attention": [((q, k, v, temperature), o) for o in ({}, masked)],
        "unit_features": [((q, k), o) for o in ({}, masked)],
    }  # fmt: skip
    for name, asked in cases.items():
        for number, (given, options) in enumerate(asked):
            listed = ", ".join(
                key if isinstance(value, Tensor) else f"{key}={value}" for key, value in options.items()
            )
            recording.tensors(
                "function", "float64", name, f"{number}: {listed}",
                lambda n=name, g=given, o=options: parts_of(call(mechanism(n), *g, **o)),
            )  # fmt: skip


def parts_of(result: Any) -> dict[str, Any]:
    """The tensors of a result by their places, or their names where it has some."""
    if hasattr(result, "_asdict"):
        result = {renamed_back("part", name): part for name, part in result._asdict().items()}
    elif isinstance(result, tuple | list):
        result = {f"part {number}": part for number, part in enumerate(result)}
    else:
        result = {"result": result}
    return {name: part for name, part in result.items() if isinstance(part, Tensor | float | int)}


def renamed_back(where: str, new: str) -> str:
    """The name that something was recorded under."""
    return next((name.old for name in names() if (name.where, name.new) == (where, new)), new)


MODULE_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "rpc-sym": [{}, {"num_iter": 2, "lambd": 2.0}, {"convention": "code"}],
    "rpc-asym": [{}, {"convention": "code"}],
    "rpc-sym-asym": [{}, {"layer": 1}],
    "tssa": [{}, {"convention": "code"}],
    "primal": [{"low_rank": 2, "rank_multi": 2}, {"low_rank": 2, "rank_multi": 2, "scores": "e"}],
    "primal-independent": [{"low_rank": 2}, {"low_rank": 2, "scores": "e"}],
    "primal-causal": [{"low_rank": 2}],
    "bilateral": [{}, {"h_p": 0.7, "h_y": 1.3, "learn_bandwidths": False}],
}


def of_modules(recording: Recording) -> None:
    """Every mechanism of the table as a module: output and gradient, alone, under a mask, and causal."""
    width = HEADS * WIDTH
    x, weight = numbers(BATCH, TOKENS, width, seed=30), numbers(BATCH, TOKENS, width, seed=31)
    real = torch.arange(TOKENS) < torch.tensor([TOKENS, TOKENS - 2])[:, None]
    for name in workbench.attention.VARIANTS:
        old = renamed_back("variant", name)
        for options in MODULE_OPTIONS.get(old, [{}]):
            for case, extra, given in (
                ("alone", {}, ()), ("masked", {}, (real,)), ("causal", {"causal": True}, ()),
            ):  # fmt: skip
                recording.tensors(
                    "module", "float64", old, f"{case} {label(options)}",
                    lambda n=name, o=options, e=extra, g=given: run_module(
                        built(n, width, o | e), x, weight, *g
                    ),
                )  # fmt: skip


def built(name: str, width: int, options: Mapping[str, Any]) -> nn.Module:
    make = workbench.attention.attention_module
    known = workbench.attention.VARIANTS[name].options
    newest, oldest = (
        {
            renamed("variant option", key, known): (
                spellings(f"variant option.{key}", value)[spelled] if isinstance(value, str) else value
            )
            for key, value in options.items()
        }
        for spelled in (0, -1)
    )
    pair = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        try:
            pair.append(make(name, width, HEADS, num_tokens=TOKENS, **newest))
        except workbench.WorkbenchError:  # of a commit that spells a value in the older way
            pair.append(make(name, width, HEADS, num_tokens=TOKENS, **oldest))
    return fill(*pair).double().eval()


def run_module(module: nn.Module, x: Tensor, weight: Tensor, *given: Any) -> dict[str, Tensor]:
    """Output, and the gradient of its product with ``weight``."""
    fill(module)
    x = x.clone().requires_grad_()
    output = module(x, *given)
    (output * weight).sum().backward()
    return {"output": output, "gradient": x.grad}


def fill(module: nn.Module, other: nn.Module | None = None) -> nn.Module:
    """Set every parameter to numbers that follow from its name alone, near what it starts at where that is no accident.

    Which parameters start at random is known from an ``other`` with another seed, or else from their number of axes.
    """
    others = dict(other.named_parameters()) if other is not None else {}
    with torch.no_grad():
        for name, value in module.named_parameters():
            seed = int.from_bytes(hashlib.sha256(f"{name} {tuple(value.shape)}".encode()).digest()[:4], "big")
            noise = numbers(*value.shape, seed=seed).to(value)
            accident = not torch.equal(value, others[name]) if name in others else value.ndim > 1
            value.copy_(noise / math.sqrt(value.shape[-1]) if accident else value + 0.05 * noise)
    return module


def of_replaced(recording: Recording) -> None:
    """Every mechanism in the place of one layer's attention in the ViT, in float64."""
    model = load("vit")
    module = model.module.double()
    images = numbers(2, 1, 16, 16, seed=40)
    for name in workbench.attention.VARIANTS:
        old = renamed_back("variant", name)

        def run(name: str = name) -> dict[str, Tensor]:
            before = {path: value.clone() for path, value in module.named_parameters()}
            with workbench.replace_attention(model, name, "1"), torch.no_grad():
                for path, value in module.named_parameters():
                    if path not in before or value.shape != before[path].shape:
                        seed = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big")
                        noise = numbers(*value.shape, seed=seed)
                        value.copy_(noise / math.sqrt(value.shape[-1]) if value.ndim > 1 else value)
                return {"logits": module(images)}

        recording.tensors("replaced", "vit", old, "layer 1", run)


# All of it ---------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[Recording], None]] = {
    "functions": of_functions,
    "modules": of_modules,
    "replaced": of_replaced,
    "qkv": of_qkv,
    **{key: (lambda recording, key=key: of_model(recording, key)) for key in MODELS},
    "sweep": of_sweep,
    "watch": of_watch,
}
ROWS: dict[str, tuple[str, str]] = {
    "functions": ("function", ""),
    "modules": ("module", ""),
    "replaced": ("replaced", ""),
    "qkv": ("qkv", ""),
    **{key: ("model", key) for key in MODELS},
    "sweep": ("sweep", ""),
    "watch": ("watch", ""),
}
"""What the rows of each say in the columns section and source, where they say one thing."""
FIXED = ("function", "module", "replaced", "qkv")
"""Sections whose operands are fixed float64 numbers: no forward pass in float32 comes before."""


def record(sections: Any = None, *, batch_size: int = 8) -> pd.DataFrame:
    """The rows of some sections, or all of them, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    random = torch.random.get_rng_state()
    try:
        with tempfile.TemporaryDirectory(prefix="numbers-") as folder:
            recording = Recording(batch_size, Path(folder))
            for name in sections or SECTIONS:
                torch.manual_seed(0)
                SECTIONS[name](recording)
            return recording.frame()
    finally:
        torch.random.set_rng_state(random)
        torch.set_num_threads(threads)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Record what every analysis and mechanism gives.")
    parser.add_argument("file", type=Path, help="a Parquet file, which is replaced")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"all unless named: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--batch-size", type=int, default=8, help="inputs at a time")
    chosen = parser.parse_args(arguments)
    frame = record(chosen.sections, batch_size=chosen.batch_size)
    frame.attrs["package"] = str(Path(workbench.__file__).parent)
    frame.to_parquet(chosen.file, index=False, compression="zstd")
    size = chosen.file.stat().st_size
    sys.stdout.write(f"{len(frame)} rows of {frame.attrs['package']} in {chosen.file} ({size} bytes)\n")


if __name__ == "__main__":
    main()
