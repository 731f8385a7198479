"""Where a run's environments come from: this process, or an OpenEnv server."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from envrl.env import build
from envrl.env.base import Environment
from envrl.launch import world_size
from envrl.spec import Backend, EnvSpec, RunSpec


class Source(ABC):
    """Makes the environments of one key of the mixture, for as long as the run lasts."""

    scarce: bool = False
    """Others may be waiting for what an episode holds, so it is closed before its group is scored."""

    @abstractmethod
    def make(self) -> Environment:
        """A new environment for one episode. Cheap: what takes time belongs into its `open`."""

    async def prepare(self, episodes: int) -> None:
        """Makes sure that this many episodes can be open at once. Raises StageError where they cannot."""

    async def close(self) -> None:
        """Frees what all its environments share."""


class InProcess(Source):
    """Plain objects of this process."""

    def __init__(self, key: str, spec: EnvSpec) -> None:
        self._key = key
        self._spec = spec

    def make(self) -> Environment:
        """A new object of the environment's class."""
        return build(self._key, self._spec)


def in_process(envs: Mapping[str, EnvSpec]) -> dict[str, Source]:
    """All environments as objects of this process, whatever their backend says: what scripted play uses."""
    return {key: InProcess(key, spec) for key, spec in envs.items()}


def sources(spec: RunSpec, directory: Path) -> dict[str, Source]:
    """One source per environment; servers of ours write their logs into the directory."""
    return {
        key: InProcess(key, env) if env.backend is Backend.IN_PROCESS else _openenv(key, spec, directory)
        for key, env in spec.env.items()
    }


def _openenv(key: str, spec: RunSpec, directory: Path) -> Source:
    from envrl.env.openenv.source import OpenEnvSource  # itself a source, and not every run needs it

    return OpenEnvSource(key, spec, directory)


def episodes_at_once(spec: RunSpec, key: str) -> int:
    """The most episodes of an environment in one training step of this process."""
    weights = {name: env.weight for name, env in spec.env.items()}
    share = weights[key] / sum(weights.values())
    groups = spec.grpo.groups_per_step
    if len(weights) > 1:
        groups = min(groups, math.ceil(share * groups) + 1)  # a mixture's shares are exact to one group
    return math.ceil(groups / world_size()) * spec.grpo.num_generations
