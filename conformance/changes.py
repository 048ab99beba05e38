"""What `intervene` and `output_projection` do in a model whose capture is exact."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import workbench
from conformance.models import Built, run, tensors_in
from workbench.captures.layer_records import LayerRecord
from workbench.captures.projections import PROJ_OUT, output_projection
from workbench.core.errors import WorkbenchError

NO_EFFECT = "without effect"


def kept(tensor: Tensor) -> Tensor:
    """The identity."""
    return tensor


def stream_output(built: Built, layers: list[int]) -> tuple[list[Tensor] | None, list[int], str]:
    """The output of the identity at resid_mid, the layers where it ran, and why others refuse it."""
    ran: set[int] = set()

    def noted(layer: int) -> Any:
        def value(stream: Tensor) -> Tensor:
            ran.add(layer)
            return stream

        return value

    able, why = [], ""
    for layer in layers:
        ran.clear()
        try:
            with workbench.intervene(built.model, {(layer, "*"): noted(layer)}, site="resid_mid"):
                run(built.model, built.batch)
        except WorkbenchError as error:
            why = why or str(error)
        if layer in ran:
            able.append(layer)
    return changed_output(built, able, "resid_mid", kept) if able else None, able, why


def changed_output(built: Built, layers: list[int], site: str, value: Any) -> list[Tensor]:
    """The model's output where ``site`` of all heads of ``layers`` is replaced."""
    with workbench.intervene(built.model, {(layer, "*"): value for layer in layers}, site=site):
        return tensors_in(run(built.model, built.batch))


def identity_output(built: Built, layers: list[int], site: str) -> tuple[list[Tensor] | None, list[int], str]:
    """The output of the identity at ``site``, the layers where it can be applied, and why others refuse it."""
    try:
        return changed_output(built, layers, site, kept), layers, ""
    except WorkbenchError as error:
        why = str(error)
    able = []
    for layer in layers:
        try:
            changed_output(built, [layer], site, kept)
            able.append(layer)
        except WorkbenchError:
            pass
    return changed_output(built, able, site, kept) if able else None, able, why


def readable_projections(model: nn.Module, batch: Any, layers: list[int]) -> tuple[int, int, str]:
    """In how many of the layers with an output projection W_O is read by head, how many there are, and why not more."""
    read, there, why = 0, 0, ""
    for layer in layers_with_projection(model, batch, layers):
        there += 1
        try:
            output_projection(model, layer)
            read += 1
        except WorkbenchError as error:
            why = why or str(error)
    return read, there, why


def layers_with_projection(model: nn.Module, batch: Any, layers: list[int]) -> list[LayerRecord]:
    """The captured layers that hold ``proj_out``; none where the model refuses the site."""
    try:
        captured = workbench.capture(model, batch, layers=layers, sites=("head_out", PROJ_OUT))
    except WorkbenchError:
        return []
    return [record for record in captured if record.head_out is not None and PROJ_OUT in record.extra]
