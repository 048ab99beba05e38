"""Every attention variant trains, by the same loop, and its checkpoint says what it is."""

import dataclasses
import json
import math

import pytest
import torch

import workbench
from workbench.attention import VARIANTS
from workbench.attention.primal import ksvd_penalty, primal_layers
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import read_checkpoint, restore
from workbench.studies.training import load_recipe, train
from workbench.studies.training.costs import model_costs
from workbench.studies.training.logit_clipping import LogitClipping
from workbench.studies.training.monitoring import attends_to_tokens, monitor
from workbench.studies.training.recipes import Recipe
from workbench.studies.training.run_folder import command_line
from workbench.studies.training.tasks import load_task
from workbench.studies.training.trainer import Trainer

VIT = {"name": "vit", "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 3}
LM = {"name": "lm", "context": 11, "embed_dim": 12, "depth": 2, "num_heads": 3}
IMAGES = [name for name, variant in VARIANTS.items() if variant.causality != "always"]
TEXTS = [name for name, variant in VARIANTS.items() if variant.causality != "never"]


def recipe_of(task):
    architecture = {"digits": VIT, "prose": LM}[task]
    return Recipe(task, architecture, epochs=1, batch_size=6, learning_rate=1e-3)


def one_epoch(task, out, name, **options):
    if "primal" in name:  # with data-independent weights it mixes no tokens: not for every layer
        options |= {"options": {"low_rank": 4}, "layers": "-1"}
    return train(
        task, out, recipe=recipe_of(task), attention=name, limit=12, device="cpu", progress=False, **options
    )


@pytest.mark.parametrize(
    ("task", "name"), [("digits", name) for name in IMAGES] + [("prose", name) for name in TEXTS]
)
def test_every_variant_trains_and_comes_back_from_its_checkpoint(task, name, tmp_path):
    boost = name in ("softmax", "bilateral")
    result = one_epoch(task, tmp_path, name, boost=boost)
    before, meta = read_checkpoint(result.checkpoints[0])
    after, _ = read_checkpoint(result.checkpoints[-1])
    still = {key for key in before if torch.equal(before[key], after[key])}
    # Λ of primal attention enters the penalty alone; in the first block the boost adds nothing.
    assert not {key for key in still if not key.endswith(("log_lam", "blocks.0.boost.t"))}
    assert meta["attention"] == name
    assert meta.get("boost", False) == boost
    if name != "softmax":
        assert meta["attention_layers"] == ([1] if "primal" in name else None)
        assert set(meta["attention_options"]) == set(VARIANTS[name].options)
    assert result.metrics["attention"].unique().tolist() == [name + "+boost" * boost]
    restore(result.checkpoints[-1])
    watched = set(result.metrics["metric"])
    assert {"token_cosine", "parameters", "macs"} <= watched
    assert ("projection_error" in watched) == (VARIANTS[name].attends == "token" or "primal" in name)
    assert ("perplexity" in watched) == (task == "prose")


OTHERS = {
    "digits-tost": {
        "name": "tost",
        "attention": "tssa",
        "attention_options": {"convention": "as_implemented"},
    },
    "digits-tost-softmax": {"name": "tost", "attention": "softmax"},
    "digits-tost-ista": {"name": "tost", "mlp": "ista"},
    "digits-xcit": {"name": "xcit"},
    "digits-crate": {"name": "crate"},
    "digits-vit-ista": {"mlp": "ista"},
    "digits-tssa-ista": {"mlp": "ista", "attention": "tssa"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_train_and_are_named(name, tmp_path):
    recipe = recipe_of("digits")
    recipe = dataclasses.replace(recipe, architecture={**recipe.architecture, **OTHERS[name]})
    result = train("digits", tmp_path, recipe=recipe, limit=12, device="cpu", progress=False)
    before, after = (read_checkpoint(path)[0] for path in (result.checkpoints[0], result.checkpoints[-1]))
    still = {key for key in before if torch.equal(before[key], after[key])}
    assert not still
    assert json.loads((tmp_path / "model.json").read_text())["name"] == name
    assert result.metrics["attention"].unique().tolist() == [recipe.attention]
    restore(result.checkpoints[-1])


@pytest.mark.parametrize("name", ["digits-tost", "digits-xcit", "photos-tost", "photos-xcit", "prose-tost"])
def test_baselines_differ_from_the_plain_recipe_in_the_model_alone(name):
    recipe, plain = load_recipe(name), load_recipe(name.partition("-")[0])
    assert (
        dataclasses.replace(recipe, architecture=plain.architecture, checkpoints=plain.checkpoints) == plain
    )
    shared = {"img_size", "patch_size", "context", "embed_dim", "depth", "num_heads"}
    same = {key: value for key, value in recipe.architecture.items() if key in shared}
    assert same == {key: value for key, value in plain.architecture.items() if key in shared}
    build(recipe.architecture)


def test_layers_and_options_are_those_asked_for(tmp_path):
    result = one_epoch("digits", tmp_path, "rpc-sym", layers="-1", options={"num_iter": 2})
    _, meta = read_checkpoint(result.checkpoints[-1])
    assert meta["attention_layers"] == [1]
    assert meta["attention_options"] == {"num_iter": 2, "lambd": 4.0, "convention": "as_published"}
    model, _ = restore(result.checkpoints[-1])
    assert [type(block.attn).__name__ for block in model.blocks] == ["Attention", "RPCAttention"]


def test_a_run_is_named_for_its_attention(tmp_path):
    names = {
        ("softmax", False): "digits-vit", ("softmax", True): "digits-softmax-boost", ("tssa", False): "digits-tssa"
    }  # fmt: skip
    for (attention, boost), name in names.items():
        out = tmp_path / name
        one_epoch("digits", out, attention, boost=boost)
        assert json.loads((out / "model.json").read_text())["name"] == name


def test_the_command_is_what_a_shell_understands():
    flags = {
        "attention": "rpc-sym", "layers": "0,2", "set": ["num_iter=[4, 2]", "lambd=3"],
        "boost": True, "data": "my folder", "limit": 7,
    }  # fmt: skip
    assert command_line("digits", flags, 1, 5) == (
        "workbench study train digits --attention rpc-sym --layers 0,2 --set 'num_iter=[4, 2]' --set lambd=3 "
        "--boost --data 'my folder' --limit 7 --seed 1 --epochs 5"
    )
    assert command_line("digits", {}, 0, 30) == "workbench study train digits --seed 0 --epochs 30"


def test_the_ksvd_penalty_enters_the_gradient_with_its_weight():
    task = load_task("digits", 6)
    recipe = recipe_of("digits").with_attention("primal", "-1", {"low_rank": 4})
    found = {}
    for weight in (0.0, 0.5):
        trainer = Trainer(task, dataclasses.replace(recipe, ksvd_weight=weight, clip_norm=1e9), 0, "cpu")
        # One step of the optimiser changes nothing that is compared: gradients stay after it.
        metrics = trainer.train_epoch(1)
        found[weight] = [parameter.grad for parameter in trainer.module.parameters()]
        assert ("ksvd_penalty" in metrics) == (weight > 0)
    trainer = Trainer(task, recipe, 0, "cpu")
    model = trainer.module.train()
    images = torch.stack([task.train[number][0] for number in range(6)])
    model(images)
    penalty = ksvd_penalty([layer.objective for layer in primal_layers(model)])
    assert penalty.item() == pytest.approx(metrics["ksvd_penalty"], rel=1e-4)
    wanted = torch.autograd.grad(penalty, list(model.parameters()), allow_unused=True)
    for plain, both, own in zip(found[0.0], found[0.5], wanted, strict=True):
        zero = torch.zeros(()) if plain is None else plain
        if own is not None:
            torch.testing.assert_close(both, zero + 0.5 * own, rtol=1e-3, atol=1e-5)


def largest_logits(model, task):
    """Of every layer and head (head_dim 4), on all training examples."""
    captured = workbench.capture(model, torch.stack([image for image, _ in task.train]), sites=("q", "k"))
    return torch.stack([(layer.q @ layer.k.mT / 2).amax((0, 2, 3)) for layer in captured])


def test_after_a_step_with_qk_clip_no_logit_exceeds_the_threshold():
    task = load_task("digits", 6)
    recipe = dataclasses.replace(recipe_of("digits"), learning_rate=1e-12, weight_decay=0.0, batch_size=6)
    before = largest_logits(Trainer(task, recipe, 0, "cpu").module, task)
    threshold = float(before.median())
    trainer = Trainer(task, dataclasses.replace(recipe, qk_clip=threshold), 0, "cpu")
    metrics = trainer.train_epoch(1)
    assert metrics["max_logit"] == pytest.approx(float(before.max()), rel=1e-5)
    after = largest_logits(trainer.module, task)
    torch.testing.assert_close(after[0], before[0].clamp_max(threshold), rtol=1e-4, atol=1e-6)
    assert "max_logit" not in Trainer(task, recipe, 0, "cpu").train_epoch(1)


def test_qk_clip_counts_no_logit_of_a_later_token():
    model = build(
        {"name": "lm", "vocabulary": 11, "context": 7, "embed_dim": 12, "depth": 2, "num_heads": 3}
    ).train()
    clipping = LogitClipping(model, 1e-6)
    ids = torch.randint(11, (2, 7), generator=torch.manual_seed(0))
    model(ids)
    captured = workbench.capture(model.eval(), ids, sites=("q", "k"))
    seen = torch.ones(7, 7).tril().bool()
    logits = torch.stack([(layer.q @ layer.k.mT / 2).masked_fill(~seen, -torch.inf) for layer in captured])
    assert float(clipping.clip()) == pytest.approx(float(logits.max()), rel=1e-4)
    with pytest.raises(InputError, match="has no such layer"):
        LogitClipping(build({"name": "vit", "img_size": 8, "patch_size": 4, "attention": "tssa"}), 1.0)


def test_learning_a_text_lowers_its_perplexity(tmp_path):
    recipe = dataclasses.replace(recipe_of("prose"), learning_rate=1e-2, epochs=3)
    result = train("prose", tmp_path, recipe=recipe, limit=120, device="cpu", progress=False)
    perplexity = result.metrics.query("split == 'test' and metric == 'perplexity'")["value"].tolist()
    assert 60 < perplexity[0] < 90  # the vocabulary has 74
    assert perplexity[-1] == result.test["perplexity"] < 40
    loss = result.metrics.query("split == 'test' and metric == 'loss'")["value"].tolist()
    assert perplexity == pytest.approx([math.exp(value) for value in loss])


@pytest.mark.parametrize(
    ("task", "name", "change", "message"),
    [
        ("digits", "tssa", {"num_heads": 5}, "num_heads 5 does not divide embed_dim 12"),
        ("digits", "scaled-free", {"num_tokens": 4}, "at most num_tokens=4 tokens, but got 5"),
        ("prose", "tssa-causal", {"num_tokens": 7}, "at most num_tokens=7 tokens, but got 11"),
        ("prose", "bilateral", {"num_tokens": 7}, "num_tokens=7 tokens, but got 11"),
        ("prose", "xca", {}, "has no causal form"),
        ("digits", "tssa-causal", {}, "the class token, which stands first, would see no patch"),
    ],
)
def test_variants_that_do_not_fit(task, name, change, message, tmp_path):
    recipe = recipe_of(task)
    options = {key: value for key, value in change.items() if key == "num_tokens"}
    rest = {key: value for key, value in change.items() if key not in options}
    recipe = dataclasses.replace(recipe, architecture={**recipe.architecture, **rest})
    with pytest.raises(InputError, match=message):
        train(task, tmp_path, recipe=recipe, attention=name, options=options, limit=6, device="cpu")


def test_a_vocabulary_that_is_not_the_texts(tmp_path):
    recipe = recipe_of("prose")
    recipe = dataclasses.replace(recipe, architecture={**recipe.architecture, "vocabulary": 80})
    with pytest.raises(InputError, match=r"gives \(1, 11, 80\).* needs \(1, 11, 74\): set vocabulary"):
        train("prose", tmp_path, recipe=recipe, limit=6, device="cpu")


def test_monitoring_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = build(VIT).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = torch.randn(3, 1, 16, 16)
    found = monitor(model, {"test": images})["test"]
    assert model.training
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(math.isfinite(value) for value in found.values())
    assert {"token_cosine", "token_cosine_last", "projection_error", "projection_error_last"} <= set(found)


def test_layers_that_attend_to_tokens_are_known():
    assert attends_to_tokens(build(VIT))
    assert not attends_to_tokens(build({**VIT, "attention": "tssa"}))
    assert not attends_to_tokens(build({**VIT, "attention": "xca"}))
    assert attends_to_tokens(build({**VIT, "attention": "primal", "attention_layers": [1]}))


def test_costs_are_those_counted_by_hand():
    torch.manual_seed(0)
    costs = model_costs(build(VIT), torch.randn(1, 1, 16, 16))
    width, tokens, depth = 12, 5, 2
    linear = tokens * width * (3 * width + width + 8 * width)
    attention = 2 * tokens * tokens * width
    outside = 4 * 64 * width + width * 10
    assert costs["macs"] == costs["macs_inference"] == depth * (linear + attention) + outside


def test_positions_that_can_be_computed_beforehand_cost_nothing_at_inference():
    model = build({**VIT, "attention": "bilateral"})
    costs = model_costs(model, torch.randn(1, 1, 16, 16))
    assert costs["macs_inference"] < costs["macs"]
    assert all(block.attn.position_term is None for block in model.blocks)
    assert costs["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_recipes_hold_their_settings():
    rpc = load_recipe("imagenet-vit-tiny", "rpc-sym").architecture
    assert (rpc["attention_options"]["num_iter"], rpc["attention_options"]["lambd"]) == ([4], 4.0)
    primal = load_recipe("imagenet-deit-small", "primal")
    assert primal.architecture["attention_layers"] == [11]
    assert primal.architecture["attention_options"]["low_rank"] == 96
    assert primal.ksvd_weight == 0.05
    deit = load_recipe("imagenet-deit-tiny", "bilateral").architecture
    assert (deit["depth"], deit["num_heads"], deit["embed_dim"] // deit["num_heads"]) == (12, 3, 64)
