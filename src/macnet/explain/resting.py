"""What a step attends to whatever it is asked: its resting map, and attention without it.

Softmax attention has to be somewhere. Where a step needs little of the image, or has found it
already, most of its attention rests where it does no harm, such as in an empty corner, and it rests
there for all questions. What it does for one question is seen beside it: in the attention beyond
the resting map, which is the mean over other questions that the network is asked about the image.
They were generated for other scenes, so that they may be about what is not there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from macnet.clevr.questions import QuestionGenerator
from macnet.clevr.scene import sample_scenes
from macnet.data.vocab import PAD, TOKENIZERS, Vocabulary
from macnet.models.mac import StepTrace

OTHER_QUESTIONS = 64
"""The number of questions over which a resting map is the mean."""
SCENES = 40  # that they are taken from; eight are enough for a vocabulary that has all words


def other_questions(vocabulary: Vocabulary) -> Tensor | None:
    """(64, S): tokens of generated questions of all kinds, the same each time, about no one image.

    None if the vocabulary does not have all words of so many.
    """
    generator, known = QuestionGenerator(random.Random(0)), set(vocabulary.words)
    tokenize = TOKENIZERS[vocabulary.tokenizer]
    found: list[list[int]] = []
    for scene in sample_scenes([random.Random(i) for i in range(SCENES)], _all_visible):
        for question in generator.generate(scene):
            if known.issuperset(tokenize(question.text)):
                found.append(vocabulary.encode(question.text))
        if len(found) >= OTHER_QUESTIONS:
            break
    else:
        return None
    found = found[:OTHER_QUESTIONS]
    longest = max(map(len, found))
    return torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens in found])


def _all_visible(scenes: Sequence[object]) -> list[bool]:
    return [True] * len(scenes)  # whether objects can be seen does not matter here


def resting_maps(steps: Sequence[StepTrace], images: int) -> Tensor:
    """(N, p, L): the mean attention of each step, of the trace of other questions to N images."""
    attention = torch.stack([step.knowledge for step in steps], 1).float()  # (N·64, p, L)
    mean: Tensor = attention.unflatten(0, (images, -1)).mean(1)
    return mean
