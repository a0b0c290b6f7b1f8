"""What people look at after an evaluation: the report, and the model card.

Both are made of files that are there by then. Where one cannot be made (the disk is full, say), that is said and the
run goes on: nothing that was found is lost, and `everstep report` or another evaluation makes it again.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from everstep import report
from everstep.components.config_struct import ConfigStruct
from everstep.components.run_folder import RunFolder
from everstep.components.tracking import Tracking
from everstep.report.card import write_card

logger = logging.getLogger(__name__)

_ROWS = ("validation_report.csv", "eval_report.csv", "eval_report_summary.csv")


def write_pages(folder: RunFolder, config: ConfigStruct, tracking: Tracking) -> None:
    """Writes `reports/report.html` and the model card, and has MLflow keep them with the rows.

    Args:
      folder: The run's folder, with a complete evaluation.
      config: The configuration, which describes the model.
      tracking: Where files are kept.
    """
    page = folder.reports / "report.html"
    written = _made("the report", page, lambda: [report.write(folder.path)])
    written += _made("the model card", None, lambda: write_card(folder.path, config.as_dict()))
    rows = [folder.path / name for name in _ROWS if (folder.path / name).is_file()]
    tracking.files([*written, *rows])


def _made(what: str, old: Path | None, make: Callable[[], list[Path]]) -> list[Path]:
    """Returns what was written; nothing, and no older one, where that failed."""
    try:
        return make()
    except Exception as error:  # whatever it is, the evaluation is complete
        reason = " ".join(str(error).split()) or type(error).__name__
        logger.warning("%s could not be written (%s); the evaluation is complete: evaluate again for it", what, reason)
        logger.debug("%s could not be written", what, exc_info=True)
        if old is not None:
            old.unlink(missing_ok=True)
        return []
