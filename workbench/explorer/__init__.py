"""The explorer: look inside a layer, in JupyterLab or as a page of its own."""

from workbench.explorer.launch import notebook_to_open, open_explorer
from workbench.explorer.panel import Explorer

__all__ = ["Explorer", "notebook_to_open", "open_explorer"]
