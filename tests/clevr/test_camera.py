"""The camera stands where a scene says and looks at the origin; it can be found from a scene."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from macnet.clevr.camera import Vector, camera_axes, fit_camera, project
from real_clevr import real_clevr

BASE = (7.48113, -6.50764, 5.34367)

jitters = st.tuples(*[st.floats(-0.5, 0.5)] * 3)
points = st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.sampled_from([0.35, 0.7]))
crowds = st.lists(points, min_size=3, max_size=10)


def jittered(jitter: Vector) -> Vector:
    x, y, z = (b + j for b, j in zip(BASE, jitter, strict=True))
    return x, y, z


def seen(camera: Vector, point: Vector, width: int, height: int) -> Vector:
    """A look-at camera in angles: turn the world by the camera's azimuth, then its elevation.

    Blender's lens of 35 mm before a sensor 32 mm wide, of which a 3:2 frame uses 32 × 21.33 mm.
    """
    azimuth = math.atan2(camera[1], camera[0])
    elevation = math.atan2(camera[2], math.hypot(camera[0], camera[1]))
    # On the floor: from the origin toward the camera, and to the right as the camera sees it.
    outward = point[0] * math.cos(azimuth) + point[1] * math.sin(azimuth)
    sideways = -point[0] * math.sin(azimuth) + point[1] * math.cos(azimuth)
    toward = outward * math.cos(elevation) + point[2] * math.sin(elevation)
    upward = -outward * math.sin(elevation) + point[2] * math.cos(elevation)
    depth = math.hypot(*camera) - toward
    on_sensor_x, on_sensor_y = 35 * sideways / depth, 35 * upward / depth  # mm
    return (
        (on_sensor_x / 32 + 0.5) * width,
        (0.5 - on_sensor_y / (32 / 1.5)) * height,
        depth,
    )


@settings(deadline=None, max_examples=50)
@given(jitters, st.lists(points, min_size=1, max_size=10), st.integers(1, 500), st.integers(1, 500))
def test_projection_is_that_of_a_camera_turned_by_two_angles(
    jitter: Vector, crowd: list[Vector], width: int, height: int
) -> None:
    camera = jittered(jitter)
    expected = [seen(camera, point, width, height) for point in crowd]
    np.testing.assert_allclose(
        project(camera, np.array(crowd), width, height), expected, rtol=0, atol=1e-9
    )


def test_the_origin_is_in_the_middle_and_up_is_up() -> None:
    middle, above = project(BASE, np.array([(0.0, 0, 0), (0, 0, 1)]), 480, 320)
    np.testing.assert_allclose(middle, (240, 160, math.hypot(*BASE)), atol=1e-9)
    assert above[0] == pytest.approx(240)
    assert above[1] < 160


def test_the_field_of_view_is_that_of_the_lens() -> None:
    # 49.134° across, 33.9° from top to bottom: points there lie on the frame's edge.
    right, up, forward = camera_axes(BASE)
    at_edges = [
        np.asarray(BASE) + forward + right * math.tan(math.radians(49.134 / 2)),
        np.asarray(BASE) + forward + up * math.tan(math.radians(33.9 / 2)),
    ]
    (x, _, _), (_, y, _) = project(BASE, np.array(at_edges), 480, 320)
    assert x == pytest.approx(480, abs=0.01)
    assert y == pytest.approx(0, abs=0.3)


@settings(deadline=None, max_examples=30)
@given(st.lists(jitters, min_size=1, max_size=5))
def test_the_axes_of_many_cameras_are_those_of_each(many: list[Vector]) -> None:
    cameras = np.array([jittered(jitter) for jitter in many])
    process_group = np.stack(camera_axes(cameras))  # (3 axes, cameras, 3)
    for i, camera in enumerate(cameras):
        np.testing.assert_allclose(process_group[:, i], np.stack(camera_axes(camera)), atol=1e-12)
        np.testing.assert_allclose(
            process_group[:, i] @ process_group[:, i].T, np.eye(3), atol=1e-12
        )


def spread(places: np.ndarray) -> float:
    """How far objects are from standing in one line: from there several cameras see the same."""
    return float(np.linalg.svd(places - places.mean(0), compute_uv=False)[1])


@settings(deadline=None, max_examples=50)
@given(jitters, crowds)
def test_a_camera_is_recovered_from_what_it_sees(jitter: Vector, crowd: list[Vector]) -> None:
    camera, places = jittered(jitter), np.array(crowd)
    assume(spread(places) > 0.5)
    resolve = fit_camera(places, project(camera, places, 480, 320), 480, 320)
    np.testing.assert_allclose(resolve, camera, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(jitters, crowds)
def test_whole_pixels_and_exact_depths_are_enough(jitter: Vector, crowd: list[Vector]) -> None:
    camera, places = jittered(jitter), np.array(crowd)
    assume(spread(places) > 1)
    exact = project(camera, places, 480, 320)
    rounded = np.concatenate([np.round(exact[:, :2]), exact[:, 2:]], axis=1)
    resolve = fit_camera(places, rounded, 480, 320)
    # Depths decide; half a pixel moves the camera by millimetres, a few centimetres at worst.
    np.testing.assert_allclose(resolve, camera, rtol=0, atol=0.05)
    again = project(resolve, places, 480, 320)
    np.testing.assert_allclose(again[:, :2], exact[:, :2], rtol=0, atol=0.63)
    np.testing.assert_allclose(again[:, 2], exact[:, 2], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("folder", "split"), [("clevr_train32", "train"), ("clevr_val100", "val")])
def test_the_cameras_of_real_scenes_are_found(folder: str, split: str) -> None:
    file = real_clevr(f"{folder}/scenes/CLEVR_{split}_scenes.json")
    scenes = json.loads(file.read_text())["scenes"]
    assert len(scenes) >= 32
    for scene in scenes:
        places = np.array([o["3d_coords"] for o in scene["objects"]])
        pixels = np.array([o["pixel_coords"] for o in scene["objects"]])
        camera = fit_camera(places, pixels, 480, 320)
        assert np.abs(np.subtract(camera, BASE)).max() <= 0.52, scene["image_filename"]
        error = np.abs(project(camera, places, 480, 320) - pixels)
        assert error[:, :2].max() <= 0.63, scene["image_filename"]
        assert error[:, 2].max() <= 1e-3, scene["image_filename"]
