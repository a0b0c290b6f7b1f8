"""GPT-2 on text: a document in a shared row has the loss that it has alone; killed runs resume exactly."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import everstep as es
from everstep.data.labels import IGNORED
from everstep.data.text import ByteTokenizer, TextDataConfig, text_stream
from everstep.errors import UsageError
from everstep.recipes.gpt2_config import GPT2ModelConfig
from everstep.recipes.gpt2_task import PACKED, gpt2

pytestmark = pytest.mark.backend

CONTEXT = 32
SHAPE = {"vocabulary": 258, "context": CONTEXT, "layers": 2, "heads": 2, "width": 16}
TEXTS = [f"{n} {'the quick brown fox jumps'[: 1 + 5 * n % 23]}" for n in range(12)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(path)


@pytest.fixture(autouse=True)
def token_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))


def batch_of_all(path, packing):
    """All documents in one batch."""
    config = TextDataConfig(input_path=path, global_batch_size=100, packing=packing, is_training=False)
    (batch,) = text_stream(config, ByteTokenizer(), context=CONTEXT, inputs=PACKED)
    return batch


def losses_by_document(model, batch):
    """The mean loss of each document, by its tokens."""
    inputs, labels = batch
    given = inputs if isinstance(model.input, dict) else inputs["token_ids"]
    logits = ops.cast(model(given), "float32")
    every = keras.losses.sparse_categorical_crossentropy(np.maximum(labels, 0), logits, from_logits=True)
    every = ops.convert_to_numpy(every)
    found = {}
    for tokens, segments, wanted, losses in zip(inputs["token_ids"], inputs["segment_ids"], labels, every, strict=True):
        for number in range(1, segments.max() + 1):
            here = segments == number
            assert (wanted[here] != IGNORED).all()
            found[tuple(tokens[here].tolist())] = losses[here].mean()
    return found


def test_packed_documents_have_the_loss_they_have_alone(path):
    plain, packed = gpt2(GPT2ModelConfig(**SHAPE)), gpt2(GPT2ModelConfig(**SHAPE), packed=True)
    packed.set_weights(plain.get_weights())
    alone, together = batch_of_all(path, False), batch_of_all(path, True)
    assert len(together[1]) < len(alone[1]) / 1.5
    expected, found = losses_by_document(plain, alone), losses_by_document(packed, together)
    assert found.keys() == expected.keys()
    assert len(found) == len(TEXTS)
    for document, loss in expected.items():
        assert found[document] == pytest.approx(loss, abs=1e-5)


def params_of(path, packing, **task):
    params = es.get_exp_config("text/gpt2_tiny")
    data = {"input_path": path, "tokenizer": "bytes", "packing": packing, "global_batch_size": 100}
    train = {**data, "drop_remainder": False}
    sgd = {"optimizer": {"type": "sgd"}, "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.5}}}
    params.override({"task": {"model": SHAPE, "train_data": train, "validation_data": data, **task}})
    params.trainer.optimizer_config = es.OptimizationConfig(sgd)
    params.override({"trainer": {"train_steps": 4, "steps_per_loop": 2, "checkpoint_interval": 2}})
    params.override({"trainer": {"validation_interval": 4}})
    return params


def train(params, directory):
    model, logs = es.run_experiment(es.get_task(params.task), params, directory, export=False, verbose=False)
    return model, logs


def test_packed_training_learns_what_unpacked_training_learns(path, tmp_path):
    """One batch has all documents, so that both see the same ones at each step."""
    found = {}
    for packing in (False, True):
        model, logs = train(params_of(path, packing), tmp_path / str(packing))
        found[packing] = losses_by_document(model, batch_of_all(path, packing)), logs
    (alone, logs), (together, packed_logs) = found[False], found[True]
    assert packed_logs["validation_loss"] == pytest.approx(logs["validation_loss"], abs=1e-5)
    for document, loss in alone.items():
        assert together[document] == pytest.approx(loss, abs=1e-5)
    assert np.mean(list(alone.values())) < 5.4, "it has learned something"


@pytest.mark.parametrize(
    "extra", [{}, pytest.param({"loss_chunk_tokens": 100}, marks=pytest.mark.full)], ids=["plain", "chunks_and_remat"]
)
def test_packed_run_in_parts_ends_like_a_whole_one(path, tmp_path, extra):
    def run(name, steps):
        params = params_of(path, True, **extra)
        params.override({"task": {"train_data": {"global_batch_size": 3}}, "trainer": {"train_steps": steps}})
        if extra:
            params.override({"runtime": {"remat": ["block"]}})
        return train(params, tmp_path / name)[0].get_weights()

    whole = run("whole", 6)
    run("parts", 2)
    run("parts", 4)
    for one, other in zip(whole, run("parts", 6), strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_writes_text(path, tmp_path):
    params = params_of(path, True)
    task = es.get_task(params.task)
    model = task.build_model()
    (text,) = task.generate(model, ["the "])
    plain = params_of(path, False)
    other = es.get_task(plain.task)
    same = other.build_model()
    same.set_weights(model.get_weights())
    assert other.generate(same, ["the "]) == [text]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"buckets": [8]}, "train_data.buckets"),
        ({"sequence_length": 16}, "train_data.sequence_length"),
    ],
)
def test_rows_have_the_models_length(path, changes, key):
    params = params_of(path, False)
    params.override({"task": {"train_data": changes}})
    with pytest.raises(UsageError) as caught:
        params.task.validate()
    assert caught.value.key == key


def test_bytes_need_their_vocabulary(path, tmp_path):
    params = params_of(path, False)
    params.override({"task": {"model": {"vocabulary": 256}}})
    with pytest.raises(UsageError) as caught:
        train(params, tmp_path / "run")
    assert caught.value.key == "task.train_data.tokenizer"
