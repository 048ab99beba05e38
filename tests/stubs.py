"""Stubs of the functions that take the options of an analysis: `python -m tests.stubs` writes them.

An editor and a type checker read from them which analyses there are, and which options each takes. The signatures are
those of the source, the options those of the registry; `tests/runs/test_stubs.py` keeps the files current.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import workbench
from workbench.analyses import registry
from workbench.analyses.registry import ANALYSES, Analysis
from workbench.core.options import options_of

RUNS = Path(workbench.__file__).parent / "runs"
TYPED = {"analyze.py": "analyze", "many.py": "analyze_many"}
"""Modules, and the function in each that has a signature for every analysis."""
WIDTH = 118
HEAD = "# Written by `python -m tests.stubs` from the signatures and the registry of analyses.\n# fmt: off\n"


def stubs() -> dict[Path, str]:
    """Every stub by its file."""
    files = {RUNS / "options.pyi": options_stub()}
    return files | {(RUNS / name).with_suffix(".pyi"): _module_stub(RUNS / name) for name in TYPED}


# Options ----------------------------------------------------------------------------------------------------


def entries() -> list[Analysis]:
    """Our analyses, each followed by its finer rows."""
    ours = [ANALYSES[name] for name in ANALYSES if ANALYSES.is_ours(name)]
    return [entry for analysis in ours for entry in (analysis, *analysis.finer)]


def class_of(entry: Analysis) -> str:
    """The name of the options of an analysis: GramSpectrum, AttentionMapPair."""
    words = [*entry.name.split("-"), *([entry.per] if entry.per else [])]
    return "".join(word.capitalize() for word in words)


def options_stub() -> str:
    """The options of every analysis, as dictionaries with types."""
    used = {part for entry in entries() for part in entry.options_type.__mro__}
    shared = [kind for kind in vars(registry).values() if isinstance(kind, type) and kind in used - {object}]
    parts = [
        f'{HEAD}"""Options of every analysis, as `workbench.analyze` takes them by name."""\n',
        "from typing import Literal\n\nfrom typing_extensions import TypedDict",
        *(_class(kind.__name__, _bases(kind), [kind]) for kind in shared),
    ]
    for entry in entries():
        kind = entry.options_type
        own = [part for part in kind.__mro__ if part is not object and not _is_shared(part)]
        bases = [kind.__name__] if _is_shared(kind) else [base for part in own for base in _bases(part)]
        parts.append(_class(class_of(entry), bases, own, entry))
    return "\n\n".join(parts) + "\n"


def _is_shared(kind: type) -> bool:
    """Whether a class holds options of several analyses."""
    return kind.__module__ == registry.__name__


def _bases(kind: type) -> list[str]:
    return [base.__name__ for base in kind.__bases__ if _is_shared(base)]


def _class(name: str, bases: list[str], kinds: list[type], entry: Analysis | None = None) -> str:
    """One dictionary with types; that of an analysis takes no other option."""
    closed = "" if entry is None else ", closed=True"
    lines = [f"class {name}({', '.join(bases or ['TypedDict'])}, total=False{closed}):"]
    if entry is not None:
        title = entry.title if entry.per is None else f"{entry.title}, per {entry.per}"
        lines += [f'    """{title}."""']
    for kind in kinds:
        own = inspect.get_annotations(kind)
        parents = [base for base in kind.__bases__ if base is not object]
        inherited = {key: written(part.kind) for base in parents for key, part in options_of(base).items()}
        options = {key: option for key, option in options_of(kind).items() if key in own}
        for key, option in options.items():
            narrowed = key in inherited and inherited[key] != written(option.kind)
            ignored = "  # ty: ignore[invalid-typed-dict-field]" if narrowed else ""
            lines += [f"    {key}: {written(option.kind)}{ignored}", *_documented(option.help)]
    if len(lines) == 1:
        lines.append("    ...")
    return "\n".join(lines)


def _documented(text: str) -> list[str]:
    escaped = text.replace("\\", "\\\\")
    return textwrap.wrap(f'"""{escaped}"""', WIDTH, initial_indent="    ", subsequent_indent="    ")


def written(kind: Any) -> str:
    """An annotated type as source text, without its limits and words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return written(parts[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(written(part) for part in parts))
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(part) for part in parts)}]"
    if kind is types.NoneType:
        return "None"
    return kind.__name__


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


# Signatures -------------------------------------------------------------------------------------------------


def _module_stub(path: Path) -> str:
    """The public names of a module, with a signature of its typed function for every analysis."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = [text for node in tree.body for text in _declared(node, TYPED[path.name])]
    imports = _imports(tree, "\n".join(body))
    imports += ["from typing import Literal, Unpack, overload", "from workbench.runs import options"]
    return (
        "\n".join([f"{HEAD}# ruff: noqa: I001 (imports in the order of the source)", *imports, "", *body])
        + "\n"
    )


def _declared(node: ast.stmt, typed: str) -> Iterator[str]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield ast.unparse(node).replace("'", '"')
    elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        if node.name != typed:
            yield _signature(node)
            return
        for entry in entries():
            per = "None = None" if entry.per is None else f'Literal["{entry.per}"]'
            changed = {
                "analysis": f'analysis: Literal["{entry.name}"]',
                "per": f"per: {per}",
                "options": f"**options: Unpack[options.{class_of(entry)}]",
            }
            yield f"@overload\n{_signature(node, changed)}"
        yield f"@overload\n{_signature(node, {'options': ''})}"


def _signature(function: ast.FunctionDef, changed: dict[str, str] | None = None) -> str:
    """The head of a function, several arguments a line; ``changed`` ones are written as it says."""
    given = function.args
    positional = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    words = [_argument(arg, default) for arg, default in zip(given.args, positional, strict=True)]
    words += ["*"] if given.kwonlyargs else []
    words += [
        _argument(arg, default) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    words += [f"**{_argument(given.kwarg, None)}"] if given.kwarg else []
    names = [re.split("[:=]", word)[0].lstrip("*") or "*" for word in words]
    words = [(changed or {}).get(name, word) for name, word in zip(names, words, strict=True)]
    text = _wrapped([word for word in words if word], "    ")
    return f"def {function.name}(\n{text}\n) -> {ast.unparse(function.returns)}: ..."


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    kind = "" if arg.annotation is None else f": {ast.unparse(arg.annotation)}"
    return (f"{arg.arg}{kind}" + ("" if default is None else f" = {ast.unparse(default)}")).replace("'", '"')


def _wrapped(words: Iterable[str], indent: str) -> str:
    """Words with commas, as many a line as there is room for."""
    lines = [indent]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > WIDTH and lines[-1] != indent:
            lines.append(indent)
        lines[-1] += f"{word}, "
    return "\n".join(line.rstrip() for line in lines)


def _imports(tree: ast.Module, body: str) -> list[str]:
    """The imports of a module that its stub needs."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            needed = [alias for alias in node.names if re.search(rf"\b{alias.asname or alias.name}\b", body)]
            if needed:
                node.names = needed
                line = ast.unparse(node)
                if len(line) > WIDTH:
                    head, _, names = line.partition(" import ")
                    line = f"{head} import (\n{_wrapped(names.split(', '), '    ')}\n)"
                found.append(line)
    return found


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(Path.cwd()))
