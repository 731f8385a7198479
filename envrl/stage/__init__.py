"""One file per stage, each with `async def run(run: Run) -> None`; base.py has what they share."""
