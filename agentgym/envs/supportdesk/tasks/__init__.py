"""The tasks of the service desk: see `table.py` for all of them, `scene.py` for how one is made."""
