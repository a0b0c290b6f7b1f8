"""The comparison with others shows each Y by a test or a command, and says why where there is none."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "explanation" / "compared.md").read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


OFFERED, _, BELOW = TEXT.partition("## Shown by")


def test_every_feature_has_an_answer():
    offered, shown = rows(OFFERED), rows(BELOW)
    assert [row[0] for row in offered] == [str(number) for number in range(1, 37)]
    assert {len(row) for row in offered} == {9}
    assert [[number, feature, answer.strip("*")] for number, feature, answer, *_ in offered] == [r[:3] for r in shown]
    assert {row[2] for row in shown} <= {"Y", "P", "N"}


def test_a_yes_is_shown_and_the_rest_explained():
    """By a test, by a command, or by an option."""
    for number, _, answer, shown in rows(BELOW):
        proof = re.search(r"`tests/\S+\.py::test_\w+`|`everstep |`--\w", shown)
        assert proof if answer == "Y" else len(shown) > 20, f"row {number}: {shown}"
