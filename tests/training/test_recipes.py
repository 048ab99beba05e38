import dataclasses
import json

import pytest

from workbench.errors import InputError, UnknownName
from workbench.training import load_recipe, recipe_names
from workbench.training.recipes import Recipe, parse_recipe
from workbench.training.tasks import TASKS

VALID = {
    "task": "digits",
    "architecture": {"name": "vit"},
    "epochs": 7,
    "batch_size": 5,
    "learning_rate": 1e-3,
}


def test_every_recipe_file_is_valid_and_belongs_to_a_task():
    assert recipe_names()
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.task in TASKS
        assert recipe.checkpoint_epochs()[0] == 0
        assert recipe.checkpoint_epochs()[-1] == recipe.epochs


def test_a_recipe_survives_json():
    recipe = load_recipe("digits")
    assert parse_recipe(json.loads(json.dumps(recipe.as_dict()))) == recipe


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
