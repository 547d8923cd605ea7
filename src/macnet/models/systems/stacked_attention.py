"""CNN+LSTM+SA+MLP: stacked attention (Yang et al., 2016), as Johnson et al. (2017) train it.

"What color is the cube behind the red ball?" The first glimpse looks for the ball, and what it sees
is added to the question; the second, which then knows where the ball is, looks behind it. There are
two glimpses, so a question may take two steps of reasoning.

    v   (N, L, d)  the L cells of each image, d = 256 numbers each
    u_0 (B, d)     the question, by an LSTM;  B = N·G, G questions about each image

    h = tanh(W_v v + W_u u_{k−1} + b)     p = softmax(w · h)     u_k = u_{k−1} + Σ_l p_l v_l

Layers are initialised as torch initialises them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from macnet.data.spec import DataSpec
from macnet.models.layers import compute_dtype
from macnet.models.mac import StepTrace, check_group_sizes
from macnet.models.recipe import FAST_WITH_EMA
from macnet.models.system import System
from macnet.models.systems.baselines import TRAINING, LSTMConfig, lstm_encoder
from macnet.models.systems.inputs import FeatureMaps


@dataclass(frozen=True, kw_only=True)
class StackedAttentionConfig(LSTMConfig):
    """Options of stacked attention; the defaults are as published."""

    attention_units: int = 512
    """Hidden units of the attention."""
    glimpses: int = 2
    """Number of times that the image is attended to."""


class Glimpse(nn.Module):
    """Attention to the image, guided by a query: one of the stacked layers."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.image = nn.Linear(d, hidden)
        self.query = nn.Linear(d, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        # u: (B, d)   v: (N, L, d) → the next u (B, d), and the attention p (B, L)
        n, cells, d = v.shape
        # W_v v is the same for all questions about an image.
        h = torch.tanh(
            self.image(v)[:, None] + self.query(u).view(n, -1, 1, self.score.in_features)
        )
        p = self.score(h).squeeze(-1).softmax(-1)  # (N, G, L)
        seen = p.to(v.dtype) @ v  # (N, G, d)
        return u + seen.view(-1, d), p.reshape(-1, cells)

    def literal(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The same with an image for each question: v is (B, L, d)."""
        h = torch.tanh(self.image(v) + self.query(u)[:, None])  # (B, L, hidden)
        p = self.score(h).squeeze(-1).softmax(-1)
        return u + torch.einsum("bl,bld->bd", p.to(v.dtype), v), p


class StackedAttentionNetwork(nn.Module):
    """Question and image → two glimpses, each of which refines the query → answers."""

    def __init__(self, config: StackedAttentionConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config, d = config, config.units
        self.question = lstm_encoder(config, data_spec)
        self.image = FeatureMaps(data_spec)
        self.reduce = nn.Conv2d(self.image.channels, d, 1)
        self.reduce.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        glimpses = nn.ModuleList(Glimpse(d, config.attention_units) for _ in range(config.glimpses))
        self.attention = cast(list[Glimpse], glimpses)
        hidden = nn.Linear(d, config.hidden)
        self.output = nn.Sequential(hidden, nn.ReLU(), nn.Linear(config.hidden, data_spec.answers))

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        return self.trace(images, questions)[0]

    def literal(self, images: Tensor, questions: Tensor) -> Tensor:
        """The same logits with an image for each question; slow, and there to be compared with."""
        return self.trace(images, questions, literal=True)[0]

    def trace(
        self, images: Tensor, questions: Tensor, *, literal: bool = False
    ) -> tuple[Tensor, list[StepTrace]]:
        """The logits (B, answers), and what each glimpse attended to; u is control and memory."""
        u = self.question(questions)
        check_group_sizes(len(u), len(images))
        maps = self.image(images).to(compute_dtype(u), memory_format=torch.channels_last)
        v = self.reduce(maps).flatten(2).transpose(1, 2)  # (N, L, d)
        if literal:
            v = v.repeat_interleave(len(u) // len(v), 0)
        steps = []
        for glimpse in self.attention:
            before = u
            u, p = glimpse.literal(u, v) if literal else glimpse(u, v)
            steps.append(
                StepTrace(
                    words=None,
                    knowledge=p,
                    self_attention=None,
                    gate=None,
                    control=before,
                    memory=u,
                    before=before,
                    ungated=u,
                )
            )
        return self.output(u), steps


SA_MLP = System(
    name="sa-mlp",
    table1_row="CNN+LSTM+SA+MLP",
    description="""\
Two glimpses at the image, guided by the question.
A two-layer LSTM reads the question. Each glimpse attends to image cells by
the question and adds their weighted mean to it; an MLP classifies the result.
Yang et al. (2016), "Stacked Attention Networks for Image Question Answering";
the MLP is of Johnson et al. (2017).""",
    build=StackedAttentionNetwork,
    presets={"sa-mlp": StackedAttentionConfig()},
    # 400,000 iterations of 64 questions in clevr-iep's example.
    training=replace(TRAINING, paper=replace(TRAINING.paper, epochs=36), fast=FAST_WITH_EMA),
    trace=StackedAttentionNetwork.trace,
)
