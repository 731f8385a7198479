"""The trained model of a finished run: its card says how it did, and it may go to the hub."""

from __future__ import annotations

import logging
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or httpx2's

from envrl.grpo import checkpoints
from envrl.launch import is_main
from envrl.report.card import card
from envrl.stage.base import Run
from envrl.tracking import write_whole

log = logging.getLogger("envrl")


def finish(run: Run) -> None:
    """Brings the newest checkpoint's card up to date and pushes the model where checkpoint.push_to_hub says.

    A hub that cannot be reached, or that refuses, is warned about: the model stays where it is.
    """
    folder = checkpoints.latest(run.checkpoints)
    if folder is None or not is_main():
        return
    write_whole(folder / checkpoints.CARD, card(run.spec, run.summary, step=checkpoints.step_of(folder)))
    repository = run.spec.checkpoint.push_to_hub
    if repository is None:
        return
    try:
        _push(folder, repository)
        run.progress.log(f"pushed {folder} to {repository}")
    except (HTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        line = (
            f"checkpoint.push_to_hub={repository}: {type(error).__name__}: {reason:.200}; "
            f"`hf upload {repository} {folder}` sends it later"
        )
        run.progress.log(f"warning: {line}")
        log.warning(line)


def _push(folder: Path, repository: str) -> None:
    hub = HfApi()
    hub.create_repo(repository, private=True, exist_ok=True)
    hub.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=list(checkpoints.OURS))
