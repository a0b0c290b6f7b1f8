"""The report: one HTML file with a run's curves, metrics and worst samples, and its differences to other runs.

    import everstep.evaluation.report
    path = everstep.evaluation.report.write(["runs/first"])                  # runs/first/reports/report.html
    path = everstep.evaluation.report.write(["runs/first", "runs/second"])   # side by side

The file is self-contained: it can be mailed, archived, and opened without a network. This package prepares the numbers
over all rows; the scripts in `page/` draw them.
"""

from everstep.evaluation.report.html_page import write

__all__ = ["write"]
