"""Colours of charts, as CSS variables with the light theme's value to fall back on.

Told apart by people with any colour vision (Okabe and Ito's set, darkened to 3:1 against white and
lightened for dark pages), and never by colour alone: every series has a dash and a marker, too.

Source: Okabe and Ito, Color Universal Design (2008).
"""

from __future__ import annotations

SERIES = ("#0072b2", "#d55e00", "#00805f", "#aa4499", "#806600", "#555555")
SERIES_DARK = ("#56b4e9", "#ff9248", "#2fc9a0", "#e39bd0", "#f0d442", "#c4c4c4")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 1.5), (7, 2, 2, 2), (1, 1), (10, 3))
"""Lengths of dash and gap, in line widths; none is a solid line."""

INK, GRID, MUTED, ALARM = "#222222", "#dedede", "#6e6e6e", "#b00020"

LIGHT = {
    **{f"s{i}": colour for i, colour in enumerate(SERIES)},
    "ink": INK, "grid": GRID, "muted": MUTED, "alarm": ALARM, "paper": "#ffffff",
}  # fmt: skip
DARK = {
    **{f"s{i}": colour for i, colour in enumerate(SERIES_DARK)},
    "ink": "#e8e8e8", "grid": "#3d3d3d", "muted": "#a5a5a5", "alarm": "#ff7b88",
    "paper": "#161616",
}  # fmt: skip


def themed(colour: str) -> str:
    """A colour of the light theme as what a page decides: `var(--s0, #0072b2)`."""
    names = {value: name for name, value in LIGHT.items()}
    name = names.get(colour.lower())
    return colour if name is None else f"var(--{name}, {colour})"


def variables_css() -> str:
    """Both themes, by what the reader's system prefers."""

    def block(theme: dict[str, str]) -> str:
        return "".join(f"--{name}:{colour};" for name, colour in theme.items())

    return (
        f":root{{color-scheme:light dark;{block(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{block(DARK)}}}}}"
    )
