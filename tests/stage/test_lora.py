"""Runs that train adapters: they sample what they train, resume exactly, and know where they began."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small import game, lake  # type: ignore[import-not-found]

from envrl import compose, run
from envrl.errors import StageError
from envrl.tracking import read_jsonl

pytestmark = pytest.mark.usefixtures("elsewhere")

LORA = [
    "check.require_signal=false",
    "model.lora.rank=4",
    "grpo.learning_rate=5e-2",
    "grpo.warmup_steps=0",
]
CLOCKED = ("time/", "tokens_per_s", "rollout/inflight_mean")


def rated(*overrides: str) -> list[str]:
    """A run without a warm start, in which chance is paid."""
    rows = [json.dumps({"seed": seed, "rewards": [0.0, 1.0, 0.0, 1.0]}) + "\n" for seed in range(8)]
    Path("rows.jsonl").write_text("".join(rows))
    settings = ["stages=[train]", "env.custom.dataset=rows.jsonl", "scheduler.max_turn_tokens=8"]
    return game("Rated", *settings, *LORA, *overrides)


def lines(name: str) -> list[dict[str, Any]]:
    metrics = read_jsonl(Path(f"{name}/metrics.jsonl"))
    return [{key: line[key] for key in line if not key.startswith(CLOCKED)} for line in metrics]


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def test_adapters_learn_and_are_what_is_sampled() -> None:
    run(compose(rated("output_dir=whole")))
    for line in lines("whole"):
        assert line["grad_norm"] > 0
        assert line["kl_engine"] < 1e-10
    first, last = weights("whole/checkpoints/step-2"), weights("whole/checkpoints/step-4")
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert changed == {name for name in first if "proj" in name}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_run_goes_on_as_if_unbroken(dtype: str) -> None:
    """With dropout, whose random state has to be resumed, too."""
    run(compose(lake("stages=[warm_start]", "output_dir=source", "check.require_signal=false")))
    base = ["model.name_or_path=source/checkpoints/warm_start", f"model.dtype={dtype}"]
    settings = rated(*base, "model.lora.dropout=0.2", "grpo.kl_coef=0.1")
    run(compose([*settings, "output_dir=whole"]))
    run(compose([*settings, "output_dir=other", "resume=whole/checkpoints/step-2"]))
    assert lines("other") == lines("whole")[2:]
    ours, theirs = (weights(f"{name}/checkpoints/step-4") for name in ("whole", "other"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {value.dtype for value in ours.values()} == {getattr(torch, dtype)}
    kl = [line["kl_reference"] for line in lines("whole")]
    assert kl[0] == 0
    assert min(kl[1:]) > 0


def test_the_reference_is_where_grpo_began_and_not_where_the_warm_start_did() -> None:
    settings = [*lake("stages=[warm_start,train]", *LORA), "grpo.kl_coef=0.1", "model.warm_start.steps=150"]
    larger = ["model.tiny.hidden_size=64", "model.lora.rank=16", "model.warm_start.learning_rate=2e-2"]
    run(compose([*settings, *larger, "output_dir=whole"]))
    kl = [line["kl_reference"] for line in lines("whole") if line["updates"]]
    assert any(line["grad_norm"] for line in lines("whole"))
    assert kl[0] == 0
    assert min(kl[1:]) > 0
    again = [*settings, *larger, "output_dir=other", "resume=whole/checkpoints/step-2"]
    run(compose(again))
    assert lines("other") == lines("whole")[2:]


def test_a_checkpoint_of_the_other_kind_is_refused() -> None:
    run(compose(rated("output_dir=adapted")))
    run(compose(rated("output_dir=plain", "model.lora=null", "grpo.learning_rate=1e-3")))
    for other, settings, message in (
        ("adapted", ["model.lora=null"], "was trained with adapters .got null.; mend: model.lora as there"),
        ("plain", [], "was trained without adapters; mend: model.lora=null"),
        ("adapted", ["model.lora.rank=8"], "has 4 .got 8.; mend: model.lora.rank=4"),
    ):
        with pytest.raises(StageError, match=message):
            run(compose(rated("output_dir=new", f"resume={other}/checkpoints/step-4", *settings)))
        shutil.rmtree("new")
