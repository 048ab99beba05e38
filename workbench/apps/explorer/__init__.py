"""The explorer: look inside a layer, in JupyterLab or in a browser."""

from typing import Any

import lazy_loader

from workbench.core.extras import require

_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "Explorer":  # the rest does without widgets
        require("the explorer", "ipywidgets", "anywidget", "cachetools")
    return _attached(name)
