"""Draws ./dev bench tcp|local as SVG, without any library: GB/s over the page size."""

from __future__ import annotations

from html import escape
from math import log2
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 56, 150, 40, 46
INK, SOFT, GRID = "#1f2430", "#6b7280", "#e5e7eb"
COLOURS = {"raw": "#9aa3b2", "kvmend": "#2a6f97", "kvmend, Python": "#61a5c2",
           "raw, foreign": "#c9ced8", "kvmend, foreign": "#7b6fb0", "nixl": "#c8553d",
           "mooncake": "#d9a441"}


def _lines(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}

    def add(name: str, page: int, value: float | None) -> None:
        if value is not None:
            lines.setdefault(name, []).append((page, value))

    for row in rows:
        if row.get("threads") != 1 or "peer_engines" in row or "memory" not in row:
            continue
        page, foreign = row["page_bytes"], row["memory"] == "foreign"
        add("raw, foreign" if foreign else "raw", page, row["raw_gbps"])
        add("kvmend, foreign" if foreign else "kvmend", page, row["gbps"])
        if not foreign:
            add("kvmend, Python", page, row.get("python_gbps"))
            for name, value in row.get("peers", {}).items():
                add(name, page, value)
    return lines


def draw(rows: list[dict[str, Any]]) -> str:
    """One line for each contestant; both axes from the data."""
    lines = _lines(rows)
    pages = sorted({page for line in lines.values() for page, _ in line})
    top = max(value for line in lines.values() for _, value in line) * 1.08
    step = next(s for s in (0.5, 1, 2, 5, 10) if top / s <= 9)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(page: int) -> float:
        return LEFT + inner_w * log2(page / pages[0]) / max(1.0, log2(pages[-1] / pages[0]))

    def y(value: float) -> float:
        return TOP + inner_h * (1 - value / top)

    transport = escape(str(rows[0]["transport"]))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="system-ui, sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
             f'<text x="{LEFT}" y="22" font-size="13" fill="{INK}">{transport}: GB/s of scattered '
             'pages between two processes, medians, in turns within one run</text>']
    at = 0.0
    while at <= top:
        parts.append(f'<line x1="{LEFT}" y1="{y(at):.1f}" x2="{LEFT + inner_w}" y2="{y(at):.1f}" '
                     f'stroke="{GRID}"/><text x="{LEFT - 8}" y="{y(at) + 4:.1f}" font-size="11" '
                     f'text-anchor="end" fill="{SOFT}">{at:g}</text>')
        at += step
    for page in pages:
        label = f"{page >> 20} MiB" if page >= 1 << 20 else f"{page >> 10} KiB"
        parts.append(f'<text x="{x(page):.1f}" y="{HEIGHT - BOTTOM + 18}" font-size="11" '
                     f'text-anchor="middle" fill="{SOFT}">{label}</text>')
    labels = sorted(((y(line[-1][1]), name) for name, line in lines.items()))
    placed = -100.0
    for wanted, name in labels:
        line, colour = lines[name], COLOURS.get(name, INK)
        points = " ".join(f"{x(page):.1f},{y(value):.1f}" for page, value in line)
        dash = ' stroke-dasharray="5 4"' if name.startswith("raw") else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" '
                     f'stroke-width="2"{dash}/>')
        parts += [f'<circle cx="{x(page):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
                  for page, value in line]
        placed = max(wanted, placed + 14)
        parts.append(f'<text x="{LEFT + inner_w + 10}" y="{placed + 4:.1f}" font-size="12" '
                     f'fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
