"""NLTK data that is just enough for TextArena's Wordle: a word list and a tagger that knows it."""

from __future__ import annotations

import json
from pathlib import Path

NOUNS = """
apple beach birth bread brick chair chest child cloud coast crane dance dream earth field flame floor fruit
glass grain grass green guide heart horse hotel house judge knife layer lemon light lunch metal month mouth
music night novel ocean paint paper party peace phone piano pilot plant plate point price queen radio river
salad scale shade sheep shirt smile snake sound spoon stage steam stone storm story sugar table taste tiger
tooth tower train truck uncle voice watch water whale wheel woman world youth
"""
SECRETS = NOUNS.split()
"""Wordle-v0 draws from these; which guesses are words is for the dictionary inside TextArena to say."""


def write(folder: Path) -> Path:
    """Writes the folder that NLTK_DATA is to name, 10 KB."""
    words = folder / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text("\n".join(SECRETS))
    tagger = folder / "taggers" / "averaged_perceptron_tagger_eng"
    tagger.mkdir(parents=True)
    tagged = {word: "NN" for word in [*SECRETS, "test"]}  # textarena tags "test" to see whether it can
    for part, content in {"weights": {}, "tagdict": tagged, "classes": ["NN"]}.items():
        (tagger / f"averaged_perceptron_tagger_eng.{part}.json").write_text(json.dumps(content))
    return folder
