"""Statistics of generated questions beside real ones: types, lengths, words, answers, templates.

    python benchmarks/fidelity.py --reference ../shared/reference --questions 200000 \
        --out results/questions_fidelity.json

The reference is only compared with, never learned from. It has 1,000 questions, so a share of one
half is known to ±3 points over all of them, and to ±16 over forty.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from macnet.clevr.program import answer, question_type
from macnet.clevr.questions import IMAGES_PER_BLOCK, QuestionGenerator
from macnet.clevr.scene import from_record, sample_scenes
from record import keep

# Of the first 2,000 real validation questions.
REAL_TYPES = {
    "Count": 496,
    "Exist": 279,
    "Compare Numbers": 175,
    "Query Attribute": 690,
    "Compare Attribute": 360,
}
REAL_MEAN_LENGTH = 19.6
# Accuracy (%) of the most frequent answer per last function on all of CLEVR (the Q-type baseline of
# table 1), which shows how well answers are balanced in the whole release.
PUBLISHED_MODE_ACCURACY = {
    "Count": 34.6,
    "Exist": 50.2,
    "Compare Numbers": 51.0,
    "Query Attribute": 36.0,
    "Compare Attribute": 51.3,
}

_NOUN_PHRASE = re.compile(
    r"\b(?:(?:large|big|small|tiny|gray|red|blue|green|brown|purple|cyan|yellow"
    r"|rubber|matte|metal|metallic|shiny) )*"
    r"(?:thing|object|sphere|ball|cube|block|cylinder)(s?)\b"
)
_RELATION = re.compile(r"(?:to the |on the )?(?:left|right) (?:side )?of|behind|in front of")


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[?;]", text.lower())


def skeleton(text: str) -> str:
    """A question with its descriptions and relations replaced by slots."""
    text = _RELATION.sub("<R>", _NOUN_PHRASE.sub(r"<NP>\1", text))
    return " ".join(text.split())  # a few released questions have a space too many


class QuestionStats:
    """Counts over a set of questions, which can be merged."""

    def __init__(self) -> None:
        self.questions = 0
        self.tokens = 0
        self.nodes = 0
        self.words: Counter[str] = Counter()
        self.skeletons: Counter[str] = Counter()
        self.families: Counter[int] = Counter()
        self.answers: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, text: str, answer: str, program: list[dict[str, Any]], family: int) -> None:
        words = tokens(text)
        self.questions += 1
        self.tokens += len(words)
        self.nodes += len(program)
        self.words.update(words)
        self.skeletons[skeleton(text)] += 1
        self.families[family] += 1
        self.answers[question_type(program), program[-1]["function"]][answer] += 1

    def merge(self, other: QuestionStats) -> None:
        self.questions += other.questions
        self.tokens += other.tokens
        self.nodes += other.nodes
        self.words += other.words
        self.skeletons += other.skeletons
        self.families += other.families
        for key, counts in other.answers.items():
            self.answers[key] += counts

    def by_type(self) -> dict[str, Counter[str]]:
        merged: dict[str, Counter[str]] = {kind: Counter() for kind in REAL_TYPES}
        for (kind, _), counts in self.answers.items():
            merged[kind] += counts
        return merged

    def mode_accuracy(self) -> dict[str, float]:
        hits: Counter[str] = Counter()
        for (kind, _), counts in self.answers.items():
            hits[kind] += max(counts.values())
        return {kind: percent(hits[kind], n.total()) for kind, n in self.by_type().items()}


def percent(part: int, whole: int) -> float:
    return round(100 * part / max(whole, 1), 2)


def generate_block(block: int) -> QuestionStats:
    rngs = [random.Random(f"scene {block} {i}") for i in range(IMAGES_PER_BLOCK)]
    generator = QuestionGenerator(random.Random(f"questions {block}"))
    stats = QuestionStats()
    for scene in sample_scenes(rngs):
        for question in generator.generate(scene):
            stats.add(*question)
    return stats


def merge_all(parts: Iterable[QuestionStats]) -> QuestionStats:
    total = QuestionStats()
    for stats in parts:
        total.merge(stats)
    return total


def compare(made: QuestionStats, reference: Path) -> dict[str, Any]:
    folder = reference / "clevr_val100"
    records = json.loads((folder / "scenes/CLEVR_val_scenes.json").read_text())["scenes"]
    scenes = {r["image_index"]: from_record(r, f"scene {r['image_index']}") for r in records}
    questions = json.loads((folder / "questions/CLEVR_val_questions.json").read_text())
    real, agreed = QuestionStats(), 0
    for q in questions["questions"]:
        real.add(q["question"], q["answer"], q["program"], q["question_family_index"])
        agreed += answer(q["program"], scenes[q["image_index"]]) == q["answer"]
    vocabulary = json.loads((reference / "clevr_vocab.json").read_text())
    real_words = {word.lower() for word in vocabulary["question_token_to_idx"]}
    real_words = {word for word in real_words if word and not word.startswith("<")} | {"?"}
    covered = sum(n for text, n in real.skeletons.items() if text in made.skeletons)
    made_types = {kind: counts.total() for kind, counts in made.by_type().items()}
    shares = {
        kind: {
            answer: {
                "made": percent(made.by_type()[kind][answer], made_types[kind]),
                "real": percent(counts[answer], counts.total()),
            }
            for answer in sorted({*made.by_type()[kind], *counts}, key=lambda a: (len(a), a))
        }
        for kind, counts in real.by_type().items()
    }
    return {
        "questions": made.questions,
        "real questions answered as recorded": f"{agreed} of {real.questions}",
        "type shares, %": {
            kind: {"made": percent(made_types[kind], made.questions), "real": percent(n, 2000)}
            for kind, n in REAL_TYPES.items()
        },
        "mean length, tokens": {
            "made": round(made.tokens / made.questions, 2),
            "real": REAL_MEAN_LENGTH,
        },
        "mean program length, nodes": {
            "made": round(made.nodes / made.questions, 2),
            "real": round(real.nodes / real.questions, 2),
        },
        "vocabulary": {
            "made": len(made.words),
            "real": len(real_words),
            "only made": sorted(set(made.words) - real_words),
            "only real": sorted(real_words - set(made.words)),
        },
        "real questions whose skeleton was made, %": percent(covered, real.questions),
        "real skeletons not made": len(set(real.skeletons) - set(made.skeletons)),
        "accuracy of the most frequent answer, %": {
            kind: {
                "made": value,
                "published for all of CLEVR": PUBLISHED_MODE_ACCURACY[kind],
                "real, these 1,000": real.mode_accuracy()[kind],
            }
            for kind, value in made.mode_accuracy().items()
        },
        "answer shares within a type, %": shares,
        "family counts": [made.families[i] for i in range(90)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    blocks = -(-args.questions // (10 * IMAGES_PER_BLOCK))
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        made = merge_all(pool.imap(generate_block, range(blocks)))
    keep(args.out, "generated questions beside real ones", **compare(made, args.reference))


if __name__ == "__main__":
    main()
