"""Predictions of a model, and its predictions without one of its heads (head ablation, Michel et al. 2019).

`workbench.intervene` replaces the output of a head. Every head of a layer is one row of one batch, in every mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.analyses.head_effect import switched_off
from workbench.analyses.layer import visible_keys
from workbench.analyses.reductions import UniformOutput
from workbench.analyses.tiles import Maps, Mask, reduce_tiles
from workbench.core.errors import InputError
from workbench.data.classes import class_indices

if TYPE_CHECKING:
    from workbench.captures import Capture, LayerRecord
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

MODES = {
    "zero": "its output is zero",
    "mean": "its output is the mean over this input's tokens",
    "uniform": "it attends equally to all visible tokens",
}
"""How a head is switched off."""
BATCH = "batch"
ON_REQUEST = {**MODES, BATCH: "its output is the mean over the tokens of all inputs"}
"""How a page with a kernel switches one off when it is asked to."""
RANDOM_HEADS = 16
"""How many random heads are switched off beside one that a person asked for: its null."""
MOST_WORK = 2e11
"""Multiplications that are not asked for: some ten seconds on two cores."""
CLASSES, WORDS = 10, 5
"""How many classes, or tokens of a vocabulary, are kept of a prediction."""


@dataclass(frozen=True)
class Prediction:
    """Probabilities of the likeliest outcomes at every position, most likely first; one position for a classifier.

    ``actual`` is the true outcome, −1 where it is unknown.
    """

    of: Literal["class", "next token"]
    outcomes: Int[Tensor, "position outcome"]
    probability: Float[Tensor, "position outcome"]
    actual: Int[Tensor, " position"]
    actual_probability: Float[Tensor, " position"]
    names: dict[int, str]


@dataclass(frozen=True)
class Ablation:
    """The same outcomes without each head in turn; NaN for layers that could not be reached."""

    probability: Float[Tensor, "layer head position outcome"]
    actual_probability: Float[Tensor, "layer head position"]
    divergence: Float[Tensor, "layer head position"]
    """Kullback–Leibler divergence of the prediction without the head from that with it, in nats."""


def logits_of(result: Any, model: LoadedModel, tokens: int) -> Float[Tensor, "position outcome"] | None:
    """Return a model's output for one input as logits of classes or of next tokens; None for any other output."""
    logits = result if isinstance(result, Tensor) else getattr(result, "logits", None)
    if not isinstance(logits, Tensor):
        return None
    if logits.ndim == 2:
        classes = getattr(model.module, "num_classes", None) or len((model.meta or {}).get("classes") or ())
        return logits if logits.shape[-1] == classes and classes > 1 else None
    writes = model.modality == "text" and logits.ndim == 3 and logits.shape[1] == tokens
    return logits[0] if writes and len(model.tokenizer) <= logits.shape[-1] else None


def predict(model: LoadedModel, sample: Inputs, seen: Capture) -> Prediction | None:
    """Return the prediction at the time of the capture; None where it is neither a class nor the next token."""
    assert seen.tokens is not None
    count = len(seen.tokens.labels[0])
    logits = logits_of(seen.result, model, count)
    if logits is None:
        return None
    probability = logits.detach().double().softmax(-1).cpu()
    if len(probability) == 1 and model.modality != "text":
        actual = torch.tensor([_target(sample, model, probability.shape[-1])])
        most, name = CLASSES, _class_names(model)
        of: Literal["class", "next token"] = "class"
        actual = torch.where(actual < probability.shape[-1], actual, -1)
    elif _causal(seen):
        ids = next(t for t in tensors_of(sample.batch) if t.ndim == 2 and not t.is_floating_point())[0].cpu()
        actual = torch.full((count,), -1)
        following = seen.tokens.mask[0][1:].cpu()
        actual[:-1] = torch.where(following, ids[1:], -1)
        most, name, of = WORDS, _token_names(model), "next token"
    else:
        return None
    top = probability.topk(min(most, probability.shape[-1]), -1)
    named = {*top.indices.flatten().tolist(), *actual[actual >= 0].tolist()}
    return Prediction(
        of,
        top.indices,
        top.values,
        actual,
        at_outcome(probability, actual),
        {outcome: name(outcome) for outcome in named},
    )


def _target(sample: Inputs, model: LoadedModel, outputs: int) -> int:
    """Return the output of the first image's class; -1 where its folder does not name one."""
    if not sample.targets:
        return -1
    if sample.classes is None:
        return sample.targets[0]
    try:
        places = class_indices(sample.classes, outputs, (model.meta or {}).get("classes") or ())
    except InputError:
        return -1
    return places[sample.targets[0]]


def at_outcome(probability: Tensor, outcome: Tensor) -> Tensor:
    """Return the probability (…, position, outcome) of one outcome by position; NaN where there is none."""
    index = outcome.clamp(min=0).expand(probability.shape[:-1])[..., None]
    return torch.where(outcome >= 0, probability.gather(-1, index)[..., 0], torch.nan)


def _causal(seen: Capture) -> bool:
    """Return whether no query attends to a later key in any layer."""
    verdicts = [causal for layer in seen if (causal := _looks_back(layer)) is not None]
    return bool(verdicts) and all(verdicts)


def _looks_back(layer: LayerRecord) -> bool | None:
    """Return whether no query attends to a later key; None where queries are not keys, or without attention."""
    if layer.attn is not None:
        queries, keys = layer.attn.shape[-2:]
        return None if queries != keys else not layer.attn[0].triu(1).any()
    if layer.q is None or layer.k is None or layer.q.shape[2] != layer.k.shape[2]:
        return None
    visible = None if layer.causal else _visible(layer)
    return layer.causal if visible is None else not visible[0].triu(1).any()


def _visible(layer: LayerRecord) -> Bool[Tensor, "batch head query key"] | None:
    """Return the keys that the mask lets queries see, once where all heads share it; None where they see all."""
    mask = layer.mask
    if mask is None or layer.q is None or layer.k is None:
        return None
    mask = mask[(None,) * (4 - mask.ndim)]
    return visible_keys(mask, mask.expand(*mask.shape[:2], layer.q.shape[2], layer.k.shape[2]))


def _class_names(model: LoadedModel) -> Any:
    names = list((model.meta or {}).get("classes") or ())
    if names:
        return lambda number: str(names[number])
    if model.spec.startswith("timm:"):
        from timm.data import ImageNetInfo, infer_imagenet_subset

        subset = infer_imagenet_subset(model.module)
        if subset:
            info = ImageNetInfo(subset)
            return lambda number: info.index_to_description(number).partition(",")[0]
    return lambda number: f"class {number}"


def _token_names(model: LoadedModel) -> Any:
    return lambda number: model.tokenizer.decode([number])


# ------------------------------------------------------------------------------------------------ without a head


def work(model: LoadedModel, seen: Capture) -> float:
    """Estimate the multiplications that all ablations of one input take."""
    assert seen.tokens is not None
    size = sum(parameter.numel() for parameter in model.module.parameters())
    heads = sum(layer.head_out.shape[1] for layer in seen if layer.head_out is not None)
    return float(size) * len(seen.tokens.labels[0]) * heads * len(MODES)


def random_heads(heads: Mapping[int, int], count: int, seed: int) -> list[tuple[int, int]]:
    """Draw heads as (layer, head) without repetition; ``heads`` is the number of heads by layer."""
    every = [(layer, head) for layer, count_of_layer in heads.items() for head in range(count_of_layer)]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return [every[row] for row in order[:count].tolist()]


def ablate(
    model: LoadedModel,
    sample: Inputs,
    seen: Capture,
    prediction: Prediction,
    modes: Sequence[str] = tuple(MODES),
    heads: Sequence[tuple[int, int]] | None = None,
    means: Mapping[int, Float[Tensor, "head feature"]] | None = None,
) -> dict[str, Ablation]:
    """Predict without each head of a capture, or without some, in every mode asked for.

    ``heads`` are (layer, head); ``means`` by layer the outputs that heads have on average, for the mode `BATCH`.
    Raises `InputError` for a batch that is not of one row, and where no layer's heads can be replaced.
    """
    from workbench.captures import intervene
    from workbench.captures.capturing import batch_on_device

    assert seen.tokens is not None
    arguments = batch_on_device(sample.batch, model.module)
    if any(len(tensor) != 1 for tensor in tensors_of(arguments)):
        raise InputError(f"{model.spec} takes {sample.ids[0]} as several rows; give an input that is one row")
    size = (
        len(seen.layers),
        max(layer.head_out.shape[1] for layer in seen if layer.head_out is not None),
    )
    positions, outcomes = prediction.outcomes.shape
    count = len(seen.tokens.labels[0])
    logits = logits_of(seen.result, model, count)
    assert logits is not None
    before = logits.detach().double().log_softmax(-1).cpu()
    ablations = {
        mode: Ablation(
            torch.full((*size, positions, outcomes), torch.nan, dtype=torch.float64),
            torch.full((*size, positions), torch.nan, dtype=torch.float64),
            torch.full((*size, positions), torch.nan, dtype=torch.float64),
        )
        for mode in modes
    }
    failure: InputError | None = None
    for row, layer in enumerate(seen):
        if layer.head_out is None or len(layer.head_out) != 1:  # windows of one input
            continue
        chosen = [head for index, head in heads or [] if index == layer.index]
        off = chosen if heads is not None else [*range(layer.head_out.shape[1])]
        mean = (means or {}).get(layer.index)
        outputs = _replaced(layer, seen.tokens.mask[0], off, modes, mean) if off else {}
        if not outputs:
            continue
        rows = torch.cat([*outputs.values()])
        changes = {(layer.index, head): rows[:, head] for head in range(rows.shape[1])}
        try:
            with intervene(model, changes):
                logits = run_model(model.module, in_rows(arguments, len(rows)))
        except InputError as error:
            failure = error  # other layers may still be reached
            continue
        after = logits.double().log_softmax(-1).cpu()
        if after.ndim == 2:
            after = after[:, None]
        for mode, rows in zip(outputs, after.split([len(rows) for rows in outputs.values()]), strict=True):
            index = prediction.outcomes.expand(len(off), -1, -1)
            ablations[mode].probability[row, off] = rows.gather(-1, index).exp()
            ablations[mode].actual_probability[row, off] = at_outcome(rows.exp(), prediction.actual)
            divergence = (before.exp() * (before - rows)).sum(-1)
            ablations[mode].divergence[row, off] = divergence.clamp(min=0)  # below by rounding alone
    if failure is not None and all(ablation.divergence.isnan().all() for ablation in ablations.values()):
        raise failure
    return ablations


def without_links(
    model: LoadedModel, sample: Inputs, record: LayerRecord, links: Sequence[tuple[int, int, int]]
) -> Float[Tensor, "link position outcome"]:
    """Return the probabilities of all outcomes without each link (head, query, key) of a layer, A_ij v_j made zero.

    Raises `InputError` for a layer whose heads' outputs, values or attention are not known or cannot be replaced.
    """
    from workbench.captures import intervene
    from workbench.captures.capturing import batch_on_device

    attn, v, out = record.attn, record.v, record.head_out
    if attn is None or v is None or out is None or v.ndim != 4 or len(out) != 1:
        raise InputError(
            f"links of layer {record.index} cannot be switched off: it has no values of one input"
        )
    group = out.shape[1] // v.shape[1]
    rows = out.expand(len(links), -1, -1, -1).clone()
    for row, (head, query, key) in zip(rows, links, strict=True):
        row[head, query] -= attn[0, head, query, key] * v[0, head // group, key]
    changes = {(record.index, head): rows[:, head] for head in {head for head, _, _ in links}}
    arguments = batch_on_device(sample.batch, model.module)
    with intervene(model, changes):
        logits = run_model(model.module, in_rows(arguments, len(links)))
    logits = logits if logits.ndim == 3 else logits[:, None]
    return logits.double().softmax(-1).cpu()


def mean_outputs(
    model: LoadedModel, inputs: Inputs, layers: Sequence[int]
) -> dict[int, Float[Tensor, "head feature"]]:
    """Return by layer the output of every head, mean over the tokens of all inputs without padding."""
    from workbench.captures import capture

    seen = capture(model, inputs, layers=list(layers), sites=("head_out",))
    assert seen.tokens is not None
    means = {}
    for layer in seen:
        out = layer.head_out
        if out is None:
            continue
        real = seen.tokens.mask.to(out.device)
        if real.shape != (out.shape[0], out.shape[2]):
            real = out.new_ones(out.shape[0], out.shape[2], dtype=torch.bool)
        weight = (real / real.sum()).to(torch.float64)
        means[layer.index] = torch.einsum("bt,bhtd->hd", weight, out.double())
    return means


def tensors_of(batch: Any) -> Sequence[Tensor]:
    """Return the tensors among a model's arguments."""
    values = batch.values() if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else batch
    return [value for value in values if isinstance(value, Tensor)]


def in_rows(arguments: Any, count: int, old: Tensor | None = None, new: Tensor | None = None) -> Any:
    """Return a model's arguments of one input for several rows, one tensor of them replaced by ``new``."""

    def row(value: Any) -> Any:
        if value is old and new is not None:
            return new
        return value.expand(count, *value.shape[1:]) if isinstance(value, Tensor) else value

    if isinstance(arguments, Mapping):
        return {name: row(value) for name, value in arguments.items()}
    return row(arguments) if isinstance(arguments, Tensor) else tuple(map(row, arguments))


def run_model(module: nn.Module, arguments: Any) -> Tensor:
    """Return the logits that a model gives for its arguments."""
    from workbench.captures.capturing import call_model

    with torch.no_grad():
        result = call_model(module, arguments)
    return result if isinstance(result, Tensor) else result.logits


def _uniform(layer: LayerRecord, v: Tensor) -> Float[Tensor, "head token feature"] | None:
    """Return the outputs of heads that attend equally to all visible keys; None without attention."""
    if layer.attn is not None:
        attn = layer.attn[:1]
        return Maps(attn, attn > 0).reduced(UniformOutput(v[:1]))["uniform_output"][0]
    if layer.q is None or layer.k is None:
        return None
    mask = Mask(causal=True) if layer.causal else Mask(_visible(layer))
    return reduce_tiles(layer.q, layer.k, UniformOutput(v), mask=mask)["uniform_output"][0]


def _replaced(
    layer: LayerRecord, real: Tensor, off: Sequence[int], modes: Sequence[str], mean: Tensor | None
) -> dict[str, Float[Tensor, "head token feature"]]:
    """Return by mode the outputs of a layer's heads side by side, a row for each head that is switched off."""
    out = layer.head_out
    assert out is not None
    asking = real if out.shape[-2] == len(real) else real.new_ones(out.shape[-2], dtype=torch.bool)
    instead = {mode: switched_off(out, mode, asking[None].to(out.device))[0] for mode in ("zero", "mean")}
    if "uniform" in modes and layer.v is not None and layer.kind == "token" and layer.v.ndim == 4:
        uniform = _uniform(layer, layer.v)
        if uniform is not None and uniform.shape == out[0].shape:
            instead["uniform"] = uniform.to(out.dtype)
    if mean is not None:
        instead[BATCH] = mean.to(out)[:, None].expand_as(out[0])
    rows = {}
    for mode, other in instead.items():
        if mode not in modes:
            continue
        each = out.expand(len(off), -1, -1, -1).clone()
        for row, head in enumerate(off):
            each[row, head] = other[head]
        rows[mode] = each
    return rows
