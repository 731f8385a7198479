"""Where a run's environments come from: this process, or an OpenEnv server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from envrl.env import build
from envrl.env.base import Environment
from envrl.spec import EnvSpec


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
