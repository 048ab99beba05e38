"""Commands for thousands of inputs: run a sweep, show its status, read its results."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from workbench.apps.cli.printing import print_notes, print_table
from workbench.apps.cli.shared_options import (
    Settings,
    analysis_option,
    json_option,
    max_time_option,
    model_option,
    number_option,
    out_file,
    out_folder,
    read_settings,
    restart_option,
    run_settings,
    set_option,
    workers_option,
)
from workbench.core.errors import InputError

_PER_INPUT = "per_input"


@click.group()
def sweep() -> None:
    """Run, check and read sweeps of many models over many inputs."""


def _options_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return KEY for every named analysis, and ANALYSIS.KEY for that analysis."""
    from workbench.analyses.registry import ANALYSES

    options: dict[str, Any] = {}
    for name in parameters.get("analyses") or ():
        for key, option in ANALYSES[name].options.items():
            options |= {f"{name.replace('-', '_')}.{key}": option} | (
                {key: option} if key not in options else {}
            )
    return options


@sweep.command()
@run_settings(several=True, required=True)
@analysis_option("An analysis to run. May be repeated.", required=True)
@set_option(
    _options_of,
    "An option of the analyses, or ANALYSIS.KEY=VALUE; several values run with each.",
)
@number_option("--shards", "How many parts the inputs are cut into. [default: one for about 256]")
@click.option(
    "--part", metavar="I/N", help="Run only the I-th of N shares of the tasks; N processes run all."
)
@workers_option
@click.option("--backend", type=click.Choice(["loky", "dask", "ray"]), default="loky", show_default=True,
              help="joblib's own processes, or the workers of a cluster.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS", help="The address of the cluster: tcp://HOST:8786.")
@max_time_option
@out_folder("The folder of the sweep.", required=True)
@restart_option
def run(
    settings: dict[str, Any],
    analyses: tuple[str, ...],
    typed: Settings,
    max_time: str | None,
    **parameters: Any,
) -> None:
    """Run analyses of models over inputs, on all cores or a cluster; give one inputs for all models, or one for each.

    \b
    workbench sweep run -m bundled:digits-vit -m bundled:digits-tost -i bundled:digits -n all -a gram-spectrum \\
        -a value-similarity -s standardize=per-token -j 2 -o sweeps/digits
    workbench sweep run -m bundled:digits-vit -i bundled:digits -a gram-spectrum --part 2/8 -o sweeps/array
    """
    from workbench.runs.sweep import parse_duration, sweep

    models, inputs = [*settings.pop("model")], [*settings.pop("inputs")]
    requests, per_input = requested_analyses(analyses, typed)
    limit = None if max_time is None else parse_duration(max_time)
    status = sweep(
        models,
        inputs,
        requests,
        per_input=per_input,
        max_time=limit,
        progress=sys.stderr.isatty(),
        **settings,
        **parameters,
    )
    click.echo(str(status))
    _print_failures(status.failures)
    if status.failed:
        sys.exit(1)


def requested_analyses(
    names: Sequence[str], typed: Settings
) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """Expand every analysis by every combination of its option values; also return whether rows per input are kept.

    Raises InputError for a key that no analysis has.
    """
    from workbench.analyses.registry import ANALYSES

    options = _options_of({"analyses": names})
    read = read_settings(
        f"none of {', '.join(names)}" if len(names) > 1 else names[0], typed, options, repeated=True
    )
    kept = read.pop(_PER_INPUT, [False])
    if len(kept) > 1:
        raise InputError(f"{_PER_INPUT} holds for the whole sweep; set it once")
    requests = []
    for name in dict.fromkeys(names):
        option_values = {key: values for key, values in read.items() if key in ANALYSES[name].options}
        prefix = name.replace("-", "_") + "."
        option_values |= {
            key.removeprefix(prefix): values for key, values in read.items() if key.startswith(prefix)
        }
        requests += [
            (name, dict(zip(option_values, values, strict=True)))
            for values in itertools.product(*option_values.values())
        ]
    return requests, kept[0]


@sweep.command()
@click.argument("folder", type=click.Path(file_okay=False))
@json_option
def status(folder: str, as_json: bool) -> None:
    """Show the status of the sweep in FOLDER: done, failed, damaged, left, and the time left.

    \b
    workbench sweep status sweeps/digits
    """
    from workbench.runs.sweep import sweep_status

    progress = sweep_status(folder)
    print_table(progress.rows, str(progress), as_json)
    _print_failures(progress.failures)


def _print_failures(failures: Mapping[str, str]) -> None:
    for task, error in failures.items():
        click.echo(f"failed: {task}: {error}", err=True)


@sweep.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(file_okay=False))
@analysis_option("Only this analysis. May be repeated. [default: all of the sweep]")
@model_option("Only this model of the sweep. [default: all]", several=True)
@out_file("File of the result: .parquet, .csv, .json or .tex.", required=True)
@click.option(
    "--allow-partial",
    is_flag=True,
    help="Read an incomplete sweep: missing or damaged parts are left out.",
)
def read(
    folders: tuple[str, ...],
    analyses: tuple[str, ...],
    model: tuple[str, ...],
    out: str,
    allow_partial: bool,
) -> None:
    """Write the results of the sweeps in all FOLDERs as one tidy result.

    \b
    workbench sweep read sweeps/digits -a gram-spectrum -o spectra.parquet
    """
    from workbench.core.files import check_writable
    from workbench.frames.results import check_suffix, provenance_of, write_frame
    from workbench.runs.sweep import read_sweep

    check_suffix(out)
    check_writable(out)
    frame = read_sweep(folders, analyses or None, model or None, allow_partial=allow_partial)
    write_frame(frame, out)
    click.echo(f"{len(frame)} rows of {len(provenance_of(frame))} results written to {out}")
    print_notes(frame.attrs["notes"])
