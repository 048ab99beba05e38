"""Measure the terms of the papers' theorems and remarks in bundled models: ``workbench study records theorems``.

Each row of ``data/records/theorems`` is one quantity of one model, trained or untrained: abdullaev2025 Theorem IV.1 and
Corollary III.2, saritas2025 Appendices A.1 and D. The papers' pages show them. The sampling unit is an input for a
trained model, an initialisation for untrained weights, and a seed for a training.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from workbench.analyses.attention_spectrum import kernel_svd, singular_alignment
from workbench.analyses.kernel_pca import principal_axes
from workbench.analyses.projection_error import (
    assigned_range,
    cross_term_range,
    log_feature_norms,
    projections,
)
from workbench.analyses.softmax_sensitivity import output_bound, output_perturbation
from workbench.attention.primal import primal_layers
from workbench.attention.residual import residual_growth
from workbench.core.children import safe_path
from workbench.core.intervals import mean_interval, paired_interval
from workbench.core.null_distributions import generator
from workbench.frames.provenance import versions
from workbench.papers.claims import untrained_checkpoints
from workbench.studies.records import THEOREMS, THEOREMS_FILE, finished_part, read_theorems, write_record

COMMAND = "workbench study records theorems"
SEED = 0
_TRAINED_INPUTS, _UNTRAINED_INPUTS = 8, 1
INITIALISATIONS = 6
SHARES = (0.0, 0.5, 1.0)
"""t of the boosted residual."""
SIZES = (16, 64, 256, 1024, 4096)
"""Numbers of keys N of random logits."""
_PENALTIES = (0.05, 0.0)
"""η of the KSVD penalty: the recipe's, and none."""
SEEDS = (1907, 1912, 1931)


class Row(NamedTuple):
    """One quantity of one model; ``weights`` is "trained", "untrained", or the training setting."""

    paper: str
    place: str
    quantity: str
    setting: str
    model: str
    weights: str
    value: float
    low: float
    high: float
    n: int
    units: str


def make_theorems_record(data: Path, work: Path, *, workers: int = 1) -> dict[str, Any]:
    """Measure every row and write ``data/records/theorems``, replacing the old record.

    Measured parts and trainings are kept in `work`; the parts are removed once the record is written.
    """
    from joblib import Parallel, delayed

    with safe_path():
        paths = Parallel(n_jobs=workers)(delayed(measured_part)(name, work) for name in PARTS)
    about = {
        "name": THEOREMS,
        "command": COMMAND,
        "seed": SEED,
        "training_seeds": SEEDS,
        "threads": 1,
        "versions": versions(),
    }
    frame = pd.concat([read_theorems(path) for path in paths], ignore_index=True)
    record = write_record(data / "records" / THEOREMS, THEOREMS_FILE, frame, about)
    for path in paths:
        path.unlink()
        path.with_suffix(".json").unlink()
    return record


def measured_part(name: str, work: Path) -> Path:
    """Return the file of one of `PARTS`, measured unless it is in `work`."""
    question = {"part": name, "versions": versions()}
    return finished_part(
        work, name, question, lambda: (pd.DataFrame(PARTS[name](work), columns=Row._fields), {})
    )[0]


class _Sample(NamedTuple):
    """A model in float64 and some of its inputs."""

    module: nn.Module
    batch: Tensor


def _sample(spec: str, checkpoint: str | None, n: int) -> _Sample:
    from workbench.data.batches import inputs
    from workbench.models.loading import load

    model = load(spec, checkpoint=checkpoint, device="cpu")
    batch = inputs("bundled:digits", model, n=n, seed=SEED).batch
    assert isinstance(batch, Tensor)  # images
    return _Sample(copy.deepcopy(model.module).double().requires_grad_(False), batch.double())


def _trained_and_not(
    spec: str, measure: Callable[[_Sample], dict[str, list[float]]]
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Apply ``measure`` to every input of the trained model, and on average to every initialisation."""
    yield "trained", "inputs", pd.DataFrame(measure(_sample(spec, None, _TRAINED_INPUTS)))
    each = [
        pd.DataFrame(measure(_sample(spec, name, _UNTRAINED_INPUTS))).mean()
        for name in untrained_checkpoints(spec, INITIALISATIONS)
    ]
    yield "untrained", "initialisations", pd.DataFrame(each).reset_index(drop=True)


# abdullaev2025 Theorem IV.1 ----------------------------------------------------------------------------------


def _growth_rows(spec: str = "bundled:digits-vit") -> Iterator[Row]:
    """Measure Lipschitz growth over all layers without MLPs, plain and boosted, and the theorem's bounds."""
    for weights, units, frame in _trained_and_not(spec, _growth):
        layers = int(frame["layers"].iloc[0])
        findings = {
            ("largest local Lipschitz constant L of an attention layer", ""): mean_interval(
                frame["largest 0"]
            )
        }
        for t in SHARES:
            for name, quantity in (("growth", f"growth K of {layers} layers"), ("bound", "bound of K")):
                findings[quantity, f"t = {t:g}"] = mean_interval(frame[f"{name} {t:g}"])
        for t in SHARES[1:]:
            for name, quantity in (
                ("growth", "K boosted over K plain"),
                ("bound", "the same of their bounds"),
            ):
                ratio = paired_interval(frame[f"{name} {t:g}"], frame[f"{name} 0"], ratio=True)
                findings[quantity, f"t = {t:g}"] = ratio
            printed = (1 - t / (frame["largest 0"] + 1)) ** layers
            findings["printed (1 − t/(L + 1))ⁿ, with the largest L", f"t = {t:g}"] = mean_interval(
                printed, ratio=True
            )
        for (quantity, setting), finding in findings.items():
            yield Row("abdullaev2025", "Theorem IV.1", quantity, setting, spec, weights, *finding[:4], units)


def learned_rows() -> Iterator[Row]:
    """Read the t that the bundled models with boosted residuals learned."""
    for boosted in ("bundled:digits-softmax-boost", "bundled:digits-bilateral-boost"):
        blocks: Any = _sample(boosted, None, 1).module.blocks
        learned = pd.Series(
            [float(block.boost.t) for block in blocks][1:]
        )  # around the first, t has no effect
        yield Row(
            "abdullaev2025", "Theorem IV.1", "learned t: mean, least and largest", "layers from the second", boosted,
            "trained", learned.mean(), learned.min(), learned.max(), len(learned), "layers",
        )  # fmt: skip


def _growth(sample: _Sample) -> dict[str, list[float]]:
    first: list[Tensor] = []
    blocks: Any = sample.module.blocks
    with blocks.register_forward_pre_hook(lambda module, args: first.append(args[0])):
        sample.module(sample.batch)
    layers = [lambda tokens, block=block: block.ls1(block.attn(block.norm1(tokens))) for block in blocks]
    columns: dict[str, list[float]] = {"layers": [float(len(layers))] * len(sample.batch)}
    for t in SHARES:
        residual = residual_growth(layers, first[0], t, tolerance=1e-3)
        columns[f"largest {t:g}"] = residual.lipschitz.amax(-1).tolist()
        columns[f"growth {t:g}"] = residual.growth[:, -1].tolist()
        columns[f"bound {t:g}"] = residual.bound[:, -1].tolist()
    return columns


# abdullaev2025 Corollary III.2 -------------------------------------------------------------------------------


def _output_rows() -> Iterator[Row]:
    """Measure how far noise in the logits moves heads' outputs, the corollary's bound, and both against N."""
    for spec, source in (
        ("bundled:digits-vit", "bundled:digits"),
        ("bundled:prose-softmax", "bundled:prose"),
    ):
        for weights, units, frame in _output_frames(spec, source):
            moved, bound = frame["output_perturbation"], frame["output_perturbation_bound"]
            findings = {
                "perturbation of a head's output": mean_interval(moved),
                "its bound σ L √N ‖V‖, L = 1/2": mean_interval(bound),
                "perturbation over bound": paired_interval(moved, bound, ratio=True),
                "‖V‖ over √(dN) times the root mean square of V": mean_interval(frame["value_norm_ratio"]),
            }
            for quantity, finding in findings.items():
                yield Row(
                    "abdullaev2025", "Corollary III.2", quantity, "σ = 1", spec, weights, *finding[:4], units
                )
    for spread in (1.0, 10.0):
        yield from against_keys(spread)


def _output_frames(spec: str, source: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    from workbench.runs.analyze import analyze

    def measured(checkpoint: str | None, n: int) -> pd.DataFrame:
        frame = analyze(
            "softmax-sensitivity", model=spec if checkpoint is None else f"{spec}@{checkpoint}", inputs=source, n=n,
            seed=SEED, null_samples=0, device="cpu",
        )  # fmt: skip
        means = frame[frame[["layer", "head"]].isna().all(axis=1) & frame["input"].notna()]
        return means[means["statistic"].isna()].pivot_table(index="input", columns="metric", values="value")

    yield "trained", "inputs", measured(None, _TRAINED_INPUTS)
    each = [
        measured(checkpoint, _UNTRAINED_INPUTS).mean()
        for checkpoint in untrained_checkpoints(spec, INITIALISATIONS)
    ]
    yield "untrained", "initialisations", pd.DataFrame(each).reset_index(drop=True)


def against_keys(spread: float, width: int = 64, samples: int = 200) -> Iterator[Row]:
    """Fit the exponents of N of the perturbation and its bound, for random logits N(0, spread²) and values N(0, 1)."""
    from scipy import stats

    moved, bounds = [], []
    for keys in SIZES:
        drawn = generator(SEED, "theorems", keys)
        logits, noise = torch.randn(2, samples, keys, generator=drawn, dtype=torch.float64)
        v = torch.randn(keys, width, generator=drawn, dtype=torch.float64)
        moved.append(output_perturbation(spread * logits, noise, v).mean().item())
        bounds.append(output_bound(v, torch.tensor([keys]), 1.0).item())
    logs = [pd.Series(numbers).map(math.log) for numbers in (SIZES, moved, bounds)]
    setting = f"random logits, SD {spread:g}; N = {SIZES[0]} to {SIZES[-1]}"
    for what, values in zip(("perturbation", "bound"), logs[1:], strict=True):
        quantity = f"exponent of N of the {what}"
        fit = stats.linregress(logs[0], values)
        half = float(stats.t.ppf(0.975, len(SIZES) - 2)) * float(fit.stderr)
        slope = float(fit.slope)
        labels = ("abdullaev2025", "Corollary III.2", quantity, setting, "", "")
        yield Row(*labels, slope, slope - half, slope + half, len(SIZES), "sizes")


# saritas2025 Appendix A.1 ------------------------------------------------------------------------------------


def assignment_rows(spec: str = "bundled:digits-vit") -> Iterator[Row]:
    """Measure how the cross-term and the projection loss depend on the assignment of axes, over all assignments."""
    for weights, units, frame in _trained_and_not(spec, _assignments):
        for quantity, ratio in (
            ("cross-term, largest over least", True),
            ("loss J, largest over least", True),
            ("least J over the zero predictor's", False),
        ):
            finding = mean_interval(frame[quantity], ratio=ratio)
            yield Row("saritas2025", "Appendix A.1", quantity, "", spec, weights, *finding[:4], units)


def _assignments(sample: _Sample) -> dict[str, list[float]]:
    """Return geometric means over layers and heads, of every input."""
    import workbench

    captured: Any = workbench.capture(sample.module, sample.batch, sites=["q", "k", "v", "head_out", "scale"])
    columns: dict[str, list[float]] = {}
    for number in range(len(sample.batch)):
        heads = []
        for layer in captured:
            operands = [getattr(layer, site)[number].double() for site in ("q", "k", "v", "head_out")]
            heads += [_of_head(*head, scale=float(layer.scale)) for head in zip(*operands, strict=True)]
        for name, value in pd.DataFrame(heads).map(math.log).mean().items():
            columns.setdefault(str(name), []).append(math.exp(value))
    return columns


def _of_head(q: Tensor, k: Tensor, v: Tensor, h: Tensor, *, scale: float) -> dict[str, float]:
    axes = principal_axes(k, scale, v.shape[-1])
    eigenvalues = axes.eigenvalues * axes.log_factor.exp()
    zero = log_feature_norms(q, k, scale).exp().mean()
    least, largest = assigned_range(h, projections(q, k, scale, axes), eigenvalues)
    low, high = cross_term_range(h, eigenvalues)
    return {
        "cross-term, largest over least": float(high / low),
        "loss J, largest over least": float((zero + largest) / (zero + least)),
        "least J over the zero predictor's": float((zero + least) / zero),
    }


# saritas2025 Appendix D --------------------------------------------------------------------------------------


def _value_rows(spec: str = "bundled:digits-vit") -> Iterator[Row]:
    """Measure the alignment of softmax attention's values with its right singular vectors."""
    for weights, units, frame in _trained_and_not(spec, _of_values):
        yield from _aligned("values V of softmax attention", spec, weights, units, frame)


def _score_rows(work: Path, spec: str = "bundled:digits-primal") -> Iterator[Row]:
    """Measure the alignment of r-scores with the right singular vectors, trained with and without the penalty."""
    each = [
        pd.DataFrame(_of_scores(_sample(spec, name, _UNTRAINED_INPUTS))).mean()
        for name in untrained_checkpoints(spec, INITIALISATIONS)
    ]
    what = "r-scores of Primal-Attention"
    yield from _aligned(what, spec, "untrained", "initialisations", pd.DataFrame(each).reset_index(drop=True))
    for penalty in _PENALTIES:
        means = [pd.DataFrame(_of_scores(_penalised(penalty, seed, work))).mean() for seed in SEEDS]
        frame = pd.DataFrame(means).reset_index(drop=True)
        yield from _aligned(what, spec, f"trained, η = {penalty:g}", "seeds", frame)


def _aligned(what: str, spec: str, weights: str, units: str, frame: pd.DataFrame) -> Iterator[Row]:
    aligned, rotated = frame["as they are"], frame["directions rotated at random"]
    findings = {
        "as they are": mean_interval(aligned),
        "directions rotated at random": mean_interval(rotated),
        "the first less the second": paired_interval(aligned, rotated),
    }
    quantity = f"{what}: mean |cosine| with H_r"
    for setting, finding in findings.items():
        yield Row("saritas2025", "Appendix D", quantity, setting, spec, weights, *finding[:4], units)


def _of_values(sample: _Sample) -> dict[str, list[float]]:
    import workbench

    captured: Any = workbench.capture(sample.module, sample.batch, sites=["v", "attn"])
    alignments = [_alignment(layer.v.double(), layer.attn.double()) for layer in captured]
    return {
        name: torch.stack([part[name] for part in alignments]).mean((0, 2)).tolist() for name in alignments[0]
    }


def _of_scores(sample: _Sample) -> dict[str, list[float]]:
    (layer,) = primal_layers(sample.module)
    tokens: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda module, args: tokens.append(args[0])):
        sample.module(sample.batch)
    _, sites = layer.attend(tokens[0], observe=True)
    alignment = _alignment(sites["r_scores"], layer.kernel(tokens[0]))
    return {name: values.mean(-1).tolist() for name, values in alignment.items()}


def _alignment(vectors: Tensor, kernel: Tensor) -> dict[str, Tensor]:
    """Return `singular_alignment` (input, head) of vectors, and of their random rotation."""
    right = kernel_svd(kernel, vectors.shape[-1]).right
    drawn = generator(SEED, "theorems", "rotation")
    width = vectors.shape[-1]
    turn = torch.linalg.qr(torch.randn(width, width, generator=drawn, dtype=torch.float64)).Q
    return {
        "as they are": singular_alignment(vectors, right),
        "directions rotated at random": singular_alignment(vectors @ turn, right),
    }


def _penalised(penalty: float, seed: int, work: Path) -> _Sample:
    """Train Primal-Attention in the last layer on digits with this η."""
    from workbench.studies.training.runs import recipe_for, train

    recipe = dataclasses.replace(recipe_for("digits", None, "primal", None, None, False), ksvd_weight=penalty)
    out = work / f"weight-{penalty:g}" / f"seed-{seed}"
    result = train("digits", out, recipe=recipe, seed=seed, device="cpu", progress=False)
    return _sample(f"file:{result.checkpoints[-1]}", None, _TRAINED_INPUTS)


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "growth": lambda work: _growth_rows(),
    "learned": lambda work: learned_rows(),
    "output": lambda work: _output_rows(),
    "assignment": lambda work: assignment_rows(),
    "values": lambda work: _value_rows(),
    "scores": _score_rows,
}
"""Independent parts of the record: name → function of the folder of trainings."""
