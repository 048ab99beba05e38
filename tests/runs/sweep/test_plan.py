"""What a sweep computes, and that planning reads no input."""

import json

import pytest

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import conforming
from workbench.data.pools import Unreadable
from workbench.runs.settings import RunSettings
from workbench.runs.sweep import plan as plan_module
from workbench.runs.sweep import sweep_status
from workbench.runs.sweep.plan import Plan, Task, make_plan
from workbench.runs.sweep.sweep_folder import SweepFolder

PAIR = [("bundled:digits-vit", "bundled:digits")]


def planned(pairs, analyses, shards=None, **settings):
    return make_plan(pairs, analyses, RunSettings(**settings), shards=shards)


@pytest.fixture
def offline(monkeypatch):
    # Imported first: the library keeps what the variable was at import, and later tests need it as it was.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    ("n", "batch", "shards"), [(21, 4, 3), (21, 4, 1), (7, 8, 5), (100, 3, 34), (16, 8, 2)]
)
def test_shards_hold_whole_micro_batches_and_every_input_once(n, batch, shards):
    plan = planned(PAIR, ["token-similarity"], n=n, shards=shards, batch_size=batch)
    spans = [plan.span(task) for task in plan.tasks()]
    assert [place for span in spans for place in span] == [*range(n)]
    assert all(span.start % batch == 0 and len(span) for span in spans)
    assert len(spans) == min(shards, -(-n // batch))


def test_the_first_of_a_list_are_those_that_a_run_of_as_many_takes():
    import workbench

    model = workbench.load(PAIR[0][0])
    plan = planned(PAIR, ["token-similarity"], n=11, batch_size=4, seed=3)
    pool, places = plan.places(Task(0, 0, 0))
    assert [pool.ids[place] for place in places] == workbench.inputs(PAIR[0][1], model, n=11, seed=3).ids


def test_a_model_in_memory_is_swept_under_its_name_and_weights(tmp_path):
    from workbench import load, read_sweep, sweep, wrap

    mine = wrap(load("bundled:digits-vit").module, like="bundled:digits-vit", name="mine")
    arguments = (mine, "bundled:digits", "token-similarity")
    status = sweep(*arguments, tmp_path / "out", n=2)
    assert (status.done, status.left) == (1, 0)
    assert {*read_sweep(tmp_path / "out", "token-similarity")["model"]} == {"mine"}
    for wrong, words in (({"workers": 2}, "stays in this process"), ({"device": "cpu"}, "is loaded already")):
        with pytest.raises(InputError, match=words):
            sweep(*arguments, tmp_path / "other", n=2, **wrong)


def test_a_sweep_keeps_no_rows_of_inputs_unless_asked():
    pair = [("bundled:digits-vit", "bundled:digits")]
    plans = [
        make_plan(pair, ["gram-spectrum"], RunSettings(n=2), **more) for more in ({}, {"per_input": True})
    ]
    assert [dict(plan.analyses[0].options)["per_input"] for plan in plans] == [False, True]


def test_a_plan_comes_back_from_json_with_its_fingerprint():
    plan = planned(
        PAIR, [("gram-spectrum", {"max_rank": 3}), "gram-spectrum"], n=9, layers="0,2", dtype="float64"
    )
    again = conforming(Plan, plan.as_json())
    assert again == plan
    assert again.fingerprint == plan.fingerprint
    assert [analysis.label for analysis in plan.analyses] == ["gram-spectrum:max_rank=3", "gram-spectrum"]
    assert (
        planned(PAIR, ["gram-spectrum"], n=10).fingerprint
        != planned(PAIR, ["gram-spectrum"], n=9).fingerprint
    )


def test_listing_many_images_reads_none_of_them(tmp_path):
    for number in range(5_000):  # files without an image inside: reading one would fail
        folder = tmp_path / f"n{number % 10:02d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:05d}.JPEG").touch()
    plan = planned([("vit_tiny_patch16_224", f"imagenet:{tmp_path}")], ["gram-spectrum"], n="all")
    spans = [plan.span(task) for task in plan.tasks()]
    assert sum(map(len, spans)) == 5_000
    assert len(spans) == 20
    pool, places = plan.places(Task(0, 0, 7))
    assert len(places) == len(spans[7])
    with pytest.raises(Unreadable):
        pool.read(places[0])


def test_a_pool_that_changed_since_is_reported(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.png").touch()
    plan = planned([("bundled:digits-vit", f"images:{tmp_path}")], ["token-similarity"])
    (tmp_path / "c.png").touch()
    with pytest.raises(InputError, match="no longer holds what it held"):
        plan.places(Task(0, 0, 0))


def test_a_folder_is_listed_once_for_all_models(tmp_path, monkeypatch):
    (tmp_path / "a.png").touch()
    listed, whole = [], plan_module.open_pool
    monkeypatch.setattr(plan_module, "open_pool", lambda spec: listed.append(spec) or whole(spec))
    plan = planned(
        [(f"bundled:digits-{name}", f"images:{tmp_path}") for name in ("vit", "tssa")], ["gram-spectrum"]
    )
    assert len(plan.models) == 2
    assert len(listed) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bundled:digits-vitt", "did you mean .*'digits-vit'"),
        ("bundled:digits-vit@epoch-999", "unknown checkpoint of bundled:digits-vit 'epoch-999'"),
        ("bundle:digits-vit", "did you mean 'bundled:'"),
        ("timm:vit_tinny_patch16_224", "did you mean .*'vit_tiny_patch16_224'"),
        ("timm:vit_tiny_patch16_224.augreg_in21", "did you mean .*'augreg_in21k'"),
        ("timm:vit_tiny_patch16_224@no/such/weights.pth", "no checkpoint at no/such/weights.pth"),
        ("vit_tinny_patch16_224", "did you mean .*'vit_tiny_patch16_224'"),
        ("hf:/no/such/folder", "there is no folder or file /no/such/folder"),
        ("hf:tests", "tests has no config.json"),
        ("tost:smalls", "unknown size of tost 'smalls'; did you mean 'small'"),
        ("crate:smalls", "unknown size of crate 'smalls'; did you mean .*'small'"),
        ("tost:small@no/such/weights.pth", "no checkpoint at no/such/weights.pth"),
        ("file:no/such/epoch-003.safetensors", "no checkpoint at no/such/epoch-003.safetensors"),
        ("file:pyproject.toml", "pyproject.toml is no checkpoint of `workbench study train`"),
        ("", "a model is named by a text"),
        ("bundled:prose-softmax", "takes texts, and bundled:digits gives images"),
        ("bert-base-uncased", "takes texts, and bundled:digits gives images"),
    ],
)
def test_a_model_that_cannot_be_had_anywhere_is_refused_before_anything_is_written(
    offline, run, tmp_path, spec, message
):
    with pytest.raises(InputError, match=message):
        run(models=spec)
    assert not (tmp_path / "sweep").exists()


def test_a_model_that_another_machine_may_have_is_no_mistake(offline):
    for spec in ("someone/their-own-model", "hf:someone/their-own-model", "timm:vit_tiny_patch16_224"):
        assert planned([(spec, "bundled:photos")], ["token-similarity"], device="cuda").models


def test_other_requests_that_no_machine_can_run_write_nothing(run, tmp_path):
    for wrong in (
        {"inputs": "bundled:digit"},
        {"inputs": f"images:{tmp_path}/none"},
        {"analyses": ["token-similarty"]},
        {"dtype": "flot32"},
        {"device": "gpuu"},
    ):
        with pytest.raises(InputError):
            run(**wrong)
    assert not (tmp_path / "sweep").exists()


def test_requests_that_cannot_be_run_are_refused_before_anything_runs():
    with pytest.raises(UnknownName, match="gram-spectrum"):
        planned(PAIR, ["gram-spectrm"])
    with pytest.raises(InputError, match="max_rank must be"):
        planned(PAIR, [("gram-spectrum", {"max_rank": 0})])
    with pytest.raises(InputError, match="reads weights, not inputs"):
        planned(PAIR, ["subspaces"])
    with pytest.raises(InputError, match="named twice"):
        planned(PAIR, ["gram-spectrum", "gram-spectrum"])
    with pytest.raises(InputError, match="give n of at most"):
        planned(PAIR, ["gram-spectrum"], n=10**6)
    with pytest.raises(InputError, match="whole layers"):
        planned(PAIR, ["token-similarity"], heads="0")
    with pytest.raises(InputError, match="at least one model"):
        planned([], ["token-similarity"])


def manifest_in(folder):
    """What the manifest of a planned sweep of two analyses holds; the file is in the folder."""
    SweepFolder(folder).write_manifest(planned(PAIR, ["token-similarity", "coding-rate"]), {}, {})
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shards": [10**12]}, "a sweep of 2,000,000,000,000 tasks is too long"),
        ({"shards": [-1]}, r"shards\.0: .*greater than or equal to 1"),
        ({"shards": [1, 1]}, "1 models, and shards of 2"),
        ({"models": [{"spec": 3}]}, r"models\.0\.spec: .*string"),
        ({"settings": {"batch_size": "2"}}, r"settings\.batch_size: .*integer"),
        ({"settings": {"layers": "0-999999999"}}, "no model has 1,000,000,000 layers"),
        ({"analyses": {}}, "analyses: .*array"),
    ],
)
def test_a_manifest_of_any_shape_is_refused_at_once(tmp_path, change, said):
    manifest = manifest_in(tmp_path)
    manifest["plan"] |= change
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=rf"manifest\.json does not describe a sweep .*{said}"):
        sweep_status(tmp_path)


@pytest.mark.parametrize("workers", [None, 0, "2", [], 1.5])
def test_a_manifest_whose_workers_are_no_number_is_refused(tmp_path, workers):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_in(tmp_path) | {"workers": workers}))
    with pytest.raises(InputError, match=r"manifest\.json does not describe a sweep .*workers: "):
        sweep_status(tmp_path)


def test_no_sweep_is_planned_that_could_not_be_read():
    with pytest.raises(InputError, match="2,000,000 tasks is too long"):
        Plan(("m",), ("a", "b"), (10**6,), RunSettings())
