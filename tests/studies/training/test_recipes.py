import dataclasses
import json
from pathlib import Path

import pytest

from workbench.attention import VARIANTS
from workbench.attention.primal import PrimalAttention
from workbench.attention.rpc import RPCAttention
from workbench.attention.softmax import SymmetricAttention
from workbench.attention.tssa import TokenStatisticsAttention
from workbench.core.errors import InputError, UnknownName
from workbench.models.architectures import build
from workbench.models.architectures.published_models import PUBLISHED
from workbench.papers.published import stated_claims
from workbench.studies.training import load_recipe, recipe_names
from workbench.studies.training.recipes import ATTENTION_KEYS, Recipe, parse_recipe
from workbench.studies.training.runs import recipe_for
from workbench.studies.training.starting import Start
from workbench.studies.training.tasks import TASKS, usual_recipe

VALID = {
    "task": "digits",
    "architecture": {"name": "vit"},
    "epochs": 7,
    "batch_size": 5,
    "learning_rate": 1e-3,
}


def test_every_recipe_file_is_valid_and_belongs_to_a_task():
    assert set(TASKS) <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.task in TASKS
        assert recipe.checkpoint_epochs()[0] == 0
        assert recipe.checkpoint_epochs()[-1] == recipe.epochs


@pytest.mark.parametrize("attention", [None, *VARIANTS])
def test_a_recipe_survives_json(attention):
    for name in recipe_names():
        recipe = load_recipe(name, attention)
        again = parse_recipe(json.loads(json.dumps(recipe.as_dict())))
        assert json.dumps(again.as_dict()) == json.dumps(recipe.as_dict())


def test_plain_softmax_leaves_no_trace():
    plain = [name for name in recipe_names() if load_recipe(name).attention == "softmax"]
    assert set(TASKS) <= set(plain)
    for name in plain:
        assert load_recipe(name, "softmax") == load_recipe(name)
        assert not set(load_recipe(name).architecture) & set(ATTENTION_KEYS)


def test_what_an_architecture_has_by_itself_takes_the_place_of_softmax():
    tost = load_recipe("digits-tost")
    assert (tost.attention, tost.architecture["attention_options"]) == (
        "tssa",
        {"convention": "as_implemented"},
    )
    assert load_recipe("digits-tost", "tssa") == tost
    assert load_recipe("digits-tost", "softmax").architecture["attention"] == "softmax"
    xcit = load_recipe("digits-xcit")
    assert xcit.attention == "xca"
    assert load_recipe("digits-xcit", "xca") == xcit
    assert not set(xcit.architecture) & set(ATTENTION_KEYS)
    assert load_recipe("digits-tost", "xca").architecture == {
        **xcit.architecture, "name": "tost", "attention": "xca"
    }  # fmt: skip
    lm = load_recipe("prose-tost")
    assert lm.architecture["attention_options"] == {"convention": "as_implemented"}


def test_keys_that_say_nothing_are_left_out_and_those_of_the_first_recipes_are_not():
    plain = parse_recipe(VALID).as_dict()
    assert {"weight_decay", "warmup", "clip_norm", "checkpoints", "augmentation"} <= set(plain)
    assert not {"images", "mixup", "ksvd_weight", "label_smoothing"} & set(plain)
    assert parse_recipe({**VALID, "mixup": 0.5}).as_dict() == {**plain, "mixup": 0.5}


def test_a_table_of_the_file_says_what_changes_for_one_variant():
    table = {
        **VALID,
        "architecture": {"name": "vit", "depth": 5},
        "attention": {
            "primal": {"layers": "-1", "options": {"low_rank": 7}, "ksvd_weight": 0.2, "epochs": 9}
        },
    }
    assert parse_recipe(table) == parse_recipe({**table, "attention": {}})
    recipe = parse_recipe(table, attention="primal")
    assert (recipe.epochs, recipe.ksvd_weight, recipe.attention, recipe.boost) == (9, 0.2, "primal", False)
    assert recipe.architecture["attention_layers"] == [4]
    assert recipe.architecture["attention_options"] == {
        "low_rank": 7, "rank_multi": 10, "scores": "both", "convention": "as_published"
    }  # fmt: skip
    other = parse_recipe(table, attention="tssa")
    assert (other.epochs, other.ksvd_weight) == (7, 0.0)
    assert "attention_layers" not in other.architecture


def test_with_attention_replaces_what_was_there():
    recipe = load_recipe("digits", "primal").with_attention("rpc-sym", "0,2", {"lambd": 3}, boost=True)
    assert recipe.architecture["attention_layers"] == [0, 2]
    assert recipe.architecture["attention_options"] == {
        "num_iter": 4,
        "lambd": 3,
        "convention": "as_published",
    }
    assert recipe.boost
    assert "attention_layers" not in recipe.with_attention("tssa", "0-3").architecture  # all of them
    assert recipe.with_attention("softmax") == dataclasses.replace(load_recipe("digits"), ksvd_weight=0.05)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("rpc-sim",), UnknownName, "did you mean 'rpc-sym'"),
        (("rpc-sym", None, {"lambdd": 3}), UnknownName, "did you mean 'lambd'"),
        (("rpc-sym", "0,4"), InputError, "there is no layer 4"),
        (("softmax", "0"), InputError, "layers chooses the layers whose attention"),
    ],
)
def test_attention_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        load_recipe("digits").with_attention(*arguments)


def test_what_the_data_decides_does_not_override_the_recipe():
    recipe = parse_recipe({**VALID, "architecture": {"name": "vit", "num_classes": 3}})
    assert recipe.completed({"num_classes": 7, "in_chans": 2}).architecture == {
        "name": "vit", "num_classes": 3, "in_chans": 2
    }  # fmt: skip


def test_whole_numbers_are_welcome_where_fractions_are():
    recipe = parse_recipe({**VALID, "clip_norm": 2})
    assert recipe.clip_norm == 2.0
    assert isinstance(recipe.clip_norm, float)


@pytest.mark.parametrize(
    ("epochs", "kept"), [(1, (0, 1)), (6, (0, 2, 6)), (7, (0, 2, 6, 7)), (20, (0, 2, 6, 9, 20))]
)
def test_first_and_last_epoch_are_always_kept(epochs, kept):
    recipe = parse_recipe({**VALID, "checkpoints": [2, 6, 9]})
    assert recipe.with_epochs(epochs).checkpoint_epochs() == kept


def test_with_epochs_changes_nothing_else():
    recipe = load_recipe("digits")
    assert recipe.with_epochs(None) is recipe
    assert dataclasses.replace(recipe.with_epochs(4), epochs=recipe.epochs) == recipe


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epoch": 3}, UnknownName, "unknown key in recipe 'epoch'; did you mean 'epochs'"),
        ({"epochs": 2.5}, InputError, "epochs must be a whole number, got 2.5"),
        ({"epochs": True}, InputError, "epochs must be a whole number, got True"),
        ({"epochs": 0}, InputError, "epochs must be positive, got 0"),
        ({"batch_size": -1}, InputError, "batch_size must be positive"),
        ({"learning_rate": "1e-3"}, InputError, "learning_rate must be a number, got '1e-3'"),
        ({"learning_rate": float("nan")}, InputError, "learning_rate must be finite"),
        ({"weight_decay": -0.1}, InputError, "weight_decay must not be negative"),
        ({"warmup": 1.0}, InputError, "warmup is a share of all steps"),
        ({"checkpoints": [1, "2"]}, InputError, "checkpoints must be a list of whole numbers"),
        ({"checkpoints": [-1]}, InputError, "epochs from 0 on"),
        ({"augmentation": {"rotate": 3}}, UnknownName, "did you mean 'rotation'"),
        ({"augmentation": {"shift": -0.1}}, InputError, "shift must not be negative"),
        ({"augmentation": {"zoom": 1}}, InputError, "zoom must be below 1"),
        ({"augmentation": 10}, InputError, "augmentation must be a table, got 10"),
        ({"architecture": {"depth": 2}}, InputError, r"\[architecture\] needs a name"),
        ({"label_smoothing": 1.0}, InputError, "label_smoothing is a share"),
        ({"mixup": -0.1}, InputError, "mixup must not be negative"),
        ({"images": {"flip": 2}}, InputError, r"\[images\] flip is a share from 0 to 1"),
        ({"images": {"smallest_crop": 0}}, InputError, "smallest_crop is a share above 0"),
        ({"images": {"workers": 1.5}}, InputError, "workers must be a whole number"),
        ({"images": {"croop": 1}}, UnknownName, r"\[images\]"),
        ({"attention": {"rpc": {}}}, UnknownName, "unknown attention variant in recipe 'rpc'"),
        ({"attention": {"tssa": 3}}, InputError, r"\[attention.tssa\] must be a table"),
        ({"attention": {"tssa": {"layers": 3}}}, InputError, "layers must be text"),
        ({"attention": {"tssa": {"task": "prose"}}}, UnknownName, r"key in recipe \[attention.tssa\]"),
    ],
)
def test_recipes_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        parse_recipe({**VALID, **change})


@pytest.mark.parametrize("key", VALID)
def test_what_is_missing_is_named(key):
    with pytest.raises(InputError, match=f"missing {key}"):
        parse_recipe({name: value for name, value in VALID.items() if name != key})


def test_unknown_recipe_offers_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        load_recipe("digit")


def test_a_recipe_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'task = "digits"\nepochs = 2\nbatch_size = 3\nlearning_rate = 1e-4\narchitecture.name = "vit"\n'
    )
    assert load_recipe(path) == Recipe("digits", {"name": "vit"}, 2, 3, 1e-4)
    path.write_text("task = ")
    with pytest.raises(InputError, match="is not valid TOML"):
        load_recipe(path)
    with pytest.raises(InputError, match="no recipe at"):
        load_recipe(tmp_path / "none.toml")


def test_every_claim_about_a_trained_rpc_attention_says_which_threshold_it_uses():
    stated = stated_claims("teo2024").query(
        "analysis in ('training', 'evaluation', 'embedded') and kind == ''"
    )
    about = stated[stated["options"].str.contains("rpc")]
    assert len(about) > 15
    assert about["setting"].str.contains("threshold is λ/?μ").all()
    for task in ("digits", "photos", "prose", "images", "passages", "segmentation"):
        name = usual_recipe(task, {"images": "embedded:cuts", "passages": "embedded:genres",
                                   "segmentation": "embedded:mosaics"}.get(task))  # fmt: skip
        options = load_recipe(name, attention="rpc-sym").architecture["attention_options"]
        assert options.get("convention", "as_published") == "as_published"
    for name in ("imagenet-vit-tiny", "imagenet-fan-tiny"):
        assert (
            load_recipe(name, attention="rpc-sym").architecture["attention_options"]["convention"]
            == "as_implemented"
        )


HOPPER = {"observations": 11, "actions": 3, "horizon": 1000}


def paper_model(recipe, from_data, attention=None):
    """The model that a full-scale recipe trains, and its parameters."""
    model = build(load_recipe(recipe, attention).completed(from_data).architecture)
    return model, sum(parameter.numel() for parameter in model.parameters())


def plain_blocks(depth, width, hidden):
    """Parameters of pre-norm blocks with biases, and of the norm behind them."""
    return depth * (4 * width * (width + 1) + 2 * width * hidden + hidden + width + 4 * width) + 2 * width


def layers_and_heads(model):
    """(layers, heads, head_dim, hidden width of the MLP), the same in every block."""
    shapes = {
        (len(model.blocks), block.attn.num_heads, block.attn.head_dim, block.mlp.fc1.out_features)
        for block in model.blocks
    }
    assert len(shapes) == 1
    return shapes.pop()


def test_the_decision_transformer_has_the_size_of_chen2023():
    model, parameters = paper_model("rl", HOPPER)
    assert layers_and_heads(model) == (3, 4, 64, 1024)
    assert model.max_length == 20
    embeddings = (1 + 11 + 3) * 256 + 3 * 256 + 1000 * 256 + 2 * 256
    assert parameters == embeddings + plain_blocks(3, 256, 1024) + 3 * (256 + 1)
    primal, _ = paper_model("rl", HOPPER, "primal-causal")
    assert [isinstance(block.attn, PrimalAttention) for block in primal.blocks] == [False, False, True]
    assert layers_and_heads(primal) == layers_and_heads(model)


def test_fan_tiny_is_symmetric_as_in_teo2024():
    images = {"num_classes": 1000}
    _, of_published = paper_model("imagenet-fan-tiny", images, "softmax")
    baseline, of_baseline = paper_model("imagenet-fan-tiny", images)
    robust, of_robust = paper_model("imagenet-fan-tiny", images, "rpc-sym")
    tokens = baseline.blocks[::2]
    assert {(half.attn.num_heads, half.attn.head_dim) for half in tokens} == {(4, 48)}
    assert len(tokens) == 12
    assert all(isinstance(half.attn, SymmetricAttention) for half in tokens)
    assert of_published == pytest.approx(7.3e6, rel=0.01)
    queries = 192 * (192 + 1)  # which are the keys
    assert of_baseline == of_robust == of_published - 12 * queries
    assert [half.attn.num_iter for half in robust.blocks[::2]] == [4] + 11 * [0]
    assert {name: weight.shape for name, weight in robust.state_dict().items()} == {
        name: weight.shape for name, weight in baseline.state_dict().items()
    }


def test_the_language_model_of_chen2023_has_its_size():
    characters = {"vocabulary": 200}
    model, parameters = paper_model("wikitext-103-primal", characters)
    assert layers_and_heads(model) == (6, 8, 64, 2048)
    assert model.max_length == 512
    assert parameters == (200 + 512) * 512 + plain_blocks(6, 512, 2048)
    primal, _ = paper_model("wikitext-103-primal", characters, "primal-causal")
    assert [isinstance(block.attn, PrimalAttention) for block in primal.blocks] == [False] * 5 + [True]
    assert layers_and_heads(primal) == layers_and_heads(model)


@pytest.mark.parametrize(
    ("recipe", "table", "from_data"),
    [  # wu2025 Table 7: layers, width, heads, MLP; batch size, learning rate, weight decay; steps, warm-up, examples
        ("listops-tost", (6, 512, 8, 2048, 64, 1e-4, 1e-2, 90_000, 3000, 96_000), {"vocabulary": 20}),
        ("bytes-tost", (4, 256, 4, 1024, 32, 1e-4, 1e-2, 25_000, 10_000, 25_000), {"vocabulary": 258}),
        (
            "retrieval-tost",
            (6, 128, 4, 512, 64, 1e-4, 4e-2, 91_960, 10_000, 147_086),
            {"vocabulary": 258, "pairs": True},
        ),
        ("pixels-tost", (8, 64, 8, 128, 64, 1e-4, 2e-2, 180_000, 9000, 50_000), {"vocabulary": 258}),
        ("pathfinder-tost", (2, 64, 2, 128, 256, 2e-4, 0.0, 200_000, 312, 160_000), {"vocabulary": 258}),
    ],
)
def test_recipes_of_the_long_range_arena_are_those_of_wu2025(recipe, table, from_data):
    depth, width, heads, hidden, batch, rate, decay, steps, warmup, examples = table
    chosen = load_recipe(recipe)
    assert (chosen.batch_size, chosen.learning_rate, chosen.weight_decay) == (batch, rate, decay)
    assert chosen.epochs * -(-examples // batch) == pytest.approx(steps, rel=0.01)
    assert chosen.warmup == pytest.approx(warmup / steps, rel=0.01)
    model, parameters = paper_model(recipe, from_data)
    assert layers_and_heads(model) == (depth, heads, width // heads, hidden)
    assert {(type(block.attn), block.attn.convention) for block in model.blocks} == {
        (TokenStatisticsAttention, "as_implemented")
    }
    attention = 2 * width * (width + 1) + heads  # a projection in, one out, a temperature of each head
    blocks = depth * (attention + 2 * width * hidden + hidden + width + 4 * width) + 2 * width
    embeddings = (from_data["vocabulary"] + chosen.architecture["context"]) * width
    head = 4 * width * hidden + hidden + 2 * (hidden + 1) if "pairs" in from_data else 2 * (width + 1)
    assert parameters == embeddings + blocks + head


def test_the_ablation_of_wu2025_is_of_its_small_model():
    small = PUBLISHED["tost"]["small"].architecture
    plain, ista = (load_recipe(name) for name in ("images-tost", "images-tost-ista"))
    assert plain.architecture | {"in_chans": 3, "num_classes": 1000} == dict(small)
    assert ista.architecture == plain.architecture | {"mlp": "ista"}
    assert (plain.epochs, plain.learning_rate, 8 * plain.batch_size) == (400, 2e-4, 2048)
    assert dataclasses.replace(ista, architecture=plain.architecture) == plain
    _, of_imagenet = paper_model("images-tost", {"in_chans": 3, "num_classes": 1000})
    assert of_imagenet == pytest.approx(22.6e6, rel=0.001)  # wu2025 Table 5
    _, with_mlp = paper_model("images-tost", {"in_chans": 3, "num_classes": 10})
    _, with_ista = paper_model("images-tost-ista", {"in_chans": 3, "num_classes": 10})
    width, hidden = 384, 1536
    # an MLP with its LayerScale, and a square dictionary
    assert with_mlp - with_ista == 12 * (2 * width * hidden + hidden + 2 * width - width * width)
    without_norm = recipe_for(
        "images", "images-tost-ista", "tssa", None, {"convention": "as_published"}, False
    )
    assert without_norm.architecture == ista.architecture | {
        "attention_options": {"convention": "as_published"}
    }


@pytest.mark.parametrize(
    ("before", "after", "pretrained", "attention", "sizes"),
    [
        ("wikitext-103-mixture", "passages", "softmax-sym", "rpc-sym", (16, 128, 8)),
        ("wikitext-103-mixture", "passages", "softmax", "rpc-asym", (16, 128, 8)),
        ("wikitext-103-tutorial", "passages-tutorial", "softmax", "rpc-asym", (16, 410, 10)),
    ],
)
def test_rpc_attention_is_only_in_fine_tuning(before, after, pretrained, attention, sizes):
    characters = {"vocabulary": 30}
    started, parameters = paper_model(before, characters, pretrained)
    start = Start(Path("start.safetensors"), started.state_dict(), {})
    for name in (pretrained, attention):  # both begin with the same weights
        tuned, fine_tuned = paper_model(after, characters | {"num_classes": 5}, name)
        start.put_into(tuned)
        width = tuned.norm.normalized_shape[0]
        assert (len(tuned.blocks), width, tuned.blocks[0].attn.num_heads) == sizes
        assert tuned.max_length == 256
        assert fine_tuned == parameters + 5 * (width + 1)
    assert {(block.attn.num_iter, block.attn.lambd) for block in tuned.blocks} == {(2, 3.0)}
    assert not any(isinstance(block.attn, RPCAttention) for block in started.blocks)


def test_the_language_model_of_the_tutorial_has_its_size():
    model, parameters = paper_model("wikitext-103-tutorial", {"vocabulary": 28_996})  # BERT's cased pieces
    assert layers_and_heads(model) == (16, 10, 41, 2100)
    assert parameters == (28_996 + 256) * 410 + plain_blocks(16, 410, 2100)
