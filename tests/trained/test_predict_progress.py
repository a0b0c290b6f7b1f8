"""Progress lines of long predictions, in a log file and on a terminal."""

import io

from everstep.trained.predicting import PredictProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def reported(out, total=400):
    seconds = iter([0.0, 1.0, 6.0, 7.0, 20.0])
    progress = PredictProgress(total, out, lambda: next(seconds))
    for _ in range(4):
        progress.add(100)
    progress.close()
    return out.getvalue()


def test_a_log_file_gets_a_line_every_few_seconds():
    assert reported(io.StringIO()).splitlines() == [
        "predicted 200 of 400 (50 %) rows, 33 rows/s",
        "predicted 400 of 400 (100 %) rows, 20 rows/s",
    ]
    assert reported(io.StringIO(), None).startswith("predicted 200 rows, ")


def test_a_terminal_shows_one_line_which_is_removed_at_the_end():
    text = reported(Terminal())
    assert "\n" not in text
    assert text.count("predicted ") == 4
    assert text.endswith("\r\x1b[K")


def test_a_closed_stream_is_ignored():
    out = io.StringIO()
    progress = PredictProgress(None, out, iter([0.0, 10.0]).__next__)
    out.close()
    progress.add(1)
    progress.close()
