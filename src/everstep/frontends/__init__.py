"""The entry points: one package for each interface that users bring from another system, all on the same loop.

catalog/         data by name, for flows and programs
compiled.py      trains a compiled Keras model; fit, Training, components and flow call it
components/      `Orchestrator`: data loader, preprocessor, model builder and evaluator of a project
fit/             `everstep.fit`
flow/            `FlowTask`, and `everstep flow`
layouts.py       what each entry point calls its files
mlflow.py        the run on MLflow, for components and flows
templates/       the projects that `everstep new` writes
training/        `everstep.Training`
verbosity.py     what `verbose` means
"""
