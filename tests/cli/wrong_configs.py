"""Requests with something wrong in the configuration, and what their answer must hold.

Each is: files to write, the words after `everstep train`, and pieces of the one message: the full key path, where
the value came from, the value received and, for a typo, the right name.
"""

MLP = ["mnist/mlp"]
A = ["mnist/mlp", "--config-file", "a.yaml"]

WRONG: list[tuple[dict[str, str], list[str], list[str]]] = [
    # typos, at each level and from each place
    ({}, ["mnist/mpl"], ["'mnist/mpl'", "did you mean 'mnist/mlp'", "--import"]),
    ({}, ["--experiment", "mnist/mpl"], ["'mnist/mpl'", "'mnist/mlp'"]),
    ({"a.yaml": "trianer: {train_steps: 5}"}, A, ["trianer: received", "'trainer'", "a.yaml:1"]),
    ({"a.yaml": "trainer:\n  train_stesp: 5"}, A, ["trainer.train_stesp", "received 5", "'train_steps'", "a.yaml:2"]),
    (
        {"a.yaml": "trainer:\n  optimizer_config:\n    lerning_rate: {type: constant}"},
        A,
        ["trainer.optimizer_config.lerning_rate", "'learning_rate'", "a.yaml:3"],
    ),
    (
        {"a.yaml": "trainer:\n  optimizer_config:\n    optimizer:\n      adam: {bata_1: 0.5}"},
        A,
        ["trainer.optimizer_config.optimizer.adam.bata_1", "received 0.5", "'beta_1'", "a.yaml:4"],
    ),
    ({}, [*MLP, "task.model.unist=3"], ["task.model.unist", "received 3", "'units'", "'task.model.unist=3'"]),
    ({}, [*MLP, "task.train_dat.seed=3"], ["task.train_dat", "'train_data'", "override 'task.train_dat.seed=3'"]),
    ({}, [*MLP, "--params-override=runtime.sead=3"], ["runtime.sead", "received 3", "'seed'", "runtime.sead=3"]),
    ({}, [*MLP, "--params_override={runtime: {sead: 3}}"], ["runtime.sead", "received 3", "'seed'"]),
    (
        {"a.json": '{\n"runtime": {\n"sead": 3}}'},
        [*MLP, "--config-file=a.json"],
        ["runtime.sead", "'seed'", "a.json:3"],
    ),
    ({"a.toml": "[runtime]\nsead = 3\n"}, [*MLP, "--config-file=a.toml"], ["runtime.sead", "'seed'", "a.toml:2"]),
    ({}, [*MLP, "+task.model.unist=3"], ["task.model.unist", "received 3", "'units'"]),
    ({}, [*MLP, "~task.model.unist"], ["task.model.unist", "no such key to drop", "'units'"]),
    ({}, [*MLP, "~task.model.units"], ["task.model.units", "cannot be dropped"]),
    ({}, [*MLP, "--mode", "trian"], ["'trian'", "did you mean 'train'"]),
    ({}, [*MLP, "--backend", "tensorflwo"], ["runtime.backend", "'tensorflwo'", "tensorflow"]),
    ({}, [*MLP, "--sead", "3"], ["--sead"]),
    ({}, [*MLP, "trainer.train_steps"], ["'trainer.train_steps'", "key=value"]),
    # wrong types
    ({}, [*MLP, "trainer.train_steps=abc"], ["trainer.train_steps", "'abc'", "expected int", "train_steps=abc'"]),
    ({}, [*MLP, "trainer.train_steps=1.5"], ["trainer.train_steps", "1.5", "expected int"]),
    ({}, [*MLP, "trainer.max_to_keep=true"], ["trainer.max_to_keep", "True", "expected int"]),
    ({}, [*MLP, "task.model.dropout=high"], ["task.model.dropout", "'high'", "expected float"]),
    ({}, [*MLP, "trainer=5"], ["trainer", "received 5", "override 'trainer=5'"]),
    ({}, [*MLP, "task.model.units=[1, 2]"], ["task.model.units", "[1, 2]", "expected int"]),
    ({}, [*MLP, "task.model.units="], ["task.model.units", "''", "expected int"]),
    ({}, [*MLP, "task.model.units=null"], ["task.model.units", "None", "expected int"]),
    ({"a.yaml": "runtime:\n  enable_xla: 'yes'"}, A, ["runtime.enable_xla", "'yes'", "expected bool", "a.yaml:2"]),
    ({"a.yaml": "runtime:\n  enable_xla: off"}, A, ["runtime.enable_xla", "'off'", "expected bool", "a.yaml:2"]),
    ({"a.yaml": "task:\n- model"}, A, ["task", "['model']", "a.yaml:1"]),
    ({"a.yaml": "task: {train_data: 5}"}, A, ["task.train_data", "received 5", "a.yaml:1"]),
    ({}, [*MLP, "--seed", "x"], ["--seed", "'x'"]),
    (
        {},
        [*MLP, "runtime.mixed_precision_dtype=mixed_float16"],
        ["mixed_precision_dtype", "'mixed_float16'", "float16"],
    ),
    ({}, [*MLP, "task.model.kind=mpl"], ["task.model.kind", "'mpl'", "'mlp' or 'cnn'"]),
    # files
    ({}, [*MLP, "--config-file", "no.yaml"], ["no.yaml", "does not exist"]),
    ({"d/x": ""}, [*MLP, "--config-file", "d"], ["d", "is a directory"]),
    ({"a.yaml": "a: [1, 2"}, A, ["a.yaml", "line"]),
    ({"a.yaml": "trainer:\n\ttrain_steps: 5"}, A, ["a.yaml, line 2"]),
    ({"a.yaml": "trainer: {train_steps: 5}\ntrainer: {max_to_keep: 2}"}, A, ["a.yaml, line 2", "'trainer'", "twice"]),
    ({"a.json": '{"runtime": {"seed": 1, "seed": 2}}'}, [*MLP, "--config-file=a.json"], ["'seed'", "twice", "a.json"]),
    ({"a.json": '{"runtime": '}, [*MLP, "--config-file=a.json"], ["a.json", "line 1"]),
    ({"a.toml": "runtime = \n"}, [*MLP, "--config-file=a.toml"], ["a.toml", "line 1"]),
    ({"a.yaml": "- 1\n- 2"}, A, ["a.yaml", "expected keys with values", "[1, 2]"]),
    ({"a.yaml": "just text"}, A, ["a.yaml", "expected keys with values", "'just text'"]),
    ({"a.yaml": "a: &x [*x]"}, A, ["a.yaml", "hold itself"]),
    ({"a.yaml": "trainer: !!python/name:os.system"}, A, ["a.yaml", "line 1", "python/name"]),
    ({"a.yaml": "experiment: mnist/cnn"}, A, ["'mnist/mlp'", "'mnist/cnn'", "a.yaml:1"]),
    ({"a.yaml": "runtime: {seed: 1}"}, ["--config-file", "a.yaml"], ["EXPERIMENT: none is given"]),
    ({"a.yaml": "imports: [no_such_module]\n"}, A, ["imports", "'no_such_module'", "a.yaml:1"]),
    ({}, [*MLP, "--import", "no_such_module"], ["--import", "'no_such_module'"]),
    ({"a.yaml": "runtime: {seed: '***'}"}, A, ["runtime.seed", "'***'", "redacted", "a.yaml:1"]),
    # choices
    (
        {},
        [*MLP, "trainer.optimizer_config.optimizer.type=adamm"],
        ["trainer.optimizer_config.optimizer.type", "'adamm'", "'adam'"],
    ),
    (
        {"a.yaml": "trainer:\n  optimizer_config:\n    learning_rate:\n      type: cosin"},
        A,
        ["trainer.optimizer_config.learning_rate.type", "'cosin'", "'cosine'", "a.yaml:4"],
    ),
    (
        {},
        [*MLP, "trainer.optimizer_config.optimizer.sgd.beta_1=0.5"],
        ["trainer.optimizer_config.optimizer.sgd.beta_1", "received 0.5", "unknown key"],
    ),
    # out of range, and against one another
    ({}, [*MLP, "trainer.train_steps=0"], ["trainer.train_steps", "received 0", "at least 1", "train_steps=0'"]),
    ({"a.yaml": "trainer:\n  max_to_keep: 0"}, A, ["trainer.max_to_keep", "received 0", "at least 2", "a.yaml:2"]),
    ({}, [*MLP, "--seed", "-1"], ["runtime.seed", "received -1", "--seed -1"]),
    ({}, [*MLP, "trainer.validation_steps=0"], ["trainer.validation_steps", "received 0", "-1"]),
    ({}, [*MLP, "task.train_data.global_batch_size=0"], ["task.train_data.global_batch_size", "received 0"]),
    ({}, [*MLP, "task.model.dropout=1.5"], ["task.model.dropout", "received 1.5", "below 1"]),
    (
        {},
        [*MLP, "trainer.summary_interval=150"],
        ["trainer.summary_interval", "received 150", "multiple of steps_per_loop (100)"],
    ),
    ({}, [*MLP, "trainer.epochs=0"], ["trainer.epochs", "received 0"]),
    ({}, [*MLP, "--params-override={trainer: {epochs: 2, train_steps: 5}}"], ["trainer", "epochs", "train_steps"]),
    ({}, [*MLP, "trainer.validation_interval=2 epoks"], ["trainer.validation_interval", "'2 epoks'", "epoch"]),
    # interpolation
    ({}, [*MLP, "runtime.seed=${runtime.sead}"], ["runtime.seed", "${runtime.sead}", "not found"]),
    ({"a.yaml": "runtime:\n  seed: ${runtime.seed}"}, A, ["runtime.seed", "Recursive", "a.yaml:2"]),
    (
        {"a.yaml": "runtime:\n  seed: ${trainer.train_steps}\ntrainer:\n  train_steps: ${runtime.seed}"},
        A,
        ["runtime.seed", "trainer.train_steps", "Recursive", "a.yaml:2", "a.yaml:4"],
    ),
    ({}, [*MLP, "runtime.seed=${oc.env:NO_SUCH_VARIABLE}"], ["runtime.seed", "NO_SUCH_VARIABLE"]),
    ({}, [*MLP, "runtime.seed=${shell:ls}"], ["runtime.seed", "shell"]),
    ({}, [*MLP, "runtime.seed='${runtime.seed'"], ["runtime.seed", "not well-formed"]),
    ({}, [*MLP, "runtime.seed=${task.model.kind}"], ["runtime.seed", "'mlp'", "expected int"]),
    # groups
    ({"conf/task/model/big.yaml": "units: 9"}, [*MLP, "--config-dir=conf", "task/model=bgi"], ["'bgi'", "'big'"]),
    (
        {"conf/task/model/big.yaml": "unist: 9"},
        [*MLP, "--config-dir=conf", "task/model=big"],
        ["task.model.unist", "'units'", "conf/task/model/big.yaml:1"],
    ),
    ({}, [*MLP, "--config-dir=conf"], ["--config-dir", "conf", "no such directory"]),
    ({"a.yaml": "defaults: [{task/model: bgi}]"}, A, ["a.yaml", "task/model/bgi"]),
    # gin
    ({}, [*MLP, "--gin_params=TrainerConfig.train_stesp = 3"], ["train_stesp", "'train_steps'"]),
    (
        {"a.gin": "\nTrainerConfig.train_steps = 'abc'\n"},
        [*MLP, "--gin_file=a.gin"],
        ["trainer.train_steps", "'abc'", "a.gin:2"],
    ),
    ({}, [*MLP, "--gin_params=NoSuch.thing = 3"], ["NoSuch"]),
    ({}, [*MLP, "--gin_file=no.gin"], ["no.gin"]),
    ({"a.gin": "TrainerConfig.train_steps = = 3\n"}, [*MLP, "--gin_file=a.gin"], ["a.gin"]),
    ({"a.gin": "import os\n"}, [*MLP, "--gin_file=a.gin"], ["a.gin", "os"]),
    # resuming
    ({}, [*MLP, "--allow-change", "trainer.train_stesp"], ["trainer.train_stesp", "'trainer.train_steps'"]),
]
