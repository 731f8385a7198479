"""The whole run: its stages, the settings of config.yaml itself, and the digest."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from envrl.spec.base import Count, Positive, Share, Spec
from envrl.spec.env import EnvSpec
from envrl.spec.grpo import GrpoSpec
from envrl.spec.model import ModelSpec
from envrl.spec.reward import RewardSpec
from envrl.spec.scheduler import SchedulerSpec
from envrl.spec.vllm_mode import VllmModeSpec


class Stage(StrEnum):
    """One file of envrl/stage/ each."""

    CHECK = "check"
    WARM_START = "warm_start"
    EVALUATE = "evaluate"
    TRAIN = "train"
    REPORT = "report"


class RolloutSpec(Spec):
    """How the episodes of a step are run."""

    retries: Count
    """Fresh attempts for an episode that the world broke."""
    min_inflight: Positive
    """Episodes at once on each rank, however small the engine's memory is taken to be; max_inflight wins."""
    max_inflight: Positive | None
    """Episodes at once on each rank; None: as many as the engine's memory for keys and values carries."""
    max_error_rate: Share
    """The run stops when more than this share of a step's episodes ended as `error`."""


class EvaluateSpec(Spec):
    """Play on held-out tasks."""

    episodes: Positive
    """Tasks, over all environments by weight."""
    samples: Positive
    """Episodes per task; above 1, avg@k and pass@k are reported."""
    temperature: Annotated[float, Field(ge=0)]
    """0 plays greedily."""
    seed: int
    """Of the held-out tasks; runs with the same one are compared on the same tasks."""
    every: Positive | None
    """Evaluate also during training, every so many steps, and keep the best checkpoint."""


class CheckSpec(Spec):
    """The preflight."""

    require_signal: bool
    """Whether a model whose groups never differ in reward stops the run."""
    groups: Count
    """Groups that the model plays to measure the learning signal; 0 skips it."""


class CheckpointSpec(Spec):
    """What is kept on disk while training, and where it goes in the end."""

    every: Positive | None
    keep: Positive
    push_to_hub: str | None
    """The hub's repository for the trained model, `owner/name`; made private where it is new."""


class SweepSpec(Spec):
    """Not built yet."""

    retries: Count
    objective: str
    dry_run: bool


class RunSpec(Spec):
    """One run."""

    seed: Count
    name: str
    output_dir: Path
    """The run directory itself."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    resume: str
    """auto, never, or the path of a checkpoint."""
    plugins: list[str]
    """Modules or .py files imported before the rest is judged."""
    threads: Annotated[int, Field(ge=1, le=1024)]
    """CPU threads of torch; part of the spec because results depend on them."""
    env: Annotated[dict[str, EnvSpec], Field(min_length=1)]
    model: ModelSpec
    vllm_mode: Annotated[VllmModeSpec, Field(discriminator="kind")]
    reward: RewardSpec
    scheduler: SchedulerSpec
    rollout: RolloutSpec
    grpo: GrpoSpec
    evaluate: EvaluateSpec
    check: CheckSpec
    checkpoint: CheckpointSpec
    tracker: list[str]
    sweep: SweepSpec

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of all that shapes the results: equal digests, equal runs."""
        return digest(self.model_dump(mode="json"))

    @property
    def plays(self) -> bool:
        """Whether any stage plays episodes."""
        return set(self.stages) != {Stage.REPORT}

    @property
    def evaluates(self) -> bool:
        """Whether held-out tasks are played, in a stage of their own or during training."""
        return Stage.EVALUATE in self.stages or (Stage.TRAIN in self.stages and bool(self.evaluate.every))

    def scheduler_of(self, env: str) -> SchedulerSpec:
        """The scheduler's settings with the environment's own overrides."""
        own = self.env[env]
        changes = {"kind": own.scheduler, "max_turns": own.max_turns}
        return self.scheduler.model_copy(update={k: v for k, v in changes.items() if v is not None})


UNDIGESTED = {"name", "output_dir", "resume", "tracker", "sweep"}
_WHERE = {"url", "launch", "replicas", "gpus", "transfer", "start_timeout_s", "retry_timeout_s"}
"""Of vllm_mode: where the servers are changes nothing about what they sample."""


def digest(spec: dict[str, Any]) -> str:
    """Digest of a spec as plain data."""
    judged = {key: value for key, value in spec.items() if key not in UNDIGESTED}
    judged["vllm_mode"] = {k: v for k, v in spec["vllm_mode"].items() if k not in _WHERE}
    judged["checkpoint"] = {k: v for k, v in spec["checkpoint"].items() if k != "push_to_hub"}
    return sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()
