"""Figure notebooks before they run: their list, their parameters and accepted values."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from workbench.core import paths
from workbench.core.errors import InputError, UnknownName
from workbench.core.files import sha256_file
from workbench.core.options import conforming, literal, parsed, read_typed

PRESETS = ("quick", "default", "paper")
_ANY = frozenset({"any"})
# Accepted types of each kind: an integer is a valid float, True is no number.
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
    "tuple": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}


class _CellMetadata(TypedDict, total=False):
    tags: list[str]


class _Cell(TypedDict):
    cell_type: str
    source: str | list[str]
    metadata: NotRequired[_CellMetadata | None]


class _Own(TypedDict, total=False):
    presets: dict[str, dict[str, Any]] | None
    question: str
    render: bool
    shows: str


class _Metadata(TypedDict, total=False):
    workbench: _Own | None


class _Stored(TypedDict):
    """The fields of a notebook's file that readers rely on."""

    cells: list[_Cell]
    metadata: _Metadata


@dataclass(frozen=True)
class Parameter:
    """A parameter of a notebook's parameters cell: its default and the accepted kinds of value."""

    name: str
    default: Any
    kinds: frozenset[str]

    def accepts(self, value: Any) -> bool:
        """Return whether a value is of one of the kinds."""
        if "any" in self.kinds:
            return True
        if isinstance(value, bool):
            return "bool" in self.kinds
        return any(isinstance(value, _TYPES[kind]) for kind in self.kinds)


@dataclass(frozen=True)
class Notebook:
    """A notebook as it is stored. ``rendered`` is false where its metadata opts out of rendering everything.

    ``question`` is its section of the gallery, ``shows`` its line in the table of notebooks.
    """

    name: str
    path: Path
    parameters: dict[str, Parameter]
    presets: dict[str, dict[str, Any]]
    title: str
    rendered: bool = True
    question: str = ""
    shows: str = ""
    cells: int = 0
    sha256: str = field(default="", repr=False)

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of every parameter in a run, given or by default; without the output folder."""
        return {
            name: values.get(name, parameter.default)
            for name, parameter in self.parameters.items()
            if name != "out"
        }

    def check(self, values: Mapping[str, Any], source: str) -> None:
        """Raise `InputError` or `UnknownName` for a value that the notebook does not take."""
        for name, value in values.items():
            if name not in self.parameters:
                raise UnknownName(f"parameter of notebook {self.name}", name, self.parameters, source)
            parameter = self.parameters[name]
            if not parameter.accepts(value):
                wanted = " or ".join(sorted(parameter.kinds))
                raise InputError(
                    f"{source}: parameter {name!r} of notebook {self.name} takes {wanted} "
                    f"(default {parameter.default!r}); got {value!r}, which is {type(value).__name__}"
                )
            if name == "n" and isinstance(value, int) and value < 1:
                raise InputError(f"{source}: n of notebook {self.name} is {value}; take 1 input or more")


def read_notebook(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook's name, parameters and presets without running it.

    Raises:
        InputError: no such file, no notebook, or a parameters cell that is more than plain assignments.
    """
    path = Path(path).expanduser()
    try:
        content = conforming(_Stored, parsed(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise InputError(f"no notebook at {path}") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a Jupyter notebook: {error}") from error
    cells: list[Any] = content["cells"]
    metadata: dict[str, Any] = {**(content["metadata"].get("workbench") or {})}
    tagged = [cell for cell in cells if "parameters" in (cell.get("metadata") or {}).get("tags", ())]
    if len(tagged) > 1:
        raise InputError(f"{path} has {len(tagged)} cells tagged 'parameters'; keep one")
    presets = metadata.get("presets") or {}
    unknown = sorted(set(presets) - set(PRESETS))
    if unknown:
        raise UnknownName(f"preset in the metadata of {path.name}", unknown[0], PRESETS)
    notebook = Notebook(
        name=path.stem,
        path=path.resolve(),
        parameters=_parameters(_source(tagged[0]), path) if tagged else {},
        presets=presets,
        title=_title(cells) or path.stem,
        rendered=metadata.get("render", True) is not False,
        question=metadata.get("question", ""),
        shows=metadata.get("shows", ""),
        cells=len(cells),
        sha256=sha256_file(path),
    )
    for preset, values in presets.items():
        notebook.check(values, f"preset {preset!r}")
    return notebook


def _source(cell: Mapping[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _title(cells: Iterable[Mapping[str, Any]]) -> str:
    for cell in cells:
        match = (
            re.search(r"^#\s+(.+)$", _source(cell), re.MULTILINE)
            if cell.get("cell_type") == "markdown"
            else None
        )
        if match:
            return match.group(1).strip()
    return ""


def _parameters(source: str, path: Path) -> dict[str, Parameter]:
    """Read the names assigned in the parameters cell.

    Read from the syntax tree, since papermill's own inspection goes line by line and misses `a, b = 1, 2`.
    """
    try:
        statements = ast.parse(source).body
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # also null bytes, and a thousand brackets
        raise InputError(f"the parameters cell of {path.name} is not plain Python: {error}") from error
    parameters: dict[str, Parameter] = {}
    for statement in statements:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value
        ):
            default = _literal(statement.value, path)
            parameters[statement.target.id] = Parameter(
                statement.target.id, default, _annotated(statement.annotation)
            )
        elif isinstance(statement, ast.Assign):
            value = _literal(statement.value, path)
            for target in statement.targets:
                for name, default in _pairs(target, value, path):
                    parameters[name] = Parameter(name, default, _kinds(default))
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            raise InputError(
                f"line {statement.lineno} of the parameters cell of {path.name} is no assignment; "
                "move imports and code to the next cell"
            )
    return parameters


def _pairs(target: ast.expr, value: Any, path: Path) -> list[tuple[str, Any]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, tuple | list):
        names = [item.id for item in target.elts if isinstance(item, ast.Name)]
        if len(names) == len(target.elts) == len(value):
            return list(zip(names, value, strict=True))
    raise InputError(
        f"the parameters cell of {path.name} assigns to {ast.unparse(target)!r}; use plain names"
    )


def _literal(node: ast.expr, path: Path) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(
            f"the parameters cell of {path.name} holds {ast.unparse(node)!r}; defaults are literals (numbers, text, "
            "lists, None)"
        ) from error


def _kinds(default: Any) -> frozenset[str]:
    """Return the accepted kinds by a default; None does not fix the type, so any value is accepted."""
    return _ANY if default is None else frozenset({type(default).__name__}) & set(_TYPES) or _ANY


def _annotated(annotation: ast.expr) -> frozenset[str]:
    """Return the kinds of an annotation such as `int | None` or `Optional[str]`; any other accepts any value."""
    if isinstance(annotation, ast.Constant):
        if annotation.value is None:
            return frozenset({"None"})
        try:
            return _annotated(ast.parse(str(annotation.value), mode="eval").body)
        except SyntaxError:
            return _ANY
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return _annotated(annotation.left) | _annotated(annotation.right)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        outer = annotation.value.id
        if outer == "Optional":
            return _annotated(annotation.slice) | {"None"}
        return frozenset({outer}) if outer in _TYPES else _ANY
    if isinstance(annotation, ast.Name) and annotation.id in _TYPES:
        return frozenset({annotation.id})
    return _ANY


def find_notebooks(
    names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
) -> list[Notebook]:
    """Find notebooks by bundled name or by path; for None all that are rendered.

    Raises:
        UnknownName: a name that is neither (the nearest ones are offered).
        InputError: a file that is no notebook, or two of one name.
    """
    bundled = paths.bundled_notebooks()
    if names is None:
        if not bundled:
            raise InputError(f"there are no notebooks in {paths.notebooks_dir()}; name one by its path")
        return [notebook for notebook in map(read_notebook, bundled.values()) if notebook.rendered]
    notebooks: dict[str, Notebook] = {}
    listed = [names] if isinstance(names, str | os.PathLike) or not isinstance(names, Iterable) else names
    for name in listed:
        if not isinstance(name, str | os.PathLike):
            raise InputError(f"a notebook is a bundled name or a path ending in .ipynb; got {name!r}")
        text = os.fspath(name)
        if text in bundled:
            path = bundled[text]
        elif Path(text).suffix == ".ipynb" or os.sep in text:
            path = Path(text).expanduser()
            if not path.is_file() and path.name == text and path.stem in bundled:
                path = bundled[path.stem]
        else:
            raise UnknownName("notebook", text, bundled, "or give a path ending in .ipynb")
        notebook = read_notebook(path)
        if notebook.name in notebooks and notebooks[notebook.name].path != notebook.path:
            raise InputError(
                f"two notebooks are called {notebook.name!r}; their results would overwrite each other"
            )
        notebooks[notebook.name] = notebook
    if not notebooks:
        raise InputError("no notebook was named")
    return list(notebooks.values())


def resolve_parameters(
    notebooks: Iterable[Notebook], parameters: Mapping[str, Any], preset: str, named: bool
) -> dict[str, dict[str, Any]]:
    """Return the values for each notebook: its preset, updated by the parameters.

    Named notebooks must each take every parameter. If all notebooks are rendered, a parameter goes to those that take
    it, and at least one must.

    Raises:
        UnknownName: an unknown preset or parameter (the nearest ones are offered).
        InputError: a value of the wrong kind, or `out`, which is chosen for all notebooks at once.
    """
    if preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    if "out" in parameters:
        raise InputError(
            "the output folder is one for all notebooks; give it as --out FOLDER, not as a parameter"
        )
    notebooks = list(notebooks)
    names = {name for notebook in notebooks for name in notebook.parameters}
    for name in parameters:
        if name not in names:
            raise UnknownName(
                "parameter", name, names - {"out"}, "of " + ", ".join(item.name for item in notebooks)
            )
    resolved = {}
    for notebook in notebooks:
        taken = {name: value for name, value in parameters.items() if named or name in notebook.parameters}
        notebook.check(taken, "parameters")
        resolved[notebook.name] = {**notebook.presets.get(preset, {}), **taken}
    return resolved


def read_parameters(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read parameters from a YAML (or JSON) file: one mapping of names to values.

    Raises:
        InputError: no such file, or something else in it.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read parameters from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    return parse_parameters(text, str(path))


def parse_parameters(text: str, source: str) -> dict[str, Any]:
    """Parse parameters from YAML (or JSON): one mapping of names to values.

    Raises:
        InputError: something else, from this source.
    """
    import yaml

    class Plain(yaml.SafeLoader):
        """A loader without aliases: a few lines of them could expand to fill the memory."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has an alias (*name); write the value out")
            return super().compose_node(parent, index)

    try:
        content = yaml.load(text, Plain)  # a SafeLoader
    except RecursionError:
        raise InputError(f"{source} is nested too deeply to be parameters") from None
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2024-13-01 is a ValueError
        raise InputError(f"{source} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(
            f"{source} must hold one mapping of parameter names to values; got {type(content).__name__}"
        )
    return content


def read_typed_parameters(names: Iterable[str] | None, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse texts typed at a command line for the parameters of these notebooks (all for None).

    A parameter of several notebooks is parsed so that all accept it; unknown ones are left for the check to refuse.

    Raises `InputError` for true or false where a parameter takes text.
    """
    pairs = [*pairs]
    notebooks = find_notebooks(names) if pairs else []
    having = {
        key: [notebook.parameters[key] for notebook in notebooks if key in notebook.parameters]
        for key, _ in pairs
    }
    parameters = {}
    for key, text in pairs:
        value = read_typed(text, lambda value, key=key: all(it.accepts(value) for it in having[key]))
        if value == text and isinstance(literal(text), bool) and having[key]:
            raise InputError(
                f"-p {key} {text}: {key} takes text, or none where it may be left out, and no true or false; write "
                f"-r {key} {text} for the text itself"
            )
        parameters[key] = value
    return parameters
