"""What the drawings of the pages are made of: boxes, stores, circles, arrows and text, as SVG for light and dark pages.

A picture is narrow, so that it can be read on a telephone, and loads nothing. Its colours follow the page's scheme.
"""

from __future__ import annotations

from html import escape

WIDTH = 420
# Width of a letter by size, on average, in a wide font such as DejaVu Sans.
LETTER = 0.535
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# class: (property, in light, in dark)
COLOURS = {
    "back": ("fill", "#ffffff", "#1b1e24"), "frame": ("stroke", "#e2e8f0", "#343a46"),
    "ink": ("fill", "#1f2937", "#e5e7eb"), "quiet": ("fill", "#5b6472", "#a3adbb"),
    "good": ("fill", "#0f766e", "#5eead4"), "bad": ("fill", "#b42318", "#fda29b"),
    "box": ("fill", "#f1f5f9", "#272c35"), "ours": ("fill", "#ccece6", "#134e48"), "gone": ("fill", "none", "none"),
    "edge": ("stroke", "#94a3b8", "#6b7686"), "strong": ("stroke", "#0f766e", "#2dd4bf"),
    "line": ("stroke", "#5b6472", "#a3adbb"), "tip": ("fill", "#5b6472", "#a3adbb"),
}  # fmt: skip


class Picture:
    """A drawing that grows. `told` says in words what it shows, for readers who cannot see it."""

    def __init__(self, told: str, height: int, width: int = WIDTH) -> None:
        self._told, self._height, self._width = told, height, width
        self._body: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> None:
        """A box with lines of text in its middle. `kind`: box, ours, or gone (only a dashed edge)."""
        edge = {"ours": "strong", "gone": "edge dashed"}.get(kind, "edge")
        self._body.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind} {edge}"/>')
        self._lines(x + width / 2, y + height / 2, lines, "quiet" if kind == "gone" else "ink", width)

    def store(self, x: float, y: float, width: float, height: float, *lines: str) -> None:
        """A disk or a bucket: a cylinder."""
        half, bend = width / 2, 6
        arc = f"a{half} {bend} 0 0 0 {width} 0"
        sides = f"M{x} {y + bend}v{height - 2 * bend}{arc}v{-(height - 2 * bend)}"
        self._body.append(f'<path d="{sides}a{half} {bend} 0 0 0 {-width} 0z" class="box edge"/>')
        self._body.append(f'<path d="M{x} {y + bend}{arc}" class="gone edge"/>')
        self._lines(x + half, y + height / 2 + bend / 2, lines, "ink", width)

    def version(self, x: float, y: float, number: str, *, kind: str = "box") -> None:
        """A version: a circle with its number."""
        edge = {"ours": "strong", "gone": "edge dashed"}.get(kind, "edge")
        self._body.append(f'<circle cx="{x}" cy="{y}" r="15" class="{kind} {edge}"/>')
        self._lines(x, y, (number,), "ink")

    def arrow(self, *points: tuple[float, float], dashed: bool = False, both: bool = False) -> None:
        """A line through the points, with a tip at its end."""
        way = "L".join(f"{x} {y}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        extra = " dashed" if dashed else ""
        self._body.append(f'<path d="M{way}" class="gone line{extra}" marker-end="url(#tip)"{start}/>')

    def text(
        self, x: float, y: float, words: str, *, kind: str = "quiet", anchor: str = "start", size: int = 12
    ) -> None:
        """A line of text. `kind`: ink, quiet, good, bad. Raises ValueError if it would be cut off in a wide font."""
        wide = len(words) * size * LETTER
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * wide
        if left < 4 or left + wide > self._width - 4 or y > self._height - 6:
            raise ValueError(f"{words!r} leaves the picture")
        self._body.append(
            f'<text x="{x}" y="{y}" class="{kind}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def cross(self, x: float, y: float) -> None:
        """Something failed here."""
        self._body.append(f'<path d="M{x - 6} {y - 6}l12 12m0 -12l-12 12" class="gone fault"/>')

    def _lines(self, x: float, y: float, lines: tuple[str, ...], kind: str, room: float = 0) -> None:
        for place, line in enumerate(lines):
            if room and len(line) * 12 * LETTER > room - 6:
                raise ValueError(f"{line!r} leaves its box")
            at = y + 4 + (place - (len(lines) - 1) / 2) * 16
            self.text(x, at, line, kind=kind if place == 0 or kind == "quiet" else "quiet", anchor="middle")

    def svg(self) -> str:
        """The file."""
        light = "".join(f".{name}{{{key}:{value}}}" for name, (key, value, _) in COLOURS.items())
        dark = "".join(f".{name}{{{key}:{value}}}" for name, (key, _, value) in COLOURS.items())
        style = (
            f"{light}.dashed{{stroke-dasharray:4 3}}.fault{{stroke:#d92d20;stroke-width:2.5}}"
            f"@media (prefers-color-scheme:dark){{{dark}}}"
        )
        width, height = self._width, self._height
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(self._told)}" font-family="{FONT}">\n<style>{style}</style>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>\n'
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" class="back frame"/>\n'
            + "\n".join(self._body)
            + "\n</svg>\n"
        )
