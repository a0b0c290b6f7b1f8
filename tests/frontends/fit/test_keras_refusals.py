"""What of Keras's own tests may fail is on the page of `fit`, with the reason."""

from pathlib import Path

from tools.keras_tests.__main__ import BACKENDS, refusals, table

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "fit.md"


def test_the_page_has_the_list():
    """To be written anew: python -m tools.keras_tests --table."""
    assert f"<!-- keras tests: begin -->\n{table()}\n<!-- keras tests: end -->" in PAGE.read_text("utf-8")


def test_each_refusal_has_a_reason():
    for entry in refusals().values():
        assert set(entry) <= {"reason", "backends", "model_dir", "tests"}
        assert entry["reason"]
        assert entry["tests"]
        assert set(entry.get("backends", [])) <= set(BACKENDS)
