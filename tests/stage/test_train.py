"""Training: what counts as a dead group, mixtures, and which checkpoints stay."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from games import Fading, Rated  # type: ignore[import-not-found]
from safetensors.torch import load_file
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.paths import options
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")

TIED = [0.6667, 0.66670001, None, 0.6667]
MIXED = [0.0, 1.0, None, 1.0]


def train_on(*rewards: list[float | None]) -> list[dict[str, float]]:
    """Two steps over groups that get these rewards; returns the lines of metrics.jsonl."""
    Rated.met.clear()
    rows = [json.dumps({"seed": seed, "rewards": row}) + "\n" for seed, row in enumerate(rewards)]
    Path("rows.jsonl").write_text("".join(rows))
    world = ["rollout.retries=0", "scheduler.max_turn_tokens=8"]
    steps = [f"grpo.groups_per_step={len(rewards)}", "grpo.steps=2", "checkpoint.every=1"]
    stages = ["stages=[train]", "env.custom.dataset=rows.jsonl", "output_dir=trained"]
    run(compose(game("Rated", *world, *steps, *stages)))
    return read_jsonl(Path("trained/metrics.jsonl"))


def test_dead_groups_are_counted_with_failures_left_out() -> None:
    """Near ties beside a failure are no variance (SkyRL#1801)."""
    for line in train_on(TIED, MIXED, TIED, TIED):
        assert line["frac_zero_std"] == 0.75
        assert (line["episodes"], line["episodes/errors"], line["rows"]) == (16, 4, 12)
        assert line["grad_norm"] > 0


def test_dead_groups_alone_change_no_weight() -> None:
    for line in train_on(TIED, TIED):
        assert (line["frac_zero_std"], line["grad_norm"], line["loss"]) == (1.0, 0.0, 0.0)
    first, second = (load_file(f"trained/checkpoints/step-{step}/model.safetensors") for step in (1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_mixture_keeps_its_shares_and_tells_its_environments_apart() -> None:
    mixture = ["env=[frozen_lake,custom]", "env.custom.target=games:Guess", "env.frozen_lake.weight=2"]
    sizes = ["grpo.groups_per_step=3", "grpo.steps=2", "evaluate.episodes=9"]
    summary = run(compose(lake(*mixture, *sizes, "output_dir=mixed", "check.require_signal=false")))
    assert summary.status == "ok"
    played = Counter((e["label"], e["env"], e["episodes"]) for e in summary.evaluations)
    assert played == Counter(
        (label, env, count)
        for label in ("warm_start", "grpo")
        for env, count in (("frozen_lake", 6), ("custom", 3))
    )
    for line in read_jsonl(Path("mixed/metrics.jsonl")):
        assert {"env/frozen_lake/reward", "env/frozen_lake/steps", "env/custom/reward"} <= set(line)
        assert line["reward"] == pytest.approx(
            (2 * line["env/frozen_lake/reward"] + line["env/custom/reward"]) / 3
        )
    trained = [e for e in read_jsonl(Path("mixed/episodes.jsonl")) if e["stage"] == "train"]
    assert Counter(e["env"] for e in trained) == {"frozen_lake": 2 * 2 * 4, "custom": 2 * 4}


def test_evaluations_in_training_keep_the_best_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """In a game that pays less every time, the first is the best."""
    Fading.played = 0
    steps = ["grpo.steps=4", "evaluate.every=1", "checkpoint.every=1", "checkpoint.keep=1"]
    run(compose(game("Fading", "stages=[train]", "output_dir=fading", *steps)))
    assert "evaluation: " not in capsys.readouterr().out  # a table of the evaluations around training
    kept = {path.name for path in Path("fading/checkpoints").iterdir()}
    assert kept == {"step-1", "step-4"}
    evaluations = json.loads(Path("fading/summary.json").read_text())["evaluations"]
    assert [(e["label"], e["step"], e["env"]) for e in evaluations] == [
        ("grpo", step, "custom") for step in (1, 2, 3, 4)
    ]
    lines = read_jsonl(Path("fading/metrics.jsonl"))
    scores = [line["eval/score"] for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([e["reward_mean"] for e in evaluations])
    evaluated = [e for e in read_jsonl(Path("fading/episodes.jsonl")) if e["stage"] == "evaluate"]
    assert Counter(e["step"] for e in evaluated) == dict.fromkeys((1, 2, 3, 4), 8)
    assert len({e["name"] for e in evaluated}) == len(evaluated)


def test_every_step_says_where_its_time_went() -> None:
    run(compose(lake("stages=[train]", "grpo.steps=2", "output_dir=timed")))
    for line in read_jsonl(Path("timed/metrics.jsonl")):
        parts = {
            part: line[f"time/episode/{part}_s"]
            for part in ("queue", "prefill", "decode", "environment", "parse")
        }
        assert min(parts.values()) > 0
        assert sum(parts.values()) < line["time/episode/duration_s"] < line["time/rollout_s"]
        assert line["engine/prompt_tokens"] > 0
        assert 0.7 < line["engine/cached_fraction"] < 1  # of four members' prompts one is computed
        assert line["rollout/preemptions"] == 0
        assert 1 < line["rollout/inflight_mean"] <= line["rollout/inflight_max"] == 2 * 4
        assert line["rollout/inflight_limit"] > 8


def test_a_resumed_run_knows_how_many_episodes_memory_carries() -> None:
    def counted(name: str, *overrides: str) -> list[dict[str, float]]:
        memory = ["vllm_mode.kv_cache_gib=1e-3", "rollout.min_inflight=1"]
        run(compose(lake("stages=[train]", f"output_dir={name}", *memory, *overrides)))
        clocked = ("time/", "tokens_per_s", "rollout/inflight_mean")
        lines = read_jsonl(Path(f"{name}/metrics.jsonl"))
        return [{key: line[key] for key in line if not key.startswith(clocked)} for line in lines]

    whole, again = counted("whole"), counted("again", "resume=whole/checkpoints/step-2")
    assert again == whole[2:]
    limits = [line["rollout/inflight_limit"] for line in whole]
    assert limits == sorted(limits)  # episodes are shorter than scheduler.max_tokens
    assert limits[0] < limits[-1] < 8


def test_a_batch_may_serve_several_updates() -> None:
    several = ["grpo.passes=2", "grpo.mini_batches=2", "grpo.learning_rate=5e-3", "grpo.warmup_steps=0"]
    run(compose(lake("output_dir=several", "stages=[warm_start,train]", *several)))
    lines = read_jsonl(Path("several/metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    updated = [line for line in lines if line["updates"]]
    assert {line["updates"] for line in updated} <= {2, 4}
    assert any(line["clip_ratio/region"] > 0 for line in updated)


@pytest.mark.parametrize("preset", [name for name in options("grpo") if name != "default"])
def test_every_preset_trains(preset: str) -> None:
    steps = ["grpo.steps=2", "grpo.num_generations=8"]
    spec = compose(lake(f"grpo={preset}", "output_dir=preset", "stages=[warm_start,train]", *steps))
    run(spec)
    lines = read_jsonl(Path("preset/metrics.jsonl"))
    assert any(line["grad_norm"] > 0 for line in lines)
    assert all(("overlong_penalty" in line) == (spec.grpo.overlong_buffer > 0) for line in lines)
    assert all(("kl_reference" in line) == (spec.grpo.kl_coef > 0) for line in lines if line["updates"])


def test_credit_by_turn_in_a_whole_run() -> None:
    run(compose(lake("grpo.credit=turn", "output_dir=turns", "stages=[warm_start,train]")))
    assert any(line["grad_norm"] > 0 for line in read_jsonl(Path("turns/metrics.jsonl")))


def test_biases_are_told_before_the_first_stage(capsys: pytest.CaptureFixture[str]) -> None:
    run(compose(lake("output_dir=biased", "grpo.top_p=0.9", "stages=[train]", "grpo.steps=1")))
    assert "warning: grpo.top_p=0.9: episodes are sampled from a part" in capsys.readouterr().err
    assert "WARNING envrl: grpo.top_p=0.9" in Path("biased/run.log").read_text()
