"""`InputReader`: which files it reads, in which order of operations, and which configurations it refuses."""

import pytest
from record_files import Context, config, decode, numbers, parse, reader, write

from everstep.data import DataConfig, InputReader, pick_dataset_fn
from everstep.errors import NOTHING, UsageError
from everstep.frontends.fit.streams import counted
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "a")


# -- where the records are ---------------------------------------------------------------------------------------------


def test_forms_of_input_path(files):
    folder = files.rpartition("/")[0]
    first, second = f"{folder}/0.*", f"{folder}/1.tfrecord"
    for path in (f"{first}, {second}", [first, second], [f"{first},{second}"], [second, first, first]):
        assert numbers(reader(path, is_training=False).read()) == list(range(16))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("none/*.tfrecord", {"key": "input_path", "received": "none/*.tfrecord", "reason": "no file matches"}),
        (["none-?"], {"key": "input_path", "received": "none-?", "reason": "no file matches"}),
        (
            {"a": "{files}", "b": "none"},
            {"key": "input_path.b", "received": "none", "reason": "no file matches"},
        ),
        ("", {"key": "input_path", "reason": "is empty"}),
        (" , ", {"key": "input_path", "reason": "names no record files"}),
        (
            "{folder}",
            {"key": "input_path", "received": "{folder}", "reason": "is a folder", "remedy": "name its files"},
        ),
        ("{empty}/*", {"key": "input_path", "received": "{empty}/empty.tfrecord", "reason": "is empty, 0 bytes"}),
    ],
)
def test_paths_without_usable_files(files, tmp_path, path, fields):
    (tmp_path / "empty.tfrecord").touch()
    places = {"files": files, "folder": files.rpartition("/")[0], "empty": str(tmp_path)}
    fill = lambda text: text.format(**places) if "{" in text else text  # noqa: E731
    path = {key: fill(part) for key, part in path.items()} if isinstance(path, dict) else path
    with raises_problem(**{name: fill(field) for name, field in fields.items()}):
        reader(fill(path) if isinstance(path, str) else path, {"combine_fn": lambda parts: parts["a"]})


def test_several_sources_need_a_function_that_combines_them(files):
    with raises_problem(key="input_path", received={"a": files}, reason="combine_fn"):
        reader({"a": files})


def test_contradicting_fields_are_refused():
    for fields, key, reason in (
        ({"input_path": "a", "tfds_name": "mnist", "tfds_split": "train"}, "tfds_name", "input_path is 'a'"),
        ({"tfds_name": "mnist"}, "tfds_split", "is empty"),
        ({"tfds_name": {"a": "mnist"}, "tfds_split": "train"}, "tfds_name", "combine_fn"),
        ({"input_path": "a", "cache": "device"}, "cache", "says where arrays live"),
        ({"input_path": "a", "cache": "host"}, "cache", "says where arrays live"),
    ):
        with raises_problem(key=key, received=fields.get(key, NOTHING), reason=reason):
            InputReader(DataConfig(**fields), parser_fn=parse)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files(tmp_path, compression):
    files = write(tmp_path, compression=compression)
    assert numbers(reader(files, compression=compression, is_training=False).read()) == list(range(23))
    first = f"{tmp_path}/0.tfrecord"
    with raises_problem(key="input_path", received=first, reason="another compression .*, at byte 0, after 0 "):
        numbers(reader(files, is_training=False).read())
    with raises_problem(key="compression", received="gzip", reason="TFRecord files have one of '', 'GZIP', 'ZLIB'"):
        reader(files, compression="gzip")


def test_custom_dataset_fn(files, tmp_path):
    zipped = write(tmp_path, compression="GZIP")
    made = {"dataset_fn": pick_dataset_fn("tfrecord_compressed")}
    assert numbers(reader(zipped, made, is_training=False).read()) == list(range(23))
    assert numbers(reader(files, {"dataset_fn": tf.data.TFRecordDataset}, is_training=False).read()) == list(range(23))
    with raises_problem(key="file_type", received="riegeli", reason="unknown file type", remedy="known: 'tfrecord'"):
        pick_dataset_fn("riegeli")


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_damaged_file_is_named(tmp_path, training):
    damaged = tmp_path / "a" / "1.tfrecord"
    files = write(tmp_path / "a")
    whole = damaged.read_bytes()
    size = len(whole) // 8  # records of one length
    damaged.write_bytes(whole[: 2 * size + 1] + b"\xff" + whole[2 * size + 2 :])
    with raises_problem(key="input_path", received=str(damaged), reason=f"at byte {2 * size}, after 2 good records"):
        list(reader(files, is_training=training).read())
    damaged.write_bytes(whole[:-3])
    with raises_problem(key="input_path", received=str(damaged), reason=f"at byte {7 * size}, after 7 good records"):
        list(reader(files, is_training=training).read())
    stream = reader(files, is_training=training).read()
    damaged.unlink()
    with raises_problem(key="input_path", received=str(damaged), reason="is missing after 0 good records"):
        list(stream)


def test_a_function_that_fails_is_not_taken_for_damage(files):
    stream = reader(
        files, {"decoder_fn": lambda record: tf.io.parse_tensor(record, tf.int64), "parser_fn": None}
    ).read()
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(stream)


# -- order of operations -----------------------------------------------------------------------------------------------


def test_training_repeats_and_shuffles_and_evaluation_does_not(files):
    train = reader(files, drop_remainder=False).read()
    orders = [numbers(train, 6) for _ in range(2)]
    assert train.never_ends
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(23))
    assert len({tuple(order) for order in (*orders, range(23))}) == 3
    evaluation = reader(files, is_training=False).read()
    assert not evaluation.never_ends
    assert numbers(evaluation) == list(range(23))


@pytest.mark.parametrize(("drop", "sizes"), [(None, [4, 4, 2]), (True, [4, 4]), (False, [4, 4, 2])])
def test_evaluation_keeps_the_remainder_by_default(tmp_path, drop, sizes):
    stream = reader(write(tmp_path, 10), is_training=False, drop_remainder=drop).read()
    assert [len(batch["id"]) for batch in stream] == sizes


def test_functions_run_in_order(files):
    seen = []

    def logged(name, function):
        def wrapped(*args):
            seen.append(name)
            return function(*args)

        return wrapped

    stream = reader(
        files,
        {
            "dataset_fn": logged("read", tf.data.TFRecordDataset),
            "decoder_fn": logged("decode", decode),
            "sample_fn": logged("sample", lambda data: data.take(20)),
            "parser_fn": logged("parse", parse),
            "filter_fn": logged("filter", lambda sample: sample["id"] % 2 == 0),
            "postprocess_fn": logged("postprocess", lambda batch: {**batch, "sum": tf.reduce_sum(batch["id"])[None]}),
        },
        is_training=False,
    ).read()
    batches = list(stream)
    assert [name for i, name in enumerate(seen) if name not in seen[:i]] == [
        *("read", "decode", "sample", "parse", "filter", "postprocess")
    ]
    assert [batch["id"].tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert [batch["sum"].tolist() for batch in batches] == [[12], [44], [34]]
    assert {seen.count(name) for name in ("decode", "parse", "filter")} == {1}  # traced once, not per epoch


def test_custom_batches(files):
    contexts = []

    def pairs(samples, context):
        contexts.append(context)
        return samples.batch(2).take(3)

    context = Context()
    stream = reader(files, {"transform_and_batch_fn": pairs}, is_training=False).read(context)
    assert [batch["id"].tolist() for batch in stream] == [[0, 1], [2, 3], [4, 5]]
    assert set(map(id, contexts)) == {id(context)}


def test_files_are_read_in_turn(files):
    parts = [list(range(8)), list(range(8, 16)), list(range(16, 23))]
    read = numbers(reader(files, is_training=False, cycle_length=2, block_length=3).read())
    assert read[:12] == [*parts[0][:3], *parts[1][:3], *parts[0][3:6], *parts[1][3:6]]
    assert sorted(read) == list(range(23))


def test_cache_reads_and_parses_once(files):
    parsed = []

    def counted(features):
        tf.py_function(lambda number: parsed.append(int(number)), [features["id"]], [])
        return parse(features)

    for training in (True, False):
        parsed.clear()
        stream = reader(files, {"parser_fn": counted}, is_training=training, cache=True, repeat=True).read()
        orders = {tuple(numbers(stream, 5 if training else 6)) for _ in range(3)}
        assert sorted(parsed) == list(range(23))
        assert len(orders) == (3 if training else 1)


def test_cached_samples_with_rows_of_any_length(files):
    def ragged(features):
        return {**features, "row": tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2])}

    stream = reader(files, {"parser_fn": ragged}, cache=True).read()
    assert sorted(numbers(stream, 5)) != list(range(20))


def test_fit_refuses_a_mixture_without_end_unless_an_epoch_has_a_number_of_steps(tmp_path):
    """Its first epoch would be counted for ever."""
    path = {"many": write(tmp_path / "a", 12), "few": write(tmp_path / "b", 4, first=100)}
    combine = {"combine_fn": lambda parts: tf.data.Dataset.sample_from_datasets([parts["few"], parts["many"]], seed=1)}
    stream = reader(path, combine).read()
    with raises_problem(key="steps_per_epoch", reason="the data has no end"):
        counted(stream, stream, None)
    assert counted(stream, stream, 3) == (stream, None)


def test_a_mixture_draws_from_each_source_without_end(tmp_path):
    path = {"many": write(tmp_path / "a", 12), "few": write(tmp_path / "b", 4, first=100)}
    combine = {"combine_fn": lambda parts: tf.data.Dataset.sample_from_datasets([parts["few"], parts["many"]], seed=1)}
    stream = reader(path, combine).read()
    read = numbers(stream, 20)
    few = [number for number in read if number >= 100]
    assert 25 < len(few) < 55
    assert [sorted(few[at : at + 4]) for at in range(0, 12, 4)] == [[100, 101, 102, 103]] * 3
    assert len({tuple(few[at : at + 4]) for at in range(0, 20, 4)}) > 1
    assert stream.epoch_never_ends
    zipped = {"combine_fn": lambda parts: tf.data.Dataset.zip((parts["few"], parts["many"])), "parser_fn": None}
    whole = list(reader(path, zipped, is_training=False).read())
    assert [batch["id"].tolist() for batch in whole[0]] == [[100, 101, 102, 103], [0, 1, 2, 3]]
    assert len(whole) == 1


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shards", "processes", "training"), [(3, 2, True), (3, 3, False), (1, 2, True), (1, 2, False), (2, 3, True)]
)
def test_each_process_reads_its_own_part(tmp_path, shards, processes, training):
    files = write(tmp_path, shards=shards)
    fields = {"is_training": training, "repeat": False, "drop_remainder": False}
    parts = [numbers(reader(files, **fields).read(Context(index, processes))) for index in range(processes)]
    assert sorted(sum(parts, [])) == list(range(23))
    if shards < processes:  # by record: as equal as can be
        assert {len(part) for part in parts} <= {23 // processes, 23 // processes + 1}


def test_each_process_may_read_everything(files):
    stream = reader(files, sharding=False, is_training=False).read(Context(1, 3))
    assert numbers(stream) == list(range(23))


def test_batches_have_the_size_of_one_replica(files):
    context = tf.distribute.InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2)
    assert len(next(reader(files).read(context))["id"]) == 2
    with raises_problem(key="global_batch_size", received=4, reason="cannot be shared evenly by 3 replicas"):
        reader(files).read(Context(num_replicas_in_sync=3))


# -- configuration -----------------------------------------------------------------------------------------------------


def test_tuning_options_do_not_change_the_data(files):
    tuned = {"ram_budget": 1, "autotune_algorithm": "HILL_CLIMB", "prefetch_buffer_size": 2}
    assert numbers(reader(files, **tuned).read(), 12) == numbers(reader(files).read(), 12)


def test_configuration_from_a_file(tmp_path):
    (tmp_path / "data.yaml").write_text("input_path: [a, b]\ncycle_length: 4\ntfds_as_supervised: true\n")
    read = DataConfig.from_yaml(tmp_path / "data.yaml")
    assert (read.input_path, read.cycle_length, read.tfds_as_supervised) == (["a", "b"], 4, True)
    assert DataConfig({"input_path": {"a": "x", "b": ["y", "z"]}}).input_path == {"a": "x", "b": ["y", "z"]}


@pytest.mark.parametrize(
    ("key", "value"), [("cycle_length", 0), ("block_length", 0), ("limit_batches", 0), ("deterministic", False)]
)
def test_invalid_values_are_refused(key, value):
    with pytest.raises(UsageError) as refused:
        config("a", **{key: value}).validate()
    assert (refused.value.key, refused.value.received) == (key, value)


def test_the_tf_data_service_is_refused():
    for key in ("enable_tf_data_service", "tf_data_service_address", "trainer_id"):
        with raises_problem(key=key, received="x", reason="but a tf.data service gives batches"):
            DataConfig().override({key: "x"})
