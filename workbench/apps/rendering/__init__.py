"""Rendering of figure notebooks into a gallery, and reproduction of single figures."""

from workbench.apps.rendering.needs import Need, render_needs
from workbench.apps.rendering.notebooks import Notebook, find_notebooks, read_notebook, read_parameters
from workbench.apps.rendering.reproduction import Reproduction, reproduce
from workbench.apps.rendering.run import RenderReport, render
from workbench.apps.rendering.state import Outcome

__all__ = [
    "render",
    "render_needs",
    "reproduce",
    "read_parameters",
    "find_notebooks",
    "read_notebook",
    "Need",
    "Notebook",
    "Outcome",
    "RenderReport",
    "Reproduction",
]
