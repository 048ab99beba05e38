"""What a render writes into an executed notebook."""

import json

import nbformat
import pandas as pd
import plotly.graph_objects as go
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.apps.rendering.outputs import complete_notebook
from workbench.figures.export import save_figure


def test_the_first_finding_stands_under_the_title_once(tmp_path):
    executed, data = tmp_path / "executed.ipynb", pd.DataFrame({"x": [1, 2]})
    cells = [new_markdown_cell("# Title\n\nThe *question*, **not** the finding.\n"), new_code_cell("1")]
    nbformat.write(new_notebook(cells=cells), executed)
    for finding in ("Three of 5 layers fall.", "All *five* fall."):
        for name, caption in (
            ("plain", "Lines."),
            ("found", f"**{finding}** Lines."),
            ("last", "**No.** Lines."),
        ):
            save_figure(go.Figure(go.Bar(y=[1])), name, data=data, caption=caption, out=tmp_path, formats=[])
        complete_notebook(executed, ["plain", "found", "last"], tmp_path)
        first, second = nbformat.read(executed, as_version=4).cells
        assert first.source == f"# Title\n\n**{finding}**\n\nThe *question*, **not** the finding.\n"
        assert second.source == "1"
    before = executed.read_bytes()
    complete_notebook(executed, ["found"], tmp_path)
    complete_notebook(executed, ["plain"], tmp_path)
    assert executed.read_bytes() == before
    assert json.loads(before)["nbformat"] == 4
