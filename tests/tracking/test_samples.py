"""Pictures, texts and histograms, in files and in TensorBoard's."""

import errno

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from everstep.tracking.samples import SampleFiles, histogram, image_files, text_file
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import BackgroundTracker, MultiTracker

from .disks import files_of_at_most

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
COLOUR = np.stack([GREY, GREY * 2, GREY * 3], axis=-1)


def steps(folder):
    return sorted(path.name for path in (folder / "samples").iterdir())


def test_pictures_and_texts_are_files(tmp_path):
    files = SampleFiles(tmp_path)
    files.start(0)
    files.log_images(10, "in/out", [GREY, COLOUR], ["one", "two"])
    files.log_text(10, "..", ["a", "b"])
    first, second = image_files(10, "in/out", 2)
    assert (first, text_file(10, "..")) == ("samples/10/in_out-0.png", "samples/10/_.txt")
    assert np.array_equal(np.asarray(Image.open(tmp_path / first)), GREY)
    assert np.array_equal(np.asarray(Image.open(tmp_path / second)), COLOUR)
    assert (tmp_path / "samples/10/in_out.captions.txt").read_text() == "one\ntwo\n"
    assert (tmp_path / text_file(10, "..")).read_text() == "a\n\nb\n"


def test_later_samples_are_removed_when_the_run_passes_them(tmp_path):
    files = SampleFiles(tmp_path)
    for step in (10, 20, 25, 30):
        files.log_text(step, "text", ["old"])
    (tmp_path / "samples" / "notes").mkdir()
    again = SampleFiles(tmp_path)
    again.start(10)
    assert steps(tmp_path) == ["10", "20", "25", "30", "notes"]  # a sender may still want them
    again.log_text(20, "text", ["new"])
    again.log_text(30, "text", ["new"])
    assert steps(tmp_path) == ["10", "20", "30", "notes"]
    assert (tmp_path / text_file(30, "text")).read_text() == "new\n"
    assert (tmp_path / text_file(10, "text")).read_text() == "old\n"


def test_a_full_disk_does_not_stop_training(tmp_path, caplog):
    tracker = MultiTracker([SampleFiles(tmp_path)])
    tracker.start(0)
    with files_of_at_most(20):
        tracker.log_images(1, "p", [GREY], [""])
    assert "SampleFiles cannot write" in caplog.text
    assert f"[Errno {errno.EFBIG}]" in caplog.text
    tracker.log_images(2, "p", [GREY], [""])
    assert (tmp_path / "samples/2/p-0.png").exists()


def test_tensorboard_shows_samples_and_drops_what_is_run_again(tmp_path):
    for start, scale in ((0, 1.0), (10, 2.0)):
        tracker = BackgroundTracker(MultiTracker([TensorBoardTracker(tmp_path)]))
        tracker.start(start)
        for step in (10, 20) if start == 0 else (20,):
            tracker.log_images(step, "p", [COLOUR], ["seven"])
            tracker.log_text(step, "words", ["ç", "b"])
            tracker.log_histograms(step, {"kernel": np.full(5, scale * step), "bad": np.full(3, np.nan)})
        tracker.close()
    shown = EventAccumulator(str(tmp_path / "validation"), size_guidance={"images": 0}).Reload()
    assert [(image.step, image.width, image.height) for image in shown.Images("p/0")] == [(10, 8, 8), (20, 8, 8)]
    viewer = plugin_event_accumulator.EventAccumulator(str(tmp_path / "validation")).Reload()  # what the page reads
    texts = [list(event.tensor_proto.string_val) for event in viewer.Tensors("words")]
    assert texts == [["ç".encode(), b"b"]] * 2
    assert shown.Tensors("p/captions")[0].tensor_proto.string_val == [b"0: seven"]
    assert shown.summary_metadata["words"].plugin_data.plugin_name == "text"
    trained = EventAccumulator(str(tmp_path / "train"), size_guidance={"histograms": 0}).Reload()
    assert trained.Tags()["histograms"] == ["kernel"]  # one without a finite number has none
    values = [
        (event.step, event.histogram_value.sum, event.histogram_value.num) for event in trained.Histograms("kernel")
    ]
    assert values == [(10, 50.0, 5), (20, 200.0, 5)]


@pytest.mark.parametrize(
    "values", [[1.0], [1.0, np.nextafter(1, 2)], [-1.7e308, 1.7e308], [0.0, 5e-324], [1.0, np.inf, np.nan]]
)
def test_any_numbers_have_a_histogram(values):
    found = histogram(np.array(values))
    assert sum(found.counts) == np.isfinite(values).sum()
    assert len(found.edges) == len(found.counts) + 1
