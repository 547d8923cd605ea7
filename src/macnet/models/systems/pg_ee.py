"""PG+EE of Johnson et al. (2017), "Inferring and Executing Programs for Visual Reasoning".

A program generator (PG) reads the question and writes a program; an execution engine (EE) has a
small network for each function and runs them on the image as the program says:

    "How many red cubes are there?"  →  count(filter_color[red](filter_shape[cube](scene)))

The EE is in `execution_engine.py`. Layers are initialised as torch initialises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.clevr.program import from_prefix, to_postfix
from macnet.configuration import check_fields
from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN
from macnet.data.spec import DataSpec
from macnet.data.vocab import END, PAD, PROGRAM_TOKENS, START
from macnet.errors import InputError
from macnet.models.encoders import embed_tokens
from macnet.models.mac import check_group_sizes
from macnet.models.objectives import LossSums, answer_sums
from macnet.models.recipe import FAST_WITH_EMA, Recipe
from macnet.models.system import ModuleTrace, ProgramWriting, Stage, System, TrainingSpec
from macnet.models.systems.baselines import HUMANS_STEPS
from macnet.models.systems.execution_engine import ExecutionEngine
from macnet.models.systems.inputs import LastStateEncoder, run_layers
from macnet.models.systems.programs import (
    MovingBaseline,
    choose,
    lstm_cell,
    read_prefix,
    reinforce,
    token_log_probs,
)


@dataclass(frozen=True, kw_only=True)
class PGEEConfig:
    """Options of PG+EE; the defaults are as published."""

    embedding: int = 300
    """The dimension of vectors of words and of program tokens."""
    units: int = 256
    """Hidden units of each LSTM layer, of the encoder and of the decoder."""
    layers: int = 2
    """Number of layers of both LSTMs."""
    program_length: int = 30
    """The maximum number of tokens of a program that is written, with its end."""
    channels: int = 128
    """Channels of the maps that modules take and give."""
    pooled: int = 512
    """Channels of the feature maps before the classifier pools them."""
    hidden: int = 1024
    """Hidden units of the classifier."""
    executor_learns_from: Literal["written", "true"] = "written"
    """The programs on which the execution engine is trained in its own stage. The paper takes those
    that the generator writes, the released code the true ones, of all questions."""

    def __post_init__(self) -> None:
        check_fields(self, repeated=("layers", "program_length"))


class ProgramGenerator(nn.Module):
    """A question → a program in prefix form, by an LSTM that reads and an LSTM that writes.

    The writer has no attention: it is given the reader's last state at each step, along with the
    token before, and starts from zero.
    """

    def __init__(self, config: PGEEConfig, *, vocabulary: int) -> None:
        super().__init__()
        sizes = {"embedding": config.embedding, "units": config.units, "layers": config.layers}
        self.encoder = LastStateEncoder(vocabulary=vocabulary, **sizes)
        tokens = len(PROGRAM_TOKENS)
        self.embedding = nn.Embedding(tokens, config.embedding)
        inputs = config.units + config.embedding
        self.lstm = nn.LSTM(inputs, config.units, config.layers, batch_first=True)
        self.output = nn.Linear(config.units, tokens)
        self.length = config.program_length

    def forward(self, questions: Tensor, programs: Tensor) -> Tensor:
        """The logits (B, L, tokens) of each token of programs (B, L), given those before it."""
        q = self.encoder(questions)  # (B, u)
        before = F.pad(programs[:, :-1], (1, 0), value=START)
        x = embed_tokens(self.embedding.weight, before)  # (B, L, embedding)
        inputs = torch.cat([q[:, None].expand(-1, x.shape[1], -1).to(x.dtype), x], -1)
        logits: Tensor = self.output(run_layers(self.lstm, inputs, is_written(programs).sum(1))[0])
        return logits

    @torch.no_grad()
    def write(self, questions: Tensor, *, sample: bool = False) -> Tensor:
        """Programs (B, length) with their <END>, and padding after it.

        Each token is the most probable one, or a random one with `sample`.
        """
        q = self.encoder(questions)
        layers = self.lstm.all_weights
        weight_x, _, bias_x, bias_h = layers[0]
        of_question, of_token = weight_x.split((q.shape[1], self.embedding.embedding_dim), dim=1)
        # The inputs' part of the first layer's gates, for a question and for each token.
        of_question = F.linear(q, of_question) + (bias_x + bias_h)  # (B, 4u)
        of_token = F.linear(self.embedding.weight, of_token)  # (tokens, 4u)
        h = [q.new_zeros(q.shape, dtype=weight_x.dtype) for _ in layers]
        c = list(h)
        token = torch.full_like(questions[:, 0], START)
        has_ended = torch.zeros_like(token, dtype=torch.bool)
        written = []
        for _ in range(self.length):
            gates = of_question + of_token[token]
            for k, (weight_x, weight_h, bias_x, bias_h) in enumerate(layers):
                if k > 0:
                    gates = F.linear(h[k - 1], weight_x) + (bias_x + bias_h)
                h[k], c[k] = lstm_cell(gates + F.linear(h[k], weight_h), c[k])
            token = choose(self.output(h[-1]), sample=sample).masked_fill(has_ended, PAD)
            has_ended = has_ended | (token == END)
            written.append(token)
        return torch.stack(written, 1)


def with_end(programs: Tensor) -> Tensor:
    """Programs (B, L) as they are written, (B, L + 1): with <END> before the padding."""
    padded = F.pad(programs, (0, 1), value=PAD)
    lengths = (programs != PAD).sum(1, keepdim=True)
    return padded.scatter(1, lengths, END)


def is_written(programs: Tensor) -> Tensor:
    """(B, L) bool: the tokens up to <END>, which is one of them; all where there is none."""
    ends = (programs == END).long()
    return (ends.cumsum(1) - ends) == 0


class PGEE(nn.Module):
    """The program generator and the execution engine."""

    def __init__(self, config: PGEEConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.generator = ProgramGenerator(config, vocabulary=data_spec.vocabulary)
        self.executor = ExecutionEngine(
            data_spec, channels=config.channels, pooled=config.pooled, hidden=config.hidden
        )
        # The published baseline is of rewards, from 0 on; a cost is 1 less the reward.
        self.baseline = MovingBaseline(1.0, decay=0.9)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        return self.answer(images, questions)[0]

    def answer(self, images: Tensor, questions: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (B, answers), and the programs (B, length) that were written and executed."""
        written = self.generator.write(questions)
        check_group_sizes(len(questions), len(images))
        return self.executor(images, written), written


# --- stages ----------------------------------------------------------------------------------


def learn_programs(system: System, network: PGEE, batch: Batch) -> LossSums:
    """Cross-entropy of the tokens of the true programs; correct are programs, not answers."""
    if batch.programs.shape[1] >= network.config.program_length:
        raise InputError(
            f"programs have up to {batch.programs.shape[1]} functions, but `model.program_length` "
            f"is {network.config.program_length}; give at least {batch.programs.shape[1] + 1}"
        )
    known = batch.programs[:, :1] != PAD
    programs = with_end(batch.programs)
    targets = programs.masked_fill(~known, PAD)
    logits = network.generator(batch.questions, programs).float()
    total = F.cross_entropy(logits.mT, targets, ignore_index=PAD, reduction="sum")
    hit = (logits.detach().argmax(-1) == targets) | (targets == PAD)
    correct, learned = hit.all(1, keepdim=True) & known, (targets != PAD).sum()
    return LossSums(total, learned, correct.sum(), known.sum())


def learn_execution(system: System, network: PGEE, batch: Batch) -> LossSums:
    """Cross-entropy of the answers, by programs that the generator writes, or by the true ones."""
    if network.config.executor_learns_from == "true":
        programs = batch.programs
        if not programs.shape[1]:
            raise InputError(
                "training needs programs: `model.executor_learns_from` is true, but the questions "
                "have none; give written"
            )
        is_unknown = programs[:, 0] == PAD
        batch = batch._replace(answers=batch.answers.masked_fill(is_unknown, UNKNOWN))
    else:
        programs = network.generator.write(batch.questions)
    return answer_sums(network.executor(batch.images, programs), batch)


def learn_jointly(system: System, network: PGEE, batch: Batch) -> LossSums:
    """Cross-entropy of the answers by sampled programs, and REINFORCE for the generator.

    The cost of a program is 1 if its answer is wrong, else 0. The released code gives the tokens
    after <END>, which nobody executes, the same reward; here they get none.
    """
    programs = network.generator.write(batch.questions, sample=True)
    logits = network.executor(batch.images, programs)
    known = batch.answers >= 0  # of an answer out of the vocabulary, no program has a reward
    cost = (logits.detach().argmax(-1) != batch.answers).float()
    log_p = token_log_probs(network.generator(batch.questions, programs), programs)
    log_p = log_p.masked_fill(~is_written(programs), 0).sum(1)
    total, counted, correct, labelled = answer_sums(logits, batch)
    total = total + reinforce(log_p, cost, network.baseline.update(cost, known), known)
    return LossSums(total, counted, correct, labelled)


STAGES = (
    Stage(
        name="generator",
        objective=learn_programs,
        uses_programs=True,
        selects_by="programs",
        changes={"trainable": ("generator",)},
        factors={"lr": 5, "epochs": 0.2},
    ),
    Stage(name="executor", objective=learn_execution, changes={"trainable": ("executor",)}),
    Stage(name="joint", objective=learn_jointly, learns_policy=True),
)


# --- evaluation and explanation --------------------------------------------------------------


def forward_with_programs(network: PGEE, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits (B, answers), and (B,) whether the written program is the true one."""
    logits, written = network.answer(batch.images, batch.questions)
    true = with_end(batch.programs)
    more = written.shape[1] - true.shape[1]
    written, true = F.pad(written, (0, max(0, -more))), F.pad(true, (0, max(0, more)))
    return logits, (written == true).all(1)


def trace(network: PGEE, images: Tensor, questions: Tensor) -> tuple[Tensor, list[ModuleTrace]]:
    """The logits (1, answers), and the modules of the program that was written.

    A module's map shows where its output is large: the norm over channels at each cell, less the
    smallest in the image.
    """
    written = network.generator.write(questions)
    logits, outputs = network.executor.trace(images, written)
    trees = read_prefix(written)
    places: dict[int, int] = {}  # of nodes, in order of execution
    modules: list[ModuleTrace] = []
    for node in trees.postfix[0].argsort()[: int(trees.is_node.sum())].tolist():
        inputs = tuple(places[i] for i in trees.inputs[0, node].tolist() if i >= 0)
        size = outputs[node].float().norm(dim=0).flatten()  # (H·W,)
        size = size - size.min() + 1e-12  # where all are equal, so is the map
        places[node] = len(modules)
        token = PROGRAM_TOKENS[int(trees.tokens[0, node])]
        modules.append(ModuleTrace(token, inputs, None, size / size.sum()))
    return logits, modules


def module_names(prefix: Sequence[str]) -> list[str]:
    """The tokens of a program in order of execution."""
    return to_postfix(from_prefix(prefix))


PG_EE = System(
    name="pg-ee",
    table1_row="PG+EE (700K prog.)*",
    program_rows={
        9_000: "PG+EE (9K prog.)*",
        18_000: "PG+EE (18K prog.)*",
    },
    description="""\
A program, written and then executed on the image.
An LSTM writes the program, which true programs teach it first. Each function
has a residual block of its own; the last one's output is classified. In the
end both are trained together, by REINFORCE. Johnson et al. (2017), "Inferring
and Executing Programs for Visual Reasoning".""",
    build=PGEE,
    presets={"pg-ee": PGEEConfig()},
    training=TrainingSpec(
        # 100,000 iterations of 64 questions at 1e-4 for the executor; 20,000 at five times the rate
        # for the generator; 100,000 at half the rate for both, which is not published.
        paper=Recipe(
            lr=1e-4, policy_lr=5e-5, clip=0, ema=0, epochs=100_000 * 64 / 700_000, patience=0
        ),
        fast={**FAST_WITH_EMA, "epochs": 4, "lr": 1e-3, "policy_epochs": 1, "policy_lr": 1e-4},
        # Only the generator learns, by REINFORCE, for 100,000 steps at 1e-4.
        humans={
            "stages": ("joint",),
            "trainable": ("generator",),
            "policy_lr": 1e-4,
            "epochs": 100_000 / HUMANS_STEPS,
            "validate_every": 500 / HUMANS_STEPS,
        },
        stages=STAGES,
    ),
    programs=ProgramWriting(
        forward=forward_with_programs,
        trace=trace,
        modules=module_names,
        map_title="activation",
    ),
)
