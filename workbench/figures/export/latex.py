"""The figure environment that sets an exported figure in a paper."""

from __future__ import annotations

from workbench.figures.theme import SLIDES, WIDTHS
from workbench.frames.tex import tex_text


def latex_figure(name: str, caption: str, width: str | float, finding: str = "") -> str:
    """A LaTeX figure for ``\\input``: the image in the size that it was printed in, caption and label.

    The finding that the caption begins with is bold.

    One as wide as a page of two columns stands across both (``figure*``). A slide is as wide as the text.
    """
    across = width == "page" or f"{width}-column" in WIDTHS
    kind = "figure*" if across else "figure"
    size = r"[width=\textwidth]" if width == SLIDES else ""
    rest = tex_text(caption.removeprefix(finding).strip())
    words = f"\\textbf{{{tex_text(finding)}}} {rest}" if finding else rest
    return (
        "% needs \\usepackage{graphicx}, and \\graphicspath{{FOLDER/}} where the image is not beside the main file\n"
        f"\\begin{{{kind}}}\n\\centering\n\\includegraphics{size}{{{name}}}\n"
        f"\\caption{{{words}}}\n\\label{{fig:{name}}}\n\\end{{{kind}}}\n"
    )
