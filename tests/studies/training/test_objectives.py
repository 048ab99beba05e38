import math

import pytest
import torch

from workbench.studies.training.objectives import (
    CLASSIFICATION,
    LANGUAGE,
    classification_scores,
    language_scores,
)


def test_classification_scores_are_those_of_a_loop():
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 7), torch.tensor([3, 6, 0, 1, 3])
    scores = classification_scores(logits, targets)
    for number, (row, target) in enumerate(zip(logits.tolist(), targets.tolist(), strict=True)):
        share = math.exp(row[target]) / sum(map(math.exp, row))
        assert scores["loss"][number].item() == pytest.approx(-math.log(share), abs=1e-5)
        better = sum(value > row[target] for value in row)
        assert scores["accuracy"][number] == (better < 1)
        assert scores["accuracy_top5"][number] == (better < 5)


def test_among_five_classes_the_top_five_say_nothing():
    assert list(classification_scores(torch.randn(2, 5), torch.tensor([1, 2]))) == ["loss", "accuracy"]


def test_certain_probabilities_are_classes():
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 6), torch.tensor([5, 0, 2, 2])
    sure = torch.nn.functional.one_hot(targets, 6).float()
    torch.testing.assert_close(classification_scores(logits, sure), classification_scores(logits, targets))


def test_language_scores_are_means_over_the_tokens_of_a_text():
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 4, 7), torch.randint(7, (3, 4))
    scores = language_scores(logits, targets)
    for number in range(3):
        each = classification_scores(logits[number], targets[number])
        torch.testing.assert_close(scores["loss"][number], each["loss"].mean())
        torch.testing.assert_close(scores["accuracy"][number], each["accuracy"].mean())


def test_a_model_that_knows_nothing_has_the_size_of_the_vocabulary_as_perplexity():
    loss = language_scores(torch.zeros(2, 3, 11), torch.zeros(2, 3, dtype=torch.long))["loss"].mean().item()
    assert LANGUAGE.derive({"loss": loss})["perplexity"] == pytest.approx(11)
    assert CLASSIFICATION.derive({"loss": loss}) == {"loss": loss}
