"""Serve: a trained model in a form that others load.

One file per format. Each export is written under another name, loaded back and compared with the live model
before it takes its own: a file that is there is a file that works.

The names below are loaded when first used: commands import parts of this package before the backend is chosen.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.export.checkpoint_exports import CheckpointExports as CheckpointExports
    from everstep.export.serving import ExportModule as ExportModule
    from everstep.export.serving import export as export
    from everstep.export.torch_program import export_torch_program as export_torch_program

_WHERE = {
    "CheckpointExports": "checkpoint_exports",
    "ExportModule": "serving",
    "export": "serving",
    "export_torch_program": "torch_program",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'everstep.export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
