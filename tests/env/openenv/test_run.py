"""Whole runs: on a server of their own, and in process without any of this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from small import lake  # type: ignore[import-not-found]

from envrl import compose, run

LIGHT = """
import sys
from envrl import compose, run
from envrl.env.sources import sources
from envrl.stage.base import Run
spec = compose()
for source in sources(spec, spec.output_dir).values():
    source.make().reset(seed=1)
print([name for name in ("openenv", "websockets", "fastapi", "gradio") if name in sys.modules])
"""


def test_in_process_play_never_imports_openenv() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_whole_run_on_a_server_of_its_own(elsewhere: Path) -> None:
    """Check, training and evaluation; the server goes when the run does."""
    overrides = ["stages=[check,train,evaluate]", "model.warm_start=null", "check.require_signal=false"]
    spec = compose(lake(*overrides, "grpo.steps=1", "env.frozen_lake.backend=server", "output_dir=run"))
    summary = run(spec)
    assert (summary.status, summary.stages) == ("ok", ["check", "train", "evaluate"])
    assert Path("run/server-frozen_lake.log").read_text() == ""
    assert "serving at http://127.0.0.1:" in Path("run/run.log").read_text()
    there = summary.evaluations
    here = run(compose(lake(*overrides, "grpo.steps=1", "output_dir=here"))).evaluations
    assert [e["success_rate"] for e in there] == [e["success_rate"] for e in here]
