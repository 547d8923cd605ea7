"""Extract a file of features from images with a ResNet-101, as the public code does.

HDF5 is no database: a process that is killed while the library writes leaves a file that nobody can
read. So the library only lays out the file, with room for all rows; they are then written past it,
straight to their places, and a small file beside it keeps count of them. A run that was stopped,
even killed, goes on from that count. The file gets its name when it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch

from macnet.clevr.images import read_image
from macnet.data.clevr_h5 import open_hdf5
from macnet.data.features import NAMES, FeatureFile, largest_of, open_features
from macnet.data.pack_store import write_rows
from macnet.data.resnet import SIDE, Normalization, ResNet101, fingerprint, load_resnet, normalize
from macnet.data.splits import check_images_present, find_split
from macnet.devices import choose_device, choose_workers
from macnet.errors import InputError
from macnet.files import fsync, locked_folder, read_json, write_json
from macnet.progress import progress
from macnet.workers import map_in_order, pool

DataType = Literal["float16", "float32"]
CHANNELS_AND_SIDE = {2: (512, 28), 3: (1024, 14)}  # of the features after a stage
SECONDS_BETWEEN_COUNTS = 10.0


def extract(
    data: str | PathLike[str],
    out: str | PathLike[str],
    *,
    split: str = "train",
    weights: str | PathLike[str] | None = None,
    stage: Literal[2, 3] = 3,
    dtype: DataType = "float16",
    normalization: Normalization = "public",
    batch: int = 64,
    device: str = "auto",
    workers: int | None = None,
) -> FeatureFile:
    """Extract the features of a split's images to an HDF5 file; a finished file is only opened.

    Args:
        data: Folder of a dataset that has images.
        out: The file, in whose array "features" row i belongs to image i.
        split: Name of the split.
        weights: File of torchvision's weights of a ResNet-101; if None, they are downloaded.
        stage: 3 gives 1024 channels of 14×14, 2 gives 512 of 28×28.
        dtype: Type of the features in the file.
        normalization: "public" as in the public code and its files, "imagenet" as in training.
        batch: Number of images that go through the network at once.
        device: Where the network runs; "auto" takes a GPU if there is one.
        workers: Processes that decode images; if None, as many as there are cores beside a GPU.
    """
    if batch < 1:
        raise InputError(f"`batch` is {batch}; it must be at least 1")
    device = choose_device(device)
    # A CPU is busy with the network, which takes twenty times as long as the decoding.
    decoding = 0 if workers is None and device == "cpu" else choose_workers(workers, "cpu")
    found = find_split(Path(data), split)
    texts = found.format.read(found.questions, split)
    names = texts.image_names or ()
    images = found.format.image_files(found.images, split, names)
    check_images_present(found, {question.image for question in texts.questions}, images, names)
    network = load_resnet(None if weights is None else Path(weights), stage)
    return extract_features(
        images, Path(out), network, split=split, normalization=normalization, dtype=dtype,
        batch=batch, device=device, workers=decoding, formats=found.format.image_formats,
    )  # fmt: skip


def extract_features(
    images: Mapping[int, Path],
    out: Path,
    network: ResNet101,
    *,
    split: str,
    normalization: Normalization = "public",
    dtype: DataType = "float16",
    batch: int = 64,
    device: torch.device | str = "cpu",
    workers: int = 0,
    formats: tuple[str, ...] | None = ("PNG",),
) -> FeatureFile:
    """Extract the features of images, given by their ids, to a file.

    The network computes in float32, on a GPU too (its TF32 has the mantissa of float16). The batch
    and the device may change when a run goes on; like the number of threads, they only move the
    rounding.
    """
    paths = _without_gaps(images)
    settings = {
        "split": split,
        "images": len(paths),
        "stage": len(network.stages),
        "normalization": normalization,
        "dtype": dtype,
        "weights": fingerprint(network),
    }
    # Names and sizes, not times: those change when a dataset is copied.
    image_files = [f"{path.name}\t{path.stat().st_size}\n" for path in paths]
    if out.exists():
        return _check_same_run(out, {**settings, "image_files": _hash(image_files)})
    partial_file = _PartialFile(out, settings, image_files)
    with partial_file.locked():
        if out.exists():
            raise InputError(f"{out}: another run has finished it just now")
        partial_file.begin()
        decode = partial(_decode, formats=formats)
        batches = [paths[i : i + batch] for i in range(partial_file.rows, len(paths), batch)]
        with (
            progress("extracted", "images", len(paths), partial_file.rows) as advance,
            pool(min(workers, len(batches))) as executor,
        ):
            network.to(device)
            for decoded in map_in_order(executor, decode, batches, ahead=2 * workers):
                features = _features(network, decoded, normalization, dtype, device)
                finite = np.isfinite(largest_of(features))
                if not finite.all():
                    image = paths[partial_file.rows + int(finite.argmin())]
                    raise InputError(f"{image}: its features are too large for {dtype}")
                partial_file.append(features)
                advance(len(features))
        partial_file.finish()
    return open_features(out)


def _without_gaps(images: Mapping[int, Path]) -> list[Path]:
    if not images:
        raise InputError("there are no images to extract features from")
    missing = sorted(set(range(max(images) + 1)) - set(images))
    if missing:
        folder = next(iter(images.values())).parent
        first = ", ".join(str(index) for index in missing[:3])
        raise InputError(
            f"{folder}: {len(missing):,} of {max(images) + 1:,} images are missing, first number "
            f"{first}; a row of features belongs to each"
        )
    return [images[index] for index in range(len(images))]


def _decode(paths: Sequence[Path], formats: tuple[str, ...] | None) -> np.ndarray:
    return np.stack([read_image(path, SIDE, SIDE, formats) for path in paths])


def _features(
    network: ResNet101,
    images: np.ndarray,
    normalization: Normalization,
    dtype: DataType,
    device: torch.device | str,
) -> np.ndarray:
    precise = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    try:
        with torch.inference_mode(), precise:
            x = normalize(torch.from_numpy(images).to(device), normalization)
            features: torch.Tensor = network(x)
            return features.to(getattr(torch, dtype)).cpu().numpy()
    except torch.OutOfMemoryError:
        raise InputError(
            f"`batch` is {len(images)}, which does not fit into the memory of {device}; give less"
        ) from None


class _PartialFile:
    """A file of features that is being written, and the number of rows that it has so far."""

    def __init__(self, out: Path, settings: Mapping[str, Any], image_files: Sequence[str]) -> None:
        self.out, self.settings, self.image_files = out, settings, image_files
        self.folder = out.with_name(f".{out.name}.unfinished")
        self.part, self.count = self.folder / "features.h5", self.folder / "count.json"
        self.rows = self.offset = 0  # written so far; byte offset of the first
        self.counted = time.monotonic()  # when their number was last saved

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; if there is nothing to resume from, leave nothing behind."""
        with locked_folder(self.folder):
            try:
                yield
            except BaseException as error:
                if not self.count.exists():
                    shutil.rmtree(self.folder, ignore_errors=True)
                ours = (None, str(self.part), str(self.count))
                # A failed write may not name a file, and the user does not know this folder.
                if isinstance(error, OSError) and error.filename in ours:
                    why = error.strerror or str(error)
                    raise OSError(error.errno, why, str(self.out)) from error
                raise

    def begin(self) -> None:
        """Resume the file of an earlier run, or lay out a new one."""
        try:
            found = read_json(self.count)
            with open_hdf5(self.part) as file:
                self.offset = file[NAMES[0]].id.get_offset()
            if found["layout"] != self._layout():
                raise InputError(f"{self.part}: it is damaged")
            # Only the images that were used must be the same: a broken one, which stopped the run,
            # may have been replaced since.
            used = self.image_files[: found["rows"]]
        except (InputError, LookupError, TypeError, AttributeError):
            self._lay_out()  # there is none, or it cannot be resumed
            return
        _check_equal(
            self.folder,
            found,
            {**self.settings, "image_files": _hash(used)},
            "remove this folder, or give another file",
        )
        self.rows = len(used)

    def append(self, rows: np.ndarray) -> None:
        """Write the next rows."""
        write_rows(self.part, self.offset, self.rows, rows)
        self.rows += len(rows)
        if time.monotonic() - self.counted >= SECONDS_BETWEEN_COUNTS:
            self._keep_count()

    def finish(self) -> None:
        """Give the file its name."""
        self._keep_count()
        image_files = np.bytes_(_hash(self.image_files))
        with open_hdf5(self.part) as file:
            changed = file.attrs["image_files"] != image_files
        if changed:  # a broken image has been replaced since
            with _written_by_library(self.part), h5py.File(self.part, "r+") as file:
                file.attrs.modify("image_files", image_files)
            fsync(self.part)
        self.part.replace(self.out)
        shutil.rmtree(self.folder)

    def _lay_out(self) -> None:
        channels, side = CHANNELS_AND_SIDE[self.settings["stage"]]
        space = h5py.h5s.create_simple((self.settings["images"], channels, side, side))
        dtype = h5py.h5t.py_create(np.dtype(self.settings["dtype"]))
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        layout.set_obj_track_times(False)  # the same features are the same to the byte
        versions = [found.version for found in metadata.distributions(name="macnet")]
        with _written_by_library(self.part), h5py.File(self.part, "w") as file:
            # Attributes come first, so that the library has nothing left to write later.
            file.attrs.update(self.settings)
            file.attrs["image_files"] = np.bytes_(_hash(self.image_files))  # which has a fixed size
            file.attrs["macnet"] = versions[0] if versions else "not installed"
            array = h5py.h5d.create(file.id, NAMES[0].encode(), dtype, space, layout)
            self.offset = array.get_offset()
        with self.part.open("r+b") as file:
            # So far it is sparse; a disk that is too small shall fail now.
            os.posix_fallocate(file.fileno(), 0, self.part.stat().st_size)

    def _layout(self) -> str:
        """A hash of all that the library wrote; if it is damaged, rows would go to wrong places."""
        with self.part.open("rb") as file:
            return hashlib.sha256(file.read(self.offset)).hexdigest()[:16]

    def _keep_count(self) -> None:
        """Save the number of rows, once they are on the disk."""
        fsync(self.part)
        counted = {"rows": self.rows, "image_files": _hash(self.image_files[: self.rows])}
        write_json(self.count, {**self.settings, **counted, "layout": self._layout()})
        self.counted = time.monotonic()


@contextmanager
def _written_by_library(path: Path) -> Iterator[None]:
    """Turn errors of the library, which are the disk's, into an OSError with their errno."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else getattr(error, "errno", None) or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None


def _check_same_run(out: Path, settings: Mapping[str, Any]) -> FeatureFile:
    if out.is_dir():
        raise InputError(f"{out}: this is a folder; give the name of a file, such as train.h5")
    with open_hdf5(out) as file:
        found = {k: v.decode() if isinstance(v, bytes) else v for k, v in file.attrs.items()}
    if "macnet" not in found:
        raise InputError(f"{out}: it is there already, and not made by macnet; give another file")
    _check_equal(out, found, settings, "give another file")
    return open_features(out)


def _check_equal(
    where: Path, found: Mapping[str, Any], settings: Mapping[str, Any], advice: str
) -> None:
    there = {name: str(found.get(name)) for name in settings}  # a damaged file may hold anything
    differences = ", ".join(
        f"{name} {there[name] if there[name].isprintable() else '?':.64} where {value} is asked for"
        for name, value in settings.items()
        if there[name] != str(value)
    )
    if differences:
        raise InputError(f"{where}: it holds other features ({differences}); {advice}")


def _hash(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
