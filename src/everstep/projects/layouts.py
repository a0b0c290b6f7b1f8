"""The layout of every entry point's runs: what each calls its files, in one table.

`run_experiment` and `fit` add nothing to the run directory of the core (docs/reference/run-directory.md).
"""

from everstep.run import RunLayout, register_layout

TRAINING: RunLayout = register_layout(
    RunLayout(
        "training",
        before_record=("logs",),
        progress=("job_meta.json", "epochs/"),
    )
)
"""`Training`: a job, whose directory is a run directory."""

COMPONENTS: RunLayout = register_layout(
    RunLayout(
        "components",
        training="training",
        before_record=("logs", "run_id.txt"),
        export_config="exported/config.yaml",
        export_record="exported/export.json",
        models=("exported/savedmodel",),
        programs=("exported/model.pt2",),
        results="reports/metrics.json",
        described={
            "reports/report.html": "The report: curves, errors, the worst samples",
            "validation_report.csv": "Validation, sample by sample",
            "eval_report.csv": "Test, sample by sample",
            "eval_report_summary.csv": "Test, summarised",
            "exported/config.yaml": "The configuration that it was trained with",
        },
        parts=(
            *("run.json", "training", "checkpoints", "best", "history.csv", "train", "validation", "logs"),
            *("exported", "reports", "model-card", "spool", "submissions", "run_id.txt"),
            *("validation_report.csv", "eval_report.csv", "eval_report_summary.csv"),
            *(".lock", ".lock.json", ".heartbeat"),
        ),
    )
)
"""`Orchestrator`: a folder `runs/<name>` of a project, with the user's config file in it."""

FLOW: RunLayout = register_layout(
    RunLayout(
        "flow",
        settings="flow.yaml",
        logged="logged.jsonl",
    )
)
"""`FlowTask`: a run directory, in the project's `runs/` or elsewhere."""
