"""Files of features: their rows as they are, and a sentence for every way they can be wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.clevr_h5 import read_questions_h5
from macnet.data.features import open_features
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError


def write(path: Path, array: Any, name: str = "features", **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=array, **options)
    return path


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f2", ">f4"])
@pytest.mark.parametrize("options", [{}, {"chunks": (1, 2, 3, 4), "compression": "gzip"}])
def test_rows_are_those_of_the_file(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    array = np.random.default_rng(0).standard_normal((7, 2, 3, 4)).astype(dtype)
    file = open_features(write(tmp_path / "f.h5", array, **options))
    assert file.shape == array.shape
    assert file.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(file.rows(2, 6), array[2:6])
    assert file.rows(2, 6).dtype.isnative


def test_files_of_pixels_are_read_too(tmp_path: Path) -> None:
    array: np.ndarray = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    assert open_features(write(tmp_path / "f.h5", array, "images")).shape == (2, 3, 8, 8)


@given(
    row=st.integers(0, 5),
    place=st.integers(0, 23),
    value=st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from([np.float16, np.float32]),
)
@settings(max_examples=20, deadline=None)
def test_what_is_not_finite_is_named(
    tmp_path_factory: pytest.TempPathFactory, row: int, place: int, value: float, dtype: type
) -> None:
    array: np.ndarray = np.random.default_rng(0).standard_normal((6, 24)).astype(dtype)
    array[row, place] = value
    path = tmp_path_factory.mktemp("damaged") / "f.h5"
    file = open_features(write(path, array.reshape(6, 2, 3, 4)))
    for first in range(0, 6, 2):
        if row in (first, first + 1):
            with pytest.raises(InputError, match=f"f.h5: row {row} of 'features' holds NaN or inf"):
                file.rows(first, first + 2)
        else:
            np.testing.assert_array_equal(
                file.rows(first, first + 2).reshape(2, -1), array[first : first + 2]
            )


def test_rows_nobody_wrote_are_named(tmp_path: Path) -> None:
    array = np.ones((6, 2, 3, 4), np.float16)
    array[4:] = -0.0
    file = open_features(write(tmp_path / "f.h5", array))
    assert file.rows(0, 4).all()
    with pytest.raises(
        InputError, match="row 4 of 'features' holds nothing but zeros; the file is incomplete"
    ):
        file.rows(2, 6)


@pytest.mark.parametrize(
    ("array", "name", "expected"),
    [
        (np.ones((2, 3), "f4"), "feats", "it has no array 'features'; it holds feats"),
        (np.ones((2, 3, 4), "f4"), "features", r"has the shape \(2, 3, 4\); \(images, channels"),
        (np.ones((0, 3, 4, 4), "f4"), "features", r"has the shape \(0, 3, 4, 4\)"),
        (np.float32(1), "features", r"has the shape \(\)"),
        (h5py.Empty("f4"), "features", r"has the shape \(\)"),
        (np.ones((2, 3, 4, 4), "f8"), "features", "is of float64; float16 or float32"),
        (np.ones((2, 3, 4, 4), "u1"), "features", "is of uint8; float16 or float32"),
        (np.full((2, 3, 4, 4), b"text"), "features", "is of .*; float16 or float32"),
        (np.ones((2, 3, 4, 4), "f4"), "features/inside", "'features' is no array"),
    ],
)
def test_files_of_something_else(tmp_path: Path, array: Any, name: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"f.h5: .*{expected}"):
        open_features(write(tmp_path / "f.h5", array, name))


def test_files_that_were_not_written_to_their_end(tmp_path: Path) -> None:
    for options in ({}, {"chunks": (1, 2, 3, 4)}):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            array = file.create_dataset("features", (7, 2, 3, 4), "f4", **options)
            if options:
                array[:5] = 1
        with pytest.raises(InputError, match=r"f.h5: 'features' was not written to its end"):
            open_features(tmp_path / "f.h5")


def test_a_shape_that_no_memory_would_hold(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("features", (10, 1 << 20, 1 << 10, 1 << 10), "f4", chunks=(1, 1, 8, 8))
    with pytest.raises(InputError, match="has the shape"):
        open_features(tmp_path / "f.h5")


def test_files_that_are_not_there_or_no_hdf5(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.h5: there is no such file"):
        open_features(tmp_path / "x.h5")
    with pytest.raises(InputError, match=f"{tmp_path}: this is a folder, not a file"):
        open_features(tmp_path)
    (tmp_path / "text.h5").write_text("mine")
    with pytest.raises(InputError, match=r"text.h5: not HDF5, or damaged or cut short"):
        open_features(tmp_path / "text.h5")


def elsewhere(folder: Path) -> Path:
    return write(folder / "other.h5", np.ones((2, 1, 2, 2), np.float32))


def external_link(file: h5py.File, other: Path) -> None:
    file["features"] = h5py.ExternalLink(str(other), "/features")


def soft_link_to_external_one(file: h5py.File, other: Path) -> None:
    file.create_group("deep/er")["other"] = h5py.ExternalLink(str(other), "/")
    file["features"] = h5py.SoftLink("/deep/er/other/features")


def link_beside(file: h5py.File, other: Path) -> None:
    file["features"] = np.ones((2, 1, 2, 2), np.float32)
    file["more"] = h5py.ExternalLink(str(other), "/features")


def external_storage(file: h5py.File, other: Path) -> None:
    place = [(str(other.with_suffix(".bin")), 0, 32)]
    file.create_dataset("features", data=np.ones((2, 1, 2, 2), np.float32), external=place)


def virtual(file: h5py.File, other: Path) -> None:
    layout = h5py.VirtualLayout((2, 1, 2, 2), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "features", (2, 1, 2, 2))
    file.create_virtual_dataset("features", layout)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (external_link, "features"),
        (soft_link_to_external_one, "deep/er/other"),
        (link_beside, "more"),
        (external_storage, "features"),
        (virtual, "features"),
    ],
)
def test_other_files_are_not_opened(
    tmp_path: Path, make: Callable[[h5py.File, Path], None], name: str
) -> None:
    """A file of questions goes through the same door."""
    other = elsewhere(tmp_path)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        make(file, other)
    complaint = f"f.h5: '{name}' is a link to another file, or has its data there; copy all of it"
    with pytest.raises(InputError, match=complaint):
        open_features(tmp_path / "f.h5")
    with pytest.raises(InputError, match=complaint):
        read_questions_h5(tmp_path / "f.h5", Vocabulary.build(["one"]))


def test_links_within_a_file_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "f.h5", np.ones((2, 1, 2, 2), np.float32), "group/array")
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file["features"] = h5py.SoftLink("/group/array")
    assert open_features(tmp_path / "f.h5").rows(0, 2).all()
