"""Servers that may not be used are refused at the start, with both values and what mends them."""

from __future__ import annotations

import asyncio
import copy
import re
import socket

import pytest
from serving import at, server_engine  # type: ignore[import-not-found]
from tiny import Tiny  # type: ignore[import-not-found]

from envrl.engine.vllm.server import ServerEngine
from envrl.errors import ConfigError, EnvrlError, StageError
from envrl.model.load import describe
from envrl.model.tiny import bootstrap_tokenizer

pytestmark = pytest.mark.anyio


async def refusal(engine: ServerEngine, kind: type[EnvrlError] = ConfigError) -> str:
    try:
        with pytest.raises(kind) as refused:
            await engine.start()
    finally:
        await engine.close()
    return str(refused.value)


async def test_a_server_of_the_trainers_model_is_taken(tiny: Tiny, url: str) -> None:
    engine = server_engine(tiny, *at(url), min_context=1023)
    await engine.start()
    assert engine.max_context == 1024
    await engine.close()


async def test_another_model_is_told_by_its_sizes(tiny: Tiny, url: str) -> None:
    config = copy.deepcopy(tiny.model.config)
    config.num_hidden_layers, config.intermediate_size = 2, 64
    del config.layer_types[2:]
    described = Tiny(type(tiny.model)(config), tiny.tokenizer, tiny.folder.with_name("other"))
    describe(described.model, described.tokenizer, described.folder)
    told = await refusal(server_engine(described, *at(url)))
    assert told == (
        f"vllm_mode.url: {url} serves another model: intermediate_size is 288, the trainer's 64, "
        "num_hidden_layers is 3, the trainer's 2; mend: start it with the model of model.name_or_path"
    )


async def test_another_vocabulary_is_told_by_its_size_and_by_its_ids(tiny: Tiny, url: str) -> None:
    config = copy.deepcopy(tiny.model.config)
    config.vocab_size += 8
    folder = tiny.folder.with_name("vocabulary")
    other = Tiny(type(tiny.model)(config), bootstrap_tokenizer(), folder)
    describe(other.model, other.tokenizer, folder)
    size, ids = (await refusal(server_engine(other, *at(url)))).splitlines()
    served = tiny.model.config.vocab_size
    assert f"{url} has another vocabulary: {served} tokens, the trainer's has {served + 8}; mend: " in size
    assert re.search(r"another vocabulary: after \d+ tokens its 'Go to \(3, 4\)'... is \[\d+, .*\[\d+", ids)


async def test_too_short_a_context_is_refused(tiny: Tiny, url: str) -> None:
    told = await refusal(server_engine(tiny, *at(url), min_context=1024))
    assert (
        "has too short a context: 1024 tokens, and scheduler.max_tokens=1024 and a prompt are needed" in told
    )


async def test_weights_must_travel_the_same_way_on_both_sides(tiny: Tiny, url: str) -> None:
    told = await refusal(server_engine(tiny, *at(url), "vllm_mode.transfer=nccl"))
    assert (
        "takes weights by file, and they come by nccl; mend: start it with --weight-transfer-config" in told
    )


async def test_what_a_plain_server_lacks_is_told_at_once(tiny: Tiny, urls: dict[str, str]) -> None:
    logprobs, worker, transfer = (await refusal(server_engine(tiny, *at(urls["plain"])))).splitlines()
    assert "has logprobs_mode=raw_logprobs, and processed_logprobs are needed" in logprobs
    assert "mend: start it with --logprobs-mode processed_logprobs" in logprobs
    assert "mend: start it with --worker-extension-cls envrl.engine.vllm.worker.Worker" in worker
    assert 'mend: start it with --weight-transfer-config \'{"backend": "file"}\'' in transfer


async def test_a_server_without_its_development_mode_is_refused(tiny: Tiny, urls: dict[str, str]) -> None:
    told = await refusal(server_engine(tiny, *at(urls["no_dev_mode"])))
    assert "does not tell what it is (status 404: " in told
    assert "mend: if it is vLLM, start it with VLLM_SERVER_DEV_MODE=1 in its environment" in told


async def test_a_server_that_is_not_there_is_waited_for_and_told(tiny: Tiny) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        started = asyncio.get_running_loop().time()
        engine = server_engine(tiny, *at(url), "vllm_mode.retry_timeout_s=1")
        told = await refusal(engine, StageError)
    assert asyncio.get_running_loop().time() - started > 1
    assert told.startswith(f"vllm_mode.url: {url}: Cannot connect")
    assert told.endswith("(tried for 1 s); mend: start it, or vllm_mode.launch=true")
