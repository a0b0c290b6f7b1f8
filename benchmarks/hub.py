"""KerasHub's GPT-2 with 124 M parameters in bfloat16: pretraining, and adapters on texts of many lengths, beside `fit`.

    python -m benchmarks.hub             # for one large GPU: about eight minutes
    python -m benchmarks.hub --small     # two cores: shows that all of it runs

`fit` trains the same model of the same preset with the same optimizer on the same texts. In pretraining every row is
full. The texts for adapters have lengths from 16 tokens to the whole context: `fit` pads each to the context, as
KerasHub's preprocessors do; ours packs them. Only tokens that count in the loss are counted. The contenders run
alternately in one process; then each runs alone in a process of its own, for the memory it needs.

The bars: ours is at least as fast as `fit`, and needs no more memory. The last line is JSON with all figures.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEED = 0


class Work:
    """One comparison: a preset, texts, and how a model is trained on them.

    Attributes:
      name: `pretraining` or `adapters`.
      small: Whether the model is tiny.
    """

    def __init__(self, name: str, small: bool, directory: Path) -> None:
        self.name, self.small, self.directory = name, small, directory
        self.context, self.batch = (64, 4) if small else (1024, 16)
        self.steps, self.rounds = (4, 2) if small else (20, 5)
        self.dtype = None if small else "bfloat16"

    @property
    def preset(self) -> Path:
        """The model's preset; written by `prepare`."""
        return self.directory / "preset"

    @property
    def texts(self) -> Path:
        """The texts; written by `prepare`."""
        return self.directory / f"{self.name}.jsonl"

    def prepare(self) -> None:
        """Writes the preset and the texts."""
        import numpy as np

        from everstep.testing.hub import tiny_causal_lm

        if not self.preset.is_dir():
            large = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072}
            sizes = {"max_sequence_length": self.context, **({} if self.small else large)}
            tiny_causal_lm(self.preset, vocabulary_size=512 if self.small else 50304, **sizes)
        random = np.random.default_rng(SEED)
        count = self.batch * (8 if self.small else 40)
        if self.name == "pretraining":
            lengths = np.full(count, self.context)
        else:
            lengths = np.clip(random.lognormal(np.log(self.context / 5), 0.8, 6 * count), 16, self.context).astype(int)
        letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ ", "uint8")  # a token each: the preset merges none of them
        with open(self.texts, "w", encoding="ascii") as file:
            for length in lengths.tolist():
                # One byte less than a row: the stream adds the end of a text.
                text = random.choice(letters, max(1, length - 1)).tobytes().decode("ascii")
                file.write(json.dumps({"text": text}) + "\n")

    def params(self, packing: bool) -> Any:
        """Returns the experiment."""
        import everstep
        import everstep.recipes.hub  # registers it, where Everstep is not installed

        data = {
            "input_path": str(self.texts),
            "global_batch_size": self.batch,
            "sequence_length": self.context,
            "packing": packing,
        }
        adapters = self.name == "adapters"
        task = {
            "preset": str(self.preset),
            "train_data": data,
            "lora": {"rank": 8} if adapters else None,
            "loss_chunk_tokens": 4096,  # a quarter of a batch: the logits of all its tokens would need 1.6 GB
        }
        params = everstep.get_exp_config("hub/causal_lm")
        params.override({"task": task, "runtime": {"mixed_precision_dtype": self.dtype, "deterministic": False}})
        params.override({"trainer": {"checkpoint_interval": 0}})
        if not self.small:
            params.override({"runtime": {"xla_preset": "transformer"}})
        return params

    @property
    def packs(self) -> bool:
        """Whether ours packs texts."""
        return self.name == "adapters"


class Fit:
    """Keras's `fit` of the same model, on padded rows."""

    def __init__(self, work: Work) -> None:
        import keras
        import numpy as np

        import everstep
        from everstep.data.source import make_stream
        from everstep.engine.mixed_precision import precision
        from everstep.task.optim.building import build as build_optimizer

        self._work = work
        params = work.params(packing=False)
        params.override({"task": {"train_data": {"drop_remainder": True, "repeat": False}}})
        self._task = everstep.get_task(params.task)
        self._precision = lambda: precision(work.dtype)
        keras.utils.set_random_seed(SEED)
        with self._precision():
            self._model = self._task.build_model()
        self._model.preprocessor = None  # the texts are tokenized already
        optimizer = build_optimizer(params.trainer.with_learning_rate_length().optimizer_config)
        self._model.compile(
            optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=[]
        )
        data = params.task.train_data
        batches = list(make_stream(self._task.inputs_for(data), data, training=True, seed=SEED))[: 2 * work.steps]
        keys = ("token_ids", "padding_mask")
        self._x = {key: np.concatenate([np.asarray(features[key]) for features, _ in batches]) for key in keys}
        labels = np.concatenate([labels for _, labels in batches])
        self._weight, self._y = (labels >= 0).astype("float32"), np.maximum(labels, 0)

    def run(self, steps: int) -> tuple[float, float]:
        """Returns the seconds of so many steps, and the tokens in them that count."""
        import keras
        import numpy as np

        rows = np.resize(np.arange(len(self._y)), steps * self._work.batch)
        x = {key: value[rows] for key, value in self._x.items()}
        y, weight = self._y[rows], self._weight[rows]
        with self._precision():
            begin = time.perf_counter()
            # Without the pipeline in which KerasHub would preprocess texts: arrays are faster.
            keras.Model.fit(
                self._model, x, y, sample_weight=weight, batch_size=self._work.batch, shuffle=False, verbose=0
            )
            return time.perf_counter() - begin, float(weight.sum())


def ours(work: Work, rounds: int, others: Any) -> list[float]:
    """Runs the experiment with everything on; between two rounds of its windows the others run.

    Returns:
      Tokens per second of each round.
    """
    import numpy as np

    import everstep
    from everstep.experiment import create_trainer, run_experiment
    from everstep.loop.trainer import Trainer

    window, warm = work.steps, 3
    found: list[float] = []

    class Timed(Trainer):
        """Waits for the device where a round begins and ends, not in between."""

        windows, began = 0, 0.0

        def train(self, num_steps: int, **call: Any) -> Any:
            logs = super().train(num_steps, **call)
            Timed.windows += 1
            if Timed.windows >= warm:
                len(logs)
                if Timed.windows > warm:
                    found.append(per_step * num_steps / (time.perf_counter() - Timed.began))
                if len(found) < rounds:
                    others()
                Timed.began = time.perf_counter()
            return logs

    params = work.params(packing=work.packs)
    params.override({"trainer": {"train_steps": (warm + rounds) * window, "steps_per_loop": window}})
    task = everstep.get_task(params.task)
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=Timed)
    labels = trainer.train_example[1]
    stream = task.inputs_for(params.task.train_data)
    counted = [float((np.asarray(batch[1]) >= 0).sum()) for batch, _ in zip(stream, range(work.steps), strict=False)]
    per_step = statistics.mean(counted) if counted else float(np.prod(labels.shape))
    with tempfile.TemporaryDirectory() as directory:
        run_experiment(task, params, directory, "train", trainer=trainer, export=False, verbose=False)
    return found


def compare(work: Work) -> dict[str, Any]:
    """Runs both contenders alternately."""
    fit = Fit(work)
    fit.run(2)  # compiles
    others: list[float] = []

    def run_fit() -> None:
        seconds, tokens = fit.run(work.steps)
        others.append(tokens / seconds)

    rates = ours(work, work.rounds, run_fit)
    figures = {"fit": [round(rate) for rate in others], "Everstep": [round(rate) for rate in rates]}
    own, theirs = statistics.median(rates), statistics.median(others)
    print(f"{work.name:12s} tokens/s: ours {own:,.0f}, fit {theirs:,.0f}, ratio {own / theirs:.3f}", flush=True)
    return {"name": f"KerasHub GPT-2, {work.name}", "unit": "tokens/s", "values": figures}


def peak_memory(work: Work, contender: str) -> float:
    """Runs one contender alone; returns the largest memory of the device in GB, 0 if it is not known."""
    import jax

    if contender == "fit":
        Fit(work).run(work.steps)
    else:
        ours(work, 1, lambda: None)
    statistics_of = jax.devices()[0].memory_stats() or {}
    return round(statistics_of.get("peak_bytes_in_use", 0) / 1e9, 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model, for two cores")
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, metavar=("WORK", "CONTENDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # The experiment sets runtime.deterministic=false; `fit` would run with deterministic operations otherwise.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    from everstep.engine import backend

    backend.select("jax")
    if arguments.memory:
        name, contender = arguments.memory
        print(json.dumps(peak_memory(Work(name, arguments.small, arguments.directory), contender)))
        return 0
    cases = []
    with tempfile.TemporaryDirectory() as directory:
        for name in ("pretraining", "adapters"):
            work = Work(name, arguments.small, Path(directory))
            work.prepare()
            command = [sys.executable, "-m", "benchmarks.hub", "--directory", directory]
            command += ["--small"] if arguments.small else []
            case: dict[str, Any] = {"memory": {}}
            for contender in ("fit", "ours"):
                child = subprocess.run([*command, "--memory", name, contender], stdout=subprocess.PIPE, text=True)
                lines = child.stdout.splitlines()
                case["memory"][contender] = f"{json.loads(lines[-1])} GB" if child.returncode == 0 else "failed"
            print(f"{name:12s} memory {case['memory']}", flush=True)
            cases.append(case | compare(work))
    print(json.dumps({"cases": cases}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
