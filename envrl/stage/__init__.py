"""One file per stage; each has `async def run(run: Run) -> None`."""
