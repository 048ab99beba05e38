"""Tidy frames from arrays, with the provenance of their run, and their files."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pandas as pd

from workbench._version import __version__
from workbench.core.errors import InputError, UnknownName
from workbench.core.files import atomic_write, check_format
from workbench.core.options import checked, conforming, parsed
from workbench.frames.metric import METRICS
from workbench.frames.tables import csv_bytes, is_overall, latex_table, without_apostrophes

SCHEMA_VERSION = 3
COLUMNS = (
    "model", "checkpoint", "input", "layer", "source", "head", "metric", "axis", "statistic", "convention",
    "standardize", "candidate", "rank", "value", "unit", "null", "null_mean", "null_low", "null_high", "z",
    "version",
)  # fmt: skip
STEP = "step"
"""Column of results over generated tokens, steps of a loop or of a training; other results do not have it."""
RANDOM_WEIGHTS = "random"
"""Checkpoint name of random weights (``pretrained=False``); "random-3" names those from seed 3."""
UNTRAINED_NOTE = "has random weights: its numbers are not those of a trained model"
_INTEGERS = ("layer", "head", "rank")
_NUMBERS = ("value", "null_mean", "null_low", "null_high", "z")
_SUFFIXES = (".parquet", ".feather", ".csv", ".json", ".tex")


def random_seed(checkpoint: object) -> int | None:
    """Return the seed of random weights from their checkpoint name; None for trained weights."""
    name = re.fullmatch(rf"{RANDOM_WEIGHTS}(?:-(\d+))?", str(checkpoint))
    return None if name is None else int(name[1] or 0)


def is_random(checkpoint: object) -> bool:
    """Return whether a checkpoint of this name holds random weights."""
    return random_seed(checkpoint) is not None


def make_frame(values: Any, metric: str, index: Mapping[str, Any], **constant: Any) -> pd.DataFrame:
    """Convert an array to a frame in the shared columns, one row per entry.

    ``index`` maps an axis of ``values``, in order, to its labels, e.g.
    ``{"input": ids, "layer": [0, 3], "head": range(3), "rank": range(1, 65)}``; ``constant`` holds columns
    with one value for all rows (``model``, ``checkpoint``, ``axis``, …). Raises `InputError` for an unknown
    column, `UnknownName` for a metric that is not in the table, and `InputError` where labels and axes
    disagree.
    """
    if metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)
    array = np.asarray(values, dtype=np.float64)
    labels = {name: list(items) for name, items in index.items()}
    shape = tuple(len(items) for items in labels.values())
    if array.shape != shape:
        raise InputError(
            f"values of shape {array.shape} do not fit the axes {dict(zip(labels, shape, strict=True))}"
        )
    unknown = sorted({*labels, *constant} - set(COLUMNS))
    if unknown:
        raise InputError(f"no such result column: {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}")
    rows = pd.MultiIndex.from_product(list(labels.values()), names=list(labels)).to_frame(index=False)
    rows = rows.assign(metric=metric, unit=METRICS[metric].unit or None, **constant, value=array.ravel())
    return conform(rows)


def conform(frame: pd.DataFrame) -> pd.DataFrame:
    """Bring rows into exactly the shared columns, in order and with fixed types; absent ones are null.

    Where a row has a step, there is a column of steps too.
    """
    columns = list(COLUMNS)
    if STEP in frame and frame[STEP].notna().any():
        columns.insert(columns.index("layer") + 1, STEP)
    frame = frame.assign(version=__version__).reindex(columns=columns)
    kinds: dict[str, Any] = dict.fromkeys((*_INTEGERS, STEP), "Int64") | dict.fromkeys(_NUMBERS, "float64")
    return frame.astype({name: kinds.get(name, "string") for name in columns})


def join_frames(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate frames, with their provenance in one list (empty if no frame has any).

    Notes, committed records and the absent entries of `workbench.analyze_many` are joined too, each once. Models of one
    name whose weights differ are numbered, and a note lists them.
    """
    frames, numbered = with_distinct_models(frames)
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs["provenance"] = shared([run for frame in frames for run in provenance_of(frame)])
    for name in ("notes", "records"):
        each = dict.fromkeys(entry for frame in frames for entry in frame.attrs.get(name, ()))
        joined.attrs[name] = shared([*each, *(numbered if name == "notes" else ())])
    joined.attrs["absent"] = {
        name: why for frame in frames for name, why in frame.attrs.get("absent", {}).items()
    }
    return joined


def name_of_model(model: Mapping[str, Any]) -> Any:
    """Return a model's name in frames, from its provenance: its name, else its spec."""
    return model.get("name") or model.get("spec")


def with_distinct_models(frames: Sequence[pd.DataFrame]) -> tuple[list[pd.DataFrame], list[str]]:
    """Number the models of several frames that share a name but not the weights: "ViT 1", "ViT 2", in order.

    Return the frames, renamed where needed, and a note for each name. Weights are compared by their sha256 in
    the provenance, or by that of their capture file. Rows per token or pair, which have no column ``checkpoint``, get
    the checkpoint in the name. A name with several weights in one frame (a record of training seeds) stays: a column
    holds the seed.
    """
    weights: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    several = set()
    for frame in frames:
        each = [_name_and_weights(run) for run in provenance_of(frame)] if "model" in frame else []
        each = [*dict.fromkeys((key, identity) for key, identity in each if identity[1] is not None)]
        names = Counter(key for key, _ in each)
        several |= {key for key, count in names.items() if count > 1}
        for key, identity in each:
            if identity not in weights.setdefault(key, []):
                weights[key].append(identity)
    shared_names = {key: models for key, models in weights.items() if len(models) > 1 and key not in several}
    if not shared_names:
        return [*frames], []
    renamed = [_renamed(frame, shared_names) for frame in frames]
    notes = [
        f"{len(models)} models of different weights are called {key[0]}: they are numbered in the order of the frames; "
        "name=… of analyze or load gives a model a name"
        for key, models in shared_names.items()
    ]
    return renamed, notes


def _name_and_weights(run: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
    """Return the key of a run's rows, with the checkpoint and hash of its weights."""
    model = run.get("model") or {}
    checkpoint = model.get("checkpoint")
    file = (run.get("inputs") or {}).get("qkv") or {}
    key = (name_of_model(model), checkpoint) if run.get("per") is None else (name_of_model(model),)
    weights = model.get("sha256") or file.get("sha256")
    return key, (checkpoint, weights and (weights, model.get("structure")))


def _renamed(
    frame: pd.DataFrame, numbers: Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]
) -> pd.DataFrame:
    """Number the models of a frame, in the rows and in the provenance."""
    attrs, runs = frame.attrs, []
    if "model" not in frame:
        return frame
    for run in provenance_of(frame):
        key, identity = _name_and_weights(run)
        if key in numbers and identity in numbers[key]:
            several = len({checkpoint for checkpoint, _ in numbers[key]}) == len(numbers[key])
            name = f"{key[0]}, {identity[0]}" if several else f"{key[0]} {numbers[key].index(identity) + 1}"
            rows = frame["model"] == key[0]
            if len(key) > 1 and "checkpoint" in frame:
                rows &= frame["checkpoint"].isna() if key[1] is None else frame["checkpoint"] == key[1]
            frame = frame.assign(model=frame["model"].mask(rows.fillna(False), name))
            run = {**run, "model": {**run["model"], "name": name}}
        runs.append(run)
    frame.attrs = {**attrs, "provenance": shared(runs)}
    return frame


def shared(facts: Any) -> Any:
    """Wrap a list or dict for a frame's ``attrs`` so that derived frames share it; it must not be changed.

    pandas copies ``attrs`` deeply with every selection and column access, which for the runs of a record takes longer
    than the work itself.
    """
    return _SharedDict(facts) if isinstance(facts, dict) else _SharedList(facts)


class _SharedList(list[Any]):
    def __deepcopy__(self, memo: object) -> Self:
        return self


class _SharedDict(dict[str, Any]):
    def __deepcopy__(self, memo: object) -> Self:
        return self


def provenance_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the provenance of a frame's numbers: one dict per run that was joined into it."""
    runs = frame.attrs.get("provenance") or []
    return [runs] if isinstance(runs, dict) else list(runs)


@checked
def write_frame(frame: pd.DataFrame, path: str | os.PathLike[str]) -> Path:
    """Write a result frame as Parquet, Feather, CSV, JSON records or a LaTeX table, by the file's suffix.

    Parquet and Feather keep the schema version and the run's provenance in their metadata. Raises `InputError` for
    another suffix and `MissingResource` where the file cannot be written.
    """
    path = Path(path).expanduser()
    writers: dict[str, Callable[[IO[bytes]], object]] = {
        ".parquet": lambda handle: _write_arrow(frame, handle, feather=False),
        ".feather": lambda handle: _write_arrow(frame, handle, feather=True),
        ".csv": lambda handle: handle.write(csv_bytes(frame)),
        ".json": lambda handle: handle.write(_json_records(frame).encode()),
        ".tex": lambda handle: handle.write(latex_table(frame, _caption(frame), path.stem).encode()),
    }
    check_suffix(path)
    return atomic_write(path, writers[path.suffix])


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise `InputError` unless the name has the suffix of a result format."""
    path = Path(path).expanduser()
    if path.suffix not in _SUFFIXES:
        raise InputError(
            f"cannot tell a format from {path.name!r}; end the name in one of {', '.join(_SUFFIXES)}"
        )


def _caption(frame: pd.DataFrame) -> str:
    if "metric" not in frame:  # rows of single tokens or pairs
        return f"Values of {', '.join(frame['model'].unique())}."
    names = [", ".join(frame[column].dropna().astype(str).unique()) for column in ("metric", "model")]
    over = "inputs, and null distribution" if is_overall(frame).any() else "inputs and heads"
    return f"{' of '.join(name for name in names if name)}: mean over {over}."


def _json_records(frame: pd.DataFrame) -> str:
    # pandas' own JSON keeps 15 digits at most; a float written by `json` comes back as it was.
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for row in rows:
        # JSON has no infinity; as a string it reads back as the number
        row.update({key: str(value) for key, value in row.items() if value in (math.inf, -math.inf)})
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False, default=str)


def _write_arrow(frame: pd.DataFrame, handle: IO[bytes], feather: bool) -> None:
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    metadata = {
        b"workbench_schema": str(SCHEMA_VERSION).encode(),
        b"workbench_provenance": json.dumps(provenance_of(frame), default=str).encode(),
    }
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    if feather:
        pyarrow.feather.write_feather(table, handle, compression="lz4")
    else:
        pyarrow.parquet.write_table(table, handle, write_page_checksum=True)


@checked
def read_frame(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a frame of `write_frame` from Parquet or Feather (with its provenance), CSV or JSON.

    Rows of single tokens or pairs are read from Parquet or Feather.

    Raises `InputError` where the file is missing, of another kind, or of another schema.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"no result file at {path}")
    if path.suffix in (".csv", ".json"):
        return _read_text(path)
    if path.suffix not in (".parquet", ".feather"):
        raise InputError(
            f"cannot read {path.name!r}; results are read from .parquet, .feather, .csv or .json"
        )
    return read_frames([path])


def read_frames(paths: Sequence[Path]) -> pd.DataFrame:
    """Read Parquet or Feather files of `write_frame` as one frame, with the provenance of all.

    Raises `InputError` for an incomplete file, or one of another schema.
    """
    import pyarrow

    tables, runs, path = [], [], paths[0]
    try:
        for path in paths:
            table = _read_table(path)
            metadata = table.schema.metadata or {}
            check_format(
                path,
                "result schema",
                int(metadata.get(b"workbench_schema", SCHEMA_VERSION)),
                SCHEMA_VERSION,
            )
            runs.append(parsed(metadata.get(b"workbench_provenance", b"[]")))
            tables.append(table)
        joined = pyarrow.concat_tables(tables, promote_options="default")
        joined.validate(full=True)  # a Feather file has no checksums
        frame = joined.to_pandas()
        runs = [run for each in conforming(list[list[dict[str, Any]]], runs) for run in each]
        if "metric" in frame:  # rows of single tokens or pairs have columns of their own
            frame = conform(frame)
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a whole file of its kind: {error}") from error
    except Exception as error:  # pandas believes what the metadata says of the columns
        raise InputError(f"{path} holds no result: {error}") from error
    frame.attrs["provenance"] = shared(runs)
    return frame


def _read_table(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".feather":
        with pyarrow.memory_map(str(path)) as mapped:
            return pyarrow.ipc.open_file(mapped).read_all()
    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read()


def _read_text(path: Path) -> pd.DataFrame:
    """A CSV or JSON result; a name such as "NA" or "007" stays a name, and an empty field is null."""
    try:
        if path.suffix == ".json":
            rows = parsed(path.read_text(encoding="utf-8"))
            if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
                raise ValueError("JSON results are a list with an object for every row")
            frame = pd.DataFrame(rows, columns=None if rows else [*COLUMNS])
        else:
            with path.open(encoding="utf-8") as file:
                header = file.readline()
            if "," not in header and (mark := re.search("[;\t]", header)):
                raise ValueError(
                    f"its columns are separated by {mark[0]!r}; save it with commas between columns and decimal points"
                )
            # every field as text first: pandas' own parser may round the last bit of a number
            frame = pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
            frame = without_apostrophes(frame)
        if missing := [name for name in COLUMNS if name not in frame]:
            raise ValueError(
                f"it has no column {', '.join(missing)}; give a file of write_frame (rows of tokens or pairs are read "
                "from .parquet or .feather)"
            )
        return conform(frame)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path} holds no result: {error}") from error
