"""All servers under one roof, since each process would import openenv and textarena anew: 15 s.

NLTK_DATA=<folder> uvicorn --app-dir tests/openenv arena:app
"""

from __future__ import annotations

import echo_server
import openspiel_server
import textarena_server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

GAMES = {
    "wordle": textarena_server.app("Wordle-v0"),
    "wordle_unseeded": textarena_server.app("Wordle-v0", seeded=False),
    "wordle_train": textarena_server.app("Wordle-v0-train"),
    "sudoku": textarena_server.app("Sudoku-v0"),
    "sudoku_train": textarena_server.app("Sudoku-v0-train"),
    "catch": openspiel_server.app("catch"),
    "catch_unseeded": openspiel_server.app("catch", seeded=False),
    "echo": echo_server.app(),
    "echo_old": echo_server.app(old=True),
}


def _ready(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ready")


app = Starlette(routes=[Route("/ready", _ready), *(Mount(f"/{name}", game) for name, game in GAMES.items())])
