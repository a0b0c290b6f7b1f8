"""Gin bindings, for fields of configs and for gin's configurables; what code calls."""

from everstep.config.gin.bindings import configurable, parse_config_files_and_bindings

__all__ = ["configurable", "parse_config_files_and_bindings"]
