"""What holds for all tests: one thread, no network, no deadlines on a busy machine; and parts that are shared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Before anything imports torch or the hub's client. The processes that tests start inherit all of it.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
sys.path.insert(0, str(HERE))  # games.py, whose environments are named by import path

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
