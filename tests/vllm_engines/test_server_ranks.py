"""Several ranks share the servers that the first one starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from small import lake  # type: ignore[import-not-found]


def test_ranks_share_servers_and_their_weights(elsewhere: Path) -> None:
    servers = ["vllm_mode=server", "vllm_mode.launch=true", "vllm_mode.start_timeout_s=200"]
    larger = ["grpo.groups_per_step=8", "check.groups=8", "grpo.learning_rate=3e-3", "name=run"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "envrl"]
    done = subprocess.run([*launch, *lake(*servers, *larger)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (elsewhere / "outputs/run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert all(step["rows"] == 32 and step.get("kl_engine", 0) < 1e-6 for step in steps)
    assert any(step["grad_norm"] > 0 for step in steps)
    assert [log.name for log in (elsewhere / "outputs/run").glob("vllm-*.log")] == ["vllm-0.log"]
