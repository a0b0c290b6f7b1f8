"""The arguments and options that several commands share, each spelled and explained once."""

from typing import Annotated

import typer

Experiment = Annotated[str | None, typer.Argument(metavar="EXPERIMENT", help="A registered name: mnist/local.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values that win over all others: trainer.train_steps=100."),
]
ExperimentName = Annotated[
    str | None, typer.Option("--experiment", metavar="NAME", help="The experiment, as an option.")
]
ConfigFiles = Annotated[
    list[str] | None,
    typer.Option("--config-file", metavar="FILE", help="YAML, JSON or TOML with values; repeatable."),
]
ParamsOverride = Annotated[
    list[str] | None,
    typer.Option("--params-override", metavar="TEXT", help="Values: a.b=1,c=2 or {a: {b: 1}}; repeatable."),
]
Backend = Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Sets runtime.backend.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Sets runtime.seed.")]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module that registers experiments; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
