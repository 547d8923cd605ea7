"""An explanation as one web page that needs nothing else: no server, no network, no fonts.

The page is `page.html`; what is filled in is the picture, the answer, and as JSON the attention of
each step, which the page's script spreads over the picture as `overlay` does.
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

from macnet.disk import write_safely
from macnet.explain.figure import LIKELIEST
from macnet.explain.overlay import COLOUR, LIT, UNLIT, WIDTH
from macnet.explain.reply import Centres, Explanation, Look, Reply

TEMPLATE = Path(__file__).with_name("page.html")
LARGEST = 1280  # pixels a side of the picture, which is shown smaller
LONG = 360  # letters of a question; CLEVR's are shorter
DIGITS = 5  # of attention
NINTHS = (
    ("upper left", "top", "upper right"),
    ("left", "middle", "right"),
    ("lower left", "bottom", "lower right"),
)


def write_page(explanation: Explanation, out: Path) -> None:
    # What is no letter in any script (a name may come from a file system) becomes a question mark.
    write_safely(out, make_page(explanation).encode(errors="replace"))


def make_page(explanation: Explanation) -> str:
    reply = explanation.reply
    height, width = explanation.picture.shape[:2]
    filled = {
        "question": html.escape(reply.question),
        "length": "long" if len(reply.question) > LONG else "short",
        "aspect": f"{width / height:.6g}",
        "picture": _as_uri(explanation.picture),
        "steps": str(len(explanation.looks)),
        "answer": html.escape(reply.answer),
        "likeliest": _likeliest(reply),
        "unknown": _unknown(reply),
        "data": _as_json(
            {
                "words": explanation.words,
                "down": explanation.centres.down.tolist(),
                "across": explanation.centres.across.tolist(),
                "steps": [
                    _step(explanation, number) for number in range(1, len(explanation.looks) + 1)
                ],
                "shade": {"width": WIDTH, "lit": LIT, "unlit": UNLIT, "colour": COLOUR},
            }
        ),
    }
    # In one go: what is filled in may itself have braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], TEMPLATE.read_text("utf-8"))


# --- a step ----------------------------------------------------------------------------------


def _step(explanation: Explanation, number: int) -> dict[str, Any]:
    look = explanation.looks[number - 1]
    return {
        "words": _rounded(look.words),
        "places": _rounded(look.places),
        "kept": look.kept,
        "recalled": _rounded(look.recalled),
        "said": f"Step {number} of {len(explanation.looks)} {_said(explanation, look, number)}.",
    }


def _said(explanation: Explanation, look: Look, number: int) -> str:
    """What a step did, for those who do not see it."""
    done = []
    if look.words is not None:
        most = np.argsort(-look.words, kind="stable")[:2]
        read = (f"“{explanation.words[i]}” ({look.words[i]:.0%})" for i in most)
        done.append(f"reads {' and '.join(read)}")
    where, share = _ninth(look.places, explanation.centres)
    done.append(f"looks at the {where} ({share:.0%})")
    if look.recalled is not None and len(look.recalled):
        most_recalled = int(look.recalled.argmax())
        before = number - len(look.recalled) + most_recalled
        recalled = f"step {before}" if before else "the beginning"
        done.append(f"recalls {recalled} ({look.recalled[most_recalled]:.0%})")
    if look.kept is not None:
        done.append(f"keeps {look.kept:.0%} of its memory")
    return f"{', '.join(done[:-1])} and {done[-1]}" if done[1:] else done[0]


def _ninth(places: np.ndarray, centres: Centres) -> tuple[str, float]:
    """Which ninth of the picture holds most of the attention, and how much of it."""
    shares = np.zeros((3, 3))
    thirds = [(3 * at).astype(int) for at in centres]
    np.add.at(shares, tuple(np.meshgrid(*thirds, indexing="ij")), places)
    row, column = divmod(int(shares.argmax()), 3)
    return NINTHS[row][column], float(shares[row, column])


# --- into the page ---------------------------------------------------------------------------


def _likeliest(reply: Reply) -> str:
    return "".join(
        f'<li><span class="named">{html.escape(answer)}</span>'
        f'<span class="bar" style="--share:{probability:.4f}"></span>'
        f'<span class="number">{probability:.1%}</span></li>'
        for answer, probability in islice(reply.probabilities.items(), LIKELIEST)
    )


def _unknown(reply: Reply) -> str:
    return "".join(f'<p class="note named">{html.escape(note)}</p>' for note in reply.notes)


def _as_uri(picture: np.ndarray) -> str:
    image = Image.fromarray(picture)
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=92, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _as_json(content: dict[str, Any]) -> str:
    """Without a letter that could end the script it stands in."""
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return compact.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(shares: np.ndarray | None) -> list[Any] | None:
    return None if shares is None else np.round(shares.astype(np.float64), DIGITS).tolist()
