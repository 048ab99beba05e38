"""The interactive page of a figure."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.io as pio
from plotly.offline import get_plotlyjs

from workbench.core.files import atomic_write
from workbench.frames.provenance import HTML_ID, html_element

_PLOTLY_JS = "plotly.min.js"


def write_html(path: Path, figure: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """An interactive page that needs no network: plotly.js is beside it, one copy for all figures."""
    script = path.with_name(_PLOTLY_JS)
    source = get_plotlyjs().encode()
    if not script.is_file() or script.stat().st_size != len(source):
        atomic_write(script, source)
    name = str(provenance["name"])
    described = provenance["figure"]
    finding = described.get("finding") or ""
    rest = html.escape(described["caption"].removeprefix(finding))
    plot = pio.to_html(
        dict(figure),
        full_html=False,
        include_plotlyjs=False,
        include_mathjax=False,
        div_id=f"figure-{name}",  # a random one would make the same figure a different file
        validate=False,  # plotly made it
        config={"displaylogo": False, "toImageButtonOptions": {"format": "svg", "filename": name}},
    )
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(name)}</title>
<style>
body {{ margin: 1.5rem auto; padding: 0 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif; }}
figure {{ margin: 0; overflow-x: auto; padding-top: 2rem; }}
.modebar-container {{ top: -2rem !important; }} /* above the figure, whose key it would cover */
figcaption {{ margin-top: .75rem; }}
</style>
<script src="{_PLOTLY_JS}" charset="utf-8"></script>
</head>
<body>
<figure>
<div role="img" aria-label="{html.escape(described["alt"])}">
{plot}
</div>
<figcaption><b>{html.escape(finding)}</b>{rest}</figcaption>
</figure>
<p><a href="index.html">All figures</a></p>
{html_element(provenance)}
</body>
</html>
"""
    atomic_write(path, page.encode())


def note_in_html(path: Path, provenance: Mapping[str, Any]) -> None:
    """Put another provenance into a page, where there is one."""
    if path.is_file():
        element = re.compile(rf'<script type="application/json" id="{HTML_ID}">.*?</script>', re.DOTALL)
        page = path.read_text(encoding="utf-8")
        atomic_write(path, element.sub(lambda _: html_element(provenance), page, count=1).encode())
