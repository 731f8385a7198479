"""A rank of test_ranks.py: `python one_rank.py DIRECTORY`, with torch's variables in the environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import Qwen3ForCausalLM

from envrl.grpo.trainer import Trainer
from envrl.rollout.transcript import TokenRow
from envrl.spec import GrpoSpec


def main(directory: Path) -> None:
    task = json.loads((directory / "task.json").read_text())
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    results = {}
    for loss, spec in task["specs"].items():
        model, kept = (Qwen3ForCausalLM.from_pretrained(directory / "model") for _ in range(2))
        reference = kept if spec["kl_coef"] else None
        trainer = Trainer(
            GrpoSpec(**spec), model, accelerator=accelerator, pad_id=0, max_tokens=32, reference=reference
        )
        metrics = [
            trainer.update([TokenRow(**row) for row in shares[accelerator.process_index]])
            for shares in task["updates"]
        ]
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        results[loss] = {"weights": weights, "metrics": metrics}
    results["random"] = _resumed_randomness(trainer, accelerator.process_index)
    torch.save(results, directory / f"rank-{os.environ['RANK']}.pt")
    accelerator.end_training()


def _resumed_randomness(trainer: Trainer, rank: int) -> torch.Tensor:
    """What a rank draws after it has taken up a state, with the state that it had then before it."""
    torch.manual_seed(rank)
    state = trainer.state()
    expected = torch.rand(3)
    trainer.load_state(state)
    return torch.stack([expected, torch.rand(3)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
