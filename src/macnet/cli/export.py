"""The command that exports a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def export(
    run: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.safetensors")],
    /,
) -> None:
    """Write the best network of a run into one small file.

    Its weights are rounded to half precision, which should change no answer. The file holds its own
    metadata, and can be given wherever a RUN can: to ask, explain, evaluate and train --from.

    Args:
        run: Folder of a run, or its best.safetensors.
        out: The file to write.
    """
    import macnet

    macnet.export(run, out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
