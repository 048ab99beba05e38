"""Data flows one way: the import statements say whether it does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent

# A module may import from its own row and from the rows above it. `figures` and `analyses` never meet.
ROWS = [
    {"_version"},
    {"errors", "paths", "metrics", "contents", "plugins"},
    {"tables", "selection", "attention"},
    {"results", "provenance", "hub", "datasets", "characters", "architectures", "catalog"},
    {"checkpoints", "samples", "corruptions", "publications", "verdicts", "records", "commands"},
    {"recording"},
    {"sources"},
    {"models"},
    {"batches"},
    {"analyses"},
    {"measurements"},
    {"streaming", "registry", "caching"},
    {"shards"},
    {"pipeline"},
    {"surveys", "watching"},
    {"sweeping"},
    {"reproduction"},
    {"training"},
    {"evaluation"},
    {"scaling"},
    {"twins"},
    {"comparisons"},
    {"figures"},
    {"chrome"},
    {"exporting"},
    {"rendering"},
    {"explorer", "doctor"},
    {"cli"},
    {"__main__"},
]
FORBIDDEN = {
    ("figures", "analyses"),
    ("analyses", "figures"),
    ("figures", "recording"),
    ("analyses", "recording"),
    ("attention", "analyses"),
    ("attention", "figures"),
    ("analyses", "attention"),
    ("figures", "attention"),
}


def _topic(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from workbench import paths` names a submodule, `from workbench import load` a lazy name.
            own = node.module == "workbench"
            names = [f"workbench.{alias.name}" for alias in node.names] if own else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("workbench.")}
    return found


MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts and path.parent != PACKAGE
)
MODULES += sorted(path for path in PACKAGE.glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_rows_above_its_own(path):
    row = {topic: number for number, topics in enumerate(ROWS) for topic in topics}
    topic = _topic(path)
    assert topic in row, f"{topic} has no row: give it one here and in CONTRIBUTING.md"
    imported = _imported(path) & set(row)
    upward = {other for other in imported if row[other] > row[topic]}
    assert not upward, f"{topic} imports from below: {sorted(upward)}"
    met = {other for other in imported if (topic, other) in FORBIDDEN}
    assert not met, f"{topic} must not import {sorted(met)}"


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, workbench, workbench.cli; "
        "print(*{'torch', 'timm', 'transformers', 'plotly', 'pandas', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_resolves():
    assert {name for name in workbench.__all__ if getattr(workbench, name, None) is None} == set()
