"""Configuration: typed dataclasses, and the values that files, flags and overrides put into them.

A configuration is a `Config` dataclass. `compose` puts layers of values over its defaults; every value knows the file,
line or override that it came from, so that an error can name it. Registries find tasks and experiments.

base.py           `Config` and `OneOfConfig`: typed fields, merging, rules; misspelt keys, what was meant
annotations.py    from the annotation of a field to a strict check of its value
registry.py       tasks by their config class, experiments by their name
files.py          YAML, JSON and TOML, with the line of each key
dialect.py        the YAML that is read and written; how a value is typed, in overrides, too: 1e-3, off
overrides.py      `a.b=1`, `+new=2`, `~old` on a command line
layers.py         values from one place, which know where each is from
sources.py        all that one request names, as layers
groups.py         Hydra's groups and defaults lists: `--config-dir`, `task/model=large`; not of flows
interpolation.py  `${trainer.train_steps}`, `${oc.env:HOME}`, `${secret:NAME}`
compose.py        layers over defaults, later ones winning
key_paths.py      paths such as `task.layers[0].units`
difference.py     what differs between two configurations
nested_dicts.py   leaves of dicts in dicts
instantiation.py  objects from plain values, in Hydra's spelling
allowed.py        which code a name in a configuration may reach
schema.py         a JSON Schema, for editors
bindings.py       values in another language, such as gin's
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.config import (
        allowed,
        dialect,
    )
    from everstep.config.allowed import (
        Allowed,
        allows_pickle,
        resolve,
        trusted_packages,
    )
    from everstep.config.annotations import field_types
    from everstep.config.base import (
        Config,
        Declined,
        OneOfConfig,
        at_default,
        field_names,
        keys_like,
        unknown_key,
        walk_configs,
    )
    from everstep.config.bindings import (
        Bindings,
        configurable,
        operative_config,
        read_bindings,
    )
    from everstep.config.compose import (
        apply,
        apply_layers,
        merge_trees,
        refuse_rivals,
        resolve_layers,
        validate,
    )
    from everstep.config.difference import (
        ABSENT,
        Change,
        differences,
        in_line,
        tree_differences,
    )
    from everstep.config.files import load_file
    from everstep.config.instantiation import instantiate
    from everstep.config.key_paths import (
        all_paths,
        child,
        find_key,
        is_below,
        leaves,
        split_path,
    )
    from everstep.config.layers import (
        Layer,
        last_setter,
        mistyped_keys,
        nested,
        origin_of,
        walk,
    )
    from everstep.config.nested_dicts import (
        cast_leaf_nested_dict,
        get_leaf_nested_dict,
    )
    from everstep.config.overrides import (
        parse_override,
        split_pairs,
    )
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
    from everstep.config.schema import json_schema
    from everstep.config.sources import (
        HEADER,
        read_sources,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
