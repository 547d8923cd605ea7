"""How many words CLEVR has by each tokenizer, and what CLEVR-Humans adds to them.

    python benchmarks/words.py --reference ../shared/reference --out results/words.json

The reference holds clevr_humans/ as released, and in clevr_val100/ enough of CLEVR's questions that
all of its words are in them. Also timed: questions turned into ids a second, on one core.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from macnet.data.splits import find_questions
from macnet.data.vocab import SPECIALS, TOKENIZERS, OOVCounter, Vocabulary
from record import keep


def texts(root: Path, split: str) -> list[str]:
    path, format = find_questions(root, split)
    return [question.text for question in format.read(path, split).questions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    clevr = texts(args.reference / "clevr_val100", "val")
    humans = {split: texts(args.reference / "clevr_humans", split) for split in ("train", "val")}
    rows = []
    for tokenizer in TOKENIZERS:
        known = Vocabulary.build(clevr, tokenizer)
        start = time.process_time()
        for _ in range(50):
            for text in clevr:
                known.encode(text, OOVCounter())
        rate = 50 * len(clevr) / (time.process_time() - start)
        for min_count in (10, 5):
            grown, tally = known.extended(humans["train"], min_count=min_count), OOVCounter()
            for text in humans["val"]:
                grown.encode(text, tally)
            rows.append(
                {
                    "tokenizer": tokenizer,
                    "words_of_clevr": len(known) - len(SPECIALS),
                    "min_count": min_count,
                    "words_added": len(grown) - len(known),
                    "humans_val_questions": tally.texts,
                    "with_unknown_words": tally.lacking,
                    "clevr_questions_encoded_per_second": round(rate),
                }
            )
    keep(args.out, "words of CLEVR, and of CLEVR-Humans beyond them", rows=rows)


if __name__ == "__main__":
    main()
