"""The variants of ``workbench.attention``: they say themselves what lies inside, while they attend."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from workbench.attention.base import AttentionModule
from workbench.captures.adapters import Adapter, Visit, register_adapter
from workbench.captures.records import Call
from workbench.captures.routes import Observer
from workbench.core.errors import IncompleteCapture


@register_adapter
class Variants(Adapter):
    """Calls from what ``watch_variants`` noted during the visit."""

    classes = ("workbench.attention.base.AttentionModule",)
    reads_calls = False

    def read(self, visit: Visit) -> list[Call]:
        module: AttentionModule = visit.module
        if visit.attended is None:
            raise IncompleteCapture(
                f"{visit.path}: the forward of {type(module).__name__} never called its attend"
            )
        output, inside = visit.attended
        operands: dict[str, Any] = {
            site: inside.get(site) for site in ("q", "k", "v", "scale", "mask", "attn")
        }
        others = {site: value for site, value in inside.items() if site not in (*operands, "rows_sum_to_one")}
        return [
            Call(
                **operands,
                head_out=output,
                kind=module.attends,
                rows_sum_to_one=inside.get("rows_sum_to_one", module.attends != "none"),
                extra=others,
                reproduced=[(module.finish(output), visit.output)],
            )
        ]


@contextmanager
def watch_variants(modules: Sequence[nn.Module], observer: Observer) -> Generator[None]:
    """Let our own variants observe themselves while they attend."""
    variants = [child for child in modules if isinstance(child, AttentionModule)]
    try:
        for child in variants:
            vars(child)["attend"] = _observing(child, observer)
        yield
    finally:
        for child in variants:
            vars(child).pop("attend", None)


def _observing(module: AttentionModule, observer: Observer) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    plain = module.attend

    def attend(
        x: Tensor, mask: Tensor | None = None, *, observe: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        if not observer.observes(module):
            return plain(x, mask, observe=observe)
        output, inside = plain(x, mask, observe=True)
        observer.observed(module, output, inside)
        return output, inside if observe else {}

    return attend
