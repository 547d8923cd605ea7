"""Scenes keep CLEVR's rules, as a checker finds that was written from the rules alone."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.render import all_visible
from macnet.clevr.scene import Condition, Scene, from_record, sample_scenes, to_record
from macnet.errors import InputError
from real_clevr import real_clevr

REAL = [("clevr_train32", "train"), ("clevr_val100", "val")]
SCENES = 2000

Record = dict[str, Any]


# --- the rules, from the specification: nothing here comes from the package ------------------

DOMAINS = {
    "size": {"small", "large"},
    "shape": {"cube", "sphere", "cylinder"},
    "material": {"rubber", "metal"},
    "color": {"gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"},
}
EXPECTED_COGENT_COLORS = {
    "A": {
        "cube": {"gray", "blue", "brown", "yellow"},
        "cylinder": {"red", "green", "purple", "cyan"},
        "sphere": DOMAINS["color"],
    },
    "B": {
        "cube": {"red", "green", "purple", "cyan"},
        "cylinder": {"gray", "blue", "brown", "yellow"},
        "sphere": DOMAINS["color"],
    },
}
TOWARD = {
    "right": (0.6563112736, 0.7544902563),
    "left": (-0.6563112736, -0.7544902563),
    "behind": (-0.7544903159, 0.6563112736),
    "front": (0.7544903159, -0.6563112736),
}
CAMERA_PLACE = (7.48113, -6.50764, 5.34367)
LAMP_PLACES = {
    "key": (6.447, -2.905, 4.258),
    "fill": (-4.671, -4.014, 3.011),
    "back": (-1.169, 2.646, 5.816),
}
ROUNDING = 1e-6  # the release stores places in single precision


def radius(item: Record) -> float:
    return {"large": 0.7, "small": 0.35}[item["size"]]


def ahead(a: Record, b: Record, direction: str) -> float:
    """How far b lies from a in a direction."""
    (ax, ay, _), (bx, by, _) = a["3d_coords"], b["3d_coords"]
    dx, dy = TOWARD[direction]
    return (bx - ax) * dx + (by - ay) * dy  # type: ignore[no-any-return]


def within(place: Sequence[float], middle: Sequence[float], most: float) -> bool:
    return all(abs(p - m) <= most for p, m in zip(place, middle, strict=True))


def broken_rules(scene: Record, condition: Condition | None = None) -> set[str]:
    """The names of the rules that a scene, as released, does not keep."""
    broken = set()
    objects = scene["objects"]
    if not 3 <= len(objects) <= 10:
        broken.add("count")
    for item in objects:
        if any(item[name] not in domain for name, domain in DOMAINS.items()):
            broken.add("attribute")
            continue
        x, y, z = item["3d_coords"]
        if max(abs(x), abs(y)) > 3 + ROUNDING:
            broken.add("floor")
        if abs(z - radius(item)) > ROUNDING:
            broken.add("rest")
        if not 0 <= item["rotation"] <= 360:
            broken.add("rotation")
        if condition and item["color"] not in EXPECTED_COGENT_COLORS[condition][item["shape"]]:
            broken.add("condition")
    if "attribute" in broken:
        return broken
    for a, b in combinations(objects, 2):
        apart = math.dist(a["3d_coords"][:2], b["3d_coords"][:2])
        if apart - radius(a) - radius(b) < 0.25 - ROUNDING:
            broken.add("gap")
        if any(0 < ahead(a, b, direction) < 0.4 - ROUNDING for direction in TOWARD):
            broken.add("margin")
    for direction in TOWARD:
        lists = [
            [j for j, b in enumerate(objects) if j != i and ahead(a, b, direction) > 0]
            for i, a in enumerate(objects)
        ]
        if scene["relationships"][direction] != lists:
            broken.add("relationships")
    if "camera" in scene and not within(scene["camera"], CAMERA_PLACE, 0.5):
        broken.add("camera")
    for name, place in scene.get("lamps", {}).items():
        if not within(place, LAMP_PLACES[name], 1):
            broken.add("lamp")
    return broken


# --- scenes ----------------------------------------------------------------------------------


def all_fine(scenes: list[Scene]) -> list[bool]:
    return [True] * len(scenes)


def looked_at(scenes: list[Scene]) -> list[bool]:
    """Small pictures suffice: what must be seen of an object is a share of the picture."""
    return all_visible(scenes, 96, 64)


def sample(
    seeds: Iterable[object],
    condition: Condition | None = None,
    visible: Callable[[list[Scene]], Iterable[bool]] = all_fine,
) -> list[Scene]:
    return sample_scenes([random.Random(str(seed)) for seed in seeds], visible, condition)


def record_of(scene: Scene) -> Record:
    return to_record(scene, "train", 7, "CLEVR_train_000007.png", 480, 320)


def real_scenes(folder: str, split: str) -> list[Record]:
    file = real_clevr(f"{folder}/scenes/CLEVR_{split}_scenes.json")
    scenes: list[Record] = json.loads(file.read_text())["scenes"]
    assert len(scenes) == {"train": 32, "val": 100}[split]
    return scenes


@pytest.fixture(scope="module")
def sampled() -> list[Scene]:
    return sample(range(SCENES), visible=looked_at)


@pytest.fixture
def record() -> Record:
    return record_of(*sample(["one"]))


# --- the rules -------------------------------------------------------------------------------


def test_sampled_scenes_keep_the_rules(sampled: list[Scene]) -> None:
    for scene in sampled:
        assert broken_rules(record_of(scene)) == set(), scene


@pytest.mark.parametrize("condition", ["A", "B"])
def test_conditions_keep_the_rules_and_their_colours(condition: Condition) -> None:
    scenes = sample(range(300), condition)
    for scene in scenes:
        assert broken_rules(record_of(scene), condition) == set(), scene
    # Every colour that may occur does.
    objects = [o for scene in scenes for o in scene.objects]
    for shape, colors in EXPECTED_COGENT_COLORS[condition].items():
        assert {o.color for o in objects if o.shape == shape} == colors


@pytest.mark.parametrize(("folder", "split"), REAL)
def test_real_scenes_keep_the_rules(folder: str, split: str) -> None:
    for scene in real_scenes(folder, split):
        assert broken_rules(scene) == set(), scene["image_filename"]


def beside(a: Record, right: float, behind: float) -> list[float]:
    (rx, ry), (bx, by) = TOWARD["right"], TOWARD["behind"]
    x, y, z = a["3d_coords"]
    return [x + right * rx + behind * bx, y + right * ry + behind * by, z]


def spoil_count(record: Record) -> None:
    del record["objects"][2:]


def spoil_attribute(record: Record) -> None:
    record["objects"][0]["color"] = "orange"


def spoil_floor(record: Record) -> None:
    record["objects"][0]["3d_coords"][1] = -3.01


def spoil_rest(record: Record) -> None:
    record["objects"][1]["3d_coords"][2] += 0.01


def spoil_gap(record: Record) -> None:
    # Far enough apart along both directions, but too close all the same.
    first, second = record["objects"][:2]
    first["size"] = second["size"] = "large"
    second["3d_coords"] = beside(first, 1.1, 1.1)


def spoil_margin(record: Record) -> None:
    first, second = record["objects"][:2]
    second["3d_coords"] = beside(first, -0.3, 2.5)


def spoil_relationships(record: Record) -> None:
    relationships = record["relationships"]
    relationships["left"], relationships["right"] = relationships["right"], relationships["left"]


def spoil_camera(record: Record) -> None:
    record["camera"][2] = 5.9


def spoil_lamp(record: Record) -> None:
    record["lamps"]["fill"][0] = -5.7


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_count,
        spoil_attribute,
        spoil_floor,
        spoil_rest,
        spoil_gap,
        spoil_margin,
        spoil_relationships,
        spoil_camera,
        spoil_lamp,
    ],
)
def test_the_checker_finds_a_broken_rule(record: Record, spoil: Callable[[Record], None]) -> None:
    assert broken_rules(record) == set()
    spoil(record)
    assert spoil.__name__.removeprefix("spoil_") in broken_rules(record)


def test_the_checker_finds_a_colour_of_the_other_condition(record: Record) -> None:
    record["objects"][0] |= {"shape": "cube", "color": "red"}
    assert "condition" in broken_rules(record, "A")
    record["objects"] = record["objects"][:1]
    assert "condition" not in broken_rules(record, "B")


# --- how often -------------------------------------------------------------------------------


def test_object_counts_are_uniform(sampled: list[Scene]) -> None:
    counts = Counter(len(scene.objects) for scene in sampled)
    assert counts.keys() == set(range(3, 11))
    # 250 each are expected, with a standard deviation of 14.8: allow four.
    assert all(abs(n - SCENES / 8) <= 60 for n in counts.values()), counts


def test_small_objects_are_53_of_100(sampled: list[Scene]) -> None:
    # They find a place more easily: crowded scenes that start over come back with fewer large ones.
    sizes = Counter(o.size for scene in sampled for o in scene.objects)
    assert 0.51 <= sizes["small"] / sizes.total() <= 0.56


@pytest.mark.parametrize("name", ["color", "shape", "material"])
def test_other_attributes_are_uniform(sampled: list[Scene], name: str) -> None:
    values = Counter(getattr(o, name) for scene in sampled for o in scene.objects)
    assert values.keys() == DOMAINS[name]
    # About 13,000 objects: four standard deviations are 0.018 of one half and 0.012 of an eighth.
    share = 1 / len(values)
    most = 4 * math.sqrt(share * (1 - share) / values.total())
    assert all(abs(n / values.total() - share) <= most for n in values.values()), values


def test_cameras_and_lamps_use_all_their_room(sampled: list[Scene]) -> None:
    for i in range(3):
        jitter = [scene.camera[i] - CAMERA_PLACE[i] for scene in sampled]
        assert min(jitter) < -0.49 < 0.49 < max(jitter)
        assert abs(sum(jitter)) / SCENES < 0.03  # four standard deviations: 0.026
        for lamp, middle in enumerate(LAMP_PLACES.values()):
            jitter = [scene.lamps[lamp][i] - middle[i] for scene in sampled]
            assert min(jitter) < -0.98 < 0.98 < max(jitter)
            assert abs(sum(jitter)) / SCENES < 0.06


def test_yaw_and_place_use_all_their_room(sampled: list[Scene]) -> None:
    objects = [o for scene in sampled for o in scene.objects]
    for values, low, high in [
        ([o.rotation for o in objects], 0, 360),
        ([o.x for o in objects], -3, 3),
        ([o.y for o in objects], -3, 3),
    ]:
        assert low <= min(values) < low + 0.01 * (high - low)
        assert high >= max(values) > high - 0.01 * (high - low)
        # Symmetric, if not uniform: places at the rim keep away from fewer others.
        below = sum(v < (low + high) / 2 for v in values) / len(values)
        assert 0.48 < below < 0.52


# --- relations -------------------------------------------------------------------------------

seeds = st.integers(0, 2**64 - 1)


@settings(deadline=None, max_examples=50)
@given(seeds)
def test_relations_are_antisymmetric_and_total(seed: int) -> None:
    (scene,) = sample([seed])
    relations = scene.relationships
    assert relations.keys() == {"left", "right", "front", "behind"}
    for one, other in [("left", "right"), ("front", "behind")]:
        for i in range(len(scene.objects)):
            assert relations[one][i] == sorted(relations[one][i])
            for j in range(len(scene.objects)):
                assert (j in relations[one][i]) == (i in relations[other][j])
                related = (j in relations[one][i]) + (j in relations[other][i])
                assert related == (i != j)


@settings(deadline=None, max_examples=50)
@given(seeds)
def test_relations_are_orders(seed: int) -> None:
    """What is left of something left of i is left of i."""
    (scene,) = sample([seed])
    for lists in scene.relationships.values():
        for i, found in enumerate(lists):
            assert all(set(lists[j]) <= set(found) for j in found)
            assert i not in found


@pytest.mark.parametrize(("folder", "split"), REAL)
def test_relations_of_real_scenes_are_the_recorded_ones(folder: str, split: str) -> None:
    for real in real_scenes(folder, split):
        scene = from_record(real, real["image_filename"])
        assert scene.relationships == real["relationships"]


# --- one seed, one scene ---------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(seeds, st.sampled_from([None, "A", "B"]))
def test_the_same_seed_gives_the_same_scene(seed: int, condition: Condition | None) -> None:
    assert sample([seed], condition) == sample([seed], condition)


def test_a_scene_depends_on_its_own_seed_alone(sampled: list[Scene]) -> None:
    assert sample([30, 31], visible=looked_at) == sampled[30:32]
    assert len(set(sampled)) == SCENES


@settings(deadline=None, max_examples=25)
@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_a_hidden_scene_is_placed_again_under_the_same_lamps(seed: int, times: list[int]) -> None:
    """The i-th scene is found hidden `times[i]` times."""
    names = [f"{seed}/{i}" for i in range(len(times))]
    before = sample(names)
    tries: list[list[Scene]] = [[] for _ in times]

    def hidden_at_first(scenes: list[Scene]) -> list[bool]:
        verdicts = []
        for scene in scenes:
            (i,) = (i for i, b in enumerate(before) if b.camera == scene.camera)
            tries[i].append(scene)
            verdicts.append(len(tries[i]) > times[i])
        return verdicts

    after = sample(names, visible=hidden_at_first)
    assert [len(found) - 1 for found in tries] == times
    for old, new, found in zip(before, after, tries, strict=True):
        assert found[0] == old
        assert found[-1] == new
        assert len(set(found)) == len(found)
        assert {scene.camera for scene in found} == {old.camera}
        assert {scene.lamps for scene in found} == {old.lamps}
        assert {len(scene.objects) for scene in found} == {len(old.objects)}
        assert broken_rules(record_of(new)) == set()


# --- the released schema ---------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(seeds)
def test_a_scene_survives_being_written_and_read(seed: int) -> None:
    (scene,) = sample([seed])
    record = record_of(scene)
    assert from_record(record, "here") == scene
    assert from_record(json.loads(json.dumps(record)), "here") == scene


def test_an_empty_scene_survives_being_written_and_read() -> None:
    assert from_record(record_of(Scene(())), "here") == Scene(())


def test_a_record_has_the_released_fields(record: Record) -> None:
    assert record.keys() - {"camera", "lamps"} == {
        "split",
        "image_index",
        "image_filename",
        "objects",
        "relationships",
        "directions",
    }
    assert (record["split"], record["image_index"]) == ("train", 7)
    assert record["image_filename"] == "CLEVR_train_000007.png"
    assert record["directions"].keys() == {"right", "left", "front", "behind", "above", "below"}
    assert record["lamps"].keys() == {"key", "fill", "back"}
    for item in record["objects"]:
        fields = {*DOMAINS, "3d_coords", "rotation", "pixel_coords"}
        assert item.keys() == fields


def test_pixels_are_whole_numbers_within_the_frame(sampled: list[Scene]) -> None:
    for scene in sampled[:500]:
        for item in record_of(scene)["objects"]:
            x, y, depth = item["pixel_coords"]
            assert type(x) is type(y) is int
            assert 0 <= x < 480
            assert 0 <= y < 320
            assert 6.5 < depth < 15.6  # 6.9 … 15.2 in the release


@pytest.mark.parametrize(("folder", "split"), REAL)
def test_real_scenes_are_written_as_they_were_read(folder: str, split: str) -> None:
    for real in real_scenes(folder, split):
        name = real["image_filename"]
        scene = from_record(real, name)
        assert within(scene.camera, CAMERA_PLACE, 0.52)
        ours = to_record(scene, real["split"], real["image_index"], name, 480, 320)
        assert ours.keys() == {*real, "camera", "lamps"}
        same = ("split", "image_index", "image_filename", "relationships", "directions")
        assert {key: ours[key] for key in same} == {key: real[key] for key in same}
        for a, b in zip(ours["objects"], real["objects"], strict=True):
            assert a.keys() == b.keys()
            assert all(a[key] == b[key] for key in (*DOMAINS, "rotation"))
            assert a["3d_coords"] == pytest.approx(b["3d_coords"], abs=1e-6)
            # A pixel on the edge between two may be rounded the other way.
            assert a["pixel_coords"][:2] == pytest.approx(b["pixel_coords"][:2], abs=1)
            assert a["pixel_coords"][2] == pytest.approx(b["pixel_coords"][2], abs=1e-3)


def test_a_scene_without_a_camera_gets_one_from_its_pixels(sampled: list[Scene]) -> None:
    for scene in [s for s in sampled if len(s.objects) > 3][:50]:
        record = record_of(scene)
        del record["camera"], record["lamps"]
        read = from_record(record, "here")
        assert read.objects == scene.objects
        assert read.camera == pytest.approx(scene.camera, abs=0.02)
        assert read.lamps == tuple(LAMP_PLACES.values())


def test_a_scene_by_hand_needs_little(sampled: list[Scene]) -> None:
    scene = sampled[0]
    record = record_of(scene)
    for item in record["objects"]:
        x, y, _ = item.pop("3d_coords")
        item.update(x=x, y=y)
        del item["rotation"], item["pixel_coords"]
    read = from_record({"objects": record["objects"]}, "here")
    assert read.objects == tuple(replace(o, rotation=0.0) for o in scene.objects)
    assert read == Scene(read.objects)  # with the standard camera and lamps


# --- what cannot be read ---------------------------------------------------------------------


def put(*path: Any, value: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder: Any = record
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        holder: Any = record
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


def pixels_missing(record: Record) -> None:
    del record["camera"], record["objects"][1]["pixel_coords"]


def pixels_unreadable(record: Record) -> None:
    del record["camera"]
    record["objects"][1]["pixel_coords"] = [10, 20]


def pixels_of_another_picture(record: Record) -> None:
    del record["camera"]
    for item in record["objects"]:
        item["pixel_coords"] = [item["pixel_coords"][0] // 2, 3, 9.0]


def no_height(record: Record) -> None:
    del record["objects"][0]["3d_coords"]
    record["objects"][0].update(x=1, y="far")


def too_many_objects(record: Record) -> None:
    record["objects"] = record["objects"][:1] * 11


BROKEN: list[tuple[Callable[[Record], None], str]] = [
    (drop("objects"), 'the scene has no "objects"'),
    (put("objects", value={"0": {}}), '"objects" is not a list'),
    (put("objects", value=None), '"objects" is not a list'),
    (put("objects", 1, value="a cube"), 'object 1 has no "size"'),
    *((drop("objects", 2, name), f'object 2 has no "{name}"') for name in DOMAINS),
    (drop("objects", 0, "3d_coords"), 'object 0 has no "3d_coords", nor both "x" and "y"'),
    (no_height, "\"y\" of object 0 is 'far', not a number"),
    (
        put("objects", 1, "color", value="orange"),
        "object 1 has the unknown color 'orange'; known are gray, red, blue, green, brown,",
    ),
    (put("objects", 1, "shape", value=["cube"]), "object 1 has the unknown shape ['cube']"),
    (put("objects", 0, "size", value=None), "object 0 has the unknown size None"),
    (put("objects", 0, "3d_coords", value=["x", 1, 2]), "\"3d_coords\" of object 0 is ['x', 1, 2]"),
    (put("objects", 0, "3d_coords", value=[1, 2]), '"3d_coords" of object 0 is [1, 2]'),
    (put("objects", 0, "3d_coords", value=5), '"3d_coords" of object 0 is 5'),
    (put("objects", 2, "3d_coords", value=[math.nan, 0, 0]), '"3d_coords" of object 2 is [nan,'),
    (put("objects", 2, "3d_coords", value=[math.inf, -math.inf, 0]), '"3d_coords" of object 2'),
    (put("objects", 1, "rotation", value="1"), "\"rotation\" of object 1 is '1', not a number"),
    (put("objects", 1, "rotation", value=math.nan), '"rotation" of object 1 is nan'),
    (put("camera", value=[1, 2, math.nan]), '"camera" is [1, 2, nan]'),
    (put("camera", value=None), '"camera" is None'),
    (drop("lamps", "fill"), '"lamps" has no "fill"'),
    (put("lamps", value=[]), '"lamps" has no "key"'),
    (put("lamps", "back", value=[1, 2, "high"]), "lamp back is [1, 2, 'high']"),
    (pixels_missing, 'object 1, in a scene without a camera, has no "pixel_coords"'),
    (pixels_unreadable, '"pixel_coords" of object 1 is [10, 20]'),
    (pixels_of_another_picture, 'no camera sees the objects at their "pixel_coords"'),
    (too_many_objects, "11 objects; a scene holds 10 at most"),
    (put("objects", 0, "3d_coords", value="123"), "\"3d_coords\" of object 0 is '123'"),
    (put("objects", 0, "3d_coords", value=[10**400, 0, 0]), '"3d_coords" of object 0 is [1000'),
    (put("objects", 1, "rotation", value=10**400), '"rotation" of object 1 is 1000'),
    (put("objects", 1, "rotation", value=True), '"rotation" of object 1 is True'),
    (put("camera", value=[0, 0, 5]), '"camera" is right above the origin'),
]


@pytest.mark.parametrize(("spoil", "complaint"), BROKEN, ids=[complaint for _, complaint in BROKEN])
def test_what_cannot_be_read_is_named(
    record: Record, spoil: Callable[[Record], None], complaint: str
) -> None:
    spoil(record)
    with pytest.raises(InputError) as raised:
        from_record(record, "scenes.json: scene 17")
    message = str(raised.value)
    assert message.startswith(f"scenes.json: scene 17: {complaint}")
    assert "\n" not in message


def test_a_record_that_is_no_record_is_refused() -> None:
    record: Any = ["objects"]
    with pytest.raises(InputError, match='scene 3: the scene has no "objects"'):
        from_record(record, "scene 3")
