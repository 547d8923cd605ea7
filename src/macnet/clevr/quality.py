"""The quality and size of images: settings of the renderer, which can be read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from macnet.errors import InputError

MAX_SIDE = 4096  # of an image: a larger one alone would fill the memory


@dataclass(frozen=True)
class Quality:
    """Settings that trade speed for fidelity."""

    grid: int
    """Pixels on outlines are supersampled with grid × grid rays."""
    supersample_bodies: bool
    """Whether all pixels of bodies are supersampled, not only outlines."""
    shadow_map_scale: float
    """Resolution of the shadow map, in texels per pixel of the image's width."""
    bounces: int
    """Depth to which bodies are seen in reflections; deeper ones show the environment only."""
    brushed_rays: int
    """Number of rays that sample the blurred part of a metal's reflection."""

    @property
    def rays_per_pixel(self) -> float:
        """Estimated number: bodies cover up to a quarter of an image, outlines a tenth."""
        on_bodies = 0.25 + self.grid**2 * (0.25 if self.supersample_bodies else 0.1)
        return 1 + on_bodies * (1 + self.brushed_rays / 2)  # half of the bodies are metal


QUALITIES: Mapping[str, Quality] = {
    "fast": Quality(2, supersample_bodies=False, shadow_map_scale=0.875, bounces=1, brushed_rays=3),
    "fine": Quality(4, supersample_bodies=True, shadow_map_scale=2.0, bounces=2, brushed_rays=8),
}


def check_image_size(width: int, height: int, smallest: tuple[int, int] = (1, 1)) -> None:
    """Raise `InputError` if images of this size cannot be rendered or packed."""
    if width < smallest[0] or height < smallest[1] or max(width, height) > MAX_SIDE:
        limits = f"at least {smallest[0]}x{smallest[1]} and at most {MAX_SIDE}x{MAX_SIDE}"
        raise InputError(f"`size` is {width}x{height}; it must be {limits}")


def check_quality(quality: str) -> None:
    """Raise `InputError` if there is no such quality."""
    if quality not in QUALITIES:
        raise InputError(f"`quality` is {quality!r}; it must be one of {', '.join(QUALITIES)}")
