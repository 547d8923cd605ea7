"""`macnet extract`: a file of features, made of images by a ResNet-101 as the public code does.

HDF5 is no database: whoever is killed while the library writes leaves a file that nobody can
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
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch

from macnet.clevr.pictures import read_picture
from macnet.data.community import open_hdf5
from macnet.data.features import NAMES, largest_of, open_features
from macnet.data.packed import write_rows
from macnet.data.resnet import SIDE, Normalisation, ResNet101, fingerprint, normalise
from macnet.disk import alone_in, read_json, to_disk, write_json
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import in_order, pool

DataType = Literal["float16", "float32"]
CHANNELS_AND_SIDE = {2: (512, 28), 3: (1024, 14)}  # of the features after a stage
SECONDS_BETWEEN_COUNTS = 10.0


def extract(
    images: Mapping[int, Path],
    out: Path,
    network: ResNet101,
    *,
    normalisation: Normalisation = "public",
    dtype: DataType = "float16",
    batch: int = 64,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> bool:
    """Write the features of images, by their index, to a file; false if they were there already.

    The network computes in float32, on a GPU too (its TF32 has the mantissa of float16). The batch
    and the device may change when a run goes on; like the number of threads, they only move the
    rounding.
    """
    paths = _without_gaps(images)
    settings = {
        "split": paths[0].name.removeprefix("CLEVR_").rpartition("_")[0],
        "images": len(paths),
        "stage": len(network.stages),
        "normalisation": normalisation,
        "dtype": dtype,
        "weights": fingerprint(network),
    }
    # Names and sizes, not times: those change when a dataset is copied.
    pictures = [f"{path.name}\t{path.stat().st_size}\n" for path in paths]
    if out.exists():
        _refuse_another(out, {**settings, "pictures": _hash(pictures)})
        return False
    unfinished = _Unfinished(out, settings, pictures)
    with unfinished.held():
        if out.exists():
            raise InputError(f"{out}: another run has finished it just now")
        unfinished.begin()
        batches = [paths[i : i + batch] for i in range(unfinished.rows, len(paths), batch)]
        with (
            progress("extracted", "images", len(paths), unfinished.rows) as advance,
            pool(min(workers, len(batches))) as executor,
        ):
            network.to(device)
            for decoded in in_order(executor, _decode, batches, ahead=2 * workers):
                features = _features(network, decoded, normalisation, dtype, device)
                finite = np.isfinite(largest_of(features))
                if not finite.all():
                    image = paths[unfinished.rows + int(finite.argmin())]
                    raise InputError(f"{image}: its features are too large for {dtype}")
                unfinished.append(features)
                advance(len(features))
        unfinished.finish()
    return True


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


def _decode(paths: Sequence[Path]) -> np.ndarray:
    return np.stack([read_picture(path, SIDE, SIDE) for path in paths])


def _features(
    network: ResNet101,
    pictures: np.ndarray,
    normalisation: Normalisation,
    dtype: DataType,
    device: torch.device | str,
) -> np.ndarray:
    precise = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    try:
        with torch.inference_mode(), precise:
            x = normalise(torch.from_numpy(pictures).to(device), normalisation)
            features: torch.Tensor = network(x)
            return features.to(getattr(torch, dtype)).cpu().numpy()
    except torch.OutOfMemoryError:
        raise InputError(
            f"--batch {len(pictures)} does not fit into the memory of {device}; give less"
        ) from None


class _Unfinished:
    """A file that is being made: where its rows go, and how many of them there are."""

    def __init__(self, out: Path, settings: Mapping[str, Any], pictures: Sequence[str]) -> None:
        self.out, self.settings, self.pictures = out, settings, pictures
        self.folder = out.with_name(f".{out.name}.unfinished")
        self.part, self.count = self.folder / "features.h5", self.folder / "count.json"
        self.rows = self.offset = 0  # written so far; and where in the file the first begins
        self.counted = time.monotonic()  # when their number was last written down

    @contextmanager
    def held(self) -> Iterator[None]:
        with alone_in(self.folder):
            try:
                yield
            except BaseException as error:
                if not self.count.exists():
                    # There is nothing to go on from.
                    shutil.rmtree(self.folder, ignore_errors=True)
                ours = (None, str(self.part), str(self.count))
                # A failed write may not say where, and nobody knows the folder.
                if isinstance(error, OSError) and error.filename in ours:
                    why = error.strerror or str(error)
                    raise OSError(error.errno, why, str(self.out)) from error
                raise

    def begin(self) -> None:
        """Find the file of an earlier run, or lay out a new one."""
        try:
            found = read_json(self.count)
            with open_hdf5(self.part) as file:
                self.offset = file[NAMES[0]].id.get_offset()
            if found["layout"] != self._layout():
                raise InputError(f"{self.part}: it is damaged")
            # Of the pictures only those that were looked at must be the same: one that was broken,
            # and stopped the run, may have been replaced since.
            used = self.pictures[: found["rows"]]
        except (InputError, LookupError, TypeError, AttributeError):
            self._lay_out()  # there is none, or nothing to go on from
            return
        _refuse_difference(
            self.folder,
            found,
            {**self.settings, "pictures": _hash(used)},
            "remove this folder, or give another file",
        )
        self.rows = len(used)

    def append(self, rows: np.ndarray) -> None:
        write_rows(self.part, self.offset, self.rows, rows)
        self.rows += len(rows)
        if time.monotonic() - self.counted >= SECONDS_BETWEEN_COUNTS:
            self._keep_count()

    def finish(self) -> None:
        self._keep_count()
        pictures = np.bytes_(_hash(self.pictures))
        with open_hdf5(self.part) as file:
            changed = file.attrs["pictures"] != pictures
        if changed:  # one that was broken has been replaced since
            with _written_by_library(self.part), h5py.File(self.part, "r+") as file:
                file.attrs.modify("pictures", pictures)
            to_disk(self.part)
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
            # What there is to say comes first, so that nothing is left to the library for later.
            file.attrs.update(self.settings)
            file.attrs["pictures"] = np.bytes_(_hash(self.pictures))  # which has a fixed size
            file.attrs["macnet"] = versions[0] if versions else "not installed"
            array = h5py.h5d.create(file.id, NAMES[0].encode(), dtype, space, layout)
            self.offset = array.get_offset()
        with self.part.open("r+b") as file:
            # So far it is a hole; a disk that is too small shall say so now.
            os.posix_fallocate(file.fileno(), 0, self.part.stat().st_size)

    def _layout(self) -> str:
        """A hash of all that the library wrote: if it is damaged, rows go to wrong places."""
        with self.part.open("rb") as file:
            return hashlib.sha256(file.read(self.offset)).hexdigest()[:16]

    def _keep_count(self) -> None:
        """Write down how many rows are on the disk, once they are."""
        to_disk(self.part)
        counted = {"rows": self.rows, "pictures": _hash(self.pictures[: self.rows])}
        write_json(self.count, {**self.settings, **counted, "layout": self._layout()})
        self.counted = time.monotonic()


@contextmanager
def _written_by_library(path: Path) -> Iterator[None]:
    """Whatever it raises, of several kinds, is the disk's fault; the number is in its text."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        found = re.search(r"errno = (\d+)", str(error))
        number = int(found[1]) if found else getattr(error, "errno", None) or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None


def _refuse_another(out: Path, settings: Mapping[str, Any]) -> None:
    if out.is_dir():
        raise InputError(f"{out}: this is a folder; give the name of a file, such as train.h5")
    with open_hdf5(out) as file:
        found = {k: v.decode() if isinstance(v, bytes) else v for k, v in file.attrs.items()}
    if "macnet" not in found:
        raise InputError(f"{out}: it is there already, and not made by this command; give another")
    _refuse_difference(out, found, settings, "give another file")
    open_features(out)


def _refuse_difference(
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
