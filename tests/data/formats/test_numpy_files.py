"""Arrays in `.npy` and `.npz` files: whole, row by row, mapped; and files that lie about what is in them."""

import io
import zipfile

import numpy as np
import pytest

from everstep.data.formats import BadFile, NumpyFile

NUMBERS = np.arange(12, dtype="float32").reshape(6, 2)


def npy(array, **options) -> bytes:
    data = io.BytesIO()
    np.save(data, array, **options)
    return data.getvalue()


def header(shape, descr="<f4", in_fortran_order=False) -> bytes:
    data = io.BytesIO()
    np.lib.format.write_array_header_1_0(data, {"descr": descr, "fortran_order": in_fortran_order, "shape": shape})
    return data.getvalue()


def write(path, content: bytes):
    """Writes the content of an `.npy` file, or an archive with it as the array `x`."""
    if path.suffix == ".npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", content)
    return path


@pytest.fixture(params=[".npy", ".npz"])
def place(request, tmp_path):
    return tmp_path / f"arrays{request.param}"


def name_in(file):
    return file.names[0]


def test_arrays_are_read_as_a_whole_or_row_after_row(place):
    with NumpyFile(write(place, npy(NUMBERS))) as file:
        assert (file.names, file.is_single) == (([""], True) if place.suffix == ".npy" else (["x"], False))
        whole, rows = file.read(name_in(file)), file.rows(name_in(file))
        assert (rows.shape, rows.dtype) == ((6, 2), np.float32)
        np.testing.assert_array_equal(whole, NUMBERS)
        np.testing.assert_array_equal(np.concatenate([rows.take(4), rows.take(2)]), NUMBERS)
        whole[0] = 7  # an array that was read belongs to the caller


def test_the_content_decides_not_the_name(tmp_path):
    (tmp_path / "arrays.npz").write_bytes(npy(NUMBERS))
    with NumpyFile(tmp_path / "arrays.npz") as file:
        assert file.is_single


def test_a_mapped_array_stays_in_its_file(tmp_path):
    np.save(tmp_path / "x.npy", NUMBERS)
    with NumpyFile(tmp_path / "x.npy") as file:
        mapped = file.read(mapped=True)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, NUMBERS)


def test_other_orders_and_text(place):
    with NumpyFile(write(place, npy(np.asfortranarray(NUMBERS)))) as file:
        np.testing.assert_array_equal(file.read(name_in(file)), NUMBERS)
        with pytest.raises(BadFile, match="has no rows"):
            file.rows(name_in(file))
    with NumpyFile(write(place, npy(np.array(["ä", "bc"])))) as file:
        assert file.rows(name_in(file)).take(2).tolist() == ["ä", "bc"]


@pytest.mark.parametrize("call", ["read", "rows"])
def test_pickles_are_refused(place, call):
    write(place, npy(np.array([1, None], dtype=object), allow_pickle=True))
    with NumpyFile(place) as file, pytest.raises(BadFile, match="Python objects, which are not loaded"):
        getattr(file, call)(name_in(file))


def test_pickles_are_refused_in_mapped_files(tmp_path):
    path = write(tmp_path / "x.npy", npy(np.array([None]), allow_pickle=True))
    with NumpyFile(path) as file, pytest.raises(BadFile, match="Python objects, which are not loaded"):
        file.read(mapped=True)


@pytest.mark.parametrize("call", ["read", "rows"])
def test_a_small_file_that_says_it_is_huge_is_refused(place, call):
    reason = r"should have the shape \(100000000000000, 4\), but the file ends before"
    with NumpyFile(write(place, header((10**14, 4)) + b"1234")) as file, pytest.raises(BadFile, match=reason):
        getattr(file, call)(name_in(file))


def test_a_damaged_archive(tmp_path):
    path = write(tmp_path / "x.npz", npy(np.random.default_rng(0).normal(size=1000)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20] = bytes(20)
    path.write_bytes(data)
    with NumpyFile(path) as file, pytest.raises(BadFile):
        file.read("x")
    with NumpyFile(path) as file, pytest.raises(BadFile):
        file.rows("x").take(1000)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "File is not a zip file"), (b"no arrays", "File is not a zip file"), (None, "No such file or directory")],
)
def test_what_is_no_such_file(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(BadFile, match=f"^{reason}$"):
        NumpyFile(tmp_path / "x.npz")


def test_an_array_that_is_missing(tmp_path):
    with (
        NumpyFile(write(tmp_path / "x.npz", npy(NUMBERS))) as file,
        pytest.raises(BadFile, match="no array 'y', but 'x'"),
    ):
        file.read("y")
