"""Two processes over gloo against one process with all the rows."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from envrl.grpo.loss import VARIANTS
from envrl.grpo.trainer import Trainer
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_two_ranks(directory: Path) -> list[dict[str, Any]]:
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, str(Path(__file__).with_name("one_rank.py")), str(directory)]
    ranks = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(directory / f"rank-{rank}.pt") for rank in range(2)]


def test_two_ranks_equal_one(model: Any, spec: GrpoSpec, rows: list[TokenRow], tmp_path: Path) -> None:
    """bnpo is the rank's own mean by definition, so only the others can be equal.

    Mini-batches are cut on each rank, so that their rows are others than one process would have; there the
    ranks have to agree, and nobody may hang.
    """
    same = {"learning_rate": 1e-3, "passes": 2, "clip_low": 0.01, "clip_high": 0.01, "kl_coef": 0.1}
    losses = [loss for loss in VARIANTS if loss != "bnpo"]
    specs = {loss: spec.model_copy(update={"loss": loss, **same}) for loss in losses}
    specs["mini_batches"] = spec.model_copy(update={"mini_batches": 3, "learning_rate": 1e-3})
    uneven, one_idle, nothing = (rows[:5], rows[5:]), (rows[:3], []), ([], [])
    updates = [uneven, one_idle, nothing]
    task = {
        "specs": {loss: spec.model_dump(mode="json") for loss, spec in specs.items()},
        "updates": [[[asdict(row) for row in share] for share in shares] for shares in updates],
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    model.save_pretrained(tmp_path / "model")
    first, second = run_two_ranks(tmp_path)
    for rank in (first, second):
        assert torch.equal(*rank["random"])
    assert not torch.equal(first["random"], second["random"])
    for loss, spec in specs.items():
        own, kept = copy.deepcopy(model), copy.deepcopy(model) if spec.kl_coef else None
        assert first[loss]["metrics"] == second[loss]["metrics"]
        assert torch.equal(first[loss]["weights"], second[loss]["weights"])
        if loss == "mini_batches":
            continue
        alone = Trainer(spec, own, accelerator=Accelerator(cpu=True), pad_id=0, max_tokens=32, reference=kept)
        expected = [alone.update([*mine, *others]) for mine, others in updates]
        for ours, theirs in zip(first[loss]["metrics"], expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        weights = torch.cat([p.detach().flatten() for p in own.parameters()])
        torch.testing.assert_close(first[loss]["weights"], weights, atol=1e-4, rtol=0)
