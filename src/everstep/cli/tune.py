"""`everstep tune`."""

from everstep.cli.commands import new_app
from everstep.cli.tune_batch_size import batch_size
from everstep.cli.tune_learning_rate import learning_rate

app = new_app(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep tune learning-rate mnist/mlp --backend jax",
)


@app.callback()
def tune() -> None:
    """Find a batch size or a learning rate; nothing is set."""


app.command("batch-size", epilog="Example: everstep tune batch-size mnist/cnn --max 4096 --memory 8")(batch_size)
app.command("learning-rate", epilog="Example: everstep tune learning-rate mnist/mlp --out rates.png")(learning_rate)
