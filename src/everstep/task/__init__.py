"""Tasks: what is learned. `Task` is the base class; `CompiledTask` and `ClassificationTask` are ready-made."""
