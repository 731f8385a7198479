"""Environments that come from the sessions of an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from envrl.env import build
from envrl.env.base import Environment, has_solver
from envrl.env.openenv.adapters import AUTO, Adapter, adapter_class, detected
from envrl.env.openenv.process import Container, server_process
from envrl.env.openenv.remote import Remote
from envrl.env.sources import Source, episodes_at_once
from envrl.errors import WorldError
from envrl.launch import is_main, rank, world_size
from envrl.spec import Backend, RunSpec

if TYPE_CHECKING:
    from envrl.env.openenv.pool import Pool, Server
    from envrl.env.openenv.sessions import Reply, Session

log = logging.getLogger(__name__)

SAME_SEED = 3
"""Episodes of one seed that have to agree; a server that draws from a few games may agree by chance."""
SCHEMA_TIMEOUT_S = 30.0


class OpenEnvSource(Source):
    """Remote environments. Sessions with our own server are used again, those with others never."""

    scarce = True

    def __init__(self, key: str, spec: RunSpec, directory: Path) -> None:
        self._key = key
        self._env = spec.env[key]
        self._local = build(key, self._env)
        own = self._env.sessions.capacity
        self._limit = max(1, own // world_size()) if own else episodes_at_once(spec, key)
        self._server = _server(key, spec, directory, self._limit)
        self._pool: Pool | None = None
        self._adapter: type[Adapter] | None = None
        self._asking = asyncio.Lock()
        self._seeds_checked = False

    def make(self) -> Environment:
        """A stand-in; its session comes when it is opened."""
        return Remote(self._local, self)

    async def prepare(self, episodes: int) -> None:
        """Opens as many sessions as that, or as sessions.capacity allows. Raises StageError, WorldError."""
        await self._sessions.prepare(episodes)
        await self._adapter_class()

    async def take(self) -> tuple[Session, Adapter]:
        """A session, and the adapter for one episode."""
        session = await self._sessions.take()
        try:
            return session, (await self._adapter_class())(self._local)
        except BaseException:
            self.give(session)
            raise

    def give(self, session: Session) -> None:
        """Takes a session back."""
        self._sessions.give(session)

    async def reset(self, session: Session, data: Mapping[str, Any]) -> Reply:
        """Starts an episode; the first one with a seed shows whether the server honours it."""
        if "seed" in data and not self._seeds_checked:
            self._seeds_checked = True
            await self._check_seeds(session, data)
        return await session.reset(data)

    async def _check_seeds(self, session: Session, data: Mapping[str, Any]) -> None:
        adapter = await self._adapter_class()
        first = await _picture(session, data, adapter(self._local))
        for _ in range(SAME_SEED - 1):
            if await _picture(session, data, adapter(self._local)) != first:
                log.warning(
                    "env.%s: the server ignores seeds: two episodes with seed %s differ, so the members of a "
                    "group play different tasks, and no evaluation plays the same ones twice",
                    self._key,
                    data["seed"],
                )
                return

    async def close(self) -> None:
        """Closes the sessions, and the server where it is ours."""
        if self._pool is not None:
            await self._pool.close()
        await self._server.close()

    @property
    def _sessions(self) -> Pool:
        if self._pool is None:
            from envrl.env.openenv.pool import Pool  # imports openenv

            self._pool = Pool(
                self._key,
                self._server,
                self._env.sessions,
                limit=self._limit,
                reuse=self._env.backend is Backend.SERVER,
            )
        return self._pool

    async def _adapter_class(self) -> type[Adapter]:
        """The adapter's class; `auto` asks the server for its schema, once."""
        async with self._asking:
            if self._adapter is None:
                name = "envrl" if self._env.backend is Backend.SERVER else self._env.adapter
                if name == AUTO:
                    self._adapter = detected(await asyncio.to_thread(_schema, await self._server.url()))
                    log.info("env.%s: its server is spoken to by %s", self._key, self._adapter.__name__)
                else:
                    self._adapter = adapter_class(name)
        return self._adapter


class RunningServer:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def url(self) -> str:
        """As it was given."""
        return self._url

    def worked(self) -> None:
        """It is not ours to look after."""

    async def close(self) -> None:
        """It is not ours to stop."""


def _server(key: str, spec: RunSpec, directory: Path, limit: int) -> Server:
    env = spec.env[key]
    start_timeout_s = env.sessions.open_timeout_s
    if env.backend is Backend.URL:
        assert env.url is not None
        return RunningServer(env.url)
    if env.backend is Backend.DOCKER:
        assert env.image is not None
        return Container(key, env.image, start_timeout_s=start_timeout_s)
    job = {
        "key": key,
        "env": env.model_dump(mode="json"),
        "plugins": spec.plugins,
        "capacity": 2 * limit,  # a session that timed out holds its place until its step ends
        "step_timeout_s": spec.scheduler.step_timeout_s,
    }
    log_file = directory / (f"server-{key}.log" if is_main() else f"server-{key}-{rank()}.log")
    return server_process(key, job, log_file, start_timeout_s=start_timeout_s)


async def _picture(session: Session, data: Mapping[str, Any], adapter: Adapter) -> Any:
    """What can be seen of a fresh episode: what the model is told, the state apart from its name, and what
    becomes of a first move, where the environment is a game that scripts may play."""
    from envrl.env.openenv.sessions import ServerError

    reply = await session.reset(data)
    adapter.read_reset(reply)
    moved = None
    try:
        state = await session.state()
        if has_solver(type(adapter.local)):
            moved = await session.step(adapter.action(adapter.local.random_action(Random(0))))
    except (ServerError, ValueError) as error:
        state, moved = {}, str(error)
    seen = moved if moved is None or isinstance(moved, str) else (moved.observation, moved.reward, moved.done)
    return reply.observation, {name: value for name, value in state.items() if name != "episode_id"}, seen


def _schema(url: str) -> Mapping[str, Any]:
    """The server's /schema; an empty one where it has none. Raises WorldError."""
    url = url.rstrip("/").replace("ws", "http", 1) if url.startswith("ws") else url.rstrip("/")
    local = any(f"//{host}" in url for host in ("localhost", "127.", "[::1]"))
    opener = build_opener(ProxyHandler({})) if local else build_opener()
    try:
        with opener.open(f"{url}/schema", timeout=SCHEMA_TIMEOUT_S) as reply:
            schema = json.load(reply)
    except HTTPError as error:
        if error.code not in (404, 405):
            raise WorldError(f"{url}/schema: {error}") from error
        log.warning("%s/schema: %s; it is taken for a server of any kind", url, error)
        return {}
    except (OSError, ValueError) as error:
        raise WorldError(f"{url}/schema: {error}") from error
    return schema if isinstance(schema, dict) else {}
