"""An explanation as one web page that needs nothing else: no server, no internet, no fonts.

The page is `page.html`, filled in with the image, the answer, and as JSON the attention of each
step, which the page's script shows over the image as `overlay` does.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from macnet.explain.figure import TOP_ANSWERS
from macnet.explain.overlay import PARAMETERS
from macnet.explain.reply import Explanation, GridCenters, Reply, StepAttention
from macnet.files import write_atomically

TEMPLATE = Path(__file__).with_name("page.html")
MAX_SIDE = 1280  # pixels of the image, which is shown smaller
LONG_QUESTION = 360  # letters; CLEVR's are shorter
DIGITS = 5  # of attention
REGIONS = (
    ("upper left", "top", "upper right"),
    ("left", "middle", "right"),
    ("lower left", "bottom", "lower right"),
)


def write_page(explanation: Explanation, out: Path) -> None:
    """Write the explanation as an HTML page."""
    # Lone surrogates, which a file's name may have, become question marks.
    write_atomically(out, make_page(explanation).encode(errors="replace"))


def make_page(explanation: Explanation) -> str:
    """The explanation as the text of an HTML page."""
    reply = explanation.reply
    height, width = explanation.image.shape[:2]
    filled = {
        "question": html.escape(reply.question),
        "length": "long" if len(reply.question) > LONG_QUESTION else "short",
        "aspect": f"{width / height:.6g}",
        "picture": _as_uri(explanation.image),
        "steps": str(len(explanation.steps)),
        "answer": html.escape(reply.answer),
        "likeliest": _likeliest(reply),
        "unknown": _unknown(reply),
        "data": _as_json(
            {
                "words": explanation.words,
                "rows": explanation.centers.rows.tolist(),
                "columns": explanation.centers.columns.tolist(),
                "steps": [_step(explanation, i) for i in range(1, len(explanation.steps) + 1)],
                "overlay": PARAMETERS,
            }
        ),
    }
    # In one go: what is filled in may itself have braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], TEMPLATE.read_text("utf-8"))


# --- a step ----------------------------------------------------------------------------------


def _step(explanation: Explanation, number: int) -> dict[str, Any]:
    step, steps = explanation.steps[number - 1], len(explanation.steps)
    return {
        "words": _rounded(step.words),
        "image": _rounded(step.image),
        "gate": step.gate,
        "self_attention": _rounded(step.self_attention),
        "description": f"Step {number} of {steps} {_describe(explanation, step, number)}.",
    }


def _describe(explanation: Explanation, step: StepAttention, number: int) -> str:
    """What a step did, for screen readers."""
    done = []
    if step.words is not None:
        most = np.argsort(-step.words, kind="stable")[:2]
        read = (f"“{explanation.words[i]}” ({step.words[i]:.0%})" for i in most)
        done.append(f"reads {' and '.join(read)}")
    region, share = _strongest_region(step.image, explanation.centers)
    done.append(f"looks at the {region} ({share:.0%})")
    if step.self_attention is not None and len(step.self_attention):
        strongest = int(step.self_attention.argmax())
        before = number - len(step.self_attention) + strongest
        recalled = f"step {before}" if before else "the beginning"
        done.append(f"recalls {recalled} ({step.self_attention[strongest]:.0%})")
    if step.gate is not None:
        done.append(f"keeps {step.gate:.0%} of its memory")
    return f"{', '.join(done[:-1])} and {done[-1]}" if done[1:] else done[0]


def _strongest_region(attention: np.ndarray, centers: GridCenters) -> tuple[str, float]:
    """The ninth of the image with the most attention, and how much it has."""
    shares = np.zeros((3, 3))
    thirds = [(3 * at).astype(int) for at in centers]
    np.add.at(shares, tuple(np.meshgrid(*thirds, indexing="ij")), attention)
    row, column = divmod(int(shares.argmax()), 3)
    return REGIONS[row][column], float(shares[row, column])


# --- into the page ---------------------------------------------------------------------------


def _likeliest(reply: Reply) -> str:
    return "".join(
        f'<li><span class="named">{html.escape(answer)}</span>'
        f'<span class="bar" style="--share:{probability:.4f}"></span>'
        f'<span class="number">{probability:.1%}</span></li>'
        for answer, probability in islice(reply.probabilities.items(), TOP_ANSWERS)
    )


def _unknown(reply: Reply) -> str:
    return "".join(f'<p class="note named">{html.escape(note)}</p>' for note in reply.notes)


def _as_uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=92, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _as_json(content: dict[str, Any]) -> str:
    """JSON without characters that could end the script element around it."""
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return compact.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(shares: np.ndarray | None) -> list[Any] | None:
    return None if shares is None else np.round(shares.astype(np.float64), DIGITS).tolist()
