"""Configuration: typed dataclasses, and the values that files, flags and overrides put into them.

A configuration is a `Config` dataclass. `compose` puts layers of values over its defaults; every value knows the file,
line or override that it came from, so that an error can name it. Registries find tasks and experiments.

base.py           `Config` and `OneOfConfig`: typed fields, merging (lists are replaced), rules, `_may_change`,
                  `_declined`; misspelt keys, "did you mean"; types are checked in `annotations.py`
annotations.py    the type of a field: refuses "12" for an int, 0.5 for an int, values out of bounds; the text `1e-3`
                  is read in `dialect.py`
registry.py       tasks by their config class, experiments by their name; "no experiment …", registered twice;
                  experiments of installed packages
files.py          config files: YAML, JSON and TOML by suffix; does not exist, not UTF-8, a key twice; the line of
                  each key for errors
dialect.py        how plain text becomes a value, in files and overrides: `1e-3`, `null`, `off`, `010`, `inf`; how
                  YAML is written
overrides.py      `a.b=1`, `+new=2`, `~old` on a command line and in `--params-override`: commas, brackets,
                  quotes, a file's name; "expected key=value"
layers.py         values from one place, which know file and line; keys that are nearly a known one in an open section
sources.py        all that one request names, in order: files, groups, overrides; `imports` and `experiment` in a
                  stored file; refuses redacted values
groups.py         Hydra's groups and defaults lists: `--config-dir`, `task/model=large`; not of flows
interpolation.py  `${trainer.train_steps}`, `${oc.env:HOME}`, `${secret:NAME}`: when they are resolved, variables that
                  are not set
compose.py        layers over defaults: which value wins; refuses overrides of both `epochs` and `train_steps`; keys
                  that an experiment does not have
key_paths.py      paths such as `task.layers[0].units`
difference.py     what differs between two configurations or trees, key by key. Which of it may differ on a resume:
                  `run/resume_checks.py`; the report compares texts itself, in `report/run_data.py`
nested_dicts.py   leaves of dicts in dicts, by Model Garden's names
instantiation.py  `_target_`: objects from plain values, in Hydra's spelling; what it refuses to call is decided in
                  `allowed.py`
allowed.py        the import allowlist: which classes and functions a configuration may name; `[tool.everstep] allow`
                  and `allow-pickle` in `pyproject.toml`; "is refused"
schema.py         `everstep config --schema`: a JSON Schema for editors
bindings.py       gin and other languages of values: finds what reads them; gin itself is in `model_garden/gin/`
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
