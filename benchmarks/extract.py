"""Images a second that `macnet extract` turns into features, and what bounds it.

    python benchmarks/extract.py --images 30000 --out results/extract_speed_h200.json

The images are rendered at 480×320, a few dozen of them under many names: they decode as
CLEVR's do. The weights are random. "Plain" is what one would write first: one process that decodes
a batch, runs the network on it and hands it to h5py. The network is also timed alone, in the
layouts and precisions it could run in; decoding alone, on one core. The start of the worker
processes, some seconds, is in our time: take enough images.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from macnet.clevr.images import read_image, save_image
from macnet.clevr.release import image_name
from macnet.clevr.render import render
from macnet.clevr.world import World, generate_scenes
from macnet.data.extract import extract_features
from macnet.data.resnet import SIDE, ResNet101, load_resnet, normalize
from macnet.workers import default_workers
from record import keep

DISTINCT = 40


def make_images(folder: Path, count: int, device: str) -> dict[int, Path]:
    scenes = generate_scenes(World(seed=0), "train", range(min(count, DISTINCT)), device)
    for i, image in enumerate(render(scenes, 480, 320, device=device).images.cpu().numpy()):
        save_image(folder / image_name("train", i), image)
    paths = {i: folder / image_name("train", i) for i in range(count)}
    for i in range(len(scenes), count):
        os.link(paths[i % len(scenes)], paths[i])
    return paths


def plain(
    paths: list[Path], out: Path, network: ResNet101, stage: int, batch: int, device: str
) -> None:
    with h5py.File(out, "w") as file, torch.inference_mode():
        side = 224 >> stage + 1
        array = file.create_dataset("features", (len(paths), 256 << stage - 1, side, side), "f2")
        for i in range(0, len(paths), batch):
            images = np.stack([read_image(path, SIDE, SIDE) for path in paths[i : i + batch]])
            x = normalize(torch.from_numpy(images).to(device), "public")
            array[i : i + batch] = network(x).half().cpu().numpy()


def network_rate(
    network: ResNet101, batch: int, device: str, layout: torch.memory_format, tf32: bool
) -> float:
    """Images a second through the network alone; the best of a few rounds."""
    x = torch.randn(batch, 3, 224, 224, device=device).contiguous(memory_format=layout)
    network.to(device, memory_format=layout)
    rounds = 10 if device != "cpu" else 2

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            network(x)
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
        seconds()
        best = min(seconds() for _ in range(3))
    network.to(memory_format=torch.contiguous_format)
    return round(rounds * batch / best, 1)


def rate(count: int, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return round(count / (time.perf_counter() - start), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=30_000)
    parser.add_argument("--stage", type=int, choices=(2, 3), default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, help="processes that decode; as the command does")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    workers = options.workers
    if workers is None:
        workers = default_workers("cpu") if on_gpu else 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        paths = make_images(folder / "images", options.images, options.device)
        torch.save(ResNet101(options.stage).state_dict(), folder / "weights.pth")
        network = load_resnet(folder / "weights.pth", options.stage)
        layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
        alone = {
            f"{layout}, {'tf32' if tf32 else 'float32'}": network_rate(
                network, options.batch, options.device, layouts[layout], tf32
            )
            for layout in layouts
            for tf32 in ((False, True) if on_gpu else (False,))
        }
        some = [paths[i] for i in range(min(options.images, 10 * options.batch))]
        decoding = rate(len(some), lambda: [read_image(path, SIDE, SIDE) for path in some])
        arguments = (network, options.stage, options.batch, options.device)
        simple = rate(len(some), lambda: plain(some, folder / "plain.h5", *arguments))
        ours = rate(
            len(paths),
            lambda: extract_features(
                paths,
                folder / "ours.h5",
                network,
                split="train",
                batch=options.batch,
                device=options.device,
                workers=workers,
            ),
        )
    keep(
        options.out,
        "features of images",
        device=options.device,
        images=options.images,
        stage=options.stage,
        batch=options.batch,
        workers=workers,
        images_per_second=ours,
        plain_images_per_second=simple,
        ours_over_plain=round(ours / simple, 2),
        decoding_images_per_second_per_core=decoding,
        network_alone_images_per_second=alone,
    )


if __name__ == "__main__":
    main()
