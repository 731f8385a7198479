"""A class written for TRL's `environment_factory`, as an environment of ours."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from random import Random
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from envrl.env.base import Environment, Face, ToolCall
from envrl.errors import ConfigError

_NO_TOOLS = frozenset({"reset", "get_reward", "close"})
"""TRL offers `close` to the model, too. Here it frees what an episode holds, which is ours to do."""


class TrlEnvironment(Environment):
    """Public methods are tools, `reset(**row)` gets the whole row, `get_reward` is the reward at the end.

    What differs from TRL: every episode has an object of its own, which is closed; a seed is given to a
    `reset` that takes one; without `get_reward` an attribute `reward` counts; `done` ends the episode;
    `won` or `success` says whether it was solved. A tool's ValueError is its answer to the model, but
    other exceptions are the world's: the episode ends as `error` and is tried again, whereas TRL would
    show them to the model. Rules come from the dataset's `prompt` or env.<key>.prompt.
    """

    author: ClassVar[Callable[..., Any]]

    def __init__(self, **arguments: Any) -> None:
        """Makes the author's object."""
        self._own = type(self).author(**arguments)
        if not callable(getattr(self._own, "reset", None)):
            raise ConfigError(f"{type(self).__name__}: made {type(self._own).__name__}, which has no reset")
        # Their sync methods were written for a loop that waits for them.
        self.blocking = getattr(self._own, "blocking", True)
        self._final: float | None = None

    @property
    def unwrapped(self) -> Any:
        """The author's object, which reward functions see."""
        return self._own

    def instructions(self, face: Face) -> str:
        """None: such classes have no place for them."""
        return ""

    def reset(self, *, seed: int | None = None, **row: Any) -> Any:
        """The author's reset."""
        if _takes(self._own.reset, "seed"):
            row["seed"] = seed
        return self._own.reset(**row)

    def tools(self) -> dict[str, Callable[..., Any]]:
        """The public methods, own and inherited, in TRL's order: by name."""
        methods = inspect.getmembers(type(self._own), inspect.isfunction)
        names = [name for name, _ in methods if not name.startswith("_") and name not in _NO_TOOLS]
        return {name: getattr(self._own, name) for name in names}

    def conclude(self) -> Any:
        """Asks for the reward where it is worked out at the end."""
        if not hasattr(self._own, "get_reward"):
            return None
        reward = self._own.get_reward()
        if inspect.isawaitable(reward):
            return self._conclude(reward)
        self._final = reward
        return None

    async def _conclude(self, reward: Awaitable[float | None]) -> None:
        self._final = await reward

    def close(self) -> Any:
        """The author's close, where there is one."""
        return self._own.close() if callable(getattr(self._own, "close", None)) else None

    def random_action(self, rng: Random) -> ToolCall:
        """Any tool with drawn arguments; so a model's vocabulary gets to know the game."""
        name, function = rng.choice(list(self.tools().items()))
        hints = get_type_hints(function)
        needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        return ToolCall(name, {argument: _drawn(hints.get(argument), rng) for argument in needed})

    def _attribute(self, *names: str) -> Any:
        """The first of these attributes that is there, and no method."""
        values = (getattr(self._own, name, None) for name in names)
        return next((value for value in values if value is not None and not callable(value)), None)

    @property
    def reward(self) -> float | None:  # type: ignore[override]
        """What `get_reward` said, else the object's own attribute."""
        return self._final if hasattr(self._own, "get_reward") else self._attribute("reward")

    @property
    def done(self) -> bool:  # type: ignore[override]
        """The object's own attribute; False where there is none."""
        return bool(self._attribute("done"))

    @property
    def success(self) -> bool | None:  # type: ignore[override]
        """The object's own `success` or `won`."""
        solved = self._attribute("success", "won")
        return None if solved is None else bool(solved)


def is_factory(target: Any) -> bool:
    """Whether TRL would take it: a class with a reset, or something that makes one when called."""
    if isinstance(target, type):
        return callable(getattr(target, "reset", None))
    if not callable(target):
        return False
    parameters = inspect.signature(target).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


@cache
def adapt(author: Callable[..., Any]) -> type[TrlEnvironment]:
    """The environment class of ours that plays objects of this author's."""
    own: dict[str, Any] = {"author": staticmethod(author), "__doc__": author.__doc__}
    own |= {"__module__": author.__module__, "__init__": _constructor(author)}
    if isinstance(author, type):
        own["reset"] = _reset(author.reset)  # type: ignore[attr-defined]
    return type(getattr(author, "__name__", "TrlEnvironment"), (TrlEnvironment,), own)


def _constructor(author: Callable[..., Any]) -> Callable[..., None]:
    """TrlEnvironment's, under the author's signature, by which env.<key>.args are judged."""
    theirs = author.__init__ if isinstance(author, type) else author  # type: ignore[misc]

    def __init__(self: TrlEnvironment, **arguments: Any) -> None:
        TrlEnvironment.__init__(self, **arguments)

    if theirs is not object.__init__:
        return wraps(theirs)(__init__)
    __init__.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return __init__


def _reset(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """TrlEnvironment's, under the author's signature and a seed, by which a dataset's rows are judged."""

    def reset(self: TrlEnvironment, *, seed: int | None = None, **row: Any) -> Any:
        return TrlEnvironment.reset(self, seed=seed, **row)

    reset.__qualname__ = theirs.__qualname__
    parameters = dict(inspect.signature(theirs).parameters)
    seed = parameters.pop("seed", inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=None))
    rest = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    named = [p for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
    seed = seed.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    reset.__signature__ = inspect.Signature([*named, seed, *rest])  # type: ignore[attr-defined]
    return reset


def _takes(function: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _drawn(hint: Any, rng: Random) -> Any:
    """A value of this type; for a text, five letters."""
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    drawn = {bool: rng.random() < 0.5, int: rng.randrange(10), float: rng.random()}
    return drawn.get(hint, "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)))
