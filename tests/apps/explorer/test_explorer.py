"""The explorer: what is asked for is what is drawn, what follows follows, and a mistake moves nothing."""

import base64
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import workbench
from workbench.apps.explorer import VIEWS, Explorer
from workbench.apps.explorer.address import address_of_figure
from workbench.apps.explorer.views import attention
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def explorer():
    return Explorer(n=3)


@pytest.fixture
def at_start(explorer):
    return explorer.move(**Explorer(n=3).requested.moved(layer=3, inputs="bundled:digits", token=0).to_dict())


def test_it_opens_on_the_last_layer_and_the_class_token():
    place = Explorer(n=2).location
    assert (place.inputs, place.layer, place.head, place.token) == ("bundled:digits", 3, 0, 0)


def test_nothing_is_loaded_before_it_is_looked_at():
    assert Explorer("bundled:no-such-model").requested.model == "bundled:no-such-model"
    with pytest.raises(UnknownName):
        Explorer("bundled:digit-vit").figure()


@pytest.mark.parametrize(("part", "value"), [("view", "norm"), ("metric", "entropy")])
def test_an_unknown_view_or_metric_is_said_before_anything_is_shown(part, value):
    with pytest.raises(UnknownName, match=f"'{value}'"):
        Explorer(**{part: value})


def test_the_map_shows_the_chosen_head_of_the_chosen_layer(at_start):
    at_start.move(layer=1, head=2, token=5)
    look = at_start.material.look(at_start.location)
    row = attention(look, 2)[5, 1:].reshape(8, 8).numpy()
    shown = [
        np.asarray(trace.z, dtype=float)
        for trace in at_start.figure().data
        if getattr(trace, "z", None) is not None
    ]
    assert any(z.shape == row.shape and np.allclose(z, row) for z in shown)


def test_the_reading_is_computed_from_what_is_shown(at_start):
    at_start.move(layer=0, head=1, token=3)
    look = at_start.material.look(at_start.location)
    row = attention(look, 1)[3]
    top = int(row.argmax())
    row_of_patch, column = divmod(top - 1, 8)
    assert f"goes to patch ({row_of_patch}, {column}):" in at_start.interpretation()
    assert f"{float(row[top]):.1%}" in at_start.interpretation()


def test_another_input_goes_back_to_the_class_token(at_start):
    at_start.move(token=9)
    assert at_start.move(index=1).location.token == 0
    assert at_start.material.one(at_start.location).ids[0] in at_start.interpretation()


def test_another_model_brings_inputs_of_its_kind(at_start, tmp_path):
    from tests.folders import bert_folder

    place = at_start.move(model=f"hf:{bert_folder(tmp_path / 'bert')}").location
    assert (place.inputs, place.index, place.head, place.token) == ("bundled:prose", 0, 0, None)
    assert at_start.move(model="bundled:digits-vit").location.inputs == "bundled:digits"


def test_inputs_of_ones_own_stay_when_the_model_changes(at_start, tmp_path):
    from PIL import Image

    Image.new("L", (16, 16), 200).save(tmp_path / "grey.png")
    at_start.move(inputs=f"images:{tmp_path}")
    assert at_start.move(model="bundled:digits-tssa").location.inputs == f"images:{tmp_path}"


def test_a_model_without_inputs_to_choose_from_is_refused(tmp_path):
    sizes = {"name": "sequence", "channels": 2, "context": 5, "embed_dim": 6, "depth": 1}
    path = tmp_path / "epoch-001.safetensors"
    about = {"architecture": sizes, "preprocessing": {"mean": [0.0, 0.0], "std": [1.0, 1.0]}}
    write_checkpoint(path, build(sizes), about)
    with pytest.raises(
        InputError, match="takes neither images nor texts, nor both together, and the explorer shows those"
    ):
        Explorer(f"file:{path}").figure()


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("layer", 4, "no layer 4"), ("head", 3, "no head 3"), ("layer", -5, "no layer -5"),
        ("token", 65, "no token 65"), ("index", 9, "no input 9"), ("view", "norm", "did you mean 'norms'"),
        ("metric", "entropy", "metric of the head grid"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_and_nothing_moves(at_start, part, value, said):
    before = at_start.location
    with pytest.raises(InputError, match=said):
        at_start.move(**{part: value})
    assert at_start.location == before


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_can_be_drawn_read_and_saved_as_numbers(at_start, name):
    against = at_start.location.moved(layer=0, against=None)
    at_start.move(view=name, against=against.to_dict())
    figure = at_start.figure()
    assert figure.data
    assert at_start.interpretation().startswith("Layer 3, ")
    rows = VIEWS[name].numbers(at_start.location, at_start.material)
    assert len(rows) > 3


@pytest.mark.parametrize("name", VIEWS)
def test_code_makes_the_very_view(at_start, name):
    """The lines, run as they are, give the figure that is shown."""
    against = at_start.location.moved(layer=0, head=1, against=None)
    at_start.move(view=name, layer=2, head=1, token=9, index=1, against=against.to_dict())
    made: dict = {}
    exec(at_start.code(), made)
    assert close(plain(made["figure"]), plain(at_start.figure()))


def test_memberships_of_a_text_are_drawn_over_its_words_and_their_code_makes_them():
    explorer = Explorer("bundled:prose-tost", n=2, layer=2, head=3, token=100, index=1, view="membership")
    figure = explorer.figure()
    rows = explorer.material.memberships(explorer.location)
    for head, boxes in enumerate(trace for trace in figure.data if trace.type == "bar"):
        of_head = rows[rows["head"] == head].set_index("token")["value"]
        np.testing.assert_allclose(boxes.marker.color, of_head[list(boxes.customdata)])
        assert 100 in boxes.customdata
    values = rows.pivot(index="token", columns="head", values="value")
    most = (values.idxmax(axis=1) == 3).sum()
    share = f"{values[3].mean():.1%} (uniform: {1 / values.shape[1]:.1%})"
    said = f"{most} of {len(values)} tokens belong to head 3 more than to any other head; mean membership {share}."
    assert said in explorer.interpretation()
    made: dict = {}
    exec(explorer.code(), made)
    assert close(plain(made["figure"]), plain(figure))


def plain(figure):
    return json.loads(figure.to_json())


def close(one, other):
    """Equal up to rounding: the same passes, in batches of another size."""
    if isinstance(one, dict) and isinstance(other, dict):
        if "bdata" in one and "bdata" in other:
            first, second = (
                np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]) for array in (one, other)
            )
            return first.shape == second.shape and np.allclose(first, second, atol=1e-5, equal_nan=True)
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-5 * max(1.0, abs(one))
    return one == other


def test_every_metric_orders_the_heads_of_all_layers(at_start):
    from workbench.apps.explorer import MEASURES

    for name in MEASURES:
        at_start.move(metric=name, layer=1, head=2)
        frame = MEASURES[name].frame(at_start.location, at_start.material)
        assert {*frame["layer"].dropna()} == {0, 1, 2, 3}


def test_a_layer_without_attention_says_where_to_look():
    explorer = Explorer("bundled:digits-tost", n=2, layer=1)
    with pytest.raises(InputError, match="membership map"):
        explorer.figure("attention")
    assert explorer.figure("membership").data
    explorer = Explorer("bundled:digits-xcit", n=2, layer=1)
    with pytest.raises(InputError, match="channel to channel"):
        explorer.figure("matrix")
    assert explorer.figure("norms").data


def test_class_attention_of_one_query_can_be_looked_at():
    explorer = Explorer("bundled:digits-xcit", n=2, layer=-1)
    assert explorer.figure("attention").data
    with pytest.raises(InputError, match="one query"):
        explorer.figure("singular")


def test_comparing_needs_a_pin(at_start):
    with pytest.raises(InputError, match="pin a view first"):
        at_start.move(view="compare", against=None).figure()


def test_the_difference_is_the_attention_moved(at_start):
    first = at_start.location.moved(layer=0, against=None)
    at_start.move(view="compare", layer=2, against=first.to_dict())
    a, b = (attention(at_start.material.look(place), 0) for place in (first, at_start.location))
    moved = (a - b).abs().sum(-1) / 2
    assert "From [CLS], " in at_start.interpretation()
    assert f"{float(moved[0]):.1%} of the attention goes to different tokens" in at_start.interpretation()
    assert f"{float(moved.mean()):.1%}" in at_start.move(token=None).interpretation()


def test_a_command_asks_for_the_same_address(at_start):
    """The line, read as the command line reads it, is what the notebook takes and the explorer opens."""
    import shlex

    from workbench.apps.cli import cli
    from workbench.apps.rendering.notebooks import find_notebooks, read_typed_parameters, resolve_parameters

    pinned = at_start.location.moved(layer=0, against=None)
    at_start.move(layer=1, head=2, view="compare", against=pinned.to_dict())
    words = shlex.split(at_start.command())
    assert words[:3] == ["workbench", "render", "explorer"]
    asked = cli.commands["render"].make_context("render", words[2:]).params
    given = read_typed_parameters(["explorer"], asked["typed"])
    notebooks = find_notebooks(["explorer"])
    resolved = resolve_parameters(notebooks, given, "default", named=True)["explorer"]
    assert Explorer(**resolved).location == at_start.location


def test_all_queries_of_an_image_are_looked_at_again_where_they_were_asked_for(at_start):
    import shlex

    at_start.move(layer=1, token=None)
    assert "From all queries" in at_start.interpretation()
    assert Explorer.at(at_start.address).location == at_start.location
    words = shlex.split(at_start.command())
    assert words[words.index("token") + 1] == "all"
    assert Explorer(n=3, layer=1, token="all").location == at_start.location
    assert Explorer(n=3).move(layer=1, token=None).location == at_start.location
    assert Explorer(n=3, layer=1).location.token == 0


def test_saving_writes_the_view_with_its_address(at_start, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DEFER_EXPORT", str(tmp_path / "queue"))
    at_start.move(layer=1, head=2)
    at_start.save("my-view", out=tmp_path)
    about = json.loads((tmp_path / "my-view.json").read_text())
    assert Explorer.at(about["parameters"]).location == at_start.location
    assert (tmp_path / "my-view.csv").stat().st_size > 500
    assert at_start.material.model(at_start.location).fingerprint in json.dumps(about)


def test_an_address_is_json_and_opens_the_same_view(at_start):
    at_start.move(layer=2, token=7, view="matrix")
    text = json.dumps(at_start.address)
    again = Explorer.at(text)
    assert again.location == at_start.location
    with pytest.raises(InputError, match="no saved address"):
        Explorer.at("{layer: 2")


def test_grouped_heads_read_the_keys_of_their_group(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.folders import bert_folder
    from workbench.apps.explorer.views import norms

    sizes = {
        "vocab_size": 2000,
        "intermediate_size": 16,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    tokens = bert_folder(tmp_path / "bert")
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    folder = tmp_path / "llama"
    model.save_pretrained(folder)
    for file in tokens.iterdir():
        if "token" in file.name or "vocab" in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    explorer = Explorer(f"hf:{folder}", n=2, head=4)
    look = explorer.material.look(explorer.location)
    assert torch.allclose(norms(look, 4)["k"], look.record.k[0, 1].double().norm(dim=-1))
    assert torch.allclose(norms(look, 4)["q"], look.record.q[0, 4].double().norm(dim=-1))


@pytest.mark.parametrize("model", ["bundled:digits-xcit", "bundled:photos-tost"])
def test_norms_of_class_attention_name_the_tokens_that_have_them(model):
    explorer = Explorer(model, n=2, layer=-1, head=1, view="norms")
    record = explorer.material.look(explorer.location).record
    rows = VIEWS["norms"].numbers(explorer.location, explorer.material).set_index("operand")
    lengths = {name: getattr(record, name)[0, 1].double().norm(dim=-1) for name in "qkv"}
    assert rows.loc[["q"]][["token", "label"]].to_numpy().tolist() == [[0, "[CLS]"]]
    for name in "kv":
        assert rows.loc[name]["label"].tolist()[:3] == ["[CLS]", "0,0", "0,1"]
        assert rows.loc[name]["token"].tolist() == list(range(65))
        assert rows.loc[name]["norm"].tolist() == lengths[name].tolist()
    said = VIEWS["norms"].read(explorer.location, explorer.material)
    assert said.startswith(f"The longest vectors are the query of [CLS] ({lengths['q'][0]:.2f}), the key of ")


def test_norms_before_the_class_token_joins_are_those_of_the_patches():
    explorer = Explorer("bundled:digits-xcit", n=2, layer=0, view="norms")
    rows = VIEWS["norms"].numbers(explorer.location, explorer.material)
    keys = rows[rows["operand"] == "k"]
    assert keys["token"].tolist() == list(range(1, 65))
    assert keys["label"].tolist() == [f"{row},{column}" for row in range(8) for column in range(8)]


def test_attention_among_patches_alone_is_that_of_the_patches():
    explorer = Explorer("bundled:digits-xcit", n=2, layer=0)
    look = explorer.material.look(explorer.location)
    attn = torch.full((1, 3, 64, 64), 0.5 / 63, dtype=torch.float64)
    attn[..., range(64), range(64)] = 0.5
    record = replace(look.record, kind="token", attn=attn)  # as CaiT's first layers
    material = SimpleNamespace(look=lambda address: replace(look, record=record))
    rows = VIEWS["attention"].numbers(explorer.location, material)
    own = rows[rows["query"] == rows["key"]]
    assert own["query"].tolist() == list(range(1, 65))
    assert own["from"].tolist()[:2] == ["0,0", "0,1"]
    assert (own["attention"] == 0.5).all()
    at_patch = explorer.location.moved(token=3)
    said = VIEWS["attention"].read(at_patch, material)
    place = "patch (0, 2)"
    found = "50.0%, 32.0\u00a0× uniform attention. To"
    assert said.startswith(
        f"From {place}, the most attention goes to itself: {found} {place}, the most attention comes from itself: "
        "50.0% of"
    )
    assert (
        VIEWS["matrix"]
        .read(explorer.location, material)
        .endswith("1.0\u00a0× uniform attention. A token gives itself 50.0% on average.")
    )


def test_an_even_share_of_causal_attention_is_of_the_tokens_up_to_the_query():
    explorer = Explorer("bundled:prose-softmax", n=1, layer=1, head=2, token=7)
    row = explorer.material.look(explorer.location).record.attn[0, 2, 7]
    said = VIEWS["attention"].read(explorer.location, explorer.material)
    assert f": {row.max():.1%}, {row.max() * 8:.1f}\u00a0× uniform attention. To " in said
    attn = explorer.material.look(explorer.location).record.attn[0, 2].double()
    received, tokens = attn.mean(0), len(attn)
    most = int(received.argmax())
    even = sum(1 / (query + 1) for query in range(most, tokens)) / tokens
    times = (
        f"{received[most]:.1%} of all, {received[most] / even:.1f}\u00a0× uniform attention. A token gives "
    )
    assert times in VIEWS["matrix"].read(explorer.location, explorer.material)


def test_a_checkpoint_is_loaded_and_named_in_code():
    explorer = Explorer("bundled:digits-vit@epoch-000", n=1)
    assert explorer.material.model(explorer.location).checkpoint == "epoch-000"
    last = Explorer("bundled:digits-vit", n=1)
    attention = [look.material.look(look.location).record.q for look in (explorer, last)]
    assert not torch.equal(*attention)
    assert 'load("bundled:digits-vit@epoch-000")' in explorer.code()
    assert "-p model bundled:digits-vit@epoch-000" in explorer.command()
    assert Explorer.at(explorer.address).location == explorer.location


def test_a_saved_figure_of_a_checkpoint_opens_at_it(tmp_path):
    frame = workbench.analyze(
        "attention-map", model="bundled:digits-vit@epoch-000", inputs="bundled:digits", n=1
    )
    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1]))
    workbench.save_figure(
        figure, "early", data=frame, out=tmp_path, caption="Entropy.", alt="A line.", formats=["png"]
    )
    assert address_of_figure(tmp_path / "early.png")["model"] == "bundled:digits-vit@epoch-000"


def test_an_explorer_takes_a_wrapped_model_and_lists():
    from workbench import load, wrap

    model = load("bundled:digits-vit")
    mine = wrap(model.module, like="bundled:digits-vit", name="mine")
    explorer = Explorer(mine, [np.zeros((8, 8), np.uint8), np.full((8, 8), 200, np.uint8)], index=1)
    assert (explorer.address["model"], explorer.address["inputs"], explorer.address["n"]) == (
        "mine",
        "images",
        2,
    )
    assert explorer.material.model(explorer.location) is mine
    assert "# model: what the explorer was given" in explorer.code()
    explorer.move(model=wrap(model.module, like="bundled:digits-vit", name="mine"))
    assert explorer.address["model"] == "mine 2"
    explorer = Explorer("bundled:prose-softmax", ["The cat sat on the mat.", "A tide."])
    assert explorer.material.inputs(explorer.location).texts == ["The cat sat on the mat.", "A tide."]


def test_a_saved_page_opens_where_a_person_went_or_else_where_it_chooses(tmp_path):
    own = Explorer(n=1)
    settings = {"layers": [2, 3], "ablations": False}
    own.take(own.location)
    assert 'data-start=""' in own.save_html(tmp_path / "a.html", **settings).read_text()
    own.take(own.location.moved(layer=2, head=1))  # as a page does
    html = own.save_html(tmp_path / "a.html", **settings).read_text()
    assert 'data-start="#layer=2&amp;head=1&amp;token=0"' in html
