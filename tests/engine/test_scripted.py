from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from envrl.engine import GenerationStop, Sampling, ScriptedEngine
from envrl.errors import EngineError


def ask(engine: ScriptedEngine, ids=(1,), *, episode: str = "a", max_tokens: int = 100):
    return asyncio.run(engine.generate(ids, Sampling(max_tokens=max_tokens), episode=episode))


def test_replies_start_anew_for_every_episode():
    engine = ScriptedEngine(["x", [7, 8]])
    assert [ask(engine, episode=name).ids for name in ("a", "b", "a", "b")] == [[120], [120], [7, 8], [7, 8]]


def test_the_stop_id_is_appended_where_it_is_missing():
    engine = ScriptedEngine([[7], [7, 9]], stop_id=9)
    assert [ask(engine).ids, ask(engine).ids] == [[7, 9], [7, 9]]


def test_a_reply_is_cut_at_max_tokens_and_at_the_context():
    engine = ScriptedEngine(lambda episode, turn: [1, 2, 3, 4], max_context=6)
    cut = ask(engine, max_tokens=3)
    assert (cut.ids, cut.logprobs, cut.stop) == ([1, 2, 3], [-0.5] * 3, GenerationStop.LENGTH)
    assert ask(engine, [0] * 4).ids == [1, 2]
    assert ask(engine, [0] * 9).ids == []
    assert ask(engine, max_tokens=4).stop is GenerationStop.EOS


def test_requests_are_recorded():
    engine = ScriptedEngine(["x"])
    ask(engine, [4, 5], max_tokens=3)
    assert engine.requests == [("a", [4, 5], Sampling(max_tokens=3))]


def test_a_missing_reply_is_an_error_and_release_starts_over():
    engine = ScriptedEngine(["x"])
    ask(engine)
    with pytest.raises(EngineError, match="turn 1"):
        ask(engine)
    asyncio.run(engine.release("a"))
    assert ask(engine).ids == [120]


def test_the_package_loads_no_torch():
    code = "import sys, envrl.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
