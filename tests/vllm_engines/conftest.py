"""One tiny model for all tests of the real vLLM. (A folder called vllm would be imported as that.)"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tiny.py

import pytest

from envrl import compose
from envrl.engine.vllm import environment

environment.prepare(threads=1)  # before anything imports torch
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM and what it imports warn of each other."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tiny import Tiny  # type: ignore[import-not-found]  # heavy, as are the others

    from envrl.model.load import describe
    from envrl.model.tiny import build_model
    from envrl.rollout.corpus import tiny_tokenizer

    spec = compose([])
    folder = tmp_path_factory.mktemp("engine")
    tokenizer = asyncio.run(tiny_tokenizer(spec, cache=folder))
    assert spec.model.tiny
    model = build_model(spec.model.tiny, tokenizer, seed=1)
    describe(model, tokenizer, folder)
    return Tiny(model, tokenizer, folder)


@pytest.fixture
def tiny(pristine: Any) -> Any:
    """With weights of the test's own."""
    return type(pristine)(copy.deepcopy(pristine.model), pristine.tokenizer, pristine.folder)


@pytest.fixture(scope="session")
def untied(pristine: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same with a head of its own."""
    from envrl.model.load import describe

    config = copy.deepcopy(pristine.model.config)
    config.tie_word_embeddings = False
    folder = tmp_path_factory.mktemp("untied")
    model = type(pristine.model)(config)
    describe(model, pristine.tokenizer, folder)
    return type(pristine)(model, pristine.tokenizer, folder)


@pytest.fixture(scope="session")
def running(pristine: Any, untied: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Servers, as users may start them."""
    from serving import child  # type: ignore[import-not-found]

    folder = tmp_path_factory.mktemp
    lacking: dict[str, Any] = {"backend": "nccl", "logprobs_mode": None, "worker_extension_cls": None}
    servers = {
        "tiny": child(pristine, folder("tiny")),
        "untied": child(untied, folder("untied")),
        "no_dev_mode": child(pristine, folder("no_dev_mode"), dev=False),
        "plain": child(pristine, folder("plain"), **lacking),
    }

    async def each(method: str) -> None:
        await asyncio.gather(*(getattr(server, method)() for server in servers.values()))

    asyncio.run(each("url"))
    yield servers
    asyncio.run(each("close"))


@pytest.fixture(scope="session")
def urls(running: dict[str, Any]) -> dict[str, str]:
    """Where they are."""
    return {name: asyncio.run(server.url()) for name, server in running.items()}


@pytest.fixture(scope="session")
def url(urls: dict[str, str]) -> str:
    """Of the tiny model's."""
    return urls["tiny"]
