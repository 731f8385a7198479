"""What any server of ours has in common: see also tests of OpenEnv's and vLLM's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from envrl.child import ChildServer
from envrl.errors import StageError

SERVE = """
import http.server, socket, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health, bind_and_activate=False)
listener.socket = socket.socket(fileno=int(sys.argv[1]))
listener.server_activate()
listener.serve_forever()
"""


def server(folder: Path, code: str, **settings: float) -> ChildServer:
    return ChildServer(
        "game",
        folder / "server.log",
        lambda listener: [sys.executable, "-c", code, str(listener.fileno())],
        environment=os.environ,
        mend="wait",
        patience_s=1,
        stop_timeout_s=1,
        **{"start_timeout_s": 20, **settings},
    )


def test_a_server_that_is_started_again_keeps_its_address(tmp_path: Path) -> None:
    async def twice() -> None:
        child = server(tmp_path, SERVE)
        first = await child.url()
        assert await child.url() == first
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert await child.url() == first
        await child.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(first.rpartition(":")[2])))

    asyncio.run(twice())


def test_an_early_error_is_quoted_before_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("OSError: of an earlier life\n")
    code = "print('ValueError: too small'); [print(f'line {i}') for i in range(40)]; raise SystemExit(3)"
    with pytest.raises(StageError) as refusal:
        asyncio.run(server(tmp_path, code).url())
    head, first, dots, *end = str(refusal.value).splitlines()
    assert head == f"game: its server ended with status 3; the end of {tmp_path / 'server.log'}:"
    assert (first, dots) == ("ValueError: too small", "...")
    assert end == [f"line {i}" for i in range(25, 40)]


def test_a_server_that_is_not_up_in_time_is_killed(tmp_path: Path) -> None:
    child = server(tmp_path, "import time; time.sleep(60)", start_timeout_s=0.3)
    with pytest.raises(StageError, match=r"game: its server was not up after 0\.3 s; wait"):
        asyncio.run(child.url())
    assert child.pid is None
