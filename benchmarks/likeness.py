"""PSNR of rendered against original CLEVR images, in both qualities.

    python benchmarks/likeness.py --reference ../shared/reference/clevr_train32

The camera of each scene is fitted to its `pixel_coords`; the jitter of its lamps is not known, so
they are at their standard locations.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean

from macnet.clevr.quality import QUALITIES
from macnet.clevr.sheet import compare
from record import keep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", type=Path, required=True, help="a folder laid out as CLEVR")
    parser.add_argument("--split", default="train")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scenes = args.reference / "scenes" / f"CLEVR_{args.split}_scenes.json"
    images = args.reference / "images" / args.split
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        for quality in QUALITIES:
            sheet = Path(folder) / f"{quality}.png"
            found = compare(scenes, images, sheet, images=1, quality=quality, device=args.device)
            psnr = found.psnr
            numbers[quality] = {
                "mean_psnr": round(mean(psnr.values()), 2),
                "lowest": round(min(psnr.values()), 2),
                "highest": round(max(psnr.values()), 2),
                "images": len(psnr),
                "psnr": {name: round(value, 2) for name, value in psnr.items()},
            }
    keep(args.out, "PSNR of rendered against original images, dB", **numbers)


if __name__ == "__main__":
    main()
