"""The report: one HTML file with a run's curves, metrics and worst samples, and its differences to other runs.

    import everstep.report
    path = everstep.report.write(["runs/first"])                  # runs/first/reports/report.html
    path = everstep.report.write(["runs/first", "runs/second"])   # side by side

The file is self-contained: it can be mailed, archived, and opened without a network. This package prepares the numbers
over all rows; the scripts in `page/` draw them.

html_page.py           the page, with style, script and data inside; the pictures are drawn in `page/*.js`: how many
                       classes the confusion matrix shows in `page/confusion.js`
run_data.py            a run directory, read for the report: configuration (secrets hidden), curves (at most 1200
                       points), facts, headline; its status (of `runs list`: `run/listing.py`)
config_differences.py  which settings of several runs differ, key by key; of a layer, argument by argument
split_data.py          the evaluation on one split: which rows the table shows (20000, the worst first), classes,
                       residuals, slices (10 bins with about equally many rows)
side_by_side.py        several runs, for the page and `everstep runs compare`: code, machine, data and metrics that
                       differ, the best of each, the picture of curves
sample_comparison.py   two runs sample by sample, joined by id: the 60 largest changes
runs_folder.py         the runs of a folder, as the live page shows them; how often they are read again
notebook_views.py      what a notebook shows of a History, a run, a comparison; the report in a frame
server.py              the live page of runs (`everstep ui`): what it answers, and to whom; drawn by `page/runs*.js`
numbers.py             numbers for JSON and for readers: digits, NaN
card/                  the model card
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
    from everstep.report.notebook_views import (
        history_html,
        run_html,
        show_report,
    )
    from everstep.report.runs_folder import RunsFolder
    from everstep.report.server import RunsServer

__getattr__, __dir__ = lazy_names(__name__, __file__)
