"""Draw `results.json` as `docs/performance.svg`, and write tables of the results into pages of the documentation.

The picture plots time against size for devicecore and Kubernetes, with one panel for each row.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TARGET = DOCS / "performance.svg"
OF_USERS = ("admit", "admit_after_a_pod_has_gone", "hints", "admit_over_grpc", "first_list_over_grpc")
"""The rows that may appear in `docs/performance.md`."""
TITLES = {
    "admit": "admit one more pod",
    "admit_after_a_pod_has_gone": "admit one more after a pod has gone",
    "admit_with_hints": "admit with hints, 2 NUMA nodes",
    "hints": "hints alone",
    "encode_from_scratch": "encode from scratch",
    "decode_and_verify": "decode and verify",
    "admit_over_grpc": "admit over gRPC",
    "first_list_over_grpc": "first list after a restart, over gRPC",
    "list_over_grpc": "changed list over gRPC",
}
COLUMNS = 3
WIDTH, HEIGHT, LEFT, TOP = 270, 210, 46, 34
ACROSS, DOWN = 190, 130  # the size of the plot area in a panel
DECADES = (-2, 4)  # the range of times shown: powers of ten, in milliseconds
COLORS = {"devicecore": "#0b6", "Kubernetes": "#777"}


def place(size: int, milliseconds: float) -> tuple[float, float]:
    """Return the position of a time in a panel; both axes are logarithmic."""
    low, high = DECADES
    right = (log10(size) - 1) / (log10(5000) - 1) * ACROSS
    return LEFT + right, TOP + DOWN - (log10(milliseconds) - low) / (high - low) * DOWN


def line(points: list[tuple[float, float]], color: str) -> list[str]:
    """Return the SVG elements of a line through the points, with a dot at each point."""
    drawn = [
        f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{color}" stroke-width="2"/>'
        for (a, b), (c, d) in pairwise(points)
    ]
    return drawn + [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]


def panel(title: str, curves: dict[str, dict[int, float]]) -> list[str]:
    """Return the SVG elements of the panel for one row of the table."""
    drawn = [f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{title}</text>']
    for decade in range(DECADES[0], DECADES[1] + 1):
        _, y = place(10, 10**decade)
        drawn.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + ACROSS}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{10**decade:g}</text>')
    for size in (10, 100, 1000, 5000):
        x, _ = place(size, 1)
        drawn.append(f'<text x="{x:.1f}" y="{TOP + DOWN + 16}" text-anchor="middle">{size:,}</text>')
    for name, curve in curves.items():
        drawn += line([place(size, time) for size, time in curve.items()], COLORS[name])
    return drawn


def table(figures: list[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    """Return the Markdown table of the rows that are measured at several sizes."""
    titles = {
        **TITLES,
        "bare_call_over_grpc": "bare call over gRPC",
        "call_over_grpc": "call through the transport",
        "bare_write": "bare write, fsync, rename",
    }
    sizes = [figure["size"] for figure in figures if figure["row"] == "admit"]
    lines = ["| pods / devices | " + " | ".join(f"{pods:,} / {devices:,}" for pods, devices in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for row, title in titles.items():
        cells = [cell(figure) for figure in figures if figure["row"] == row]
        if any(cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds < 1 else f"{milliseconds:.3g}"


def _beside_kubernetes(figure: dict[str, Any]) -> str:
    theirs, ratio = figure["kubernetes_ms"], figure["times_faster"]
    if theirs is None:
        return _time(figure["median_ms"])
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"
    return f"{_time(figure['median_ms'])} / {_time(theirs)} ({times} x)"


def _times_faster(figure: dict[str, Any]) -> str:
    ratio = figure["times_faster"] or 0
    return (f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}") * (figure["row"] in OF_USERS)


def _put(page: Path, name: str, text: str) -> None:
    """Write a table into a page, at the comment with this name."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- table of benchmarks/plot.py: {name} -->\n")
    _, end, after = rest.partition("<!-- end of the table -->")
    assert end, f"{page} has no comment for a table called {name}"
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Draw the picture and write the tables."""
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    machine = f"{results['cores']} cores of an {results['cpu']}"
    python = f"Python {results['python']}, {machine}, Kubernetes {results['kubernetes']}"
    medians, ratios = table(results["figures"], _beside_kubernetes), table(results["figures"], _times_faster)
    memory = f"5,000 pods and 50,000 devices need {results['memory_mb'] or 0:.0f} MB"
    _put(DOCS / "maintain" / "measurements.md", "medians", f"{medians}\n\n{python}. {memory}.")
    _put(DOCS / "performance.md", "ratios", f"{ratios}\n\n{python}.")
    drawn = []
    for number, (row, title) in enumerate(TITLES.items()):
        figures = [figure for figure in results["figures"] if figure["row"] == row]
        curves = {
            "Kubernetes": {figure["size"][0]: figure["kubernetes_ms"] for figure in figures},
            "devicecore": {figure["size"][0]: figure["median_ms"] for figure in figures},
        }
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT + 24
        drawn += [f'<g transform="translate({x} {y})">', *panel(title, curves), "</g>"]
    legend = f"milliseconds against pods (ten devices each), both logarithmic; Kubernetes {results['kubernetes']}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {3 * HEIGHT + 30}" font-size="11" '
    key = "".join(
        f'<text x="{560 + 90 * n}" y="20" fill="{color}" font-weight="bold">{name}</text>'
        for n, (name, color) in enumerate(COLORS.items())
    )
    background = '<rect width="100%" height="100%" fill="white"/>'
    parts = [head + 'font-family="sans-serif">', background, f'<text x="{LEFT}" y="20">{legend}</text>', key]
    TARGET.write_text("\n".join([*parts, *drawn, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
