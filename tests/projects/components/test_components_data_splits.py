"""The data of a run: every sample once per epoch, whatever the generators do at their end."""

import itertools
import textwrap

import numpy as np
import pytest
import yaml
from components_project import PREPROCESSING, config

from everstep.projects.components.building import build_components
from everstep.projects.components.config import load_config_file
from everstep.projects.components.data_splits import create_split, exactly, padded
from everstep.projects.components.project import Project
from everstep.testing.problems import raises_problem

LOADER = """
    import itertools
    import numpy as np
    from everstep.components import AugmentorBase, DataLoaderBase

    class Numbers(DataLoaderBase):
        def create_training_generator(self):
            return self.samples(), self.n

        def create_validation_generator(self):
            return self.samples(), self.n

        def create_test_generator(self):
            return ((x, y, f"id_{y}") for x, y, _ in itertools.islice(self.samples(), self.n)), self.n

        def samples(self):
            order = np.arange(self.n)
            for _ in itertools.count() if self.endless else range(1):
                if self.shuffle:
                    np.random.shuffle(order)
                for number in order:
                    yield np.full((28, 28), float(number)), int(number), 1.0

        def _set_defaults(self):
            self.n, self.endless, self.shuffle = 10, False, False

        def _load_params(self, config):
            self.n = config.data_loader.n
            self.endless = config.data_loader.endless
            self.shuffle = config.data_loader.get("shuffle", False)

    class NumbersTF(Numbers):
        def create_training_generator(self):
            import tensorflow as tf
            rows = list(itertools.islice(self.samples(), self.n))
            ds = tf.data.Dataset.from_tensor_slices(tuple(np.array(part) for part in zip(*rows)))
            return (ds.shuffle(self.n) if self.shuffle else ds), self.n

        create_validation_generator = create_training_generator

    class Tens(AugmentorBase):
        def add_augmentation(self, generator):
            return ((x + 10, y, w) for x, y, w in generator)

        def add_validation_augmentation(self, generator):
            return ((x + 20, y, w) for x, y, w in generator)

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass
"""


def components(root, flavour="", n=10, endless=False, shuffle=False, loader=LOADER, **changes):
    (root / "src").mkdir(parents=True, exist_ok=True)
    for name, text in (("numbers_data", loader), ("preprocessing", PREPROCESSING)):
        (root / "src" / f"{name}.py").write_text(textwrap.dedent(text))
    (root / "src" / "rest.py").write_text(
        "from everstep.components import EvaluatorBase, ModelBuilderBase\n"
        "class Net(ModelBuilderBase):\n    get_compiled_model = _set_defaults = _load_params = lambda *_: None\n"
        "class Judge(EvaluatorBase):\n    def get_eval_funcs(self):\n        return None\n"
    )
    values = {
        "data_loader_class": f"numbers_data.Numbers{flavour}",
        "model_builder_class": "rest.Net",
        "evaluator_class": "rest.Judge",
        "data_loader": {"n": n, "endless": endless, "shuffle": shuffle},
        "preprocessor": {"normalize_by": 1},
        **changes,
    }
    (root / "config.yaml").write_text(yaml.safe_dump(config(flavour, **values)))
    project = Project(root, "src")
    with project.active():
        return build_components(load_config_file(root / "config.yaml"), project)


def labels(flow):
    return [int(label) for batch in flow.batches() for label in batch[1]]


@pytest.mark.parametrize("endless", [True, False])
@pytest.mark.parametrize(("n", "batch_size"), [(10, 4), (8, 4), (3, 4), (5, 1), (50, 32)])
def test_every_sample_once(tmp_path, n, batch_size, endless):
    made = components(tmp_path, n=n, endless=endless, batch_size=batch_size)
    for split in ("training", "validation", "test"):
        flow = create_split(made, split)
        assert (flow.count, flow.n_iter) == (n, -(-n // batch_size))
        assert labels(flow) == list(range(n))
        assert [len(batch[0]) for batch in flow.batches()][-1] == (n % batch_size or batch_size)
    assert [str(i) for batch in flow.batches() for i in batch[2]] == [f"id_{number}" for number in range(n)]


@pytest.mark.parametrize("endless", [True, False])
def test_epochs_are_shuffled_and_resume(tmp_path, endless):
    """Each epoch in an order of its own, each sample once; another process would find the same ones."""
    flow = create_split(components(tmp_path, n=10, batch_size=4, endless=endless, shuffle=True), "training")
    np.random.seed(1)
    epochs = [[int(y) for batch in itertools.islice(flow.stream, 3) for y in batch[1]] for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3

    again = create_split(components(tmp_path, n=10, batch_size=4, endless=endless, shuffle=True), "training").stream
    np.random.seed(2)
    again.restore({"epoch": 1, "batch": 2})
    assert [int(y) for y in next(again)[1]] == epochs[1][8:]
    assert [int(y) for y in next(again)[1]] == epochs[2][:4]
    assert again.batches_per_epoch == 3


def test_datasets_are_passed_over_once_an_epoch(tmp_path):
    pytest.importorskip("tensorflow")
    flow = create_split(components(tmp_path, "TF", n=10, batch_size=4, shuffle=True), "training")
    assert not flow.stream.why_not_exact or "no seed" in flow.stream.why_not_exact
    assert flow.stream.batches_per_epoch == 3
    epochs = [[int(y) for batch in itertools.islice(flow.stream, 3) for y in batch[1]] for _ in range(2)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert labels(create_split(components(tmp_path, "TF", n=10, batch_size=4), "validation")) == list(range(10))


def test_a_dataset_that_repeats_before_it_is_batched_is_cut(tmp_path):
    pytest.importorskip("tensorflow")
    made = components(tmp_path, "TF", n=10, batch_size=4)
    made.preprocessor.batchify = lambda generator, n: (generator.repeat().batch(4).prefetch(1), 3)
    assert labels(create_split(made, "validation")) == list(range(10))
    made.preprocessor.batchify = lambda generator, n: (generator.batch(4, drop_remainder=True), 3)
    with raises_problem(
        key="preprocessor_class", reason="batchify announced 3 batches for 10 samples, but the dataset has 2"
    ):
        create_split(made, "training")


def test_augmentation_where_it_is_asked_for(tmp_path):
    def firsts(**flags):
        made = components(tmp_path, augmentor_class="numbers_data.Tens", **flags)
        return [next(create_split(made, split).batches())[0][0][0] for split in ("training", "validation", "test")]

    assert firsts() == [0, 0, 0]
    assert firsts(do_train_augmentation=True) == [10, 0, 0]
    assert firsts(do_train_augmentation=True, do_validation_augmentation=True) == [10, 20, 0]


def test_weights_are_preprocessed_where_a_class_says_how(tmp_path):
    made = components(tmp_path, batch_size=4)
    cls = type(made.preprocessor)
    made = type(made)(
        **{**vars(made), "preprocessor": type("W", (cls,), {"weight_preprocess": lambda s, w: w * 3})(None)}
    )
    assert next(create_split(made, "training").batches())[2].tolist()[:2] == [3, 3]
    assert str(next(create_split(made, "test").batches())[2][1]) == "id_1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return self.samples(), self.n", "return self.samples(), self.n + 5", "announced 15 samples, but has 10"),
        (
            "return self.samples(), self.n",
            "return self.samples()",
            r"create_training_generator\(\): must return .*returned generator",
        ),
        ("return self.samples(), self.n", "return self.samples(), 0", "received 0, must return"),
        ("order = np.arange(self.n)", "order = self.nothing", r"failed at .*numbers_data.py:\d+: AttributeError"),
        (
            "return self.samples(), self.n",
            "return open(self.nowhere), 1",
            r"failed at .*numbers_data.py:\d+: Attribute",
        ),
    ],
)
def test_loaders_that_do_not_keep_their_word(tmp_path, old, new, message):
    with raises_problem(key="data_loader_class", reason=message):
        labels(create_split(components(tmp_path, loader=LOADER.replace(old, new, 1)), "training"))


def test_rows_are_counted():
    batches = [(np.arange(4), np.arange(4)), (np.arange(4), np.arange(4))]
    assert [len(y) for _, y in exactly(batches, 6, 2, "it")] == [4, 2]
    with raises_problem(reason="it ended after 8 samples, but 9 were announced"):
        list(exactly(batches, 9, 3, "it"))
    with raises_problem(reason="announced 3 batches for 8 samples, but they fill 2"):
        list(exactly(batches, 8, 3, "it"))
    with raises_problem(reason="different numbers of samples"):
        list(exactly([(np.arange(4), np.arange(3))], 4, 1, "it"))
    with raises_problem(reason="but is a ndarray"):
        list(exactly([np.arange(4)], 4, 1, "it"))
    assert list(itertools.islice(padded(iter("ab"), 2, "it"), 4)) == ["a", "b", "b", "b"]
