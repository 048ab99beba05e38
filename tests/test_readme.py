"""The README names what there is. That its code and commands are true, `test_pages.py` shows."""

import re

from tests.pages import ROOT
from workbench.core.paths import bundled_notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_lists_every_make_target_and_notebook():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = set(re.findall(r"^(\w+):.*## ", makefile, re.MULTILINE)) - {"help", "setup", "format", "clean"}
    assert {name for name in told if f"`{name}`" not in README and f"make {name}" not in README} == set()
    assert {name for name in bundled_notebooks() if f"`{name}`" not in README} == set()
