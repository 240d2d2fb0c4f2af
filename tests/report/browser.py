"""A real Chromium for the tests of the pages, and what it did behind a page's back.

The system's browser is driven by Playwright, which downloads none. Without one the tests are
skipped, unless AGENTGYM_REQUIRE_BROWSER is set, as CI does; AGENTGYM_BROWSER names another
executable. The browser lives as long as a test module: Playwright keeps an event loop running,
beside which no asynchronous test of the same process could run.

    @pytest.mark.e2e
    def test_page_opens(open_page, tmp_path):
        visit = open_page(tmp_path / "page.html")
        assert visit.page.title() == "…"
        visit.assert_harmless()

Pictures for the docs come from the same tests: with AGENTGYM_SCREENSHOTS=1, `visit.screenshot`
writes docs/images/NAME.png; without it, nothing is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
MAX_IMAGE_BYTES = 150_000

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str | None:
    """The executable of a Chromium on this machine."""
    named = os.environ.get("AGENTGYM_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


@dataclass
class Visit:
    """A page that was opened, and what it did."""

    page: Page
    own: str
    """Where the page itself comes from; a request for that is none to others."""
    requests: list[str] = field(default_factory=list)
    """Addresses asked for elsewhere than at the page's own origin or file."""
    dialogs: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Uncaught errors, and errors and warnings on the console (a refusal by the CSP is one)."""

    def watch(self) -> None:
        """Take down what the page does from now on."""
        self.page.on("request", self._on_request)
        self.page.on("dialog", self._on_dialog)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.own):
            self.requests.append(request.url)

    def _on_dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def assert_harmless(self) -> None:
        """The page asked nobody else for anything, opened no dialog and broke nothing."""
        assert self.requests == []
        assert self.dialogs == []
        assert self.complaints == []

    def screenshot(self, name: str, *, full_page: bool = False, height: int | None = None) -> None:
        """Write docs/images/NAME.png, where asked to by AGENTGYM_SCREENSHOTS=1.

        Args:
            name: The file's, without ending.
            full_page: Whether what has to be scrolled to is in it, too.
            height: Take only so many pixels from the top.
        """
        if os.environ.get("AGENTGYM_SCREENSHOTS") != "1":
            return
        IMAGES.mkdir(exist_ok=True)
        path = IMAGES / f"{name}.png"
        width = self.page.viewport_size["width"]
        clip = {"x": 0, "y": 0, "width": width, "height": height} if height else None
        self.page.screenshot(path=path, full_page=full_page, clip=clip, animations="disabled")
        assert path.stat().st_size <= MAX_IMAGE_BYTES, f"{path} is too large for the repository"


OpenPage: TypeAlias = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The system's Chromium, with an empty profile."""
    executable = find_browser()
    if executable is None:
        reason = (
            "no Chromium on this machine (apt install chromium), none named by AGENTGYM_BROWSER"
        )
        if os.environ.get("AGENTGYM_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a file or address: `open_page(path_or_url, fragment="", dark=False)` gives a `Visit`.

    The window has a laptop's size, 1280 × 800; further keywords are those of Playwright's
    `new_context`.
    """
    contexts = []

    def open_one(
        where: Path | str, *, fragment: str = "", dark: bool = False, **options: object
    ) -> Visit:
        url = where.absolute().as_uri() if isinstance(where, Path) else where
        settings = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser.new_context(color_scheme="dark" if dark else "light", **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # a page that hangs fails; a busy machine doesn't
        visit = Visit(page, own=url)
        visit.watch()
        page.goto(url + fragment)
        return visit

    yield open_one
    for context in contexts:
        context.close()
