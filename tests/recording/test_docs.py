"""The worked example of docs/capture.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.recording.adapters import _ADAPTERS, _find_by_class

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"


def test_the_adapter_example(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "@register_adapter" in block]
    known = dict(_ADAPTERS)
    namespace = {"__name__": "worked_example"}
    try:
        exec(compile(example, str(PAGE), "exec"), namespace)
    finally:
        _ADAPTERS.clear()
        _ADAPTERS.update(known)
        _find_by_class.cache_clear()
    captured = namespace["captured"]
    assert [record.path for record in captured] == ["0", "1"]
    assert captured[1].attn.shape == (2, 3, 7, 7)
    assert "Capture of 2 layers" in capsys.readouterr().out
