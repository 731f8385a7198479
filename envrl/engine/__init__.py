"""Engines: token ids in, token ids and their log-probabilities out. Importing this loads no torch."""

from envrl.engine.base import Engine, EngineStats, Generation, GenerationStop, Sampling
from envrl.engine.scripted import ScriptedEngine

__all__ = ["Engine", "EngineStats", "Generation", "GenerationStop", "Sampling", "ScriptedEngine"]
