"""`everstep generate`."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import completion, options, run_models
from everstep.cli.command import new_app
from everstep.errors import UsageError
from everstep.trained import local_run, opened

app = new_app()

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, or a run's id.", autocompletion=completion.runs)
]
Prompt = Annotated[
    list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A text to continue; repeatable.")
]
Prompts = Annotated[
    str | None, typer.Option("--prompts", metavar="FILE", help="A text file with a prompt per line; - for stdin.")
]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Tokens to write at most.")]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="0 takes the most likely token, 1 draws by probability.")
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Draw only from the K most likely tokens.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="What is drawn.")]


@app.command(epilog="Example: everstep generate runs/text-tiny-5f2c7a90b1 --prompt 27+95=")
def generate(
    run: Run,
    prompt: Prompt = None,
    prompts: Prompts = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    seed: Seed = None,
    checkpoint: options.Checkpoint = None,
    json: options.Json = False,
    backend: options.Backend = None,
    imports: options.Imports = None,
) -> None:
    """Let a trained language model continue texts.

    What is not given is as configured for the run: task.generation. A prompt and the text that follows it are printed
    together; with --json one object per prompt.
    """
    asked = [*(prompt or ()), *_read_lines(prompts)]
    if not asked:
        raise UsageError("no text to continue", key="--prompt", remedy="add --prompt TEXT, or --prompts FILE")
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    with opened(local_run(run, checkpoint)) as found:
        if found.directory is None:
            raise UsageError("is not a run directory", key="RUN", received=run, remedy="name a run of a language model")
        run_models.choose_backend_of(found, backend)
        params = run_models.experiment_of(found.directory, imports).params
        task, model = run_models.trained_task(found.directory, checkpoint, params)
        if not getattr(task, "generates", False):
            raise UsageError(
                f"is a run of {type(task).__name__}, which writes no text",
                key="RUN",
                received=run,
                remedy="name a run of a language model",
            )
        config = task.generation.replace(**{name: value for name, value in given.items() if value is not None})
        config.validate()
        texts = task.generate(model, asked, config)
    for text, written in zip(asked, texts, strict=True):
        print(dumps({"prompt": text, "text": written}, ensure_ascii=False) if json else f"{text}{written}")


def _read_lines(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", key="--prompts", received=path) from error
    return [line for line in text.splitlines() if line.strip()]
