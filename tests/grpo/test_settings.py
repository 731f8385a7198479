"""Which settings do not go together, which bias the estimate, and what the presets say."""

from __future__ import annotations

import pytest

from envrl import compose
from envrl.errors import ConfigError
from envrl.grpo.settings import biases
from envrl.paths import CONF, options

REFUSED = {
    (
        "grpo.clip_delta=1.2",
    ): "must be above 1 + grpo.clip_high, which is 1.28 (got 1.2); mend: grpo.clip_delta=2.28",
    ("grpo=cispo", "grpo.clip_delta=9"): "cispo has no use for it (got 9); mend: grpo.clip_delta=null",
    (
        "grpo.share_prompts=true",
        "model.attn_implementation=eager",
    ): "needs attention by sdpa (got eager); mend: grpo.share_prompts=auto, or model.attn_imp",
    (
        "grpo.share_prompts=on",
    ): "unknown 'on'; choose from: auto, false, true; mend: grpo.share_prompts=auto|",
    ("grpo.mini_batches=200",): "a step has 128 episodes to split (got 200); mend: grpo.mini_batches=128",
    ("grpo=gspo", "grpo.credit=turn"): "gspo has one ratio for all turns of an episode (got turn); mend:",
    (
        "grpo.credit=turn",
        "env.frozen_lake.reward=[success]",
    ): "mend: env.frozen_lake.reward=[env], or grpo.credit=",
    ("grpo.credit=turn", "reward.terms=[success]"): "reward.terms=[success]); mend: reward.terms=[env], or",
    ("grpo.mismatch.cap=0.5",): "grpo.mismatch.cap: must be greater than 1 (got 0.5)",
    ("grpo.mismatch.level=row",): "grpo.mismatch.level: unknown 'row'; choose from: sequence, token",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert REFUSED[overrides] in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["grpo.top_p=0.9", "grpo.top_k=20", "grpo.min_p=0.1", "grpo.temperature=0.7"]
)
def test_sampling_that_biases_the_estimate_is_told(setting: str) -> None:
    (line,) = biases(compose([setting]))
    assert line.startswith(f"{setting}")


def test_without_a_correction_the_words_are_others() -> None:
    (with_it,), (without,) = (biases(compose(["grpo.top_p=0.9", *o])) for o in ([], ["grpo.mismatch=null"]))
    assert "the weights of grpo.mismatch and kl_engine take that for" in with_it
    assert "nothing corrects for it" in without


def test_sequence_masks_are_told_of() -> None:
    mask = ["grpo.mismatch.level=sequence", "grpo.mismatch.beyond=mask"]
    assert "the longest are left out first" in next(biases(compose(mask)))


@pytest.mark.parametrize("preset", options("grpo"))
def test_no_preset_is_biased_and_each_names_its_source(preset: str) -> None:
    assert list(biases(compose([f"grpo={preset}"]))) == []
    assert preset == "default" or "arXiv:" in (CONF / "grpo" / f"{preset}.yaml").read_text().splitlines()[0]


def test_presets_have_what_is_published() -> None:
    grpo, dapo, dr_grpo, gspo, cispo = (
        compose([f"grpo={preset}"]).grpo for preset in ("grpo", "dapo", "dr_grpo", "gspo", "cispo")
    )
    assert {"default", "grpo", "dapo", "dr_grpo", "gspo", "cispo"} == set(options("grpo"))
    assert (grpo.loss, grpo.kl_coef, grpo.mini_batches, grpo.passes) == ("grpo", 0.04, 1, 1)
    assert (dapo.clip_low, dapo.clip_high, dapo.kl_coef, dapo.flat_groups) == (0.2, 0.28, 0, "drop")
    assert (dapo.overlong_buffer, cispo.overlong_buffer) == (4096 / 20480, 4096 / 20480)
    assert (dr_grpo.loss, dr_grpo.scale_rewards, dr_grpo.kl_coef) == ("dr_grpo", "none", 0)
    assert (gspo.clip_low, gspo.clip_high, gspo.mini_batches) == (3e-4, 4e-4, 4)
    assert (cispo.loss, cispo.clip_low, cispo.kl_coef, cispo.flat_groups) == ("cispo", 1, 0, "drop")


def test_a_preset_leaves_sizes_and_rates_to_the_model() -> None:
    assert compose(["grpo=dapo", "model=qwen3_4b"]).grpo.learning_rate == 1e-6
    assert compose(["grpo=dapo"]).grpo.learning_rate == compose().grpo.learning_rate
