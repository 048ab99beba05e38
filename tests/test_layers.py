"""Data flows one way: the contract in pyproject.toml says how, and import-linter reads every import statement."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

import workbench

ROOT = Path(__file__).parents[1]


def test_the_import_contract_is_kept():
    assert lint_imports(no_cache=True) == 0, "run `lint-imports` to see which import breaks it"


def texts_of_imports(tree):
    """Modules that are imported by a text: "package.module:NAME", and arguments of ``import_module``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    arguments = [arg for call in calls if "import_module" in ast.unparse(call.func) for arg in call.args]
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if re.fullmatch(r"[\w.]+:\w+", text) or node in arguments:
            yield node.lineno, text


def test_no_room_imports_a_higher_one_by_its_name():
    """What importlib imports is in no import statement, and the contract does not see it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    rooms = next(one["layers"] for one in contracts["contracts"] if one["type"] == "layers")[::-1]
    upwards = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for height, room in enumerate(rooms)
        for path in sorted((ROOT / "workbench" / room).rglob("*.py"))
        for line, text in texts_of_imports(ast.parse(path.read_text(encoding="utf-8")))
        if text.startswith(tuple(f"workbench.{higher}." for higher in rooms[height + 1 :]))
    ]
    assert not upwards, "\n".join(upwards)


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, workbench, workbench.apps.cli; "
        "print(*{'torch', 'timm', 'transformers', 'plotly', 'pandas', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_resolves():
    assert {name for name in workbench.__all__ if getattr(workbench, name, None) is None} == set()
