"""Experts: shares against counts, what the character tells of them, and its null."""

import math
from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from workbench.core.errors import InputError
from workbench.models.architectures.lm import build_lm
from workbench.models.architectures.mixture import SwitchMlp, expert_choices
from workbench.studies.evaluation.experts import (
    expert_findings,
    expert_use,
    experts_under_conditions,
    information,
)

EXPERTS = 3


def classifier(experts=EXPERTS):
    torch.manual_seed(0)
    sizes = {"vocabulary": 11, "context": 9, "embed_dim": 8, "depth": 2, "num_heads": 2, "mlp_ratio": 1.0}
    return build_lm(**sizes, experts=experts, num_classes=4).eval()


def batch():
    ids = torch.randint(2, 11, (5, 9), generator=torch.manual_seed(1))
    ids[0, 6:] = 0
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def test_choices_are_those_of_the_routers():
    model, given = classifier(), batch()
    choices = expert_choices(model, **given)
    assert choices.shape == (2, 5, 9)
    seen = []
    mixture = next(part for part in model.modules() if isinstance(part, SwitchMlp))
    handle = mixture.register_forward_hook(lambda module, taken, output: seen.append(taken[0]))
    model(**given)
    handle.remove()
    assert torch.equal(choices[0], mixture.router(seen[0]).argmax(-1))
    assert not any(part._forward_hooks for part in model.modules())


def test_shares_are_of_real_tokens_and_evenness_is_their_entropy():
    model, given = classifier(), batch()
    use = expert_use(model, given, null_samples=3)
    real = given["attention_mask"].bool()
    for layer, chosen in enumerate(expert_choices(model, **given)):
        own = use[use["layer"] == layer].set_index("metric")
        count = Counter(chosen[real].tolist())
        shares = [count[expert] / int(real.sum()) for expert in range(EXPERTS)]
        assert own.loc["expert_share", "value"].tolist() == pytest.approx(shares)
        entropy = -sum(share * math.log(share) for share in shares if share)
        assert own.loc["expert_evenness", "value"] == pytest.approx(entropy / math.log(EXPERTS))
    said = expert_findings(use.assign(attention="made", condition="clean"))
    assert said[0].startswith("Experts of made, clean: layer 0 evenness 0.")


def test_every_run_has_its_own_rows_and_sentence():
    given, changed = batch(), {"input_ids": batch()["input_ids"].flip(1)}
    about = {"architecture": {"name": "lm", "attention": "softmax-sym"}}
    model = SimpleNamespace(module=classifier(), spec="made", meta=about)
    use = experts_under_conditions([("clean", model, given), ("changed", model, changed)], null_samples=3)
    assert set(use["attention"]) == {"softmax-sym"}
    for condition, one in (("clean", given), ("changed", changed)):
        own = use[use["condition"] == condition].reset_index(drop=True)
        alone = expert_use(model.module, one, null_samples=3)
        pd.testing.assert_frame_equal(own[alone.columns], alone)
    said = expert_findings(use)
    assert [sentence.partition(": ")[0] for sentence in said] == [
        "Experts of softmax-sym, clean", "Experts of softmax-sym, changed",
    ]  # fmt: skip


def test_information_is_all_where_the_token_decides_and_none_where_they_are_independent():
    tokens = torch.tensor([4, 4, 7, 7, 9, 9])
    assert information(torch.tensor([1, 1, 0, 0, 2, 2]), tokens) == pytest.approx(math.log(3))
    assert information(torch.tensor([0, 1, 0, 1, 0, 1]), tokens) == pytest.approx(0, abs=1e-12)
    joint = Counter(zip([0, 0, 1, 1, 1, 0], tokens.tolist(), strict=True))
    left, right = Counter([0, 0, 1, 1, 1, 0]), Counter(tokens.tolist())
    naive = sum(n / 6 * math.log(n * 6 / (left[a] * right[b])) for (a, b), n in joint.items())
    assert information(torch.tensor([0, 0, 1, 1, 1, 0]), tokens) == pytest.approx(naive)


def test_a_model_without_a_mixture_is_refused():
    with pytest.raises(InputError, match="no mixture of experts"):
        expert_use(classifier(experts=0), batch())
