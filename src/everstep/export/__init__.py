"""Serve: a trained model in a form that others load.

One file per format. Each export is written under another name, loaded back and compared with the live model
before it takes its own: a file that is there is a file that works.
"""

from everstep.export.exporting import export
from everstep.export.module import ExportModule
from everstep.export.torch_program import export_torch_program
from everstep.export.with_checkpoints import CheckpointExports

__all__ = ["CheckpointExports", "ExportModule", "export", "export_torch_program"]
