"""The report: one HTML file with a run's curves, metrics and worst samples, and its differences to other runs.

    import everstep.report
    path = everstep.report.write(["runs/first"])                  # runs/first/reports/report.html
    path = everstep.report.write(["runs/first", "runs/second"])   # side by side

The file is self-contained: it can be mailed, archived, and opened without a network. This package prepares the numbers
over all rows; the scripts in `page/` draw them.

html_page.py          the page, with style, script and data inside
run_data.py           a run directory, read for the report
split_data.py         the evaluation of a run on one split: table, classes, residuals, slices
side_by_side.py       several runs: what differs, and a plot of their curves
sample_comparison.py  two runs, sample by sample
numbers.py            numbers for JSON and for readers
card/                 the model card
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.report import side_by_side
    from everstep.report.card import write_card
    from everstep.report.html_page import (
        as_json,
        page_file,
        policy,
        write,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
