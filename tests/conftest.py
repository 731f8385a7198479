"""What holds for all tests: one thread, no network, no deadlines where neighbours are busy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # games.py, whose environments are named by import path
# Before anything imports torch or the hub's client; the processes that tests start inherit all of it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, Path(__file__).parents[:2]))

import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.fixture(scope="session")
def qwen() -> Any:
    """Qwen3's tokenizer; the ids of its added tokens are not the published ones."""
    from qwen import tokenizer  # type: ignore[import-not-found]  # heavy

    return tokenizer()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, where runs write."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
