"""What `agentgym view` does: write the page, or serve it and open a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from agentgym.types import printable

_NOTES_SHOWN = 5


def export(paths: Sequence[Path], out: Path, *, title: str) -> int:
    """Write the episodes as one HTML file, and say what is in it.

    Raises:
        TraceError: If there is no trace, or something can't be read or written.
    """
    from agentgym.report.viewer.export import write_page

    written = write_page(paths, out, title=title)
    for note in written.notes[:_NOTES_SHOWN]:
        print(f"agentgym: {note}", file=sys.stderr)
    if len(written.notes) > _NOTES_SHOWN:
        more = len(written.notes) - _NOTES_SHOWN
        print(f"agentgym: and {more} more remarks, which the page has", file=sys.stderr)
    episodes = "1 episode" if written.episodes == 1 else f"{written.episodes:,} episodes"
    print(f"{printable(str(out))}: {episodes}, {written.size / 1e6:.1f} MB")
    return 0


def serve(paths: Sequence[Path], *, title: str, port: int, browser: bool) -> int:
    """Serve until Ctrl-C, which is how it is meant to end.

    Raises:
        TraceError: If there is nothing to show.
        ConfigError: If the port can't be had.
    """
    from agentgym.report.viewer.server import ViewerServer

    server = ViewerServer(paths, port=port, title=title)
    try:
        print(f"agentgym: {printable(title)} at {server.url} (Ctrl-C ends it)", file=sys.stderr)
        if browser and _has_screen():
            webbrowser.open(server.url)
        server.serve()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
    return 0


def _has_screen() -> bool:
    """Whether a browser could show itself; without a screen, one might take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
