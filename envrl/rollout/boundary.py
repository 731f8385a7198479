"""Where what the world breaks ends an episode instead of the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from envrl.errors import ConfigError, StageError, WorldError
from envrl.stop import StopReason

if TYPE_CHECKING:
    from envrl.rollout.trajectory import Episode

log = logging.getLogger(__name__)


@contextmanager
def boundary(*episodes: Episode, where: str = "") -> Iterator[None]:
    """Ends episodes as `error` for what the world, or a user's scheduler or reward term, raises.

    `where` goes before what says nothing of it.
    """
    try:
        yield
    except (ConfigError, StageError):
        raise
    except Exception as error:
        expected = isinstance(error, WorldError)
        reason = str(error) if expected else f"{where}{type(error).__name__}: {error}"
        log.warning("%s ended as error: %s", episodes[0].name, reason, exc_info=not expected)
        for episode in episodes:
            episode.finish(StopReason.ERROR, reason)
