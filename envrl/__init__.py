"""envrl trains language-model agents with GRPO inside multi-turn environments.

In Python:

    from envrl import compose, run
    summary = run(compose(["env=frozen_lake", "seed=2"]))

Importing the package loads neither Hydra nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envrl.compose import compose

if TYPE_CHECKING:
    from envrl.spec import RunSpec
    from envrl.summary import Summary

__all__ = ["__version__", "compose", "run"]
__version__ = "0.1.0"


def run(spec: RunSpec) -> Summary:
    """Runs, resumes, or, where it is finished, just shows a run; returns its summary.

    Raises ConfigError where the run directory holds another run, StageError where a stage fails.
    """
    from envrl.pipeline import run as walk  # heavy

    return walk(spec)
