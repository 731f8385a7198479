"""Engines over vLLM servers: launched ones, and those that a test session has running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tiny import PROMPT, Tiny, running

from envrl import compose
from envrl.child import ChildServer
from envrl.engine import Generation, Sampling
from envrl.engine.vllm.arguments import engine_arguments
from envrl.engine.vllm.process import vllm_server
from envrl.engine.vllm.server import ServerEngine
from envrl.spec import ServerSpec

LAUNCH = ("vllm_mode=server", "vllm_mode.launch=true", "vllm_mode.start_timeout_s=120")


def server_spec(*overrides: str) -> ServerSpec:
    spec = compose(overrides).vllm_mode
    assert isinstance(spec, ServerSpec)
    return spec


def at(*urls: str) -> tuple[str, ...]:
    """Overrides for running servers."""
    return ("vllm_mode=server", f"vllm_mode.url=[{','.join(urls)}]", "vllm_mode.retry_timeout_s=5")


def server_engine(
    tiny: Tiny,
    *overrides: str,
    directory: Path | None = None,
    eos: Iterable[int] | None = None,
    min_context: int = 200,
) -> ServerEngine:
    return ServerEngine(
        server_spec(*overrides),
        tiny.folder,
        directory=directory or tiny.folder,
        tokenizer=tiny.tokenizer,
        eos=[tiny.eos] if eos is None else eos,
        dtype="float32",
        threads=1,
        min_context=min_context,
        on_gpu=False,
    )


@asynccontextmanager
async def started(tiny: Tiny, *overrides: str, **settings: Any) -> AsyncIterator[ServerEngine]:
    """With the model's weights."""
    async with running(server_engine(tiny, *overrides, **settings), tiny) as engine:
        yield engine


def child(
    tiny: Tiny, directory: Path, *, dev: bool = True, backend: str = "file", **changes: Any
) -> ChildServer:
    """A server as envrl launches it, but for some of vLLM's arguments; None drops one."""
    spec = server_spec(*LAUNCH)
    arguments = engine_arguments(spec, tiny.folder, dtype="float32", max_context=1024, on_gpu=False) | changes
    given = {name: value for name, value in arguments.items() if value is not None}
    server = vllm_server(spec, given, 0, directory=directory, backend=backend, threads=1)
    server._environment = {**server._environment, "VLLM_SERVER_DEV_MODE": str(int(dev))}
    return server


async def answer(
    engine: ServerEngine, *, episode: str = "a", prompt: int = 100, **settings: Any
) -> Generation:
    sampling = Sampling(**{"max_tokens": 10, "seed": 1, **settings})
    return await engine.generate(PROMPT[:prompt], sampling, episode=episode)
