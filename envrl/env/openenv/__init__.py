"""Environments that run behind an OpenEnv server: one of ours, or somebody else's.

| file | what happens |
|---|---|
| `source.py` | the environments of a run that a server plays |
| `remote.py` | an episode played through a session |
| `pool.py` | the sessions of a source: opened, waited for, used again |
| `sessions.py` | one guarded connection |
| `process.py` | a server as a child process, or in a container |
| `hosting.py` | an environment of ours as an OpenEnv app; `envrl/serve.py` runs it |
| `adapters.py` | how a server is spoken to: the contract, and which adapter speaks to which server |
| `envrl.py` | the adapter to what `hosting.py` serves |
| `generic.py` | the kind `openenv` and its adapter: any environment, played in JSON |
| `foreign.py` | what the adapters to other people's servers share |
| `textarena.py` | TextArena's games |
| `scores.py` | our rewards and metrics for them |
| `openspiel.py` | OpenSpiel's games |
| `echo.py` | Echo, and any server of MCP tools |

openenv is imported by `sessions.py` and `hosting.py`, and those when a session or an app is asked for, and by
`process.py` when it starts a container.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gradio() -> Iterator[None]:
    """Imports openenv without its web interface, which would cost most of the import's time."""
    if "gradio" in sys.modules:
        yield
        return
    sys.modules["gradio"] = None  # type: ignore[assignment]  # Python's way to say: not to be had
    try:
        yield
    finally:
        del sys.modules["gradio"]
