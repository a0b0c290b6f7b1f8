"""The model card: a model's purpose, users, metrics, training, and how to load it.

    write_card("runs/baseline", config)

README.md                         for readers of the run's folder, with the histograms below
model-card/histograms/*.svg       the distributions of the metrics
model-card/model_card.html        the same as one self-contained file

The same run gives the same bytes.

content.py  what the card says: sections, metrics, how to load the model
files.py    the card as Markdown and HTML, histograms; a README.md that is not everstep's is kept
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.report.card.files import write_card

__getattr__, __dir__ = lazy_names(__name__, __file__)
