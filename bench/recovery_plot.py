"""Draws the timelines of ./dev bench recovery as SVG, without any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PANEL, LEFT, RIGHT, GAP = 900, 92, 150, 16, 34
INK, SOFT, FAULT, OK = "#1f2430", "#8b93a5", "#f6c7c0", "#2a6f97"


@dataclass
class Timeline:
    """Completed requests of the sessions that a fault hits; seconds from the picture's left."""

    title: str
    completed: Sequence[float]
    outages: Sequence[tuple[float, float]]
    length: float


def _panel(timeline: Timeline, top: int) -> list[str]:
    bins = 300
    counts = [0] * bins
    for at in timeline.completed:
        if 0 <= at < timeline.length:
            counts[int(at / timeline.length * bins)] += 1
    # A burst of parked requests would flatten everything else.
    usual = sorted(c for c in counts if c)
    ceiling = max(1.0, 1.6 * usual[len(usual) // 2]) if usual else 1.0
    inner = WIDTH - LEFT - RIGHT
    scale = inner / timeline.length
    floor = top + PANEL

    parts = [f'<text x="{LEFT - 10}" y="{top + PANEL / 2 + 4}" text-anchor="end" '
             f'font-size="12" fill="{INK}">{escape(timeline.title)}</text>']
    for start, end in timeline.outages:
        parts.append(f'<rect x="{LEFT + start * scale:.1f}" y="{top}" '
                     f'width="{max(1.0, (end - start) * scale):.1f}" height="{PANEL}" '
                     f'fill="{FAULT}"/>')
    points = [f"{LEFT},{floor}"]
    before = -1.0
    for i, count in enumerate(counts):
        height = round(min(1.0, count / ceiling) * (PANEL - 6), 1)
        if height != before:
            edge = f"{LEFT + i * inner / bins:.1f}"
            points += [f"{edge},{floor - max(0.0, before):.1f}",
                       f"{edge},{floor - height:.1f}"]
            before = height
    points += [f"{LEFT + inner},{floor - before:.1f}", f"{LEFT + inner},{floor}"]
    parts.append(f'<polygon points="{" ".join(points)}" fill="{OK}" fill-opacity="0.85"/>')
    parts.append(f'<line x1="{LEFT}" y1="{floor}" x2="{LEFT + inner}" y2="{floor}" '
                 f'stroke="{SOFT}"/>')
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200) if timeline.length / s <= 12)
    at = 0
    while at <= timeline.length:
        x = LEFT + at * scale
        parts.append(f'<text x="{x:.1f}" y="{floor + 14}" text-anchor="middle" font-size="10" '
                     f'fill="{SOFT}">{at} s</text>')
        at += step
    return parts


def draw(timelines: Sequence[Timeline]) -> str:
    """One panel per timeline: completed requests over time, the fault shaded."""
    height = 40 + len(timelines) * (PANEL + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'font-family="system-ui, sans-serif">',
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="20" font-size="12" fill="{SOFT}">completed requests of the '
             "sessions concerned over time; shaded: the fault. Bursts of parked requests are cut "
             "off.</text>"]
    for i, timeline in enumerate(timelines):
        parts += _panel(timeline, 32 + i * (PANEL + GAP))
    return "\n".join([*parts, "</svg>", ""])
