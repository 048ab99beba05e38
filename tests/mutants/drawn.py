"""Mutants drawn at random: one comparison, operation, number, truth value or call of a line is changed.

In the explorer's scripts, one comparison, operation or small number. Sizes of a drawing, checks of equal lengths
(`strict=True`) and assertions are not drawn.
"""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "mean": "sum", "floor": "ceil"}
SCRIPT = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "===": "!==",
    "!==": "===",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "*",
    "**": "*",
    "&&": "||",
    "||": "&&",
    "??": "&&",
    "Math.min": "Math.max",
    "Math.max": "Math.min",
    "Math.floor": "Math.ceil",
    "Math.ceil": "Math.floor",
    "Math.round": "Math.floor",
    "!": "",
}
"""Operations of JavaScript, and what they are changed to."""
_IN_SCRIPT = re.compile(
    r"(?<= )(?:[<>]=?|[!=]==|\*\*|[-+*/%]|&&|\|\||\?\?)(?= )|Math\.(?:min|max|floor|ceil|round)\b"
    r"|(?<![\w)])!(?=[\w(])|(?<![\w.#])\d+(?:\.\d+)?(?![\w.])"
)
_NO_CODE = re.compile(r"""//.*|"[^"]*"|'[^']*'|`[^`]*`|^\s*/?\*.*|^import.*""")
_PAGES = tuple(f"tests/apps/explorer/test_{name}.py" for name in ("front", "drawing", "page"))
"""Tests that run the scripts of the explorer in a browser."""
_SMALL = ("0", "1", "2", "10", "100")
"""Numbers of a script that are changed: places, bounds, powers and percent. Others are mostly pixels."""
_SIZES = re.compile(
    "width|height|size|opacity|x|y|xshift|yshift|l|r|t|b|pad|dash|thickness|borderwidth|borderpad|xgap|ygap|ticklen|"
    "tickwidth|nticks|indent|flush|stacklevel|timeout|strict|repr|include_url|include_input|include_context"
)
"""Arguments and keys whose constants only place a drawing, write a file for the eye or check a call."""


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the changed forms of a node, without those of its children."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARISONS:
        new.ops[0] = COMPARISONS[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in OPERATIONS and not _joins(new):
        new.op = OPERATIONS[type(new.op)]()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
        yield new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool | int | float):
        value = new.value
        bigger = value + 1 if isinstance(value, int) else 2 * value or 1.0
        yield ast.Constant(not value if isinstance(value, bool) else bigger)
    elif isinstance(new, ast.Call) and isinstance(new.func, ast.Name | ast.Attribute):
        key = "id" if isinstance(new.func, ast.Name) else "attr"
        if getattr(new.func, key) in CALLS:
            setattr(new.func, key, CALLS[getattr(new.func, key)])
            yield new
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        yield ast.Pass()


def _joins(node: ast.AST) -> bool:
    """Return whether an operation joins strings, lists or paths: changed, it could only raise an error."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    texts = [isinstance(side, ast.Constant) and isinstance(side.value, str | bytes) for side in sides]
    return any(texts) or any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) for side in sides)


def _size(node: ast.AST | None, name: str | None) -> bool:
    constant = isinstance(node, ast.Constant | ast.UnaryOp)
    return constant and _SIZES.fullmatch(name or "") is not None


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk the code, without annotations, decorators, messages, sizes, assertions and code for a type checker."""
    if isinstance(tree, ast.Assert) or (isinstance(tree, ast.keyword) and _size(tree.value, tree.arg)):
        return
    if isinstance(tree, ast.Dict):
        for key, value in zip(tree.keys, tree.values, strict=True):
            if not _size(value, key.value if isinstance(key, ast.Constant) else None):
                yield value
                yield from nodes(value)
        return
    for name, field in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "exc") or isinstance(tree, ast.JoinedStr):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST):
                yield child
                yield from nodes(child)


def script_mutations(text: str) -> Iterator[tuple[str, str]]:
    """Yield lines of a script with one operation or number changed; lines that stand in it twice are left out."""
    lines = [line.strip() for line in text.split("\n")]
    for line in lines:
        code = _NO_CODE.sub(lambda match: " " * len(match.group()), line)
        for match in _IN_SCRIPT.finditer(code) if lines.count(line) == 1 else ():
            old = match.group()
            if old not in SCRIPT and old not in _SMALL:
                continue
            new = SCRIPT[old] if old in SCRIPT else str(int(old) + 1)
            yield line, f"{line[: match.start()]}{new}{line[match.end() :]}"


def mutations(text: str) -> Iterator[tuple[str, str]]:
    """Yield lines of a file with their changed forms; lines that stand in it twice are left out."""
    lines = text.split("\n")
    stripped = [line.strip() for line in lines]
    for node in nodes(ast.parse(text)):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if (
            first == 0
            or first != last
            or stripped.count(stripped[first - 1]) > 1
            or "Annotated[" in lines[first - 1]
        ):
            continue
        line = lines[first - 1].encode()
        for changed in changes(node):
            written = ast.unparse(changed)
            written = f"({written})" if isinstance(changed, ast.BinOp | ast.BoolOp | ast.Compare) else written
            mutated = (line[: node.col_offset] + written.encode() + line[node.end_col_offset :]).decode()
            yield stripped[first - 1], mutated.strip()


def tests_of(file: str) -> tuple[str, ...]:
    """Return the tests of a file, at most eight files of its room.

    Those of its name are first, then those that import it, then those of the modules of its room that import it.
    """
    if file.startswith("workbench/apps/") and file.endswith(".js"):
        return tuple(test for test in _PAGES if (ROOT / test).is_file())
    if file.endswith(".js"):  # what measures a printed page
        file = str(Path(file).with_name("checks.py"))
    users = [path for path in _python(f"workbench/{_room(file)}") if _imports(path, file)]
    naming = [
        path
        for path in _python(f"tests/{_room(file)}")
        if path.name.startswith("test_") and _imports(path, file)
    ]
    ranked = [_own(Path(file)), *naming, *(_own(path) for path in users)]
    return tuple(dict.fromkeys(str(path) for path in ranked if (ROOT / path).is_file()))[:8]


def _room(file: str) -> str:
    return Path(file).parts[1]


def _own(file: Path) -> Path:
    """Return where the tests of a module would be."""
    return Path("tests", *file.parts[1:-1], f"test_{file.name}")


@cache
def _python(folder: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


@cache
def _text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _imports(path: Path, file: str) -> bool:
    """Return whether a Python file names a module."""
    *folders, name = Path(file).with_suffix("").parts[1:]
    dotted = rf"\b{re.escape('.'.join(folders))}(?:\.| import .*\b){name}\b"
    return str(path) != file and re.search(dotted, _text(path)) is not None


def drawn(count: int, seed: int, words: list[str]) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Draw mutants of files whose name has one of the words, every file as likely as its number of lines."""
    draw, chosen = random.Random(seed), []
    paths = [*(ROOT / "workbench").glob("*/**/*.py"), *(ROOT / "workbench").glob("*/**/*.js")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    names = [name for name in names if not words or any(word in name for word in words)]
    files = [(name, (ROOT / name).read_text(encoding="utf-8")) for name in names if tests_of(name)]
    while len(chosen) < count:
        ((name, text),) = draw.choices(files, [text.count("\n") for _, text in files])
        possible = [*(script_mutations if name.endswith(".js") else mutations)(text)]
        mutant = (name, tests_of(name), *draw.choice(possible)) if possible else None
        if mutant is not None and mutant not in chosen and mutant[2] != mutant[3]:
            chosen.append(mutant)
    return chosen
