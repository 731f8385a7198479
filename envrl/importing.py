"""User code is named by import path, and imported here alone."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from envrl.errors import ConfigError, unknown

_plugins: dict[str, ModuleType] = {}
"""By file name without `.py`: a plugin given as a path is named so in `name:Object`, before any package."""


def load_object(path: str) -> Any:
    """The object at `package.module:Name`. Raises ConfigError that says which part fails."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{path!r} is no import path; write package.module:Name")
    module = _import(module_name)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{path}: {unknown(f'name in {module_name}', name, public)}")
    return getattr(module, name)


def load_plugin(plugin: str) -> None:
    """Imports a module by name, or a .py file by path. Raises ConfigError."""
    _import(plugin)


def _import(module: str) -> ModuleType:
    try:
        if module.endswith(".py"):
            return _from_file(Path(module))
        return _plugins.get(module) or import_module(module)
    except (Exception, SystemExit) as error:  # an import runs a user's module, which may raise anything
        raise ConfigError(f"cannot import {module}: {_reason(error)}") from error


def _from_file(file: Path) -> ModuleType:
    """Runs a file once in a process, however often it is named. Its folder joins the import path."""
    file = file.expanduser().resolve(strict=True)
    name = f"envrl_plugin_{file.stem}"
    for loaded in (sys.modules.get(name), sys.modules.get(file.stem)):
        if getattr(loaded, "__file__", None) == str(file):
            assert loaded is not None
            sys.modules[name] = _plugins[file.stem] = loaded
            return loaded
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that a neighbour's name hides no package
    spec = spec_from_file_location(name, file)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _plugins[file.stem] = module
    return module


def _reason(error: BaseException) -> str:
    """Type and text, and the line where it was raised unless the path itself is at fault."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, (ImportError, OSError, SyntaxError)):
        return reason
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{reason} ({frame.filename}, line {frame.lineno})"
