"""vLLM behind HTTP: one or several servers, that run already or that envrl starts.

An episode's turns go to one server, where its prefix is cached. A server that does not answer is asked again,
or another one in its place; it is used again once it is well and has the trainer's weights.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import AutoConfig, PreTrainedTokenizerBase

from envrl.child import ChildServer
from envrl.engine.base import Engine, EngineStats, Generation, GenerationStop, Sampling
from envrl.engine.vllm.arguments import engine_arguments
from envrl.engine.vllm.client import Client, Completion, Refused, ServerDown
from envrl.engine.vllm.identity import Needs, Served, inspect
from envrl.engine.vllm.process import vllm_server
from envrl.engine.vllm.replica import Replica
from envrl.engine.vllm.transfer import FileTransfer, NcclTransfer, Transfer
from envrl.errors import ConfigError, EngineError, StageError
from envrl.launch import is_main, world_size
from envrl.spec import ServerSpec

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
"""Between two looks at a server; shorter than any restart, which loses the weights."""
PAUSE_S = 0.5
"""Between two attempts to reach one that is down."""
MIN_ATTEMPTS = 3
"""At a request, however long a server takes to come back."""
