"""Writes what the pages say about the cases, from the results that are kept.

`docs/reference/fit.md` has the counts and the sums, `docs/reference/fit-cases.md` a row for each case.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tools.fit_cases.results import (
    BOTH,
    CLOSE,
    FAILED,
    FIT,
    KEPT,
    OTHER,
    OURS,
    REFUSED,
    ROOT,
    SAME,
    Row,
    read_all,
    told,
)

SUMMARY, TABLE = ROOT / "docs" / "reference" / "fit.md", ROOT / "docs" / "reference" / "fit-cases.md"
BEGIN, END = "<!-- fit cases: begin -->", "<!-- fit cases: end -->"

SHOWN = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}

OTHERS = (OTHER, REFUSED, FAILED)
COUNTED = {"the same bits": (SAME,), "close": (CLOSE,), "rejected by both": (BOTH,), "other results": OTHERS}

NOTHING = "No results are kept yet."

Found = dict[str, Any]
"""The results of a backend, as `results.run` returns them."""


def write() -> None:
    """Writes both pages."""
    found = read_all()
    for page, text in ((SUMMARY, summary(found)), (TABLE, table(found))):
        page.write_text(with_generated(page.read_text("utf-8"), text), "utf-8")


def with_generated(page: str, text: str) -> str:
    """Returns a page with other text between its markers."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


# -- the summary -------------------------------------------------------------------------------------------------------


def summary(found: Sequence[Found]) -> str:
    """Returns the counts and the seconds of each backend as a table."""
    if not found:
        return NOTHING
    lines = ["| | " + " | ".join(SHOWN[one["backend"]] for one in found) + " |", "|---" * (len(found) + 1) + "|"]
    lines += [f"| cases | {_cells(str(len(one['cases'])) for one in found)} |"]
    for title, wanted in COUNTED.items():
        counts = [sum(worst(row) in wanted for row in one["cases"]) for one in found]
        lines += [f"| {title} | {_cells(map(str, counts))} |"]
    lines += [f"| the largest difference of a close one | {_cells(f'{_largest(one):.0e}' for one in found)} |"]
    for contender in (FIT, OURS, KEPT):
        lines += [f"| seconds of all calls, `{contender}` | {_cells(f'{_sum(one, contender):.0f}' for one in found)} |"]
    for contender in (OURS, KEPT):
        medians = (f"{_median(one, contender):.2f}" for one in found)
        lines += [f"| median of the ratios, `{contender}` | {_cells(medians)} |"]
    lines += ["", "Other results, by the row above that explains them:", "", "| row | cases |", "|---|---|"]
    return "\n".join([*lines, *_reasons(found)])


def worst(row: Row) -> str:
    """Returns the worse one of the results without and with `model_dir`."""
    order = (SAME, BOTH, CLOSE, OTHER, REFUSED, FAILED)
    return max((str(row[contender]["result"]) for contender in (OURS, KEPT)), key=order.index)


def _reasons(found: Sequence[Found]) -> Iterator[str]:
    reasons: dict[str, Counter[str]] = {}
    for one in found:
        for row in one["cases"]:
            if worst(row) in OTHERS:
                names = reasons.setdefault(row["differs"] or "not explained", Counter())
                names[f"{row['group']}: {row['name']} ({SHOWN[one['backend']]})"] += 1
    for reason, names in reasons.items():
        yield f"| {reason} | {'; '.join(names)} |"


def _times(one: Found, contender: str) -> list[tuple[float, float]]:
    """Returns the seconds of `model.fit` and of ours, of cases that both have trained."""
    pairs = ((row["seconds"].get(FIT), row["seconds"].get(contender)) for row in one["cases"])
    return [(theirs, ours) for theirs, ours in pairs if theirs is not None and ours is not None]


def _sum(one: Found, contender: str) -> float:
    return sum(ours for _, ours in _times(one, contender))


def _median(one: Found, contender: str) -> float:
    ratios = sorted(ours / theirs for theirs, ours in _times(one, contender))
    return ratios[len(ratios) // 2] if ratios else float("nan")


def _largest(one: Found) -> float:
    ends = [row[contender] for row in one["cases"] for contender in (OURS, KEPT)]
    return max((max(end["logs"], end["weights"]) for end in ends if end["result"] == CLOSE), default=0.0)


def _cells(values: Any) -> str:
    return " | ".join(values)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: Sequence[Found]) -> str:
    """Returns a table for each group: results and seconds of each case on each backend."""
    if not found:
        return NOTHING
    machines = {f"{one['date']}; {_machine(one)}" for one in found}
    lines = [*sorted(machines), ""]
    groups = dict.fromkeys(row["group"] for one in found for row in one["cases"])
    for group in groups:
        by_backend = [{row["name"]: row for row in one["cases"] if row["group"] == group} for one in found]
        lines += [f"## {group.capitalize()}", ""]
        lines += ["| | " + " | ".join(SHOWN[one["backend"]] for one in found) + " |", "|---" * (len(found) + 1) + "|"]
        for name in dict.fromkeys(name for rows in by_backend for name in rows):
            lines += [f"| {name} | {_cells(_cell(rows.get(name)) for rows in by_backend)} |"]
        lines += [""]
    return "\n".join(lines).rstrip()


def _machine(one: Found) -> str:
    machine, versions = one["machine"], one["versions"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("keras", one["backend"]) if name in versions)
    return f"{machine['cores']} cores of {machine['processor']}, load {machine['load']}; {packages}."


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    ends = " / ".join(dict.fromkeys(told(row[contender]) for contender in (OURS, KEPT)))
    reason = f": {row['differs']}" if row["differs"] and worst(row) in OTHERS else ""
    seconds = " / ".join(_seconds(row["seconds"].get(contender)) for contender in (FIT, OURS, KEPT))
    return f"{ends}{reason}<br>{seconds}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
