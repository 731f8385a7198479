"""python -m envrl.serve, and what any OpenEnv client sees of an environment of ours."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from typing import Any
from urllib.request import Request, urlopen

import pytest
from served import Serve, eventually  # type: ignore[import-not-found]

from envrl import compose
from envrl.env.sources import episodes_at_once
from envrl.serve import OPTIONS, main, served_spec


@pytest.fixture(scope="module")
def hosted(serve: Serve) -> Any:
    with serve("games:Moody", capacity=4) as url:
        yield url


def test_any_client_plays(hosted: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(hosted).sync() as client:
        first = client.reset(seed=5)
        assert (first.observation["text"], first.reward, first.done) == ("seed 5", 0.0, False)
        assert first.observation["instructions"] == {"tool": "Guess the word.", "text": "Guess the word."}
        assert first.observation["tools"][0]["function"]["name"] == "guess"
        seen = client.step({"tool": "guess", "arguments": {"word": "raise"}})
        assert (seen.observation["text"], seen.reward, seen.observation["total"]) == ("not raise", 0.25, 0.25)
        seen = client.step({"text": "[crane]"})
        assert (seen.observation["text"], seen.reward, seen.done) == ("right", 0.75, True)
        over = client.step({"text": "[zebra]"})
        assert (over.observation["mistake"], over.done) == ("call", True)


@pytest.mark.parametrize(
    ("action", "mistake", "said"),
    [
        ({"text": "crane"}, "parse", "write [word]"),
        ({}, "parse", "give a tool with its arguments, or a text"),
        ({"tool": "gues"}, "call", "did you mean guess?"),
        ({"tool": "guess"}, "call", "word: missing"),
        ({"tool": "guess", "arguments": {"word": 3}}, "call", "word: input should be a valid string"),
        ({"tool": "guess", "arguments": {"word": "refuse"}}, "call", "that is not allowed"),
    ],
)
def test_a_mistake_is_an_observation(hosted: str, action: Any, mistake: str, said: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(hosted).sync() as client:
        client.reset(seed=5)
        seen = client.step(action)
        assert seen.observation["mistake"] == mistake
        assert said in seen.observation["text"]
        assert not seen.done


def test_nothing_is_played_before_a_reset_that_succeeds(serve: Serve) -> None:
    from openenv.core.generic_client import GenericEnvClient

    guess = {"tool": "guess", "arguments": {"word": "crane"}}
    with serve("games:Rated") as url, GenericEnvClient(url).sync() as client:
        with pytest.raises(RuntimeError, match="reset comes first"):
            client.step(guess)
        client.reset(rewards=[0.5])
        assert client.step(guess).done
        with pytest.raises(RuntimeError, match="no route to the game"):
            client.reset(rewards=[None])
        with pytest.raises(RuntimeError, match="reset comes first"):
            client.step(guess)


def test_plain_http_answers_too(hosted: str) -> None:
    """Without sessions, as OpenEnv has it: every request is an environment of its own."""
    request = Request(f"{hosted}/reset", b'{"seed": 4}', {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as reply:
        assert json.load(reply)["observation"]["text"] == "seed 4"
    with urlopen(f"{hosted}/metadata", timeout=10) as reply:
        assert reply.status == 200


def test_a_session_that_ends_closes_its_environment(serve: Serve) -> None:
    from games import Counted  # type: ignore[import-not-found]
    from openenv.core.generic_client import GenericEnvClient

    with serve("games:Counted") as url:
        before = Counted.live
        with GenericEnvClient(url).sync() as client:
            client.reset()
            assert Counted.live == before + 1
        assert eventually(lambda: Counted.live == before)


def test_help_answers_at_once() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "envrl.serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "capacity=1024" in done.stdout
    assert not {"openenv", "hydra", "pydantic", "torch"} & {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines()
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["env=frozenlake"], "unknown 'frozenlake'"),
        (["env=catch", "port=70000"], "port: cannot listen at 127.0.0.1, port 70000: bind(): port must be"),
        (["env=catch", "host=203.0.113.1"], "port: cannot listen at 203.0.113.1, port 8000: "),
        (["port=x"], "port: must be a positive integer (got 'x'); mend: port=8000"),
        (["env=[frozen_lake,custom]", "env.custom.target=games:Guess"], "a server has one environment"),
        (
            ["env=openenv", "env.openenv.url=http://x"],
            "kind=openenv has no game to serve; mend: env=<the game",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", ["tool_calling", "gym"])
@pytest.mark.parametrize("target", ["served:Adder", "none"])
def test_what_no_run_could_play_with_its_scheduler_is_served(target: str, scheduler: str) -> None:
    """Both faces are; which of them is played is the client's choice."""
    spec = served_spec(
        ["env=custom", f"env.custom.target={target}", f"scheduler={scheduler}", "stages=[train]"]
    )
    assert spec.env["custom"].target == target


def test_what_has_no_tasks_of_its_own_is_served() -> None:
    """The client's rows are."""
    assert served_spec(["env=tools"]).env["tools"].kind == "tools"


def test_a_default_server_has_room_for_a_default_run() -> None:
    assert int(OPTIONS["capacity"]) >= episodes_at_once(compose(["env=wordle"]), "wordle")


def test_a_port_that_is_taken_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["env=catch", f"port={port}"]) == 2
    said = f"cannot listen at 127.0.0.1, port {port}: Address already in use; mend: port=<a free one>"
    assert said in capsys.readouterr().err


def test_the_command_line_serves() -> None:
    """Also what no run could warm up on."""
    command = [sys.executable, "-m", "envrl.serve", "env=custom", "env.custom.target=games:Guess"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*command, f"port={port}"], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            deadline = time.monotonic() + 60
            while "running on" not in server.stderr.readline():
                assert time.monotonic() < deadline
            request = Request(
                f"http://127.0.0.1:{port}/reset", b'{"seed": 1}', {"Content-Type": "application/json"}
            )
            with urlopen(request, timeout=10) as reply:
                assert json.load(reply)["observation"]["text"] == "seed 1"
        finally:
            server.send_signal(signal.SIGINT)
        assert "Traceback" not in server.stderr.read()
        assert server.wait(10) in (0, 130)  # 0 where whoever started pytest has SIGINT ignored
