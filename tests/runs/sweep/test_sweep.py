"""A sweep gives the numbers of one run, whatever its shards and restarts."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import workbench
from tests.runs.sweep.conftest import INPUTS, MODEL, N, same_numbers
from workbench.core.errors import InputError, UnknownName
from workbench.runs.analyze import analyze
from workbench.runs.many import analyze_many
from workbench.runs.sweep import read_sweep
from workbench.runs.sweep.sweep_folder import SweepFolder

OPTIONS = {
    "gram-spectrum": {"max_rank": 3},
    "value-similarity": {"null_samples": 3},
    "token-similarity": {"rate": "fit"},
}


@pytest.mark.parametrize("per_input", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_any_number_of_shards_gives_the_frame_of_a_run(run, name, per_input):
    analyses, layers = [(name, OPTIONS[name])], [0, 3]
    whole = analyze(
        name,
        model=MODEL,
        inputs=INPUTS,
        n=9,
        batch_size=4,
        layers=layers,
        per_input=per_input,
        **OPTIONS[name],
    )
    for shards in (1, 3):
        status = run(f"{shards}", analyses=analyses, shards=shards, n=9, layers=layers, per_input=per_input)
        assert (status.done, status.failed, status.left) == (shards, 0, 0)
        frame = read_sweep(status.folder)
        many = analyze_many(
            name,
            [(MODEL, f"sweep:{status.folder}")],
            n=9,
            layers=layers,
            per_input=per_input,
            **OPTIONS[name],
        )
        pd.testing.assert_frame_equal(many, frame)
        same_numbers(frame, whole)
        held, wanted = (made.attrs["provenance"] for made in (frame, whole))
        assert held["inputs"]["sha256"] == wanted["inputs"]["sha256"]
        assert held["model"] == wanted["model"]
        assert frame.attrs["notes"] == whole.attrs["notes"]


def test_texts_are_padded_by_micro_batch_so_that_shards_change_nothing(run):
    frames = []
    for shards in (1, 3):
        asked = {"models": "bundled:prose-softmax", "inputs": "bundled:prose", "n": 5, "batch_size": 2}
        status = run(f"{shards}", shards=shards, **asked)
        frames.append(read_sweep(status.folder))
        assert any("texts were longer than" in note for note in frames[-1].attrs["notes"])
    same_numbers(*frames)


def changed(path):
    return path.stat().st_mtime_ns


def test_resuming_computes_what_is_missing_or_damaged_and_nothing_else(run, tmp_path):
    status = run()
    whole = read_sweep(status.folder)
    parts = sorted((status.folder / "parts").rglob("*.parquet"))
    assert len(parts) == 3
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    parts[2].unlink()
    before = changed(parts[1])
    assert "1 of 3 tasks done; 1 damaged; 1 left" in str(workbench.runs.sweep_status(status.folder))
    status = run()
    assert status.done == 3
    assert changed(parts[1]) == before
    same_numbers(read_sweep(status.folder), whole)
    before = [changed(part) for part in parts]
    run()
    assert [changed(part) for part in parts] == before


def test_damage_is_found_without_the_manifest_too(run):
    status = run()
    manifest = status.folder / "manifest.json"
    held = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(held | {"parts": {}}))  # as after a crash, before it was written
    part = sorted((status.folder / "parts").rglob("*.parquet"))[1]
    content = bytearray(part.read_bytes())
    content[60] ^= 255  # one byte inside a page
    part.write_bytes(content)
    before = changed(part)
    assert run().done == 3
    assert changed(part) != before
    assert json.loads(manifest.read_text())["parts"].keys() == held["parts"].keys()


def test_a_folder_of_another_plan_is_refused_and_moved_aside_when_asked(run, tmp_path):
    run(n=5)
    with pytest.raises(
        InputError, match=r"a sweep with other settings .*\"seed\": 0.* there, .*\"seed\": 1.*--restart"
    ):
        run(n=5, seed=1)
    before = read_sweep(tmp_path / "sweep")
    assert run(n=5, seed=1, restart=True).done == 2
    assert read_sweep(tmp_path / "sweep").attrs["provenance"]["inputs"]["seed"] == 1
    pd.testing.assert_frame_equal(read_sweep(tmp_path / "sweep.before-1"), before)


def test_models_and_analyses_are_added_to_a_sweep_and_only_their_shards_run(run):
    status = run(n=9)
    parts = sorted((status.folder / "parts").rglob("*.parquet"))
    before, alone = [changed(part) for part in parts], read_sweep(status.folder)
    more = {"models": ["bundled:digits-tssa", MODEL], "analyses": ["coding-rate", "token-similarity"], "n": 9}
    assert run(**more).done == 4 * status.done
    assert [changed(part) for part in parts] == before
    pd.testing.assert_frame_equal(
        read_sweep(status.folder, "token-similarity", MODEL).drop(columns="analysis"), alone
    )
    fresh = run("fresh", **more | {"models": [MODEL, "bundled:digits-tssa"]}).folder
    names = ["token-similarity", "coding-rate"]
    for name in names:
        same_numbers(read_sweep(status.folder, name), read_sweep(fresh, name))
    with pytest.raises(
        InputError, match=r'models: {"bundled:digits-vit over bundled:digits": "9 inputs .* asked for\)'
    ):
        run(models="bundled:digits-tssa", analyses=more["analyses"], n=9)
    with pytest.raises(InputError, match=r"9 inputs .* in 3 shards.* there, .*8 inputs .* asked for"):
        run(**more | {"n": 8})


def test_folders_are_read_as_one(run):
    first, second = (run(name, models=name, n=5).folder for name in (MODEL, "bundled:digits-tssa"))
    both = read_sweep([first, second])
    frames = [read_sweep(folder) for folder in (first, second)]
    assert both["value"].tolist() == [value for frame in frames for value in frame["value"]]
    pd.testing.assert_frame_equal(read_sweep([first, second], models=MODEL), frames[0])
    copied = shutil.copytree(first, first.parent / "copy")
    with pytest.raises(InputError, match=r"both hold token-similarity of bundled:digits-vit; read one"):
        read_sweep([first, copied])


def test_parts_of_a_sweep_give_the_numbers_of_the_whole(run, tmp_path):
    whole = read_sweep(run("whole").folder)
    status = run(part="1/2")
    assert (status.done, status.left) == (2, 1)
    with SweepFolder(status.folder).part_locked(2, 2):
        assert workbench.runs.sweep_status(status.folder).running
        with pytest.raises(InputError, match=r"another part 2 of 2 of the sweep is writing"):
            run(part="2/2")
        with pytest.raises(InputError, match=r"parts of this sweep are writing"):
            run()
    assert run(part="2/2").done == 3
    assert len(json.loads((status.folder / "manifest.json").read_text())["parts"]) == 3
    same_numbers(read_sweep(status.folder), whole)
    for part in ("0/2", "3/2", "1", "a/b", ""):
        with pytest.raises(InputError, match="part must be I/N with I from 1 to N, such as 2/8; got"):
            run(part=part)
    with pytest.raises(InputError, match="does not start over"):
        run(part="1/2", restart=True)


def test_the_array_of_jobs_in_the_docs_runs_as_local_processes(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "sweep.md").read_text(encoding="utf-8")
    script = next(block for block in page.split("```sh\n") if "#SBATCH --array" in block).split("```")[0]
    script = "\n".join(line for line in script.splitlines() if not line.startswith("source "))
    script = script.replace(
        "workbench sweep", f"{shlex.quote(sys.executable)} -P -m workbench sweep"
    ).replace("-n all", "-n 5")
    script = script.replace("/scratch/sweeps/digits", str(tmp_path / "array"))
    jobs = [
        subprocess.Popen(
            ["bash", "-c", script],
            env=os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "2"},
        )
        for number in (1, 2)
    ]
    assert [job.wait() for job in jobs] == [0, 0]
    status = workbench.runs.sweep_status(tmp_path / "array")
    assert (status.done, status.left, status.failed, status.running) == (2, 0, 0, False)


def test_a_plan_that_was_edited_is_refused(run):
    folder = run(n=5).folder
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["plan"]["models"][0]["n"] = 4
    manifest.write_text(json.dumps(content))
    for use in (workbench.runs.sweep_status, read_sweep, lambda _: run(n=4)):
        with pytest.raises(InputError, match=r"the plan in .*manifest\.json was edited"):
            use(folder)


def test_several_models_and_analyses_are_read_under_one_another_or_one_by_one(run):
    asked = {"analyses": ["token-similarity", ("gram-spectrum", {"max_rank": 2})], "n": 5, "shards": 1}
    folder = run(models=[MODEL, "bundled:digits-tssa"], **asked).folder
    whole = read_sweep(folder)
    assert whole["model"].unique().tolist() == [MODEL, "bundled:digits-tssa"]
    assert [run["analysis"] for run in whole.attrs["provenance"]] == ["token-similarity", "gram-spectrum"] * 2
    assert whole["analysis"].unique().tolist() == ["token-similarity", "gram-spectrum:max_rank=2"]
    one = read_sweep(folder, "gram-spectrum", MODEL)
    assert one.attrs["provenance"]["options"]["max_rank"] == 2
    rows = whole[(whole["model"] == MODEL) & whole["metric"].isin(one["metric"].unique())]
    assert rows["value"].tolist() == one["value"].tolist()
    pd.testing.assert_frame_equal(read_sweep(folder, "gram-spectrum:max_rank=2", MODEL), one)
    with pytest.raises(UnknownName, match="value-similarity"):
        read_sweep(folder, "value-similarity")
    with pytest.raises(UnknownName, match="digits-tost"):
        read_sweep(folder, models="bundled:digits-tost")


def test_two_sweeps_into_one_folder_are_refused(run, tmp_path):
    with (
        SweepFolder(tmp_path / "sweep").store.locked(),
        pytest.raises(InputError, match="another sweep is writing"),
    ):
        run()


def test_a_sweep_is_read_only_with_its_own_options(run):
    status = run(analyses=[("gram-spectrum", {"max_rank": 2})], n=5)
    spec = f"sweep:{status.folder}"
    read = [(MODEL, spec)]
    assert len(analyze_many("gram-spectrum", read, max_rank=2))
    with pytest.raises(InputError, match='max_rank: 2 there, "head_dim" asked for'):
        analyze_many("gram-spectrum", [(MODEL, spec)])
    with pytest.raises(InputError, match="n: 5 there, 25 asked for"):
        analyze_many("gram-spectrum", read, max_rank=2, n=25)
    with pytest.raises(InputError, match="seed: 0 there, 1 asked for"):
        analyze_many("gram-spectrum", read, max_rank=2, seed=1)
    with pytest.raises(InputError, match="per_input: false there, true asked for"):
        analyze_many("gram-spectrum", read, max_rank=2, per_input=True)
    with pytest.raises(UnknownName, match="gram-spectrum"):
        analyze_many("value-similarity", [(MODEL, spec)])
    with pytest.raises(UnknownName, match="digits-vit"):
        analyze_many("gram-spectrum", [("bundled:digits-tost", spec)], max_rank=2)
    with pytest.raises(InputError, match="holds no sweep"):
        analyze_many("gram-spectrum", [(MODEL, "sweep:nowhere")])


def cut(part):
    part.write_bytes(part.read_bytes()[:-100])


def of_another_time(part):  # whole in itself, and not what the manifest says was written
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.parquet.read_table(part), part, compression="none", write_page_checksum=True
    )


@pytest.mark.parametrize("harm", [Path.unlink, cut, of_another_time])
def test_fewer_inputs_than_the_sweep_was_asked_for_are_read_only_where_that_is_said(run, harm):
    status = run()
    harm(sorted((status.folder / "parts").rglob("*.parquet"))[1])
    now = workbench.runs.sweep_status(status.folder)
    gone = harm is Path.unlink
    assert (now.done, now.damaged, now.left, now.rows[0]["inputs"]) == (2, 1 - gone, gone + 0, 13)
    refused = (
        "1 of 3 shards of token-similarity of .* are missing or damaged.*13 of 21 inputs.*--allow-partial"
    )
    with pytest.raises(InputError, match=refused):
        read_sweep(status.folder)
    with pytest.raises(InputError, match=refused):
        analyze_many("token-similarity", [(MODEL, f"sweep:{status.folder}")], n=N)
    frame = read_sweep(status.folder, allow_partial=True)
    assert frame.attrs["provenance"]["inputs"]["n"] == 13
    assert any(
        "1 of 3 shards are missing: these are 13 of 21 inputs" in note for note in frame.attrs["notes"]
    )


def test_pandas_alone_reads_the_parts(run):
    status = run(n=N)
    table = pd.read_parquet(status.folder / "parts")
    assert {"model", "analysis"} <= set(table.columns)
    assert set(table["model"].astype(str)) == {MODEL}
    sums = table[table["form"] == "moments"]
    mean = (sums["mean"] * sums["count"]).groupby(sums["layer"]).sum() / sums["count"].groupby(
        sums["layer"]
    ).sum()
    frame = read_sweep(status.folder)
    expected = frame[frame["statistic"] == "mean"].set_index("layer")["value"]
    pd.testing.assert_series_equal(mean, expected, check_names=False, rtol=1e-12)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, "1h", True])
def test_a_time_that_is_none_is_refused_before_anything_begins(run, tmp_path, seconds):
    with pytest.raises(InputError, match="max_time must be a number of seconds above 0"):
        run(max_time=seconds)
    assert not (tmp_path / "sweep").exists()
