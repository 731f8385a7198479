"""Environments that run behind an OpenEnv server: one of ours, or somebody else's.

| file | what happens |
|---|---|
| `source.py` | where a run's environments come from |
| `remote.py` | an episode played through a session |
| `adapters.py` | how a server speaks: actions out, observations in |
| `pool.py` | the sessions of a source: opened, waited for, used again |
| `sessions.py` | one guarded connection |
| `process.py` | a server as a child process, or in a container |
| `hosting.py` | an environment of ours as an OpenEnv app; `envrl/serve.py` runs it |
| `generic.py` | the kind `openenv`: any environment, played in JSON |

openenv is imported by `sessions.py` and `hosting.py` alone, and those when a session or an app is asked for.
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
