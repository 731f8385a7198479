"""The environments of the mixture, and where they run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from envrl.spec.base import Positive, Seconds, Spec
from envrl.spec.scheduler import SchedulerKind


class Backend(StrEnum):
    """Where an environment runs."""

    IN_PROCESS = "in_process"
    SERVER = "server"
    URL = "url"
    DOCKER = "docker"


class SessionSpec(Spec):
    """Sessions of an OpenEnv server; for every backend but in_process."""

    capacity: Positive | None = None
    """At once; None: as many as a training step has episodes."""
    open_timeout_s: Seconds = 300
    """For starting the server, and for a session to become free."""
    ping_interval_s: Seconds | None = None
    """Of WebSocket keepalive; None sends none, so that a server that computes for long is not cut off."""


class EnvSpec(Spec):
    """One environment of the mixture; its key is free, `kind` says which environment it is.

    What one backend alone uses stands here flat, so that `env.<key>.url=...` is all there is to type;
    rules.py refuses it elsewhere.
    """

    kind: str
    """A name of envrl.env.REGISTRY or of a plugin, or `custom` together with `target`."""
    target: str | None = None
    """For kind=custom: a class, ours or for TRL or ms-swift, by import path or by a plugin's name."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the groups of a step, relative to the other environments' weights."""
    backend: Backend = Backend.IN_PROCESS
    args: dict[str, Any] = Field(default={})
    """Keyword arguments of the environment's class."""
    max_turns: Positive | None = None
    """Overrides scheduler.max_turns here."""
    scheduler: SchedulerKind | None = None
    """Overrides the scheduler's kind here."""
    url: str | None = None
    """Of a running OpenEnv server; for backend=url."""
    image: str | None = None
    """Of a container that runs an OpenEnv server; for backend=docker."""
    adapter: str = "auto"
    """How the server behind `url` or `image` speaks: a name of envrl.env.openenv.adapters, or auto."""
    sessions: SessionSpec = SessionSpec()
    dataset: str | None = None
    """A .jsonl or .parquet file, or a name on the hub. Rows go to reset(**row); every tenth is held out."""
    prompt: str | None = None
    """Replaces the environment's own instructions."""
    reward: list[str] = Field(default=["env"])
    """Reward terms of this environment; reward.terms overrides them."""
