"""N2NMN in plain loops, for the tests to compare the network with.

Written from the published descriptions. Modules are run one after another for one question, and
words are read and tokens are written one at a time. All is torch in float64, so that autograd gives
gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layout_checks import stack_of
from macnet.models.systems.layouts import EOS, TOKENS
from macnet.models.systems.n2nmn import N2NMNNetwork
from macnet.models.systems.neural_modules import Executor

# --- modules ---------------------------------------------------------------------------------


def unit(x: Tensor, dim: int) -> Tensor:
    """x divided by its length along a dimension, as TensorFlow's l2_normalize does it."""
    return x / torch.sqrt(torch.clamp((x**2).sum(dim, keepdim=True), min=1e-12))


def convolved(layer: nn.Linear, maps: Tensor) -> Tensor:
    """A 1×1 convolution of maps (channels, H, W)."""
    return F.conv2d(maps[None], layer.weight[..., None, None], layer.bias)[0]


def look(image: Tensor, a: Tensor) -> Tensor:
    """The mean of an image (C, H, W), weighted by the softmax of a map (H, W)."""
    return (image * a.flatten().softmax(0).view_as(a)).sum((1, 2))


def run_module(
    modules: Executor, name: str, image: Tensor, text: Tensor, inputs: list[Tensor]
) -> Tensor:
    """The output of a module as published: a map (H, W), or logits of answers."""
    m: Any = modules

    def scored(part: Any, maps: Tensor, t: Tensor) -> Tensor:
        return convolved(part.score, unit(maps * t[:, None, None], 0))[0]

    def answers(part: Any, x: Tensor) -> Tensor:
        logits: Tensor = part.answers(x)
        return logits

    def numbers(a: Tensor) -> Tensor:
        return torch.cat([a.flatten(), a.min()[None], a.max()[None]])

    match name, inputs:
        case "Scene", []:
            return torch.full_like(image[0], 3.0)
        case "Find", []:
            return scored(m.find, convolved(m.find.image, image), m.find.text(text))
        case "Filter", [a]:
            return torch.minimum(a, run_module(modules, "Find", image, text, []))
        case "FindSameProperty", [a]:
            part = m.find_same_property
            t = part.text(text) * part.property(look(image, a))
            return scored(part, convolved(part.image, image), t)
        case "Transform", [a]:
            part = m.transform
            return scored(part, part.convolution(a[None, None])[0], part.text(text))
        case "And", [a, b]:
            return torch.minimum(a, b)
        case "Or", [a, b]:
            return torch.maximum(a, b)
        case "Exist", [a]:
            return answers(m.exist, torch.stack([a.min(), a.mean(), a.max()]))
        case "Count", [a]:
            return answers(m.count, numbers(a))
        case "EqualNum" | "MoreNum" | "LessNum", [a, b]:
            part = getattr(m, name.removesuffix("Num").lower() + "_num")
            return answers(part, torch.cat([numbers(a), numbers(b)]))
        case "Describe", [a]:
            part = m.describe
            return answers(part, unit(part.text(text) * part.seen(look(image, a)), 0))
        case "SameProperty", [a, b]:
            part = m.same_property
            seen = part.first(look(image, a)) * part.second(look(image, b))
            return answers(part, unit(part.text(text) * seen, 0))
    raise AssertionError(f"{name} of {len(inputs)} inputs")


def run_layout(modules: Executor, image: Tensor, text: Tensor, layout: list[int]) -> Tensor:
    """The answer's logits for one image (C, H, W), one layout, and the texts (T, e) of its modules.

    From the last module, by recursion over its inputs.
    """
    inputs = stack_of(layout)

    def output(t: int) -> Tensor:
        below = [output(k) for k in inputs[t]]
        return run_module(modules, TOKENS[layout[t]], image, text[t], below)

    return output(sum(token != EOS for token in layout) - 1)


# --- the layout generator -------------------------------------------------------------------


def write_alone(network: N2NMNNetwork, words: list[int], layout: list[int]) -> list[Tensor]:
    """Logits of each token (T, 15) and attention (T, S) for one question, word by word."""
    g = network.generator

    def cell(layer: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, new, o = (layer.weight_x @ x + layer.weight_h @ h + layer.bias).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        return torch.sigmoid(o) * torch.tanh(c), c

    zero = torch.zeros(network.config.units, dtype=torch.float64)
    state = [(zero, zero)] * network.config.layers
    states = []
    for word in words:
        x = g.embedding.weight[word]
        for k, layer in enumerate(g.encoder):
            state[k] = cell(layer, x, *state[k])
            x = state[k][0]
        states.append(x)
    logits, attention = [], []
    for token in [len(TOKENS), *layout[:-1]]:
        x = g.token_embedding.weight[token]
        for k, layer in enumerate(g.decoder):
            state[k] = cell(layer, x, *state[k])
            x = state[k][0]
        scores = [g.score.weight[0] @ torch.tanh(g.query(x) + g.key(e)) for e in states]
        p = torch.stack(scores).softmax(0)
        context = sum(share * e for share, e in zip(p, states, strict=True))
        logits.append(g.output(torch.cat([x, context])))
        attention.append(p)
    return [torch.stack(logits), torch.stack(attention)]
