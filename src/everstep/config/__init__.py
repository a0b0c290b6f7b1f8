"""Configuration: typed dataclasses, files and overrides composed over them, and the registries."""

from everstep.config.base import Config, OneOfConfig
from everstep.config.compose import apply, apply_layers
from everstep.config.files import load_file
from everstep.config.instantiate import instantiate
from everstep.config.layers import Layer
from everstep.config.nested_dicts import cast_leaf_nested_dict, get_leaf_nested_dict
from everstep.config.overrides import parse_override
from everstep.config.registry import (
    bind,
    experiments,
    get_exp_config,
    get_task,
    load_entry_points,
    lookup,
    register,
    register_experiment,
    register_task,
)

__all__ = [
    "Config",
    "Layer",
    "OneOfConfig",
    "apply",
    "apply_layers",
    "bind",
    "cast_leaf_nested_dict",
    "experiments",
    "get_exp_config",
    "get_leaf_nested_dict",
    "get_task",
    "instantiate",
    "load_entry_points",
    "load_file",
    "lookup",
    "parse_override",
    "register",
    "register_experiment",
    "register_task",
]
