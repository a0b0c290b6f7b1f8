"""Writes the figures of docs/explanation/performance.md and scale.md from `benchmarks/results/*.json`.

`python -m benchmarks.report`: everything between two markers of a page is generated; tests check that pages and results
agree. With `--check` nothing is written, and the exit code is 1 where they differ.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks import scale_model
from benchmarks.bars import BARS
from benchmarks.results import OURS, Case, Results

ROOT = Path(__file__).parents[1]
PAGE, SCALE = ROOT / "docs" / "explanation" / "performance.md", ROOT / "docs" / "explanation" / "scale.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def generated(results: list[Results]) -> str:
    """Returns the figures as Markdown: a section for each suite and machine, then where we lose."""
    parts = [part for one in results for part in _section(one)]
    lost = [line for one in results for line in losses(one)]
    if any(case.peers for one in results for case in one.cases):
        parts += ["### Where others are faster", "", *(lost or ["In none of these cases."]), ""]
    return "\n".join(parts).rstrip("\n")


def losses(results: Results) -> Iterator[str]:
    """Yields a line for every peer that is faster than we are."""
    for case in results.cases:
        for peer in case.peers if OURS in case.values else ():
            if (ratio := case.ratio(peer)) < 1:
                yield f"- {results.suite}, {case.name}: {ratio:.2f} times {peer}"


def _section(results: Results) -> Iterator[str]:
    machine = results.machine
    where = machine.get("accelerator") or f"{machine.get('cores')} cores of {machine.get('processor')}"
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    yield f"### `{results.suite}`"
    yield ""
    yield f"{results.date}; {where}, load {machine.get('load')}; Python {machine.get('python')}, {versions}."
    if results.suite == "soak":
        yield from _memory(results.cases)
        return
    rounds = f"{results.rounds} rounds each" if results.rounds > 1 else "one round"
    compared = any(case.peers for case in results.cases)
    yield f"Medians of {rounds}{f'; in brackets the ratio of {OURS} to that peer' if compared else ''}."
    yield ""
    plain = [case for case in results.cases if not case.series]
    for unit in dict.fromkeys(case.unit for case in plain):
        yield from _table(results.suite, unit, [case for case in plain if case.unit == unit])
    curves = [case for case in results.cases if case.series]
    if curves:
        yield from _curves(curves)


def _table(suite: str, unit: str, cases: list[Case]) -> Iterator[str]:
    peers = list(dict.fromkeys(peer for case in cases for peer in case.peers))
    has_bars = any((suite, case.name) in BARS for case in cases)
    header = [unit, *peers, OURS, *(["at least"] if has_bars else [])]
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for case in cases:
        cells = [case.name]
        for peer in peers:
            cells.append(f"{_value(case, peer)} ({case.ratio(peer):.2f})" if peer in case.values else "–")
        cells.append(_value(case, OURS) if OURS in case.values else "–")
        if has_bars:
            bars = BARS.get((suite, case.name), {})
            cells.append(", ".join(f"{least} of {peer}" for peer, least in bars.items()) or "–")
        yield f"| {' | '.join(cells)} |"
    yield ""


def _curves(cases: list[Case]) -> Iterator[str]:
    sizes = sorted({case.x for case in cases if case.x is not None})
    yield f"| cost of {OURS} | {' | '.join(f'{size:,.0f}' for size in sizes)} | exponent of the last decade |"
    yield "|" + "---|" * (len(sizes) + 2)
    for series in dict.fromkeys(case.series for case in cases):
        points = {case.x: case for case in cases if case.series == series}
        found = [f"{_time(points[size])}" if size in points else "–" for size in sizes]
        exponent = next((str(case.notes["exponent"]) for case in points.values() if "exponent" in case.notes), "–")
        yield f"| {series} | {' | '.join(found)} | {exponent} |"
    yield ""


def _memory(cases: list[Case]) -> Iterator[str]:
    """Yields the memory of long runs: at the quarters of each, and how it grows in the second half."""
    yield "Resident memory of a process on the CPU, in MB."
    yield ""
    yield "| | minutes | steps | after a quarter | half | three quarters | at the end | growth a minute, second half |"
    yield "|" + "---|" * 8
    for case in cases:
        samples, notes = case.notes["samples"], case.notes
        quarters = [samples[min(len(samples) * part // 4, len(samples) - 1)][1] for part in (1, 2, 3, 4)]
        cells = [f"{samples[-1][0] / 60:.0f}", f"{notes['steps']:,}", *(f"{size:.0f}" for size in quarters)]
        yield f"| {case.name} | {' | '.join(cells)} | {notes['mb_per_minute']:.2f} |"
    yield ""
    yield "![Resident memory over the minutes of a run](../images/soak.svg)"
    yield ""


def _value(case: Case, contender: str) -> str:
    """Returns the median, with half the interquartile range."""
    median, half = case.median(contender), case.spread(contender) / 2
    return f"{_number(median)} ± {_number(half)}" if len(case.values[contender]) > 1 else _number(median)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def _time(case: Case) -> str:
    seconds = case.median(OURS) * (1e-6 if case.unit == "µs" else 1)
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    return ""


def page_with(figures: str, page: str) -> str:
    """Returns the page with other figures between its markers."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{figures}\n{END}{rest.split(END)[1]}"


def read_all(folder: Path = RESULTS) -> list[Results]:
    """Returns the results that are kept, in the order of their file names; those of the model have their own page."""
    return [Results.read(path) for path in sorted(folder.glob("*.json")) if path.name != scale_model.RESULTS.name]


def main() -> int:
    """Writes the pages, or checks them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    arguments = parser.parse_args()
    figures = {PAGE: generated(read_all()), SCALE: scale_model.generated(Results.read(scale_model.RESULTS))}
    differs = False
    for path, found in figures.items():
        page = path.read_text("utf-8")
        wanted = page_with(found, page)
        differs |= wanted != page
        if not arguments.check:
            path.write_text(wanted, "utf-8")
    return 1 if arguments.check and differs else 0


if __name__ == "__main__":
    raise SystemExit(main())
