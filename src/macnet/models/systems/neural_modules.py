"""The modules of N2NMN, each for all questions of a batch at once (Hu et al., 2017, table 1).

    img (N, L, C)  the L = H·W cells of each image
    txt (B, e)     what a module is about: the words of the question that it attends to
    a   (B, L)     an attention map: how far each cell is meant, as a logit;  B = N·G

As published, modules that look for something multiply two vectors of d = 250 numbers at each cell,
one of the image and one of the text, divide the product by its length ‖·‖₂, and score it:

    a = w · ℓ2(m ⊙ t) + b        m = W_m img + b_m  (N, L, d)        t = W_t txt + b_t  (B, d)

The arrays of d numbers at each cell of each question need not be made, for exactly

    w · ℓ2(m ⊙ t) = (m · (w ⊙ t)) / √max(m² · t², 1e-12)

takes two products of matrices. Products are in the precision of autocast; quotients and what is
made of them are float32 (or float64, if the weights are).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.models.layers import Linear
from macnet.models.systems import layouts as grammar

SMALLEST = 1e-12
"""The smallest square of a length that a vector is divided by, as in TensorFlow's l2_normalize."""
SCENE_LOGIT = 3.0
"""The constant map of Scene."""


def widened(x: Tensor) -> Tensor:
    """x in float32, or as it is if it is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def normalize(x: Tensor) -> Tensor:
    """x (…, d) divided by its length."""
    x = widened(x)
    return x * x.square().sum(-1, keepdim=True).clamp(min=SMALLEST).rsqrt()


def attend(a: Tensor, img: Tensor) -> Tensor:
    """The mean of the cells of each question's image, weighted by softmax(a): (B, C)."""
    # a: (B, L)   img: (N, L, C)
    p = a.softmax(-1).to(img.dtype).view(len(img), -1, a.shape[1])  # (N, G, L)
    return (p @ img).flatten(0, 1)


class MappedImage(NamedTuple):
    """What a module sees of images, for all questions and steps."""

    m: Tensor
    """(N, L, d)"""
    squares: Tensor
    """(N, L, d): m²"""

    @classmethod
    def of(cls, m: Tensor) -> MappedImage:
        """Maps with their squares."""
        return cls(m, m.square())

    def score(self, t: Tensor, score: nn.Linear) -> Tensor:
        """w · ℓ2(m ⊙ t) + b at each cell, for texts t (B, d) or (B, T, d): (B, L) or (B, T, L)."""
        n, cells, d = self.m.shape
        queries = t.reshape(n, -1, d)  # (N, G·T, d)
        product = (queries * score.weight) @ self.m.mT  # (N, G·T, L)
        square = queries.square() @ self.squares.mT
        scores = widened(product) * widened(square).clamp(min=SMALLEST).rsqrt() + score.bias
        return scores.view(*t.shape[:-1], cells)


class Find(nn.Module):
    """For "How many red cubes are there?": where red cubes are. Filter is min(a, Find)."""

    def __init__(self, channels: int, text: int, d: int) -> None:
        super().__init__()
        self.image, self.text = Linear(channels, d), Linear(text, d)
        self.score = Linear(d, 1)

    def forward(self, img: Tensor, txt: Tensor) -> Tensor:
        # img: (N, L, C)   txt: (B, T, e) → (B, T, L)
        return MappedImage.of(self.image(img)).score(self.text(txt), self.score)


class FindSameProperty(nn.Module):
    """For "… things of the same color as the ball?": where they are, by a map of the ball.

    As Find, with t = (W_t txt + b_t) ⊙ (W_p Σ softmax(a)·img + b_p).
    """

    def __init__(self, channels: int, text: int, d: int) -> None:
        super().__init__()
        self.image, self.text = Linear(channels, d), Linear(text, d)
        self.property = Linear(channels, d)
        self.score = Linear(d, 1)

    def prepare(self, img: Tensor, txt: Tensor) -> tuple[MappedImage, Tensor]:
        """What does not depend on a map, for all T steps: of images, and of texts (B, T, d)."""
        return MappedImage.of(self.image(img)), self.text(txt)

    def forward(self, a: Tensor, img: Tensor, mapped: MappedImage, t: Tensor) -> Tensor:
        # a: (B, L)   img: (N, L, C)   t: (B, d), of this step → (B, L)
        return mapped.score(t * self.property(attend(a, img)), self.score)


class Transform(nn.Module):
    """For "… left of the ball?": the cells left of the map of the ball.

    As Find, with m = conv5×5(a), a map of d channels. At a cell, m = K p is linear in p (26), the
    5×5 values of the map around it and a 1 for the bias, so that of each text it takes K (w ⊙ t)
    (26) and K diag(t²) Kᵀ (26, 26): m · (w ⊙ t) = p · K(w ⊙ t), and m² · t² = p · K diag(t²) Kᵀ p.
    Terms of the latter cancel, so that all of it is float32.
    """

    def __init__(self, text: int, d: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, d, 5, padding=2)
        nn.init.xavier_uniform_(self.convolution.weight)
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]
        self.text = Linear(text, d)
        self.score = Linear(d, 1)

    def prepare(self, txt: Tensor) -> tuple[Tensor, Tensor]:
        """K(w ⊙ t) (B, T, 26) and K diag(t²) Kᵀ (B, T, 26, 26) of texts (B, T, e)."""
        weight, bias = self.convolution.weight, self.convolution.bias
        assert bias is not None
        kernel = torch.cat([weight.flatten(1).T, bias[None]])  # K: (26, d)
        t = widened(self.text(txt))
        with torch.autocast(txt.device.type, enabled=False):
            pairs = (kernel[:, None] * kernel).flatten(0, 1)  # (26·26, d)
            linear = F.linear(t * self.score.weight[0], kernel)
            quadratic = F.linear(t.square(), pairs).unflatten(-1, (26, 26))
        return linear, quadratic

    def forward(
        self, a: Tensor, size: tuple[int, int], linear: Tensor, quadratic: Tensor
    ) -> Tensor:
        # a: (B, L)   size: (H, W)   linear: (B, 26)   quadratic: (B, 26, 26) → (B, L)
        with torch.autocast(a.device.type, enabled=False):
            padded = F.pad(a.unflatten(1, size), (2, 2, 2, 2))  # (B, H + 4, W + 4)
            around = padded.unfold(1, 5, 1).unfold(2, 5, 1).reshape(*a.shape, 25)
            p = F.pad(around, (0, 1), value=1.0)  # (B, L, 26)
            product = (p @ linear[..., None]).squeeze(-1)  # (B, L)
            square = (p @ quadratic * p).sum(-1)
            return product * square.clamp(min=SMALLEST).rsqrt() + self.score.bias


class Exist(nn.Module):
    """For "Is there a ball?": answers by [min, mean, max] of a map."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = Linear(3, answers)

    def forward(self, a: Tensor) -> Tensor:
        # a: (B, L) → (B, answers)
        return self.answers(torch.stack([a.amin(1), a.mean(1), a.amax(1)], 1))


class Count(nn.Module):
    """For "How many balls are there?": answers by [all cells, min, max] of a map."""

    def __init__(self, cells: int, answers: int) -> None:
        super().__init__()
        self.answers = Linear(cells + 2, answers)

    def forward(self, a: Tensor) -> Tensor:
        # a: (B, L) → (B, answers)
        return self.answers(counted(a))


class CompareNumbers(nn.Module):
    """For "Are there more balls than cubes?": answers by [all cells, min, max] of two maps.

    EqualNum, MoreNum and LessNum are three of these, each with weights of its own.
    """

    def __init__(self, cells: int, answers: int) -> None:
        super().__init__()
        self.answers = Linear(2 * (cells + 2), answers)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        # a, b: (B, L) → (B, answers)
        return self.answers(torch.cat([counted(a), counted(b)], 1))


def counted(a: Tensor) -> Tensor:
    """[all cells, min, max] of maps (B, L): (B, L + 2)."""
    return torch.cat([a, a.amin(1, keepdim=True), a.amax(1, keepdim=True)], 1)


class Describe(nn.Module):
    """For "What color is the ball?": answers W ℓ2(W_t txt ⊙ W_v Σ softmax(a)·img)."""

    def __init__(self, channels: int, text: int, d: int, answers: int) -> None:
        super().__init__()
        self.text, self.seen = Linear(text, d), Linear(channels, d)
        self.answers = Linear(d, answers)

    def forward(self, txt: Tensor, seen: Tensor) -> Tensor:
        # txt: (B, e)   seen: (B, C), the attended image → (B, answers)
        return self.answers(normalize(self.text(txt) * self.seen(seen)))


class SameProperty(nn.Module):
    """For "Is the ball of the same color as the cube?": as Describe, with two things seen."""

    def __init__(self, channels: int, text: int, d: int, answers: int) -> None:
        super().__init__()
        self.text = Linear(text, d)
        self.first, self.second = Linear(channels, d), Linear(channels, d)
        self.answers = Linear(d, answers)

    def forward(self, txt: Tensor, seen: Tensor, other: Tensor) -> Tensor:
        # txt: (B, e)   seen, other: (B, C) → (B, answers)
        return self.answers(normalize(self.text(txt) * self.first(seen) * self.second(other)))


class Executor(nn.Module):
    """All modules, and the execution of B layouts at once.

    Every module of maps is run at every step for every question, and what the layouts name is
    selected: shapes are then the same whatever the layouts are. Find is run for all steps at once,
    for it takes no map, and modules that answer are run once, since a layout has one of them.
    """

    def __init__(self, *, channels: int, cells: int, text: int, d: int, answers: int) -> None:
        super().__init__()
        self.find = Find(channels, text, d)  # and Filter
        self.find_same_property = FindSameProperty(channels, text, d)
        self.transform = Transform(text, d)
        self.exist, self.count = Exist(answers), Count(cells, answers)
        self.equal_num = CompareNumbers(cells, answers)
        self.more_num = CompareNumbers(cells, answers)
        self.less_num = CompareNumbers(cells, answers)
        self.same_property = SameProperty(channels, text, d, answers)
        self.describe = Describe(channels, text, d, answers)

    def forward(self, images: Tensor, txt: Tensor, layouts: Tensor) -> tuple[Tensor, Tensor]:
        # images: (N, C, H, W)   txt: (B, T, e), of each module   layouts: (B, T)
        # -> logits (B, answers), and maps (B, T − 1, L), for the last step can only answer
        img = images.flatten(2).transpose(1, 2)  # (N, L, C)
        maps = self._attend(img, (images.shape[2], images.shape[3]), txt, layouts)
        return self._answer(img, maps, txt, layouts), maps

    def _attend(self, img: Tensor, size: tuple[int, int], txt: Tensor, layouts: Tensor) -> Tensor:
        found = self.find(img, txt)  # (B, T, L)
        mapped, same = self.find_same_property.prepare(img, txt)
        linear, quadratic = self.transform.prepare(txt)
        first = grammar.first_inputs(layouts)
        is_map = (layouts > grammar.EOS) & (layouts < grammar.FIRST_ANSWER)
        chosen = torch.where(is_map, layouts - 1, 0)  # of what makes no map, any
        scene = torch.full_like(found[:, 0], SCENE_LOGIT)
        a, made = scene, [scene]  # before the first step there is no map, and it takes none
        for t in range(layouts.shape[1] - 1):
            other = _take(torch.stack(made, 1), first[:, t])
            outputs = {
                "Scene": scene,
                "Find": found[:, t],
                "Filter": torch.minimum(a, found[:, t]),
                "FindSameProperty": self.find_same_property(a, img, mapped, same[:, t]),
                "Transform": self.transform(a, size, linear[:, t], quadratic[:, t]),
                "And": torch.minimum(other, a),
                "Or": torch.maximum(other, a),
            }
            in_order = [outputs[name] for name in grammar.ATTENTION_MODULES]
            a = _take(torch.stack(in_order, 1), chosen[:, t])  # (B, L)
            made = [*made, a] if t else [a]
        return torch.stack(made, 1)

    def _answer(self, img: Tensor, maps: Tensor, txt: Tensor, layouts: Tensor) -> Tensor:
        step = grammar.answer_steps(layouts)  # (B,)
        a = _take(maps, _take(grammar.first_inputs(layouts), step))  # (B, L), if it takes two
        b = _take(maps, (step - 1).clamp(min=0))
        words, seen = _take(txt, step), attend(b, img)
        outputs = {
            "Exist": self.exist(b),
            "Count": self.count(b),
            "EqualNum": self.equal_num(a, b),
            "MoreNum": self.more_num(a, b),
            "LessNum": self.less_num(a, b),
            "SameProperty": self.same_property(words, attend(a, img), seen),
            "Describe": self.describe(words, seen),
        }
        in_order = [outputs[name] for name in grammar.ANSWER_MODULES]
        chosen = (_take(layouts, step) - grammar.FIRST_ANSWER).clamp(min=0)  # without any, any
        return _take(torch.stack(in_order, 1), chosen)


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Of values (B, K, …), the one with that index (B,) of each question: (B, …)."""
    return values.take_along_dim(index.view(-1, *[1] * (values.dim() - 1)), 1).squeeze(1)
