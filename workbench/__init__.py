"""Look inside any transformer's attention: load, capture, analyse, draw.

    import workbench

    model = workbench.load("bundled:digits-vit")
    capture = workbench.capture(model, workbench.inputs("bundled:digits", model, n=4))
    frame = workbench.analyze("gram-spectrum", "bundled:digits-vit", "bundled:digits")

Names are resolved on first use, so that importing the package loads nothing heavy.
"""

from typing import Any

import lazy_loader

from workbench.core import sources

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _load_analyses() -> None:
    try:
        import torch  # noqa: F401 (is it there?)
    except ImportError:  # frames of records are drawn without it
        return
    from workbench.analyses.registry import ANALYSES

    ANALYSES.load()


def _make_inputs(spec: Any, model: Any) -> Any:
    from workbench.data.batches import inputs

    return inputs(spec, model)


sources.METRICS.append(_load_analyses)
sources.INPUTS.append(_make_inputs)
