"""Look inside any transformer's attention: load, capture, analyse, draw.

    import workbench

    model = workbench.load("bundled:digits-vit")
    capture = workbench.capture(model, workbench.inputs("bundled:digits", model, n=4))
    frame = workbench.analyze("gram-spectrum", "bundled:digits-vit", "bundled:digits")

Names are resolved on first use, so that importing the package loads nothing heavy.
"""

from typing import Any

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name; importing the registry lets `METRICS` load the analyses when it misses a name."""
    from workbench.analyses.registry import METRICS

    return METRICS if name == "METRICS" else _public(name)
