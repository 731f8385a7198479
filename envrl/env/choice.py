"""An action that is one of a few words, in the text face: `<action>left</action>`, or the word alone."""

from __future__ import annotations

import re
from functools import cache


def read_choice(text: str, words: tuple[str, ...]) -> str | None:
    """The first tagged word, else the last bare one, in lower case; None where there is neither."""
    tagged, bare = _patterns(words)
    found = tagged.findall(text)[:1] or bare.findall(text)[-1:]
    return found[0].lower() if found else None


def write_choice(word: str) -> str:
    """The tagged word."""
    return f"<action>{word}</action>"


@cache
def _patterns(words: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    any_word = f"({'|'.join(words)})"
    return (
        re.compile(rf"<action>\s*{any_word}\s*</action>", re.IGNORECASE),
        re.compile(rf"\b{any_word}\b", re.IGNORECASE),
    )
