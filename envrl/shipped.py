"""Where the files that ship beside the package lie: in a wheel inside of it, in a checkout next to it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


CONF = _folder("conf")
RECIPES = _folder("recipes")


def shipped(path: Path) -> Path:
    """The path itself, or for `recipes/...` that is not found from here, the file that ships by this name."""
    if path.parts[:1] == ("recipes",) and not path.exists():
        return RECIPES.joinpath(*path.parts[1:])
    return path
