"""Gin bindings, read without running anything; see `bindings`."""
