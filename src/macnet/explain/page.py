"""An explanation as one web page that needs nothing else: no server, no internet, no fonts.

The page is `page.html`, filled in with the image, the answer, the program if one was written, and
as JSON the attention of each step or the map of each module, which the page's script shows over the
image as `overlay` does.
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
from macnet.explain.program import ProgramRow, compare, legend, title
from macnet.explain.reply import Explanation, GridCenters, Module, Reply, StepAttention
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
        "panel": "module" if explanation.modules else "step",
        "panels": str(len(explanation.panels)),
        "program": _program(explanation) if explanation.modules else "",
        "answer": html.escape(reply.answer),
        "likeliest": _likeliest(reply),
        "unknown": _unknown(reply),
        "data": _as_json(
            {
                "words": explanation.words,
                "rows": explanation.centers.rows.tolist(),
                "columns": explanation.centers.columns.tolist(),
                "steps": [_panel(explanation, i) for i in range(1, len(explanation.panels) + 1)],
                "overlay": PARAMETERS,
            }
        ),
    }
    # In one go: what is filled in may itself have braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], TEMPLATE.read_text("utf-8"))


# --- a step, or a module ---------------------------------------------------------------------


def _panel(explanation: Explanation, number: int) -> dict[str, Any]:
    panel, of_all = explanation.panels[number - 1], f"{number} of {len(explanation.panels)}"
    shown: dict[str, Any] = {"words": _rounded(panel.words), "image": _rounded(panel.image)}
    if isinstance(panel, Module):
        told = _in_words(_module_facts(explanation, panel))
        return shown | {
            "name": panel.name,
            "description": f"Module {of_all}, {panel.name}, {told}.",
        }
    return shown | {
        "gate": panel.gate,
        "self_attention": _rounded(panel.self_attention),
        "description": f"Step {of_all} {_in_words(_step_facts(explanation, panel, number))}.",
    }


def _in_words(facts: list[str]) -> str:
    """Facts as a sentence, for screen readers."""
    return f"{', '.join(facts[:-1])} and {facts[-1]}" if facts[1:] else facts[0]


def _words_read(explanation: Explanation, shares: np.ndarray | None) -> list[str]:
    if shares is None:
        return []
    most = np.argsort(-shares, kind="stable")[:2]
    read = (f"“{explanation.words[i]}” ({shares[i]:.0%})" for i in most)
    return [f"reads {' and '.join(read)}"]


def _module_facts(explanation: Explanation, module: Module) -> list[str]:
    facts = []
    if module.inputs:
        numbers = " and ".join(str(i + 1) for i in module.inputs)
        facts.append(f"takes module{'s' * (len(module.inputs) > 1)} {numbers}")
    facts += _words_read(explanation, module.words)
    if module.image is None:
        return [*facts, "has no map"]
    region, share = _strongest_region(module.image, explanation.centers)
    return [*facts, f"has the most {explanation.map_title} at the {region} ({share:.0%})"]


def _step_facts(explanation: Explanation, step: StepAttention, number: int) -> list[str]:
    region, share = _strongest_region(step.image, explanation.centers)
    done = [*_words_read(explanation, step.words), f"looks at the {region} ({share:.0%})"]
    if step.self_attention is not None and len(step.self_attention):
        strongest = int(step.self_attention.argmax())
        before = number - len(step.self_attention) + strongest
        recalled = f"step {before}" if before else "the beginning"
        done.append(f"recalls {recalled} ({step.self_attention[strongest]:.0%})")
    if step.gate is not None:
        done.append(f"keeps {step.gate:.0%} of its memory")
    return done


def _strongest_region(attention: np.ndarray, centers: GridCenters) -> tuple[str, float]:
    """The ninth of the image with the most attention, and how much it has."""
    shares = np.zeros((3, 3))
    thirds = [(3 * at).astype(int) for at in centers]
    np.add.at(shares, tuple(np.meshgrid(*thirds, indexing="ij")), attention)
    row, column = divmod(int(shares.argmax()), 3)
    return REGIONS[row][column], float(shares[row, column])


# --- a program -------------------------------------------------------------------------------


def _program(explanation: Explanation) -> str:
    """The program that was written as a table, beside the true one if that is known."""
    rows, compared = compare(explanation), explanation.true_modules is not None
    signs = legend(rows)
    notes = (f"{sign} {meaning}" for sign, meaning in signs.items())
    true = '<th></th><th scope="col">true</th>' if compared else ""
    return (
        '<section id="program" aria-label="Program">'
        f"<h2>{title(explanation)}</h2>"
        + (f'<p class="note">{" · ".join(notes)}</p>' if signs else "")
        + f'<table><thead><tr><th></th><th scope="col">written</th>{true}</tr></thead><tbody>'
        + "".join(_program_row(row, signs.get(row.sign, ""), compared) for row in rows)
        + "</tbody></table></section>"
    )


def _program_row(row: ProgramRow, meaning: str, compared: bool) -> str:
    number = "" if row.number is None else str(row.number)
    written, true = (html.escape(name or "") for name in (row.written, row.true))
    cells = f'<td class="number">{number}</td><td class="named">{written}</td>'
    if compared:
        sign = f'<span role="img" aria-label="{meaning}">{row.sign}</span>' if row.sign else ""
        cells += f'<td class="sign">{sign}</td><td class="named">{true}</td>'
    differs = ' class="differs"' if row.sign else ""
    return f'<tr data-module="{number}"{differs}>{cells}</tr>'


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
