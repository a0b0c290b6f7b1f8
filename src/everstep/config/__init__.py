"""Configuration: typed dataclasses, files and overrides composed over them, and the registries."""

from everstep.config.base import Config
from everstep.config.compose import apply, apply_layers
from everstep.config.files import load_file
from everstep.config.instantiate import instantiate
from everstep.config.layer import Layer
from everstep.config.one_of import OneOfConfig
from everstep.config.overrides import parse_override
from everstep.config.problem import ConfigError, Problem
from everstep.config.registry import (
    bind,
    experiments,
    get_exp_config,
    get_task,
    load_entry_points,
    register_experiment,
    register_task,
)

__all__ = [
    "Config",
    "ConfigError",
    "Layer",
    "OneOfConfig",
    "Problem",
    "apply",
    "apply_layers",
    "bind",
    "experiments",
    "get_exp_config",
    "get_task",
    "instantiate",
    "load_entry_points",
    "load_file",
    "parse_override",
    "register_experiment",
    "register_task",
]
