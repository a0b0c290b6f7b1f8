"""Who asks: one package for each interface that users bring from another system, all on the same loop."""
