"""The README and the pages beside it name what there is. That code and commands are true, `test_pages.py` shows."""

import re

from PIL import Image

from tests.pages import PAGES, ROOT, blocks_of

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "figures" / "examples"
SHOWN = re.compile(r"!\[[^\]]+\]\(((?:\.\./)*figures/examples/[^)]+)\)")


def test_it_lists_every_make_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):.*## ", makefile, re.MULTILINE)) - {"help", "setup", "format", "clean"}
    assert {name for name in targets if f"`{name}`" not in README and f"make {name}" not in README} == set()


def test_the_first_code_is_ten_lines_and_one_figure():
    first = blocks_of(ROOT / "README.md")[0]
    assert first.language == "python"
    assert first.image == "heads"
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 10


def test_every_example_is_short_and_shows_its_figure():
    examples = blocks_of(ROOT / "docs" / "examples.md")
    assert len(examples) >= 6
    sections = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert [part[:40] for part in sections if "```python" in part and not SHOWN.search(part)] == []
    lines = [len([line for line in example.code.splitlines() if line.strip()]) for example in examples]
    assert max(lines) <= 15


def test_every_image_that_a_page_shows_is_there_and_every_one_there_is_shown():
    shown = {
        (page.parent / address).resolve()
        for page in PAGES
        for address in SHOWN.findall(page.read_text(encoding="utf-8"))
    }
    kept = {path.resolve() for path in EXAMPLES.iterdir()}
    assert shown - kept == set()
    assert {path.name for path in kept - shown} == set()
    listed = (ROOT / "figures" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`([\w-]+\.png)`", listed)) == {path.name for path in kept}


def test_the_images_are_small_and_can_be_opened():
    sizes = {path.name: path.stat().st_size for path in EXAMPLES.iterdir()}
    assert sum(sizes.values()) <= 3_000_000
    for name in sizes:
        with Image.open(EXAMPLES / name) as image:
            assert image.width >= 600, name


def test_a_change_has_one_line_of_the_changelog():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2].splitlines()
    entries = [line for line in versions if line.startswith("- ")]
    assert len(entries) > 10
    continued = [line for line in versions if line.startswith((" ", "\t", "|", "*"))]
    assert not continued, f"a change has one line of CHANGELOG.md, and these go on: {continued[:3]}"


def test_the_entry_of_the_first_version_has_at_most_sixty_lines():
    entry = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## 0.1.0")[2].splitlines()
    assert len(entry) <= 60
