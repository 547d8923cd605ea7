"""Pictures show what their scenes say, where they say it, whatever they are rendered with."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from macnet.clevr import columns
from macnet.clevr.camera import project
from macnet.clevr.quality import QUALITIES
from macnet.clevr.render import Rendering, all_visible, render
from macnet.clevr.scene import DIRECTIONS, Object, Scene, from_record, sample_scenes
from real_clevr import real_clevr

RIGHT, BEHIND = np.array(DIRECTIONS["right"]), np.array(DIRECTIONS["behind"])
PAINTS = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
DEFAULT = Scene(())

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def thing(
    x: float = 0.0,
    y: float = 0.0,
    shape: str = "sphere",
    material: str = "rubber",
    color: str = "gray",
    size: str = "large",
    rotation: float = 0.0,
) -> Object:
    return Object(size, color, material, shape, x, y, rotation)


def at(right: float, behind: float, **attributes: Any) -> Object:
    """A thing placed as the camera sees it, from the middle of the floor."""
    x, y, _ = right * RIGHT + behind * BEHIND
    return thing(float(x), float(y), **attributes)


def sample(seed: int, count: int) -> list[Scene]:
    """Scenes in which objects may hide each other."""
    rngs = [random.Random(f"{seed}/{i}") for i in range(count)]
    return sample_scenes(rngs)


def pictures(scenes: Sequence[Scene], width: int, height: int, **options: Any) -> np.ndarray:
    return render(scenes, width, height, **options).images.cpu().numpy()


def linear(srgb: np.ndarray) -> np.ndarray:
    """sRGB bytes → linear light."""
    v = srgb / 255
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return 10 * math.log10(255**2 / max(float(error), 1e-9))


def assert_same(a: Rendering, b: Rendering) -> None:
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


def assert_close(a: Rendering, b: Rendering) -> None:
    """As close as two ways of rounding: all but a few pixels."""
    levels = (a.images.cpu().int() - b.images.cpu().int()).abs()
    assert (levels <= 2).float().mean() >= 0.995
    assert (a.objects.cpu() == b.objects.cpu()).float().mean() >= 0.999


# --- geometry, against a ray marcher that is nothing but the definitions ---------------------


def distance(item: Object, points: np.ndarray) -> np.ndarray:
    """Signed distance of (n, 3) points to an object's surface."""
    scale = {"large": 0.7, "small": 0.35}[item.size]
    x, y, z = ((points - (item.x, item.y, scale)) / scale).T
    cos, sin = math.cos(item.rotation), math.sin(item.rotation)  # the number is taken as radians
    x, y = cos * x + sin * y, cos * y - sin * x
    if item.shape == "sphere":
        return np.asarray(scale * (np.sqrt(x * x + y * y + z * z) - 1))
    if item.shape == "cube":
        core, rounding = 0.82, 0.18
        beyond = np.abs(np.stack([x, y, z])) - core
    else:
        core, rounding = 0.94, 0.06
        beyond = np.stack([np.hypot(x, y), np.abs(z)]) - core
    outside = np.linalg.norm(np.maximum(beyond, 0), axis=0)
    return np.asarray(scale * (outside + np.minimum(beyond.max(0), 0) - rounding))


def marched(scene: Scene, width: int, height: int) -> np.ndarray:
    """(h, w): the object that the middle of each pixel shows, −1 for none, by sphere tracing."""
    camera = np.array(scene.camera)
    forward = -camera / np.linalg.norm(camera)
    right = np.cross(forward, (0, 0, 1))
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    rows, columns = np.divmod(np.arange(width * height), width)
    across = ((columns + 0.5) / width - 0.5) * 32 / 35  # the sensor over the lens
    above = (0.5 - (rows + 0.5) / height) * 32 / 1.5 / 35
    rays = forward + across[:, None] * right + above[:, None] * up
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)

    shown = np.full(width * height, -1)
    travelled = np.zeros(width * height)
    going = np.arange(width * height)
    for _ in range(200):
        points = camera + travelled[going, None] * rays[going]
        gaps = np.stack([distance(item, points) for item in scene.objects])
        gap = gaps.min(0)
        arrived = gap < 1e-6
        shown[going[arrived]] = gaps.argmin(0)[arrived]
        travelled[going] += gap
        going = going[~arrived & (travelled[going] < 20)]
        if not len(going):
            break
    return shown.reshape(height, width)


def on_outline(shown: np.ndarray) -> np.ndarray:
    """Pixels one of whose eight neighbours shows something else."""
    padded = np.pad(shown, 1, mode="edge")
    height, width = shown.shape
    around = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.asarray(np.any([other != shown for other in around], axis=0))


LINE_UP = Scene(
    tuple(
        at(-2.4 + 1.6 * i, -1.0 + k * 1.8, shape=shape, rotation=57.3 * i + k, size=size)
        for k, size in enumerate(("large", "small"))
        for i, shape in enumerate(("cube", "cylinder", "sphere", "cube"))
    )
)


@pytest.mark.parametrize("scene", [LINE_UP, *sample(1, 4)], ids=["line-up", *"1234"])
def test_objects_are_where_a_literal_ray_marcher_finds_them(scene: Scene) -> None:
    width, height = 96, 64
    ours = render([scene], width, height).objects[0].numpy()
    literal = marched(scene, width, height)
    assert len(np.unique(literal)) > 3
    differs = ours != literal
    assert differs.mean() < 0.003
    assert not np.any(differs & ~on_outline(literal))


objects = st.builds(
    thing,
    x=st.floats(-3, 3),
    y=st.floats(-3, 3),
    shape=st.sampled_from(["cube", "sphere", "cylinder"]),
    size=st.sampled_from(["large", "small"]),
    rotation=st.floats(0, 360),
)


@settings(deadline=None, max_examples=25)
@given(objects, st.tuples(*[st.floats(-0.5, 0.5)] * 3))
def test_one_object_is_where_a_literal_ray_marcher_finds_it(
    item: Object, jitter: tuple[float, float, float]
) -> None:
    x, y, z = np.add(DEFAULT.camera, jitter).tolist()
    scene = Scene((item,), (x, y, z))
    ours, literal = render([scene], 96, 64).objects[0].numpy(), marched(scene, 96, 64)
    assert np.any(literal == 0)
    differs = ours != literal
    assert differs.sum() <= 6  # 0.1%
    assert not np.any(differs & ~on_outline(literal))


@pytest.mark.parametrize("shape", ["cube", "sphere", "cylinder"])
def test_edges_are_rounded_as_a_literal_ray_marcher_finds_them(shape: str) -> None:
    """From so near that the roundings are several pixels wide."""
    x, y, z = (0.3 * c for c in DEFAULT.camera)
    scene = Scene((thing(shape=shape, rotation=1.2),), (x, y, z))
    ours, literal = render([scene], 240, 160).objects[0].numpy(), marched(scene, 240, 160)
    assert (literal == 0).mean() > 0.2
    differs = ours != literal
    assert differs.mean() < 0.001
    assert not np.any(differs & ~on_outline(literal))


def test_the_shapes_line_up_has_them_all() -> None:
    """What the marcher is compared on holds every shape in both sizes."""
    assert len({(item.shape, item.size) for item in LINE_UP.objects}) == 6


def test_yaw_is_taken_as_radians() -> None:
    turned = [0.3, 0.3 + math.pi / 2, 0.3 + 2 * math.pi, 0.3 + math.pi / 4, 0.3 + 90]
    scenes = [Scene((thing(shape="cube", rotation=r),)) for r in turned]
    shown = render(scenes, 240, 160).objects >= 0
    differing = [(mask != shown[0]).sum().item() / shown[0].sum().item() for mask in shown]
    assert max(differing[:3]) < 0.002
    assert min(differing[3:]) > 0.02


# --- what is visible -------------------------------------------------------------------------


def test_visible_counts_the_pixels_of_objects() -> None:
    rendering = render(sample(2, 12), 96, 64)
    assert rendering.visible.shape == (12, 10)
    for shown, visible in zip(rendering.objects, rendering.visible, strict=True):
        counts = [(shown == i).sum().item() for i in range(10)]
        assert visible.tolist() == counts


@pytest.mark.parametrize(("width", "height"), [(96, 64), (75, 50), (64, 64)])
def test_all_visible_asks_for_the_released_share_of_pixels(width: int, height: int) -> None:
    scenes = sample(3, 60)
    visible = render(scenes, width, height).visible.tolist()
    enough = 200 / (480 * 320) * width * height
    expected = [
        all(pixels >= enough for pixels in row[: len(scene.objects)])
        for scene, row in zip(scenes, visible, strict=True)
    ]
    assert {True, False} == set(expected)
    assert all_visible(scenes, width, height) == expected


WALL = at(0, -0.7, shape="cube", rotation=-math.atan2(6.50764, 7.48113))  # seen face on


def test_the_last_pixel_decides_whether_an_object_is_visible() -> None:
    """A small ball comes out from behind a cube, a pixel or so at a time."""
    places = np.linspace(0.7, 0.74, 40)
    scenes = [Scene((WALL, at(float(right), 1.0, size="small"))) for right in places]
    pixels = render(scenes, 240, 160).visible[:, 1].tolist()
    # At half the width and height a quarter of 200 is needed; some come close on either side.
    assert {48, 49} & set(pixels)
    assert {50, 51} & set(pixels)
    assert all_visible(scenes, 240, 160) == [n >= 50 for n in pixels]


def test_an_object_hidden_behind_a_large_one_spoils_a_scene() -> None:
    small = at(0, 1.0, size="small")
    beside = replace(small, x=small.x + 2 * float(RIGHT[0]), y=small.y + 2 * float(RIGHT[1]))
    scenes = [Scene((WALL, small)), Scene((WALL, beside)), Scene((small,))]
    assert all_visible(scenes) == [False, True, True]
    assert render(scenes[:1]).visible[0, 1] == 0


def test_nearer_objects_cover_farther_ones() -> None:
    back, front = at(0, 0.8, color="red"), at(0.3, -0.8, color="blue")
    one_way, other_way = render([Scene((back, front)), Scene((front, back))], 96, 64).objects
    alone = render([Scene((front,))], 96, 64).objects[0]
    assert torch.equal(one_way == 1, alone == 0)
    assert torch.equal(other_way == 0, alone == 0)


# --- nothing but the scene matters -----------------------------------------------------------


@pytest.mark.parametrize("quality", sorted(QUALITIES))
def test_scenes_rendered_together_are_as_if_rendered_alone(quality: str) -> None:
    scenes = [*sample(4, 2), DEFAULT, *sample(5, 1)]
    process_group = render(scenes, 96, 64, quality)
    for i, scene in enumerate(scenes):
        assert_same(
            render([scene], 96, 64, quality), Rendering(*(t[i : i + 1] for t in process_group))
        )
    backwards = render(scenes[::-1], 96, 64, quality)
    assert_same(Rendering(*(t.flip(0) for t in backwards)), process_group)


def test_more_scenes_than_are_rendered_at_once_are_as_if_rendered_alone() -> None:
    scenes = sample(6, 5)
    process_group = render(scenes, 240, 160)
    assert process_group.images.shape == (5, 160, 240, 3)
    assert_same(render(scenes[4:], 240, 160), Rendering(*(t[4:] for t in process_group)))


@pytest.mark.parametrize("quality", sorted(QUALITIES))
def test_threads_change_nothing_and_neither_does_the_second_time(quality: str) -> None:
    scenes = sample(7, 1)
    size = (192, 128) if quality == "fast" else (96, 64)  # enough rays for threads to share
    renderings = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        renderings.append(render(scenes, *size, quality))
    assert_same(renderings[0], renderings[1])
    assert_same(renderings[1], renderings[2])


@pytest.mark.parametrize("quality", sorted(QUALITIES))
def test_the_size_of_blocks_changes_nothing(quality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = sample(16, 2)
    at_once = render(scenes, 96, 64, quality)
    monkeypatch.setattr(columns, "BLOCK_SIZE", 320)
    assert_same(render(scenes, 96, 64, quality), at_once)


# --- what pictures show ----------------------------------------------------------------------


def test_the_bare_ground_is_as_grey_as_the_release() -> None:
    rendering = render([DEFAULT])
    assert rendering.images.shape == (1, 320, 480, 3)
    assert rendering.images.dtype == torch.uint8
    rows = rendering.images[0].float().mean(1)  # (h, 3)
    np.testing.assert_allclose(rows[:8].mean(0), (105, 105, 105), atol=12)
    np.testing.assert_allclose(rows[-8:].mean(0), (140, 138, 134), atol=12)
    red, _, blue = rows[-8:].mean(0)
    assert red > blue  # the key lamp is a little warm


@pytest.mark.parametrize("shape", ["cube", "sphere", "cylinder"])
def test_a_colour_is_nearest_to_its_own_paint(shape: str) -> None:
    scenes = [Scene((thing(shape=shape, color=color),)) for color in PAINTS]
    rendering = render(scenes, 96, 64)
    paints = np.array(list(PAINTS.values())) / 255  # these are linear
    paints /= np.linalg.norm(paints, axis=1, keepdims=True)
    for i, color in enumerate(PAINTS):
        seen = linear(rendering.images[i].numpy())[rendering.objects[i].numpy() == 0].mean(0)
        alike = paints @ (seen / np.linalg.norm(seen))
        assert list(PAINTS)[int(alike.argmax())] == color


@pytest.mark.parametrize("color", ["gray", "red", "cyan"])
def test_metal_has_brighter_highlights_than_rubber(color: str) -> None:
    scenes = [Scene((thing(material=m, color=color),)) for m in ("metal", "rubber")]
    rendering = render(scenes, 240, 160)
    metal, rubber = (
        image[shown == 0].float().mean(1).max()
        for image, shown in zip(rendering.images, rendering.objects, strict=True)
    )
    assert metal > rubber + 10


@pytest.mark.parametrize("side", [1, -1], ids=["right", "left"])
def test_a_shadow_falls_away_from_the_key_lamp(side: int) -> None:
    x, y, _ = (float(c) for c in side * 6.5 * RIGHT)
    _, fill, back = DEFAULT.lamps
    lit = replace(DEFAULT, lamps=((x, y, 4.0), fill, back))
    bare, with_ball = linear(pictures([lit, replace(lit, objects=(thing(),))], 240, 160))
    shade = 1 - with_ball.mean(-1) / bare.mean(-1)
    spots = np.array([side * 1.5 * RIGHT, -side * 1.5 * RIGHT])  # on the floor, beside the ball
    toward, away = (
        shade[int(row), int(column)] for column, row, _ in project(DEFAULT.camera, spots, 240, 160)
    )
    assert away > 0.1  # the other lamps still shine there
    assert abs(toward) < 0.05


def test_objects_darken_the_ground_they_touch() -> None:
    # In front, where hardly any lamp is hidden, an object still hides some of the surroundings.
    foot = project(DEFAULT.camera, np.array([-0.75 * BEHIND]), 480, 320)[0]
    bare, with_object = linear(pictures([DEFAULT, Scene((thing(shape="cylinder"),))], 480, 320))
    x, y = int(foot[0]), int(foot[1])
    assert with_object[y, x].mean() < 0.98 * bare[y, x].mean()


@pytest.mark.parametrize("lamp", [0, 1, 2])
def test_moving_a_lamp_changes_the_picture_but_moves_nothing(lamp: int) -> None:
    (scene,) = sample(8, 1)
    x, y, z = scene.lamps[lamp]
    moved = list(scene.lamps)
    moved[lamp] = (x + 0.8, y - 0.8, z + 0.8)
    key, fill, back = moved
    rendering = render([scene, replace(scene, lamps=(key, fill, back))], 96, 64)
    before, after = rendering.images.int()
    assert ((before - after).abs() > 1).float().mean() > 0.1
    assert torch.equal(rendering.objects[0], rendering.objects[1])


def reddened_by_a_ball(material: str) -> tuple[float, float]:
    """Shares of the two visible sides of a gray cube that are redder for a red ball beside it.

    First the side that faces the ball, then the one that does not.
    """
    cube, ball = thing(shape="cube", material=material), thing(2.0, 1.0, color="red")
    rendering = render([Scene((cube,)), Scene((cube, ball))], 240, 160)
    is_cube = rendering.objects[0].numpy() == 0
    assert np.array_equal(is_cube, rendering.objects[1].numpy() == 0)  # the ball hides none of it
    alone, process_group = linear(rendering.images.numpy())
    redder = (process_group - alone) @ (1, -0.5, -0.5) > 0.01
    edge = int(project(DEFAULT.camera, np.array([(0.7, -0.7, 0.7)]), 240, 160)[0][0])
    left, right = redder[:, :edge][is_cube[:, :edge]], redder[:, edge:][is_cube[:, edge:]]
    return float(right.mean()), float(left.mean())


def test_metal_mirrors_its_neighbour() -> None:
    facing, other = reddened_by_a_ball("metal")
    assert facing > 0.1
    assert other < 0.01


def test_rubber_does_not_mirror_its_neighbour() -> None:
    assert max(reddened_by_a_ball("rubber")) < 0.01


def test_outlines_are_smooth() -> None:
    """Pixels on the outline of a yellow ball take colours between the ball's and the ground's."""
    rendering = render([Scene((thing(color="yellow"),))], 96, 64)
    blue = rendering.images[0, :, :, 2].int().numpy()
    shown = rendering.objects[0].numpy()
    row = int(project(DEFAULT.camera, np.array([(0, 0, 0.7)]), 96, 64)[0][1])
    edge = int(np.argmax(shown[row] == 0))
    outside, inside = blue[row, edge - 3], blue[row, edge + 2]
    between = blue[row, edge - 1 : edge + 1]
    low, high = sorted((outside, inside))
    assert high - low > 20
    assert np.any((between > low + 3) & (between < high - 3))


# --- qualities and sizes ---------------------------------------------------------------------


def test_fine_and_fast_show_the_same() -> None:
    scenes = sample(9, 3)
    fast, fine = (render(scenes, 240, 160, quality) for quality in ("fast", "fine"))
    for a, b in zip(fast.images.numpy(), fine.images.numpy(), strict=True):
        assert 33 <= psnr(a, b) < 60
    assert torch.equal(fast.objects, fine.objects)


def centroids(shown: torch.Tensor) -> dict[int, np.ndarray]:
    """The middle of each object that is well in view, in fractions of the frame."""
    height, width = shown.shape
    found = {}
    for i in range(10):
        rows, columns = np.nonzero(shown.numpy() == i)
        if len(rows) > 0.005 * width * height:
            found[i] = np.array([(columns.mean() + 0.5) / width, (rows.mean() + 0.5) / height])
    return found


def test_a_square_picture_is_the_released_one_squeezed() -> None:
    for scene in sample(10, 4):
        wide = centroids(render([scene], 144, 96).objects[0])
        square = centroids(render([scene], 96, 96).objects[0])
        both = wide.keys() & square.keys()
        assert len(both) >= 3
        for i in both:
            np.testing.assert_allclose(wide[i], square[i], atol=0.005)


@pytest.mark.parametrize(("width", "height"), [(97, 63), (33, 21), (25, 17), (63, 97), (1, 1)])
def test_any_size_can_be_rendered(width: int, height: int) -> None:
    scenes = sample(11, 2)
    rendering = render(scenes, width, height)
    assert rendering.images.shape == (2, height, width, 3)
    assert rendering.objects.shape == (2, height, width)
    for scene, shown in zip(scenes, rendering.objects, strict=True):
        assert -1 <= shown.min() <= shown.max() < len(scene.objects)
    # Neither black nor white: the middle of a CLEVR picture is never far from grey.
    assert 60 < rendering.images.float().mean() < 200


@pytest.mark.parametrize("quality", sorted(QUALITIES))
def test_a_scene_may_be_empty(quality: str) -> None:
    rendering = render([DEFAULT, DEFAULT], 48, 32, quality)
    assert torch.all(rendering.objects == -1)
    assert torch.all(rendering.visible == 0)
    assert 90 < rendering.images.float().mean() < 150
    assert all_visible([DEFAULT], 48, 32) == [True]


@pytest.mark.parametrize("quality", sorted(QUALITIES))
@pytest.mark.parametrize("materials", [("metal",), ("rubber",), ("metal",) * 3, ("rubber",) * 3])
def test_a_scene_may_be_of_one_material(materials: tuple[str, ...], quality: str) -> None:
    objects = [at(1.8 * i - 1.8, 0, material=m, color="cyan") for i, m in enumerate(materials)]
    rendering = render([Scene(tuple(objects))], 96, 64, quality)
    assert rendering.visible[0].nonzero()[:, 0].tolist() == list(range(len(objects)))
    red, green, _ = rendering.images[0][rendering.objects[0] >= 0].float().mean(0)
    assert green > red + 20


# --- the real thing --------------------------------------------------------------------------


def test_pictures_are_close_to_real_ones() -> None:
    folder = real_clevr("clevr_train32")
    records = json.loads((folder / "scenes" / "CLEVR_train_scenes.json").read_text())["scenes"][:6]
    scenes = [from_record(record, record["image_filename"]) for record in records]
    measured = []
    for record, ours in zip(records, pictures(scenes, 480, 320), strict=True):
        with Image.open(folder / "images" / "train" / record["image_filename"]) as image:
            measured.append(psnr(np.asarray(image.convert("RGB")), ours))
    assert np.mean(measured) >= 29, measured
    assert min(measured) >= 25, measured


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("quality", sorted(QUALITIES))
def test_a_gpu_shows_what_a_cpu_shows(quality: str) -> None:
    scenes = [*sample(12, 5), DEFAULT]
    on_gpu = render(scenes, 240, 160, quality, "cuda")
    assert all(tensor.is_cuda for tensor in on_gpu)
    assert_close(render(scenes, 240, 160, quality), on_gpu)


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_finds_the_same_scenes_visible() -> None:
    scenes = sample(13, 200)
    verdicts = zip(all_visible(scenes), all_visible(scenes, device="cuda"), strict=True)
    assert sum(a != b for a, b in verdicts) <= 2  # an object may be one pixel short


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_renders_the_same_bytes_twice() -> None:
    scenes = sample(14, 50)
    assert_same(render(scenes, 224, 224, device="cuda"), render(scenes, 224, 224, device="cuda"))
