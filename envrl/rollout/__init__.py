"""From tasks to finished episodes."""
