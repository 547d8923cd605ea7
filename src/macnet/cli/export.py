"""The command that makes a network fit to be given away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from macnet.errors import InputError


def export(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.safetensors")],
    /,
) -> None:
    """Write the best network of a run into one small file.

    Its weights are rounded to half precision, which no answer should notice. The file says itself
    what it is, and stands wherever a RUN can be named: ask, explain, evaluate, train --from.

    Args:
        run: Folder of a run, or its best.safetensors.
        out: The file to write.
    """
    if out.suffix != ".safetensors":
        raise InputError(f"{out}: the name of a file of weights must end in .safetensors")

    from macnet.training.checkpoint import BEST, LAST, open_trained, write_halved

    if out.name in (BEST, LAST):
        raise InputError(f"{out}: runs call their own files so; choose another name")
    trained = open_trained(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_halved(trained, out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
