"""Tasks: what is learned. `Task` is the base; `CompiledTask` and `ClassificationTask` are ready-made."""
