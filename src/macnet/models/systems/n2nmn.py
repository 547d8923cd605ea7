"""N2NMN: end-to-end module networks (Hu et al., 2017), "Learning to Reason".

"How many big things are left of the cube?" A layout policy reads the question and writes

    Find  Transform  Filter  Count

(see `layouts.py` and `layout_generator.py`), and the modules are executed on the image one after
another (see `neural_modules.py`): where cubes are, what is left of there, which of that is big, and
how many it is. Modules are shared by all questions, and are told by an attention to the words of
the question what to find. The answer is that of the last module; there is no other classifier.

It is trained in two stages. *Cloning* learns the layouts of CLEVR's programs along with the answers
that modules give when they are executed. *Policy search* continues without programs: layouts are
sampled, and those whose answers cost less become more probable (REINFORCE).

In cloning, a layout longer than `training_steps` cannot be written, and its question is not learned
from. CLEVR has none: its longest have 8 modules, of 10.

Deviations. The features that it was published with are 512 maps of 10×15 by VGG-16; it takes those
of any network and size, such as 1024 of 14×14 by ResNet-101, or pixels, which pass MAC's backbone
along with their coordinates. Weight decay also applies to biases and embeddings. Of the decoder's
attention, two biases that are only ever added are one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.configuration import check_fields
from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.layers import compute_dtype
from macnet.models.mac import check_group_sizes
from macnet.models.objectives import LossSums
from macnet.models.recipe import FAST_WITH_EMA, Recipe
from macnet.models.system import (
    ModuleTrace,
    ProgramWriting,
    Stage,
    System,
    TrainingSpec,
    uniform_answer_loss,
)
from macnet.models.systems.inputs import FeatureMaps, check_questions
from macnet.models.systems.layout_generator import LayoutGenerator, ReadQuestion, Writing
from macnet.models.systems.layouts import (
    EOS,
    FIRST_ANSWER,
    INPUTS,
    SHORTEST,
    TOKENS,
    first_inputs,
    layout_names,
    layouts_of,
    valid_choices,
)
from macnet.models.systems.neural_modules import Executor
from macnet.models.systems.programs import MovingBaseline, reinforce, token_log_probs

BASELINE, BASELINE_DECAY = 0.5, 0.99
"""The baseline of costs at the start, and its decay, as published."""


@dataclass(frozen=True, kw_only=True)
class N2NMNConfig:
    """Options of N2NMN; the defaults are as published."""

    embedding: int = 300
    """The dimension of word vectors, and of the vectors of layout tokens."""
    units: int = 512
    """Hidden units of each LSTM layer."""
    layers: int = 2
    """Number of layers of the LSTM that reads, and of the LSTM that writes."""
    map_dim: int = 250
    """d: the dimension in which modules compare image and text."""
    training_steps: int = 10
    """The maximum number of modules of a layout in training."""
    steps: int = 20
    """The maximum number of modules of a layout that answers a question."""
    entropy: float = 0.005
    """The weight of the entropy of layouts in policy search, which rewards trying others."""
    coordinates: bool = True
    """Whether pixels pass the backbone with their coordinates; features are taken as they are."""

    def __post_init__(self) -> None:
        check_fields(self, repeated=("layers", "training_steps", "steps"))
        for name in ("training_steps", "steps"):
            if getattr(self, name) < SHORTEST:
                raise InputError(
                    f"{name} is 1; it must be at least {SHORTEST}, as long as the shortest layouts"
                )
        if type(self.entropy) not in (int, float) or not 0 <= self.entropy <= 1:
            raise InputError(f"entropy is {self.entropy!r:.40}; it must be a number from 0 to 1")


class Answers(NamedTuple):
    """The answers to B questions, with the layouts that gave them."""

    logits: Tensor
    """(B, answers)"""
    layouts: Tensor
    """(B, T) tokens."""
    words: Tensor
    """(B, T, S): the attention to the words at each module; it sums to one."""
    maps: Tensor
    """(B, T − 1, L): the logits of the attention map that each module made, where it made one."""


class N2NMNNetwork(nn.Module):
    """Question → layout; its modules, executed on the image → answer."""

    def __init__(self, config: N2NMNConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.generator = LayoutGenerator(
            vocabulary=data_spec.vocabulary,
            embedding=config.embedding,
            units=config.units,
            layers=config.layers,
        )
        self.image = FeatureMaps(data_spec, coordinates=config.coordinates)
        height, width = self.image.size
        self.executor = Executor(
            channels=self.image.channels,
            cells=height * width,
            text=config.embedding,
            d=config.map_dim,
            answers=data_spec.answers,
        )
        self.baseline = MovingBaseline(BASELINE, BASELINE_DECAY)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        return self.answer(images, questions).logits

    def answer(self, images: Tensor, questions: Tensor) -> Answers:
        """Answer by the most probable layouts."""
        question = self.read(images, questions)
        writing = self.generator.write(question, self.config.steps, sample=False)
        logits, maps = self.execute(images, question, writing)
        return Answers(logits, writing.layouts, writing.words, maps)

    def read(self, images: Tensor, questions: Tensor) -> ReadQuestion:
        """Read the questions (B, S), of which there must be as many about each image."""
        check_questions(questions)
        check_group_sizes(len(questions), len(images))
        return self.generator.read(questions)

    def execute(
        self, images: Tensor, question: ReadQuestion, writing: Writing
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, answers) and maps (B, T − 1, L) by the layouts that were written."""
        maps = self.image(images).to(compute_dtype(self.generator.output.weight))
        txt = writing.words.to(question.words.dtype) @ question.words  # (B, T, e)
        logits: Tensor
        logits, attention = self.executor(maps, txt, writing.layouts)
        return logits, attention


# --- training --------------------------------------------------------------------------------


def clone(system: System, network: N2NMNNetwork, batch: Batch) -> LossSums:
    """Cross-entropy of answers by the layouts of CLEVR's programs, and of those layouts.

    Over questions with a known answer and a program whose layout can be written.
    """
    layouts = layouts_of(batch.programs, network.config.training_steps)
    question = network.read(batch.images, batch.questions)
    writing = network.generator.follow(question, layouts, valid=None)
    logits, _ = network.execute(batch.images, question, writing)
    has_layout = layouts[:, 0] != EOS
    log_p = token_log_probs(writing.logits, layouts).sum(1)  # <eos> after the layout included
    loss = answer_costs(logits, batch.answers) - log_p
    return _sums(loss, logits, batch.answers.masked_fill(~has_layout, UNKNOWN))


def uniform_clone_loss(config: N2NMNConfig, data_spec: DataSpec) -> float:
    """The loss of cloning by a uniform guess of the answer and of each token of the layout."""
    return uniform_answer_loss(config, data_spec) + config.training_steps * math.log(len(TOKENS))


def policy_search(system: System, network: N2NMNNetwork, batch: Batch) -> LossSums:
    """Cross-entropy of answers by sampled layouts, which become more probable the less it is."""
    question = network.read(batch.images, batch.questions)
    with torch.no_grad():
        steps = network.config.training_steps
        layouts = network.generator.write(question, steps, sample=True).layouts
    valid = valid_choices(layouts)
    writing = network.generator.follow(question, layouts, valid)
    logits, _ = network.execute(batch.images, question, writing)
    known = batch.answers >= 0
    cost = answer_costs(logits, batch.answers)
    log_p = token_log_probs(writing.logits, layouts).sum(1)
    log_ps = writing.logits.float().log_softmax(-1)
    certainty = (log_ps.exp() * log_ps.masked_fill(~valid, 0)).sum((1, 2))  # Σ p log p
    sums = _sums(cost + network.config.entropy * certainty, logits, batch.answers)
    baseline = network.baseline.update(cost, known)
    return sums._replace(total=sums.total + reinforce(log_p, cost, baseline, known))


def answer_costs(logits: Tensor, answers: Tensor) -> Tensor:
    """(B,): the cross-entropy of each answer; of one that is not known, anything."""
    return F.cross_entropy(logits.float(), answers.clamp(min=0), reduction="none")


def _sums(loss: Tensor, logits: Tensor, answers: Tensor) -> LossSums:
    """The losses (B,) of questions whose answers are known, summed."""
    counted = answers >= 0  # not out of the vocabulary: that is wrong, but not learned from
    correct = (logits.detach().argmax(-1) == answers).sum()
    total = loss.masked_fill(~counted, 0).sum()
    return LossSums(total, counted.sum(), correct, (answers != UNKNOWN).sum())


# --- the programs that it writes -------------------------------------------------------------


def forward_layouts(network: N2NMNNetwork, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (B, answers), and (B,) bool: whether the layout is that of CLEVR's program."""
    answers = network.answer(batch.images, batch.questions)
    # Where there is no program, or a longer one, this is <eos> alone, which is never written.
    wanted = layouts_of(batch.programs, network.config.steps)
    return answers.logits, (answers.layouts == wanted).all(1)


def trace_layout(
    network: N2NMNNetwork, images: Tensor, questions: Tensor
) -> tuple[Tensor, list[ModuleTrace]]:
    """Logits (1, answers) and the modules, in order of execution, for one image and question."""
    answers = network.answer(images, questions)
    first = first_inputs(answers.layouts)[0].tolist()
    modules = []
    for t, token in enumerate(answers.layouts[0].tolist()):
        if token == EOS:
            break
        inputs = ((), (t - 1,), (first[t], t - 1))[INPUTS[token]]
        where = answers.maps[0, t].softmax(-1) if token < FIRST_ANSWER else None
        modules.append(ModuleTrace(TOKENS[token], inputs, answers.words[0, t], where))
    return answers.logits, modules


N2NMN = System(
    name="n2nmn",
    table1_row="N2NMN*",
    description="""\
Modules such as Find and Count, in a layout it writes.
An LSTM with attention writes a layout of modules for the question, and they
are executed on the image. Layouts are learned from programs, and then by
policy search. Hu et al. (2017), "Learning to Reason: End-to-End Module
Networks for Visual Question Answering".""",
    build=N2NMNNetwork,
    published_features=(512, 10, 15),
    presets={"n2nmn": N2NMNConfig()},
    training=TrainingSpec(
        # Each stage has 50,000 steps of 64 questions. Weight decay, a part of the gradient, was
        # published for matrices only.
        paper=Recipe(
            lr=1e-3,
            policy_lr=1e-4,
            epochs=50_000 * 64 / 700_000,
            weight_decay=5e-6,
            clip=10,
            clip_each=True,
            ema=0,
            patience=0,
        ),
        fast={
            **FAST_WITH_EMA,
            **{"clip_each": False, "weight_decay": 0, "epochs": 10, "lr": 6e-3},
            **{"policy_epochs": 2, "policy_lr": 3e-4},
        },
        stages=(
            Stage(
                name="cloning",
                objective=clone,
                uses_programs=True,
                uniform_loss=uniform_clone_loss,
            ),
            Stage(name="policy search", objective=policy_search, learns_policy=True),
        ),
    ),
    programs=ProgramWriting(
        forward=forward_layouts,
        trace=trace_layout,
        modules=layout_names,
        map_title="attention",
    ),
)
