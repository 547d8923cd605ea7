"""A split is found wherever it lies, and what is missing of it is named."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macnet.clevr.release import UNFINISHED, image_name, images_folder, questions_file
from macnet.data.formats import CLEVR, CLEVR_HUMANS
from macnet.data.splits import SplitFiles, check_images_present, find_split
from macnet.errors import InputError


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for split in ("train", "valB"):
        images_folder(tmp_path, split).mkdir(parents=True)
        questions_file(tmp_path, split).parent.mkdir(exist_ok=True)
        questions_file(tmp_path, split).write_text("{}")
    return tmp_path


def test_a_dataset_is_found(dataset: Path) -> None:
    for name in ("train", "valB"):
        files = questions_file(dataset, name), images_folder(dataset, name)
        assert find_split(dataset, name) == SplitFiles(
            name, *files, CLEVR, None if name == "valB" else files[0]
        )


def test_people_s_questions_need_to_know_where_the_images_are(dataset: Path) -> None:
    people = dataset / "people"
    people.mkdir()
    (people / "CLEVR-Humans-train.json").write_text("{}")
    images = images_folder(dataset, "train")
    (images / image_name("train", 0)).write_text("")
    questions = people / "CLEVR-Humans-train.json"
    wanted = SplitFiles("train", questions, images, CLEVR_HUMANS, questions)
    assert find_split(people, "train", dataset) == wanted
    assert find_split(people, "train", images) == wanted
    for given_images, expected in (
        (None, "people: these come without images; say with `images`"),
        (people, "people/images/train: there is no such folder of images"),
    ):
        with pytest.raises(InputError, match=expected):
            find_split(people, "train", given_images)


def lacking_images(root: Path) -> None:
    images_folder(root, "train").rmdir()


def beside_people_s(root: Path) -> None:
    (root / "CLEVR-Humans-train.json").write_text("{}")


def unfinished(root: Path) -> None:
    (root / UNFINISHED).mkdir()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lacking_images, "images/train: there is no such folder of images"),
        (beside_people_s, "it holds both clevr \\(CLEVR_train_questions.json\\) and clevr-humans"),
        (unfinished, "this world is unfinished; run the same `macnet generate` again"),
    ],
)
def test_a_dataset_that_is_not_ready(
    change: Callable[[Path], None], expected: str, dataset: Path
) -> None:
    change(dataset)
    with pytest.raises(InputError, match=expected):
        find_split(dataset, "train")


def test_what_is_no_dataset(dataset: Path) -> None:
    for root, expected in (
        (dataset / "nowhere", "there is no such folder; give the folder of a dataset"),
        (questions_file(dataset, "train"), "this is a file; give the folder"),
        (dataset / "images", "neither questions/CLEVR_val_questions.json nor CLEVR-Humans-val"),
        (dataset, "it has no split 'val'; it has train, valB"),
    ):
        with pytest.raises(InputError) as error:
            find_split(root, "val")
        assert str(error.value).startswith(f"{root}: ")
        assert expected in str(error.value)


def test_images_by_their_index(tmp_path: Path) -> None:
    for name in ("CLEVR_val_000007.png", "CLEVR_val_1000000.png", ".CLEVR_val_000001.png.part"):
        (tmp_path / name).touch()
    for name in ("Thumbs.db", "CLEVR_val_2.png", "CLEVR_val_000003.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "CLEVR_val_000004.png").mkdir()
    (tmp_path / "CLEVR_val_000005.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "CLEVR_train_000008.png").touch()
    assert CLEVR.image_files(tmp_path, "val") == {
        7: tmp_path / "CLEVR_val_000007.png",
        1_000_000: tmp_path / "CLEVR_val_1000000.png",
    }
    (tmp_path / "CLEVR_val_0000007.png").touch()
    with pytest.raises(InputError, match=r"0000007.png and CLEVR_val_000007.png are both image 7"):
        CLEVR.image_files(tmp_path, "val")


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it holds no images named as CLEVR_train_000000.png is"):
        CLEVR.image_files(tmp_path, "train")
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(InputError, match="there is no such folder of images"):
            CLEVR.find_images(tmp_path, "train", path)


@given(asked=st.lists(st.integers(0, 40)), there=st.sets(st.integers(0, 40)))
def test_missing_images(asked: list[int], there: set[int]) -> None:
    missing = [i for i in range(41) if i in asked and i not in there]
    split = SplitFiles("train", Path("q.json"), Path("images"), CLEVR)
    if not missing:
        check_images_present(split, asked, there)
        return
    with pytest.raises(InputError, match=image_name("train", missing[0])) as error:
        check_images_present(split, asked, there)
    assert f"{len(missing)} are missing" in str(error.value)


def test_an_incomplete_download() -> None:
    split = SplitFiles("train", Path("q.json"), Path("CLEVR/images/train"), CLEVR)
    gone = {17, 170, 1700, *range(20_000, 22_115)}
    there = set(range(70_000)) - gone
    with pytest.raises(InputError) as error:
        check_images_present(split, (i // 10 for i in range(700_000)), there)
    assert str(error.value) == (
        "CLEVR/images/train: 67,882 of 70,000 images are there, 2,118 are missing: "
        "CLEVR_train_000017.png, CLEVR_train_000170.png, CLEVR_train_001700.png, …; fetch them, "
        "or leave out what q.json asks about them with `skip_missing`"
    )
