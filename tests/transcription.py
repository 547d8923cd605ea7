"""An independent transcription of the network in plain loops, for the tests to compare with.

Written from Section 2 of the paper and, for the reference forms, from the description of the
authors' code. The loops take from the network its configuration and the values of its parameters,
and no line that computes. They handle one question, one word, one element, one row of a matrix at a
time: slow, and hard to get wrong. All is torch in float64, so that autograd gives their gradients.
At the end are the small networks that are compared with them, and the comparison.

A *vector* is a tensor with one index, a *number* one with none.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from macnet.models.config import NO_DROPOUT, MACConfig
from macnet.models.encoders import PAD, EncodedQuestion, KnowledgeBase, question_size
from macnet.models.mac import MACNetwork, Reasoner, StepTrace
from macnet.models.presets import ablation

# --- Arithmetic ------------------------------------------------------------------------------


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b, row by row."""
    y = torch.stack([dot(row, x) for row in weight])
    return y if bias is None else y + bias


def softmax(logits: list[Tensor]) -> list[Tensor]:
    powers = [torch.exp(logit) for logit in logits]
    return [power / sum(powers) for power in powers]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def elu(x: Tensor) -> Tensor:
    """x where it is positive, e^x − 1 elsewhere."""
    return torch.stack([v if v > 0 else torch.exp(v) - 1 for v in x])


def average(weights: list[Tensor], vectors: list[Tensor]) -> Tensor:
    return sum(w * v for w, v in zip(weights, vectors, strict=True))  # type: ignore[return-value]


# --- The parameters --------------------------------------------------------------------------


@dataclass
class OmittedBiases:
    """Biases the paper has and the network has not, as they shift all logits of a softmax alike.

    Each is sampled where it is first needed. They must change nothing: their gradient is 0.
    """

    sampled: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, equation: str, *size: int) -> Tensor:
        if equation not in self.sampled:
            self.sampled[equation] = torch.randn(*size, dtype=torch.float64, requires_grad=True)
        return self.sampled[equation]


@dataclass
class Weights:
    """Parameters by their names within a module: w("read.memory", x) is W x + b."""

    parameters: dict[str, Tensor]
    omitted: OmittedBiases

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def __call__(self, layer: str, x: Tensor, plus: Tensor | None = None) -> Tensor:
        bias = self.parameters.get(f"{layer}.bias")
        assert bias is None or plus is None, f"{layer} has a bias, and one too many"
        return affine(x, self[f"{layer}.weight"], bias if plus is None else plus)

    def of_step(self, layer: str, i: int, x: Tensor) -> Tensor:
        """W_i x + b_i."""
        return affine(x, self[f"{layer}.weight"][i], self[f"{layer}.bias"][i])

    def within(self, prefix: str) -> Weights:
        return Weights(
            {
                name.removeprefix(prefix): value
                for name, value in self.parameters.items()
                if name.startswith(prefix)
            },
            self.omitted,
        )


def weights_of(module: nn.Module, omitted: OmittedBiases | None = None) -> Weights:
    return Weights(dict(module.named_parameters()), omitted or OmittedBiases())


# --- The control unit ------------------------------------------------------------------------


# `w` are the weights of the cell, `first` those of the first cell: in the authors' code the cells
# share the first projection of q, even where they share no other weights.


def paper_query(w: Weights, first: Weights, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
    q_i = w.of_step("control.query.position", i, q)  # Section 2.1
    return w("control.query.combine", torch.cat([c_prev, q_i]))  # (c1)


def reference_query(w: Weights, first: Weights, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
    u = torch.tanh(first("control.query.shared", q))
    return w.of_step("control.query.position", i, u)


def recurrent_reference_query(
    w: Weights, first: Weights, i: int, c_prev: Tensor, q: Tensor
) -> Tensor:
    u = first("control.query.question", torch.tanh(first("control.query.shared", q)))
    hidden = torch.tanh(w("control.query.hidden", torch.cat([c_prev, u])))
    return w("control.query.combine", hidden)


def question_as_control(w: Weights, first: Weights, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
    return q if len(q) == len(w["read.memory.weight"]) else first("control.project", q)


def no_control(w: Weights, first: Weights, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
    return torch.ones(len(w["read.memory.weight"]), dtype=q.dtype)


QUERIES = {
    "paper": paper_query,
    "reference": reference_query,
    "reference-recurrent": recurrent_reference_query,
    "question": question_as_control,
    "none": no_control,
}


def cast(w: Weights, cq: Tensor, words: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    ca = [w("control.cast.score", cq * cw, w.omitted("c2.1", 1))[0] for cw in words]  # (c2.1)
    cv = softmax(ca)  # (c2.2)
    return average(cv, words), cv  # (c2.3)


# --- The read unit ---------------------------------------------------------------------------


def paper_logit(w: Weights, m_prev: Tensor, c: Tensor, k: Tensor, direct: bool) -> Tensor:
    d = len(k)
    interaction = w("read.memory", m_prev) * w("read.knowledge", k, w.omitted("r1", d))  # (r1)
    seen = torch.cat([interaction, k]) if direct else interaction
    combined = w("read.combine", seen, w.omitted("r2", d))  # (r2)
    return w("read.score", c * combined, w.omitted("r3.1", 1))[0]  # (r3.1)


def reference_logit(w: Weights, m_prev: Tensor, c: Tensor, k: Tensor, direct: bool) -> Tensor:
    projected = w("read.knowledge", k)
    interaction = w("read.memory", m_prev) * projected
    seen = torch.cat([interaction, projected]) if direct else interaction
    combined = w("read.combine", elu(w("read.hidden", seen)))
    return w("read.score", elu(c * combined), w.omitted("r3.1", 1))[0]


def uncontrolled_logit(w: Weights, m_prev: Tensor, c: Tensor, k: Tensor, direct: bool) -> Tensor:
    """The reference's logit without a control: without the product with c and its ELU."""
    projected = w("read.knowledge", k)
    interaction = w("read.memory", m_prev) * projected
    seen = torch.cat([interaction, projected]) if direct else interaction
    combined = w("read.combine", elu(w("read.hidden", seen)))
    return w("read.score", combined, w.omitted("r3.1", 1))[0]


LOGITS = {"paper": paper_logit, "reference": reference_logit}

# --- The write unit --------------------------------------------------------------------------


@dataclass
class State:
    c: Tensor
    m: Tensor


Recalled = tuple[Tensor, list[Tensor]]


def paper_recall(w: Weights, c: Tensor, cq: Tensor, past: list[State]) -> Recalled:
    earlier = past[1:]  # j = 1 … i-1; past[0] is the initial state
    logits = [w("write.recall.score", c * s.c, w.omitted("w2.1", 1))[0] for s in earlier]
    sa = softmax(logits)  # (w2.1)
    return average(sa, [s.m for s in earlier]) + torch.zeros_like(c), sa  # (w2.2)


def reference_recall(w: Weights, c: Tensor, cq: Tensor, past: list[State]) -> Recalled:
    key = w("write.recall.key", cq)
    sa = softmax([w("write.recall.score", key * s.c, w.omitted("w2.1", 1))[0] for s in past])
    return average(sa, [s.m for s in past]), sa


def paper_kept(w: Weights, c: Tensor) -> Tensor:
    return sigmoid(w("write.gate.gate", c))  # (w3.1): one number


def reference_kept(w: Weights, c: Tensor) -> Tensor:
    return 1 - sigmoid(w("write.gate.gate", c))  # z is the share of the new memory; d numbers


def write(
    config: MACConfig, w: Weights, r: Tensor, c: Tensor, cq: Tensor, past: list[State]
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """m_i, the self-attention (of no step, if there is none), and the share of m_{i-1} in it."""
    m_prev, kept = past[-1].m, None
    sa: list[Tensor] = []
    paper = config.optional_steps == "paper"
    inputs = [r, m_prev] if config.write == "linear" else [r]
    if config.self_attention:
        m_sa, sa = (paper_recall if paper else reference_recall)(w, c, cq, past)
        if not paper:
            inputs.append(m_sa)
    bare = config.write == "retrieved" and len(inputs) == 1
    m = r if bare else w("write.combine", torch.cat(inputs))  # (w1)
    if config.self_attention and paper:
        m = w("write.of_recalled", m_sa) + w("write.of_info", m)  # (w2.3)
    if config.gate:
        kept = (paper_kept if paper else reference_kept)(w, c)
        m = kept * m_prev + (1 - kept) * m  # (w3.2)
    return m, sa, kept


# --- The recurrence --------------------------------------------------------------------------


@dataclass
class Trace:
    """One step of one question; attention is over what is not padding only."""

    cv: list[Tensor]
    rv: list[Tensor]
    sa: list[Tensor]
    kept: Tensor | None
    c: Tensor
    m: Tensor


def reason(
    config: MACConfig,
    reasoner: nn.Module,
    q: Tensor,
    words: list[Tensor],
    elements: list[Tensor],
    omitted: OmittedBiases,
) -> list[Trace]:
    """All p steps of one question: its words and its knowledge base without any padding."""
    w = weights_of(reasoner, omitted)
    c0 = w["c0"] if "c0" in w.parameters else q
    past, traces = [State(c0, w["m0"])], []
    for i in range(config.p):
        # One cell for all steps, each with its own W_i; or a cell for each, with only that.
        cell = w.within("cells.0." if config.share_weights else f"cells.{i}.")
        step = i if config.share_weights else 0
        m_prev = past[-1].m
        c_prev = past[-1].c if config.separate else m_prev
        cq = QUERIES[config.control](cell, w.within("cells.0."), step, c_prev, q)
        c, cv = (cq, []) if config.attend == "nothing" else cast(cell, cq, words)
        logit, direct = LOGITS[config.read], config.direct_knowledge
        if (config.read, config.control) == ("reference", "none"):
            logit = uncontrolled_logit
        rv = softmax([logit(cell, m_prev, c, k, direct) for k in elements])  # (r3.2)
        r = average(rv, elements)  # (r3.3)
        if config.separate:
            m, sa, kept = write(config, cell, r, c, cq, past)
        else:  # one state: h_i = W[r_i, h_{i-1}, c_i] + b
            m, sa, kept = cell("write", torch.cat([r, m_prev, c])), [], None
        past.append(State(c, m))
        traces.append(Trace(cv, rv, sa, kept, c, m))
    return traces


def answer(config: MACConfig, output: nn.Module, q: Tensor, m: Tensor) -> Tensor:
    """The output unit: two layers over [q, m_p], with q projected in the reference."""
    w = weights_of(output)
    if config.output_question:
        m = torch.cat([w("question", q) if config.output == "reference" else q, m])
    return w("answers", elu(w("hidden", m)))


# --- The input unit --------------------------------------------------------------------------


def lstm_states(w: Weights, direction: int, vectors: list[Tensor]) -> list[Tensor]:
    """The states of an LSTM after each word; gates in the order input, forget, new, output."""
    weight_x, weight_h, bias = (w[f"lstm.{n}"][direction] for n in ("weight_x", "weight_h", "bias"))
    h = cell = torch.zeros(weight_h.shape[1], dtype=torch.float64)
    states = []
    for x in vectors:
        i, f, g, o = (affine(x, weight_x) + affine(h, weight_h, bias)).chunk(4)
        cell = sigmoid(f) * cell + sigmoid(i) * torch.tanh(g)
        h = sigmoid(o) * torch.tanh(cell)
        states.append(h)
    return states


def encode(config: MACConfig, encoder: nn.Module, tokens: list[int]) -> tuple[Tensor, list[Tensor]]:
    """q and the words the control attends to, of one question without padding."""
    w = weights_of(encoder)
    vectors = [w["embedding.weight"][token] for token in tokens]
    forwards = lstm_states(w, 0, vectors)
    backwards = lstm_states(w, 1, vectors[::-1])[::-1]
    q = torch.cat([forwards[-1], backwards[0]])
    words = [torch.cat(pair) for pair in zip(forwards, backwards, strict=True)]
    if config.attend == "word vectors":
        words = vectors
    return q, [w("project", x) if "project.weight" in w.parameters else x for x in words]


def convolve(maps: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    """A 3×3 convolution of one image (channels, H, W) with a border of zeros, place by place."""
    _, height, width = maps.shape
    rows = []
    for y in range(0, height, stride):
        row = []
        for x in range(0, width, stride):
            value = bias
            for dy in range(3):
                for dx in range(3):
                    at_y, at_x = y + dy - 1, x + dx - 1
                    if 0 <= at_y < height and 0 <= at_x < width:
                        value = value + affine(maps[:, at_y, at_x], weight[:, :, dy, dx])
            row.append(value)
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def located(maps: Tensor) -> Tensor:
    """Maps (C, H, W) with the y and x of their cells, from −1 to 1."""
    _, height, width = maps.shape
    places = [[(y, x) for x in range(width)] for y in range(height)]
    y, x = torch.tensor(places, dtype=maps.dtype).unbind(-1)
    return torch.cat([maps, (2 * y / (height - 1) - 1)[None], (2 * x / (width - 1) - 1)[None]])


def encode_image(config: MACConfig, w: Weights, maps: Tensor) -> list[Tensor]:
    """The knowledge base of one image (channels, H, W): its places in reading order."""
    _, height, width = maps.shape
    if config.coordinates:
        maps = located(maps)
    for layer in ("first", "second"):
        maps = convolve(maps, w[f"{layer}.weight"], w[f"{layer}.bias"])
        maps = torch.stack([torch.stack([elu(p) for p in row.T], -1) for row in maps.unbind(1)], 1)
    return [maps[:, y, x] for y in range(height) for x in range(width)]


# --- Small networks, and the comparison ------------------------------------------------------

TOLERANCE = 1e-10
M = TypeVar("M", bound=nn.Module)


def small_config(row: str = "MAC", base: str = "paper", **changes: Any) -> MACConfig:
    """A row of table 2, small enough for loops, for features and without dropout."""
    few = {"d": 6, "p": 3, "embedding": 5, "image": "features", "dropout": NO_DROPOUT}
    return ablation(row, base, **{**few, **changes})


def randomized(module: M, seed: int = 0) -> M:
    """The module in float64, with random weights and biases.

    Their scale keeps numbers of size 1 so, and rounding errors far below 1e-10.
    """
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            inputs = parameter[0].numel() if parameter.dim() == 4 else parameter.shape[-1]
            size = inputs**-0.5 if parameter.dim() > 1 else 0.4
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
        for layer in module.modules():
            if isinstance(layer, nn.Embedding):
                layer.weight[PAD] = 0
    return module


def maps(n: int, seed: int = 0) -> Tensor:
    """Random features of n images of 2×3 cells: (n, 1024, 2, 3)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1024, 2, 3, generator=generator, dtype=torch.float64)


def network(config: MACConfig, seed: int = 0) -> MACNetwork:
    """The network with random weights, for 8 words and 4 answers."""
    return randomized(MACNetwork(config, vocabulary=9, answers=4), seed)


def gradients(y: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a fixed random projection of y; zero where y does not depend on an input."""
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(7)).to(y.dtype)
    found = torch.autograd.grad((y * direction).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def assert_close(one: Tensor, other: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    assert one.shape == other.shape, f"{what}: {tuple(one.shape)} and {tuple(other.shape)}"
    apart = (one - other).abs().max().item() if one.numel() else 0.0
    assert apart <= tolerance, f"{what}: {apart:.2e} apart"


def assert_same(one: Tensor, other: Tensor, inputs: Sequence[Tensor]) -> None:
    """Two ways to compute a value agree, and so do their gradients."""
    assert_close(one, other, "value")
    pairs = zip(gradients(one, inputs), gradients(other, inputs), strict=True)
    for n, (grad, other_slope) in enumerate(pairs):
        assert_close(grad, other_slope, f"gradient of input {n}")


class Witness:
    """An object to hold weak references to: it lives as long as the hook that holds it."""


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector: objects are freed only when nothing refers to them."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass
class Case:
    """Four questions of different lengths about two knowledge bases of different sizes."""

    q: Tensor
    words: Tensor
    elements: Tensor
    words_pad: Tensor
    elements_pad: Tensor

    @classmethod
    def of(cls, config: MACConfig, seed: int = 0) -> Case:
        generator = torch.Generator().manual_seed(seed)

        def vectors(*size: int) -> Tensor:
            sampled = torch.randn(*size, generator=generator, dtype=torch.float64)
            return sampled.requires_grad_()

        return cls(
            vectors(4, question_size(config)),
            vectors(4, 5, config.d),
            vectors(2, 6, config.d),
            torch.arange(5) >= torch.tensor([5, 3, 1, 4])[:, None],
            torch.tensor([[False] * 6, [False, True, False, True, False, True]]),
        )

    @property
    def inputs(self) -> list[Tensor]:
        return [self.q, self.words, self.elements]

    def run(self, reasoner: Reasoner, *, literal: bool = False) -> tuple[Tensor, list[StepTrace]]:
        question = EncodedQuestion(self.q, self.words, self.words_pad)
        memory, steps = reasoner(
            question, KnowledgeBase(self.elements, self.elements_pad), literal=literal
        )
        return memory, steps

    def transcribe(
        self, config: MACConfig, reasoner: Reasoner, omitted: OmittedBiases
    ) -> list[list[Trace]]:
        """The steps of each question, by the loops above."""
        return [
            reason(
                config,
                reasoner,
                self.q[b],
                list(self.words[b][~self.words_pad[b]]),
                list(self.elements[b // 2][~self.elements_pad[b // 2]]),
                omitted,
            )
            for b in range(4)
        ]


def fill_padding(weights: list[Tensor], is_pad: Tensor) -> Tensor:
    """Attention over what is not padding, with zeros at the padding."""
    remaining = iter(weights)
    return torch.stack([torch.tensor(0.0).double() if pad else next(remaining) for pad in is_pad])


def assert_equals_loops(config: MACConfig) -> None:
    """Both forms of the reasoner equal the loops at every step, and so do their gradients."""
    reasoner, case, omitted = randomized(Reasoner(config)).eval(), Case.of(config), OmittedBiases()
    wanted = case.transcribe(config, reasoner, omitted)
    final = torch.stack([traces[-1].m for traces in wanted])
    named = {"q": case.q, "words": case.words, "K": case.elements}
    named |= dict(reasoner.named_parameters()) | {
        f"omitted {k}": v for k, v in omitted.sampled.items()
    }
    wanted_grads = dict(zip(named, gradients(final, list(named.values())), strict=True))
    for name in omitted.sampled:
        assert_close(wanted_grads[f"omitted {name}"], torch.zeros_like(omitted.sampled[name]), name)

    for literal in (False, True):
        memory, steps = case.run(reasoner, literal=literal)
        form = "literal" if literal else "prepared"
        assert_close(memory, final, f"{form} m_p")
        assert len(steps) == config.p
        for i, step in enumerate(steps):
            _assert_same_step(step, [traces[i] for traces in wanted], case, f"{form} step {i + 1}")
        found = gradients(memory, list(named.values()))
        for name, grad in zip(named, found, strict=True):
            assert_close(grad, wanted_grads[name], f"{form} gradient of {name}")


def _assert_same_step(step: StepTrace, traces: list[Trace], case: Case, at: str) -> None:
    """The step of the batch equals the step of each question."""
    for b, trace in enumerate(traces):
        assert (step.words is None) == (not trace.cv), at
        if step.words is not None:
            assert_close(step.words[b], fill_padding(trace.cv, case.words_pad[b]), f"{at} cv")
        rv = fill_padding(trace.rv, case.elements_pad[b // 2])
        assert_close(step.knowledge[b], rv, f"{at} rv")
        assert (step.self_attention is None) == (not trace.sa), at
        if step.self_attention is not None:
            assert_close(step.self_attention[b], torch.stack(trace.sa), f"{at} sa")
        assert (step.gate is None) == (trace.kept is None), at
        if step.gate is not None and trace.kept is not None:
            assert_close(step.gate[b], trace.kept, f"{at} gate")
        assert_close(step.control[b], trace.c, f"{at} c")
        assert_close(step.memory[b], trace.m, f"{at} m")
