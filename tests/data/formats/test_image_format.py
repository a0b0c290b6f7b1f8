"""Every kind of pixels becomes 8-bit grey or RGB by the stated rule; what is no image is refused."""

import numpy as np
import pytest
from PIL import Image
from tests.data.images.image_files import encoded, picture

from everstep.data.formats.images import BadImage, decode

GREY = picture(1, channels=1)
COLOUR = picture(2)


def pixels(data, channels=3):
    return np.asarray(decode(data, channels))


def test_colour_and_grey_are_kept():
    np.testing.assert_array_equal(pixels(encoded(COLOUR)), COLOUR)
    np.testing.assert_array_equal(pixels(encoded(GREY), 1), GREY)
    np.testing.assert_array_equal(pixels(encoded(GREY)), np.stack([GREY] * 3, -1))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("enough", [None, lambda width, height: (1, 1)])
def test_images_are_upright(orientation, enough):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(3, 64, 96), "JPEG", quality=95, exif=exif)
    upright = decode(data, 3, enough)
    assert (upright.width < upright.height) == (orientation > 4)
    if enough is None:
        turned = {
            1: lambda a: a,
            2: np.fliplr,
            3: lambda a: np.rot90(a, 2),
            4: np.flipud,
            5: lambda a: a.transpose(1, 0, 2),
            6: lambda a: np.rot90(a, -1),
            7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
            8: np.rot90,
        }[orientation]
        plain = np.asarray(decode(encoded(picture(3, 64, 96), "JPEG", quality=95), 3))
        np.testing.assert_array_equal(np.asarray(upright), turned(plain))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_orientation_is_ignored():
    data = encoded(COLOUR, "JPEG", exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff")
    assert decode(data, 3).size == (30, 20)


def test_transparent_pixels_are_white():
    rgba = np.dstack([COLOUR, np.zeros((20, 30), np.uint8)])
    rgba[:10, :, 3] = 255
    found = pixels(encoded(rgba))
    np.testing.assert_array_equal(found[:10], COLOUR[:10])
    assert (found[10:] == 255).all()
    assert (pixels(encoded(rgba), 1)[10:] == 255).all()
    np.testing.assert_array_equal(pixels(encoded(rgba), 4), rgba)


def test_a_transparent_palette_is_white():
    image = Image.fromarray(np.uint8([[0, 1], [1, 0]]), "P")
    image.putpalette([255, 0, 0, 0, 255, 0])
    data = encoded(image, transparency=1)
    assert pixels(data).tolist() == [[[255, 0, 0], [255] * 3], [[255] * 3, [255, 0, 0]]]


def test_of_16_bits_the_upper_8_remain():
    values = (np.arange(600, dtype=np.uint16) * 109).reshape(20, 30)
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(pixels(encoded(values, kind), 1), values >> 8)
        np.testing.assert_array_equal(pixels(encoded(values, kind))[..., 1], values >> 8)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "L", "1"])
def test_other_colours_become_rgb(mode):
    data = encoded(Image.fromarray(COLOUR).convert(mode), "TIFF")
    expected = np.asarray(Image.fromarray(COLOUR).convert(mode).convert("RGB"))
    np.testing.assert_array_equal(pixels(data), expected)


def test_a_cmyk_jpeg_is_not_inverted():
    grey = np.full((16, 16, 3), 200, np.uint8)
    found = pixels(encoded(Image.fromarray(grey).convert("CMYK"), "JPEG", quality=95))
    assert abs(int(found.mean()) - 200) < 5


def test_pixels_of_unknown_range_are_refused():
    with pytest.raises(BadImage, match="32 bits per pixel"):
        decode(encoded(Image.fromarray(np.float32([[0.5]])), "TIFF"), 1)
    with pytest.raises(BadImage, match="32 bits per pixel"):
        decode(encoded(Image.fromarray(np.int32([[1 << 20]])), "TIFF"), 1)


def test_only_the_first_frame_is_read():
    frames = [Image.fromarray(picture(n, channels=1)) for n in range(3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(pixels(data, 1), np.asarray(frames[0]))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"])
def test_truncated_files_are_refused(kind):
    data = encoded(picture(5, 60, 80), kind)
    with pytest.raises(BadImage):
        decode(data[: len(data) // 2], 3)


@pytest.mark.parametrize("data", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BadImage, match="is not an image in a known format"):
        decode(data, 3)


def test_a_small_file_of_many_pixels_is_refused(monkeypatch):
    data = encoded(Image.new("1", (400, 300)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    with pytest.raises(BadImage, match="is too large"):
        decode(data, 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    with pytest.raises(BadImage, match="is too large"):
        decode(data, 1)


def test_a_large_jpeg_is_decoded_small():
    data = encoded(picture(6, 480, 640), "JPEG")
    assert decode(data, 3, lambda width, height: (150, 100)).size == (160, 120)
    assert decode(data, 3, lambda width, height: (width + 1, height)).size == (640, 480)
