"""Hosts an environment as an OpenEnv server: python -m envrl.serve env=wordle port=8000

Options: host=127.0.0.1 (0.0.0.0 lets other machines in), port=8000, capacity=1024 (sessions at once).
Everything else is an override as `python -m envrl` takes it, such as env.wordle.args.<name>=... Any OpenEnv
client can play; an action is {"tool": "guess", "arguments": {"word": "crane"}} or {"text": "[crane]"}.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from envrl.child import end_with_parent
from envrl.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from envrl.spec import RunSpec

OPTIONS = {"host": "127.0.0.1", "port": "8000", "capacity": "1024"}
KEEPALIVE: dict[str, Any] = {"ws_ping_interval": 60.0, "ws_ping_timeout": 600.0}
"""A client that trains may not answer for minutes; one that is gone shall not keep its session for ever."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is stopped, by Ctrl-C with 130; 2 where the composition cannot be served."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--child"]:
        return child(json.loads(given[1]))
    if not given or {"-h", "--help"} & set(given):
        print(__doc__)
        return 0
    try:
        return public(given)
    except ConfigError as error:
        print("envrl.serve: " + str(error).replace("\n", "\n             "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def public(given: Sequence[str]) -> int:
    """What the command line asks for."""
    options = dict(OPTIONS)
    overrides = []
    for argument in given:
        name, equals, value = argument.partition("=")
        if equals and name in OPTIONS:
            options[name] = value
        else:
            overrides.append(argument)
    port, capacity = (_positive(name, options[name]) for name in ("port", "capacity"))
    spec = served_spec(overrides)
    ((key, env),) = spec.env.items()
    _judge_address(options["host"], port)
    from envrl.env.openenv.hosting import app  # heavy, so only for a spec that is valid

    served = app(key, env, capacity=capacity, step_timeout_s=spec.scheduler.step_timeout_s)
    _serve(served, host=options["host"], port=port, log_level="info", **KEEPALIVE)
    return 0


def served_spec(overrides: Sequence[str]) -> RunSpec:
    """What these overrides say of the one environment to serve. Raises ConfigError.

    What a run would do with it is judged by that run: both faces are served, whatever its scheduler.
    """
    from envrl.compose import compose

    spec = compose([*overrides, "stages=[report]", "scheduler.target=gym"])  # a target fits either face
    if len(spec.env) > 1:
        raise ConfigError(f"env: a server has one environment (got {', '.join(spec.env)}); mend: env=<one>")
    for key, env in spec.env.items():
        if env.kind == "openenv":
            raise ConfigError(f"env.{key}: kind=openenv has no game to serve; mend: env=<the game itself>")
    return spec


def child(job: dict[str, Any]) -> int:
    """What envrl.env.openenv.process asks for: an inherited socket, and an end with its parent."""
    Thread(target=end_with_parent, name="envrl-parent", daemon=True).start()
    from envrl.env.openenv.hosting import app
    from envrl.importing import load_plugin
    from envrl.spec import EnvSpec

    for plugin in job["plugins"]:
        load_plugin(plugin)
    served = app(
        job["key"],
        EnvSpec(**job["env"]),
        capacity=job["capacity"],
        describe=False,
        step_timeout_s=job["step_timeout_s"],
    )
    listener = socket.socket(fileno=job["fd"])
    _serve(served, [listener], log_level="warning", ws_ping_interval=None, ws_per_message_deflate=False)
    return 0


def _serve(served: FastAPI, sockets: list[socket.socket] | None = None, **settings: Any) -> None:
    import uvicorn

    config = uvicorn.Config(
        served, ws_max_size=100 * 2**20, timeout_graceful_shutdown=2, access_log=False, **settings
    )
    uvicorn.Server(config).run(sockets)


def _judge_address(host: str, port: int) -> None:
    """Raises ConfigError where nobody can listen there."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # uvicorn does not wait, either
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        mend = "port=<a free one>, or host=127.0.0.1|0.0.0.0"
        raise ConfigError(f"port: cannot listen at {host}, port {port}: {reason}; mend: {mend}") from error


def _positive(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name}: must be a positive integer (got {value!r}); mend: {name}={OPTIONS[name]}")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
