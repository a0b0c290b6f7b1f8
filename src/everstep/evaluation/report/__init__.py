"""The report: one HTML file that shows what a run learned, where it is bad, and how it differs from another.

    import everstep.evaluation.report
    path = everstep.evaluation.report.write(["runs/first"])                  # runs/first/reports/report.html
    path = everstep.evaluation.report.write(["runs/first", "runs/second"])   # side by side

The file holds everything it needs: it can be mailed, archived, and opened without a network. Python prepares the
numbers over all rows (this package); the page draws them (the files in `page/`).
"""

from everstep.evaluation.report.html_page import write

__all__ = ["write"]
