"""Figure notebooks to a gallery, and a figure back to the same figure."""

from workbench.rendering.again import Reproduction, reproduce
from workbench.rendering.notebooks import Notebook, find_notebooks, read_notebook, read_parameters
from workbench.rendering.run import RenderReport, render
from workbench.rendering.state import Outcome

__all__ = [
    "render",
    "reproduce",
    "read_parameters",
    "find_notebooks",
    "read_notebook",
    "Notebook",
    "Outcome",
    "RenderReport",
    "Reproduction",
]
