"""An explanation as one web page that needs nothing else: no server, no internet, no fonts.

The page is `page.html`, filled in with the image, the answer, the program if one was written, and
as JSON the attention of each step or the map of each module, which the page's script shows over the
image as `overlay` does. Where resting maps are known, the reader can take them off and put them
back; the page says which it shows.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from macnet.explain.captions import describe_places, in_words, likely_answers
from macnet.explain.grouping import group_steps, reasoning_chain
from macnet.explain.overlay import PARAMETERS
from macnet.explain.program import ProgramRow, compare, legend, title
from macnet.explain.reply import RESTING, Explanation, Module, Reply, StepAttention
from macnet.files import write_atomically

TEMPLATE = Path(__file__).with_name("page.html")
MAX_SIDE = 1280  # pixels of the image, which is shown smaller
LONG_QUESTION = 360  # letters; CLEVR's are shorter
DIGITS = 5  # of attention


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
                "steps": _panels(explanation),
                "chain": _chain(explanation),
                "least": RESTING,
                "overlay": PARAMETERS,
            }
        ),
    }
    # In one go: what is filled in may itself have braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], TEMPLATE.read_text("utf-8"))


# --- steps and modules -----------------------------------------------------------------------


def _panels(explanation: Explanation) -> list[dict[str, Any]]:
    if explanation.modules:
        return [_module(explanation, i) for i in range(len(explanation.modules))]
    beyond = explanation.beyond_resting
    return [_step(explanation, beyond, i) for i in range(len(explanation.steps))]


def _chain(explanation: Explanation) -> list[dict[str, Any]]:
    """What groups of steps read, in short, with the first step of each."""
    if explanation.modules:
        return []
    groups = group_steps(explanation.beyond_resting.steps)
    return [
        {"read": " ".join(read), "step": group.numbers[0]}
        for group, read in reasoning_chain(explanation.words, groups)
    ]


def _step(explanation: Explanation, beyond: Explanation, index: int) -> dict[str, Any]:
    step, count = explanation.steps[index], len(explanation.steps)

    def describe(shown: Explanation) -> str:
        own = shown.steps[index]
        told = f"Step {index + 1} of {count} {in_words(_step_facts(shown, own, index + 1))}."
        if 0 < own.share < 1:
            told += f" Its resting map, {1 - own.share:.0%} of its attention, is taken off."
        return told

    return {
        "words": _rounded(step.words),
        "image": _rounded(step.image),
        "resting": _rounded(step.resting),
        "change": step.change,
        "idle": step.idle,
        "self_attention": _rounded(step.self_attention),
        "description": describe(explanation),
        "description_beyond": describe(beyond),
    }


def _step_facts(explanation: Explanation, step: StepAttention, number: int) -> list[str]:
    places = describe_places(step.image, explanation.centers, step.share)
    if not step.share:
        places = "nothing beyond its resting map"
    facts = [*_words_read(explanation, step.words), f"attends to {places}"]
    if step.self_attention is not None and len(step.self_attention):
        strongest = int(step.self_attention.argmax())
        before = number - len(step.self_attention) + strongest
        recalled = f"step {before}" if before else "the beginning"
        facts.append(f"recalls {recalled} ({step.self_attention[strongest]:.0%})")
    if step.change is not None:
        idle = ", so that it is idle" if step.idle else ""
        facts.append(f"changes {step.change:.0%} of the memory{idle}")
    return facts


def _words_read(explanation: Explanation, shares: np.ndarray | None) -> list[str]:
    if shares is None:
        return []
    most = np.argsort(-shares, kind="stable")[:2]
    read = (f"“{explanation.words[i]}” ({shares[i]:.0%})" for i in most)
    return [f"reads {' and '.join(read)}"]


def _module(explanation: Explanation, index: int) -> dict[str, Any]:
    module, of_all = explanation.modules[index], f"{index + 1} of {len(explanation.modules)}"
    told = in_words(_module_facts(explanation, module))
    return {
        "words": _rounded(module.words),
        "image": _rounded(module.image),
        "name": module.name,
        "description": f"Module {of_all}, {module.name}, {told}.",
    }


def _module_facts(explanation: Explanation, module: Module) -> list[str]:
    facts = []
    if module.inputs:
        numbers = " and ".join(str(i + 1) for i in module.inputs)
        facts.append(f"takes module{'s' * (len(module.inputs) > 1)} {numbers}")
    facts += _words_read(explanation, module.words)
    if module.image is None:
        return [*facts, "has no map"]
    places = describe_places(module.image, explanation.centers)
    return [*facts, f"has its {explanation.map_title} at {places}"]


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
        for answer, probability in likely_answers(reply)
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
