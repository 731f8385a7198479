"""vLLM's server, which ends with its parent: python -m envrl.engine.vllm.guard MODEL FLAGS..."""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import PackageNotFoundError, version
from threading import Thread

from envrl.child import end_with_parent

GRACE_S = 10.0
"""For vLLM to end its processes and remove its shared memory."""


def main() -> None:
    """Takes the arguments of `vllm serve`."""
    Thread(target=end_with_parent, args=(GRACE_S,), name="envrl-parent", daemon=True).start()
    model, *flags = sys.argv[1:]
    try:
        version("vllm")
    except PackageNotFoundError:  # the build for CPUs has another name, of which its command knows nothing
        module, sys.argv[1:] = "vllm.entrypoints.openai.api_server", ["--model", model, *flags]
    else:
        module, sys.argv[1:] = "vllm.entrypoints.cli.main", ["serve", model, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # vLLM's own children import this module
    main()
