"""One row of the table: build a model, capture it, hold what was captured against what ran below."""

from __future__ import annotations

import hashlib
import math
import platform
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import workbench
from conformance.below import Weights, watched_below
from conformance.changes import (
    NO_EFFECT,
    changed_output,
    identity_output,
    readable_projections,
    stream_output,
)
from conformance.exceptions import DENSE, ELSEWHERE
from conformance.models import SEED, Built, NotBuilt, build, family, run, said, tensors_in
from workbench import captures
from workbench.captures.layer_records import LayerRecord
from workbench.core.errors import WorkbenchError

TOLERANCE = 1e-4
"""Largest difference of two weights that count as the same, in float32."""
EXACT, NO_REFERENCE, NO_SOFTMAX, REFUSED, NOT_BUILT, WRONG, GAP, CRASH = (
    "exact", "no reference", "no softmax over tokens", "refused", "not built", "wrong values", "silent gap", "traceback"
)  # fmt: skip
STATUSES = (EXACT, NO_REFERENCE, NO_SOFTMAX, REFUSED, WRONG, GAP, CRASH, NOT_BUILT)


@dataclass
class Row:
    """What became of one type."""

    library: str
    type: str
    family: str
    status: str
    why: str = ""
    model: str = ""
    input: str = ""
    size: str = ""
    layers: int = 0
    without_map: int = 0
    softmaxes: int = 0
    worst: float | None = None
    output: str = ""
    reference: str = ""
    head_out: str = ""
    """The output where `intervene` replaces head_out by itself; `NO_EFFECT` where zeros there change nothing."""
    attn: str = ""
    """The output where `intervene` replaces attn by itself: "the same", "rounded", "changed", or "refused"."""
    head_out_layers: int = 0
    attn_layers: int = 0
    """Layers that can be changed at the site."""
    refusal: str = ""
    """Why the first layer without it refuses an intervention."""
    projections: str = ""
    """Layers whose output projection is read by head, of those that have one, as in 2/2."""
    resid_mid: str = ""
    """The output where `intervene` replaces resid_mid by itself, as head_out; "refused" where no layer has it."""
    resid_mid_layers: int = 0
    """Layers whose resid_mid can be changed."""
    resid_mid_refusal: str = ""
    """Why the first layer without it refuses the change."""
    resid_mid_code: str = ""
    """The sources that made these three, as ``code``."""
    seconds: float = 0.0
    torch: str = torch.__version__.partition("+")[0]
    version: str = ""
    python: str = platform.python_version()
    seed: int = SEED
    code: str = field(default_factory=lambda: code_of_captures())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@cache
def code_of_captures() -> str:
    """Twelve hexadecimal digits of the sources of ``workbench.captures``, which made a row."""
    digest = hashlib.sha256()
    folder = Path(captures.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def version_of(library: str) -> str:
    from importlib.metadata import version

    return version(library)


def row(library: str, name: str) -> Row:
    """The row of one type; whatever goes wrong is said in it."""
    start = time.perf_counter()
    found = Row(library, name, "", NOT_BUILT, version=version_of(library))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found.family = family(name) if library == "transformers" else _timm_family(name)
            _fill(found, build(library, name))
        except NotBuilt as error:
            found.why = str(error)
    found.seconds = round(time.perf_counter() - start, 1)
    return found


def _timm_family(name: str) -> str:
    from timm.models import model_entrypoint

    return model_entrypoint(name).__module__.rpartition(".")[2]


def _fill(found: Row, built: Built) -> None:
    model = built.model
    found.model, found.input, found.size = type(model).__name__, built.kind, built.way
    before = [t.clone() for t in tensors_in(run(model, built.batch))]
    torch.manual_seed(SEED)
    captured: Any = None
    try:
        captured = workbench.capture(model, built.batch)
        found.layers = sum(record.attn is not None for record in captured)
        found.without_map = len(captured) - found.layers
        found.output = _compared(before, tensors_in(captured.result))
    except WorkbenchError as error:
        found.status, found.why = REFUSED, str(error)
    except Exception as error:
        found.status, found.why = CRASH, f"{said(error)} ({_place(error)})"
    if captured is not None:
        _intervene(found, built, before, _with_map(captured))
        _intervene_in_stream(found, built, before, _with_map(captured))
    try:
        own = _below(built)
        differs = _made_eager(model)
        eager = _below(built) if differs else own
    except Exception as error:
        found.status, found.why = NOT_BUILT, f"its reference: {said(error)}"
        return
    found.softmaxes = len({each.softmax for each in own})
    if captured is None:
        if found.status == REFUSED and not own:
            found.status = NO_SOFTMAX
        return
    records = [record for record in captured if record.attn is not None]
    named = [record.path for record in captured if record.attn is None]
    own, eager = ([each for each in those if not _is_in(each.path, named)] for those in (own, eager))
    found.reference = "its eager softmax" if differs else "its softmax"
    found.status, found.why, found.worst = _judged(records, eager, found.type)
    if found.status == NO_SOFTMAX:
        found.why = "; ".join(dict.fromkeys(record.mixer or record.path for record in captured))
    if found.status != EXACT and differs:
        status, why, worst = _judged(records, own, found.type)
        if status == EXACT:
            found.status, found.worst, found.reference = status, worst, "its softmax"
            found.why = "; ".join(
                filter(
                    None,
                    ["its eager attention gives other weights than its kernels, whose are captured", why],
                )
            )


def _intervene(found: Row, built: Built, before: list[Tensor], layers: list[int]) -> None:
    """Replace head_out and attn of every layer by themselves, and head_out by zeros; read W_O."""
    if not layers:
        return
    try:
        for site in ("head_out", "attn"):
            after, able, why = identity_output(built, layers, site)
            setattr(found, site, "refused" if after is None else _compared(before, after))
            setattr(found, f"{site}_layers", len(able))
            found.refusal = found.refusal or why
            if site == "head_out" and able:
                zeroed = changed_output(built, able, site, "zero")
                same = len(zeroed) == len(before) and all(map(torch.equal, before, zeroed))
                if found.head_out == "the same" and same:
                    found.head_out = NO_EFFECT
        read, there, why = readable_projections(built.model, built.batch, layers)
        found.projections = f"{read}/{there}"
        found.refusal = found.refusal or why
    except Exception as error:
        found.refusal = f"{said(error)} ({_place(error)})"
        found.attn = found.attn or "traceback"


def _with_map(captured: Any) -> list[int]:
    return [index for index, record in enumerate(captured) if record.attn is not None]


def stream_columns(library: str, name: str) -> dict[str, Any]:
    """The columns of resid_mid of one type, without the others."""
    found = Row(library, name, "", NOT_BUILT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            built = build(library, name)
            before = [t.clone() for t in tensors_in(run(built.model, built.batch))]
            torch.manual_seed(SEED)
            layers = _with_map(workbench.capture(built.model, built.batch))
            _intervene_in_stream(found, built, before, layers)
        except (NotBuilt, WorkbenchError) as error:
            found.resid_mid_refusal = str(error)
    return {key: value for key, value in found.as_dict().items() if key.startswith("resid_mid")}


def _intervene_in_stream(found: Row, built: Built, before: list[Tensor], layers: list[int]) -> None:
    """Replace resid_mid of every layer by itself, and by zeros."""
    if not layers:
        return
    found.resid_mid_code = found.code
    try:
        after, able, found.resid_mid_refusal = stream_output(built, layers)
        found.resid_mid_layers = len(able)
        found.resid_mid = "refused" if after is None else _compared(before, after)
        if found.resid_mid == "the same":
            zeroed = changed_output(built, able, "resid_mid", "zero")
            if len(zeroed) == len(before) and all(map(torch.equal, before, zeroed)):
                found.resid_mid = NO_EFFECT
    except Exception as error:
        found.resid_mid, found.resid_mid_refusal = "traceback", f"{said(error)} ({_place(error)})"


def _compared(before: list[Tensor], after: list[Tensor]) -> str:
    """What has become of a model's output; timm leaves off some kernels that a capture turns on, and they round."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return "changed"
    if all(map(torch.equal, before, after)):
        return "the same"
    close = (torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(before, after, strict=True))
    return "rounded" if all(close) else "changed"


def _judged(records: list[LayerRecord], weights: list[Weights], name: str) -> tuple[str, str, float | None]:
    """Status, reason, and the largest difference of what is the same."""
    layers = len(records)
    worst, records, weights = matched(records, weights)
    shape, note = ELSEWHERE.get(name, ((), ""))
    weights = [each for each in weights if not shape or each.value.shape[-len(shape) :] != shape]
    if records and name in DENSE:
        return NO_REFERENCE, DENSE[name], worst
    if records and weights:
        first = records[0]
        which = f"{len(records)} of {layers} layers differ, the first {first.path} {tuple(first.attn.shape)}"
        return WRONG, f"{which}; left below: {_shapes(weights)}", worst
    if weights:
        return GAP, f"{len(weights)} softmaxes are in no layer: {_shapes(weights)}", worst
    if records:
        which = f"{len(records)} of {layers} layers"
        return NO_REFERENCE, f"{which} have no softmax of their size below: {records[0].path}", worst
    if not layers:
        return NO_SOFTMAX, "", worst
    return EXACT, note, worst


def _is_in(path: str, named: list[str]) -> bool:
    """Whether a module lies in one that the capture names as something else than attention over tokens."""
    return any(path == each or path.startswith(f"{each}.") for each in named)


def _shapes(weights: list[Weights]) -> str:
    return ", ".join(dict.fromkeys(f"{tuple(each.value.shape)} in {each.path}" for each in weights[:6]))


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('site-packages/')[2]}:{last.lineno}"


def _below(built: Built) -> list[Weights]:
    """What the model multiplies with its values, kernels computed in plain operations."""
    with watched_below(built.model) as below:
        run(built.model, built.batch)
    return below.weights


def _made_eager(model: Any) -> bool:
    """Whether the model now computes its attention itself, and did not before."""
    fused = [module for module in model.modules() if vars(module).get("fused_attn") is True]
    for module in fused:
        module.fused_attn = False
    if hasattr(model, "set_attn_implementation"):
        try:
            model.set_attn_implementation("eager")
        except Exception:  # it has but one way
            return False
        return True
    return bool(fused)


# Comparison -------------------------------------------------------------------------------------------------


def matched(
    records: list[LayerRecord], weights: list[Weights]
) -> tuple[float | None, list[LayerRecord], list[Weights]]:
    """The largest difference of those that are the same, and the layers and weights that are left over."""
    left, rest, worst = list(weights), [], None
    done: set[int] = set()
    for record in records:
        same = None
        if record.attn.shape[-1] == 1 and bool((record.attn == 1).all()):
            continue  # one key has the whole weight, and what ran below is not looked at
        for one in left:
            each = one if one.value.numel() == record.attn.numel() else _joined(one, left, record.attn.shape)
            if each is not None:
                difference = differ(record, each)
                if difference <= TOLERANCE:
                    same, worst = each, max(worst or 0.0, difference)
                    break
        if same is None:
            rest.append(record)
        else:
            pieces = same.pieces or (same,)
            left = [each for each in left if all(each is not piece for piece in pieces)]
            done |= {piece.softmax for piece in pieces}
    return worst, rest, [each for each in left if each.softmax not in done]


def _joined(first: Weights, left: list[Weights], shape: torch.Size) -> Weights | None:
    """Weights that a module computes in pieces, an image or a window at a time; shorter ones are filled with zeros."""
    pieces = tuple(each for each in left if each.path == first.path)[: shape[0]]
    fit = all(
        each.value.ndim >= 3
        and math.prod(each.value.shape[:-2]) == shape[1]
        and each.value.shape[-2] <= shape[2]
        and each.value.shape[-1] <= shape[3]
        for each in pieces
    )
    if len(pieces) < max(2, shape[0]) or not fit:
        return None
    values = first.value.new_zeros(shape)
    for number, each in enumerate(pieces):
        queries, keys = each.value.shape[-2:]
        values[number, :, :queries, :keys] = each.value.reshape(shape[1], queries, keys)
    return Weights(values, first.softmax, first.path, pieces)


def differ(record: LayerRecord, weights: Weights) -> float:
    """The largest difference, whatever axes the weights have below; rows that see nothing are left out."""
    attn = record.attn.to(weights.value.dtype)
    batch, heads, queries, keys = attn.shape
    seen = attn.sum(dim=-1, keepdim=True) != 0
    found = []
    for value in (weights.value, weights.value.mT):
        ways = [value.reshape(attn.shape), value.reshape(heads, batch, queries, keys).transpose(0, 1)]
        ways += [value.reshape(batch, queries, heads, keys).transpose(1, 2)]
        for way in ways:
            found.append(_largest((way - attn) * seen))
            if not record.rows_sum_to_one:  # a sink's share may be taken from the output instead
                total = way.sum(dim=-1, keepdim=True) / attn.sum(dim=-1, keepdim=True)
                found.append(_largest((way / total - attn) * seen) if bool((total[seen] > 0).all()) else 1.0)
    best = min(found)
    if best > TOLERANCE and bool(seen.all()):  # in yet other axes: the same numbers, row by row
        rows, own = (
            attn.flatten(0, -2).sort(dim=-1).values,
            weights.value.reshape(-1, keys).sort(dim=-1).values,
        )
        best = min(best, _largest(_ordered(rows) - _ordered(own)))
    return best


def _ordered(rows: Tensor) -> Tensor:
    """Rows in the order of their largest weight, then of their second."""
    order = rows[:, -1].argsort(stable=True)
    return rows[order]


def _largest(difference: Tensor) -> float:
    return float(difference.abs().nan_to_num(1.0).max()) if difference.numel() else 0.0
