"""The model card: what a model is, for whom, how good it is, how it was trained, and how to load it.

    write_card("runs/baseline", config)

README.md                         for readers of the run's folder, with the histograms below
model-card/histograms/*.svg       how the metrics are distributed
model-card/model_card.html        the same as one file that needs nothing else

The same run gives the same bytes.
"""

from everstep.evaluation.report.card.files import write_card

__all__ = ["write_card"]
