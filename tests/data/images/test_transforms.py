"""Images get one size by the chosen rule; what is drawn follows from seed, epoch and number."""

import numpy as np
import pytest
from PIL import Image
from tests.data.images.image_files import encoded, picture

from everstep.data import randomness
from everstep.data.formats.images import BadImage, decode
from everstep.data.images import ImageDataConfig
from everstep.data.images.transforms import OPERATIONS, Transform, sample_generator
from everstep.errors import UsageError

WIDE = picture(1, 20, 40)


def transform(size=(10, 10), **values):
    return Transform.of(ImageDataConfig({"size": list(size), **values}))


def test_an_image_of_the_right_size_is_unchanged():
    for rule in ("stretch", "crop", "pad"):
        np.testing.assert_array_equal(transform((20, 40), resize=rule)(encoded(WIDE)), WIDE)


def test_stretching_keeps_all_of_it():
    found = transform(resize="stretch")(encoded(WIDE)).astype(int)
    means = WIDE.reshape(10, 2, 10, 4, 3).mean((1, 3))
    assert np.abs(found - means).max() < 40
    assert np.abs(found - means).mean() < 6


def test_cropping_keeps_the_centre():
    np.testing.assert_array_equal(transform((20, 20), resize="crop")(encoded(WIDE)), WIDE[:, 10:30])
    tall = np.ascontiguousarray(WIDE.transpose(1, 0, 2))
    np.testing.assert_array_equal(transform((20, 20), resize="crop")(encoded(tall)), tall[10:30])


def test_padding_adds_black():
    found = transform((40, 40), resize="pad")(encoded(WIDE))
    np.testing.assert_array_equal(found[10:30], WIDE)
    assert not found[:10].any()
    assert not found[30:].any()


def test_a_jpeg_decoded_small_looks_the_same():
    data = encoded(picture(30, 480, 640), "JPEG", quality=95)
    whole = decode(data, 3).resize((24, 24), Image.Resampling.BILINEAR, (80, 0, 560, 480))
    assert np.abs(transform((24, 24))(data) - np.asarray(whole, float)).mean() < 2


def test_one_pixel_may_become_many():
    assert transform((5, 7), channels=1)(encoded(np.uint8([[9]]))).tolist() == [[[9]] * 7] * 5


CHANGES = [
    {"flip": "horizontal"},
    {"flip": "horizontal_and_vertical"},
    {"crop": 0.3},
    {"colour": 0.4},
    {"operations": 2, "magnitude": 0.8},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_changes_follow_from_seed_epoch_and_number(changes, channels):
    apply, data = transform((16, 24), channels=channels, augmentation=changes), encoded(WIDE)

    def drawn(*numbers):
        return apply(data, sample_generator(*numbers)).tobytes()

    assert [drawn(0, 0, n) for n in range(8)] == [drawn(0, 0, n) for n in range(8)]
    for seeds in ([(0, 0, n) for n in range(8)], [(0, n, 0) for n in range(8)], [(n, 0, 0) for n in range(8)]):
        assert len({drawn(*numbers) for numbers in seeds}) > 1
    assert apply(data).tobytes() == transform((16, 24), channels=channels)(data).tobytes()


def test_flips_mirror_half_of_the_images():
    apply = transform((20, 40), augmentation={"flip": "horizontal"})
    found = [apply(encoded(WIDE), sample_generator(0, 0, n)) for n in range(200)]
    mirrored = [np.array_equal(one, WIDE[:, ::-1]) for one in found]
    assert all(m or np.array_equal(one, WIDE) for m, one in zip(mirrored, found, strict=True))
    assert 70 < sum(mirrored) < 130


def test_a_random_part_has_at_least_the_share_of_the_area():
    apply = transform((10, 10), augmentation={"crop": 0.25})
    for number in range(100):
        left, upper, right, lower = apply._random_box(200, 100, sample_generator(0, 0, number).random(4))
        assert 0 <= left < right <= 200
        assert 0 <= upper < lower <= 100
        share = (right - left) * (lower - upper) / 20_000
        assert share >= 0.24 or right - left == 200 or lower - upper == 100


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_operations_change_size_and_mode_of_nothing(name, mode):
    image = Image.fromarray(WIDE).convert(mode)
    changed = OPERATIONS[name](image, 0.7)
    assert (changed.size, changed.mode) == (image.size, image.mode)
    unchanged = name == "identity" or (name == "saturation" and mode == "L")
    assert (changed.tobytes() == image.tobytes()) == unchanged


def test_numbers_of_images_are_not_those_of_the_order():
    order = randomness.generator(3, 4).integers(2**63, size=1000)
    drawn = [sample_generator(3, 4, number).integers(2**63) for number in range(1000)]
    assert not set(order) & set(drawn)
    assert len(set(drawn)) == 1000


def test_an_image_too_small_to_be_cropped_is_refused():
    with pytest.raises(BadImage, match="too small for augmentation.crop=0.25: 30×1 pixels"):
        transform(augmentation={"crop": 0.25})(encoded(WIDE[:1, :30]), sample_generator(0, 0, 0))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"size": 0}, "size"),
        ({"size": [3, 4, 5]}, "size"),
        ({"size": [3, 0]}, "size"),
        ({"validation_split": 1.0}, "validation_split"),
        ({"workers": -1}, "workers"),
        ({"cache": "device"}, "cache"),
        ({"tfds_name": "mnist", "tfds_split": "train"}, "tfds_name"),
        ({"input_path": {"a": "b"}}, "input_path"),
        ({"augmentation": {"crop": 0.0}}, "augmentation.crop"),
        ({"augmentation": {"colour": 1.0}}, "augmentation.colour"),
        ({"augmentation": {"magnitude": 2.0}}, "augmentation.magnitude"),
        ({"augmentation": {"operations": -1}}, "augmentation.operations"),
    ],
)
def test_wrong_values_are_refused(values, key):
    with pytest.raises(UsageError) as error:
        ImageDataConfig(values).validate()
    assert error.value.key == key
