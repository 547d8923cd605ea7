"""Where the questions and images of a split are on disk, and whether its images are complete."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from macnet.data.formats import FORMATS, DatasetFormat
from macnet.errors import InputError


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split of a dataset."""

    name: str
    questions: Path
    images: Path
    """The folder of its images, or a file of their features."""
    format: DatasetFormat
    training: Path | None = None
    """Questions of the training split that belongs to it, if they are there."""


def find_split(root: Path, split: str, images: Path | None = None) -> SplitFiles:
    """Where a split's questions and images are.

    `root` is the folder of a dataset in one of `FORMATS`, or an HDF5 file of questions. `images`
    says where the images are if not there: another dataset's folder, the folder of the split's
    images, or a file of their features.
    """
    questions, format = find_questions(root, split)
    training = format.find_questions(root, format.training_split(split))
    return SplitFiles(split, questions, format.find_images(root, split, images), format, training)


def find_questions(root: Path, split: str) -> tuple[Path, DatasetFormat]:
    """The file of a split's questions, and its format."""
    candidates = ((format.find_questions(root, split), format) for format in FORMATS.values())
    found = [(path, format) for path, format in candidates if path is not None]
    if not found:
        raise InputError(_not_found(root, split))
    if len(found) > 1:
        (one, format), (other, another), *_ = found
        raise InputError(
            f"{root}: it holds both {format.name} ({one.name}) and {another.name} ({other.name}); "
            "move the questions of one to a folder of their own"
        )
    return found[0]


def _not_found(root: Path, split: str) -> str:
    if not root.is_dir():
        what = "this is a file; give" if root.exists() else "there is no such folder; give"
        return f"{root}: {what} the folder of a dataset"
    for format in FORMATS.values():
        if splits := format.splits(root):
            return f"{root}: it has no split {split!r}; it has {', '.join(splits)}"
    paths = [format.questions_path.replace("{split}", split) for format in FORMATS.values()]
    return f"{root}: not a dataset; it has neither {' nor '.join(filter(None, paths))}"


def check_images_present(
    split: SplitFiles, asked: Iterable[int], there: Collection[int], names: Sequence[str] = ()
) -> None:
    """Raise an error that counts and names the images that are asked about but not there."""
    wanted = set(asked)
    missing = sorted(wanted.difference(there))
    if missing:
        first = ", ".join(split.format.image_name(split.name, i, names) for i in missing[:3])
        raise InputError(
            f"{split.images}: {len(wanted) - len(missing):,} of {len(wanted):,} images are there, "
            f"{len(missing):,} are missing: {first}{', …' if missing[3:] else ''}; fetch them, or "
            f"leave out what {split.questions.name} asks about them with `skip_missing`"
        )
