from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from envrl.engine import Sampling
from envrl.engine.sample import filtered, sample

PLAIN = Sampling(max_tokens=1)
SETTINGS = [
    PLAIN,
    replace(PLAIN, temperature=0.7),
    replace(PLAIN, top_p=0.8),
    replace(PLAIN, top_k=5),
    replace(PLAIN, min_p=0.1),
    replace(PLAIN, temperature=1.4, top_k=12, top_p=0.7, min_p=0.05),
    replace(PLAIN, top_p=1e-6),
    replace(PLAIN, top_k=1000),
]


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, 30, generator=torch.Generator().manual_seed(seed))


def reference(row: torch.Tensor, setting: Sampling) -> torch.Tensor:
    """transformers' own processors, in the order of its generate."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(setting.temperature)])
    if setting.top_k:
        processors.append(TopKLogitsWarper(setting.top_k))
    if setting.top_p < 1:
        processors.append(TopPLogitsWarper(setting.top_p))
    if setting.min_p:
        processors.append(MinPLogitsWarper(setting.min_p))
    return processors(torch.zeros(1, 1, dtype=torch.long), row[None])[0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_filters_are_those_of_transformers(setting):
    rows = logits(20)
    expected = torch.stack([reference(row, setting) for row in rows])
    assert torch.allclose(filtered(rows, [setting] * 20), expected)


def test_rows_are_filtered_by_their_own_settings():
    rows = logits(len(SETTINGS))
    expected = torch.stack([reference(row, setting) for row, setting in zip(rows, SETTINGS, strict=True)])
    assert torch.allclose(filtered(rows, SETTINGS), expected)


def test_a_row_is_sampled_alike_alone_and_among_others():
    settings = [*SETTINGS, replace(PLAIN, temperature=0)]
    rows = logits(len(settings))
    uniforms = [Random(index).random() for index in range(len(settings))]
    together = sample(rows, settings, uniforms)
    for index, setting in enumerate(settings):
        (token,), (logprob,) = sample(rows[index : index + 1], [setting], [uniforms[index]])
        assert (token, logprob) == (together[0][index], pytest.approx(together[1][index], abs=1e-6))


@pytest.mark.parametrize("setting", [PLAIN, replace(PLAIN, temperature=0.6, top_k=6, top_p=0.9)])
def test_frequencies_follow_the_distribution(setting):
    row, draws, rng = logits(1), 20_000, Random(0)
    probabilities = filtered(row, [setting]).softmax(-1)[0]
    tokens, logprobs = sample(row.expand(draws, -1), [setting] * draws, [rng.random() for _ in range(draws)])
    counts = torch.bincount(torch.tensor(tokens), minlength=30)
    expected = draws * probabilities
    assert counts[expected == 0].sum() == 0
    kept = expected > 5
    chi_squared = ((counts - expected)[kept] ** 2 / expected[kept]).sum().item()
    assert chi_squared < 2.5 * kept.sum().item()
    assert torch.allclose(torch.tensor(logprobs).exp(), probabilities[torch.tensor(tokens)], atol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(uniform):
    rows = logits(50)
    rows[:, 0] = rows[:, -1] = -torch.inf
    _, logprobs = sample(rows, [replace(PLAIN, top_p=0.9)] * 50, [uniform] * 50)
    assert min(logprobs) > -20
