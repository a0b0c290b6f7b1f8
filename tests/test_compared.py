"""The comparison with others shows each Y by a test or a command, and says why where there is none."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "compared.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if re.match(r"\| \d", line)]


def test_every_feature_has_an_answer():
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 37)]
    assert {len(row) for row in ROWS} == {10}
    assert {row[2] for row in ROWS} <= {"Y", "P", "N"}


def test_a_yes_is_shown_and_the_rest_explained():
    """By a test, by a command, or, of one that only trains, by its option."""
    for number, _, answer, shown, *_ in ROWS:
        proof = re.search(r"`tests/\S+\.py::test_\w+`|`everstep |`--\w|everstep tune|by the trackers", shown)
        assert proof if answer == "Y" else len(shown) > 20, f"row {number}: {shown}"


def test_tests_that_are_named_exist():
    named = re.findall(r"`(tests/[^`:]+)(?:::(\w+))?`", TEXT)
    assert len(named) > 30
    for path, name in named:
        assert re.search(rf"^\s*def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), f"{path}::{name}"
