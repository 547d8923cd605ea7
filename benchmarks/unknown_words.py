"""What to do with words that a network has never read: the shipped one on CLEVR-Humans.

    python benchmarks/unknown_words.py --reference ../shared/reference --scratch SCRATCH \\
        --out results/unknown_words.json

People's questions before any fine-tuning, about the scenes of CLEVR's validation split that are
known; they are rendered here, at the size that the network learned from. No number is that of
CLEVR-Humans: its images are not these, and 3 scenes in 100 have a wrong object.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import macnet
from macnet.clevr.images import render_file
from macnet.data.clevr_json import read_question_file
from macnet.data.pack import pack_split
from macnet.data.question_arrays import TokenizedQuestion, collect
from macnet.data.splits import find_split
from macnet.data.unknown_words import encode_known
from macnet.data.vocab import UNK, Vocabulary
from macnet.evaluation.accuracy import Proportion
from macnet.evaluation.predict import Predictor
from record import keep

SIZE = 128


def rules(words: Vocabulary) -> Mapping[str, Callable[[str], list[int]]]:
    def left_out(text: str) -> list[int]:
        return [i for i in words.encode(text) if i != UNK] or [UNK]

    def meant(text: str) -> list[int]:
        return encode_known(text, words)

    return {"<UNK>": words.encode, "left_out": left_out, "likely meant, else left out": meant}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    images = args.scratch / "images" / "val"
    scenes = args.reference / "clevr_humans_scenes" / "CLEVR_val_scenes.json"
    render_file(scenes, images, size=(SIZE, SIZE), quality="fast", device="cpu")
    model = macnet.load()
    words = model.trained.vocabulary
    split = find_split(args.reference / "clevr_humans", "val", images)
    dataset = pack_split(split, args.scratch / "cache", words, size=(SIZE, SIZE), skip_missing=True)
    questions = [*read_question_file(split.questions, numbered=False).questions]
    texts = [questions[i].question for i in dataset.selected]
    unknown = np.array([UNK in words.encode(text) for text in texts])
    known = rules(words)
    # All rules at once: most of the work is to encode the images.
    rows = [TokenizedQuestion(rule(text), 0, b"", 0) for rule in known.values() for text in texts]
    asked = replace(
        dataset,
        questions=collect(rows),
        image_rows=np.tile(dataset.image_rows[dataset.selected], len(known)),
        selected=np.arange(len(rows), dtype=np.int32),
    )
    with Predictor(asked) as answering:
        given = answering(model.trained.system, model.network).answers.reshape(len(known), -1)
    right = dict(zip(known, given == dataset.answers, strict=True))

    def share(of: np.ndarray) -> dict[str, Any]:
        return Proportion(int(of.sum()), len(of)).to_record()

    found = {
        name: {"all": share(of), "with an unknown word": share(of[unknown])}
        for name, of in right.items()
    }
    last = right["likely meant, else left out"]
    apart = {
        name: {"right here only": int((of & ~last).sum()), "there only": int((last & ~of).sum())}
        for name, of in right.items()
    }
    keep(
        args.out,
        "the shipped network on people's questions, by what becomes of words it has never read",
        seed="none: every question of the split whose scene is known",
        questions=len(dataset),
        with_an_unknown_word=int(unknown.sum()),
        scenes=len(dataset.images),
        rules=found,
        against_the_last=apart,
    )


if __name__ == "__main__":
    main()
