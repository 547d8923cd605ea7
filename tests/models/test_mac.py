"""Section 2 of the paper: each unit against plain loops, and what must not change an answer."""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from macnet.errors import InputError
from macnet.models.config import NO_DROPOUT, Dropout
from macnet.models.encoders import PAD, EncodedQuestion, KnowledgeBase, question_size
from macnet.models.mac import MACNetwork, OutputUnit, Reasoner
from macnet.models.presets import ABLATIONS
from macnet.models.write import MemoryGate
from transcription import (
    Case,
    OmittedBiases,
    Witness,
    answer,
    assert_close,
    assert_equals_loops,
    assert_same,
    encode,
    encode_image,
    gc_disabled,
    gradients,
    maps,
    network,
    randomized,
    reason,
    small_config,
    weights_of,
)

# --- The equations, against loops ------------------------------------------------------------


@pytest.mark.parametrize("row", ABLATIONS)
def test_the_cell_is_its_equations(row: str) -> None:
    assert_equals_loops(small_config(row, d=6))


@pytest.mark.parametrize(
    "changes",
    [
        {"p": 1, "self_attention": True, "gate": True},
        {"p": 5, "self_attention": True, "gate": True},
        {"share_weights": False, "self_attention": True, "gate": True},
        {"share_weights": False, "separate": False},
        {"write": "retrieved", "self_attention": True},
        {"write": "projected", "self_attention": True, "gate": True},
        {"attend": "nothing", "self_attention": True},
        {"direct_knowledge": False, "separate": False},
        {"lstm": "d/2", "c0": "question"},
        {"d": 7},
    ],
    ids=str,
)
def test_the_equations_hold_in_combination(changes: dict[str, Any]) -> None:
    assert_equals_loops(small_config(**changes))


def configurations() -> st.SearchStrategy[dict[str, Any]]:
    """Any choice of the fields that shape a cell; some combinations are not valid."""
    controls = ["paper", "reference", "reference-recurrent", "question", "none"]
    return st.fixed_dictionaries(
        {
            "p": st.integers(1, 4),
            "lstm": st.sampled_from(["d", "d/2"]),
            "attend": st.sampled_from(["contextual words", "nothing"]),
            "control": st.sampled_from(controls),
            "c0": st.sampled_from(["learned", "question"]),
            "read": st.sampled_from(["paper", "reference"]),
            "write": st.sampled_from(["linear", "projected", "retrieved"]),
            "optional_steps": st.sampled_from(["paper", "reference"]),
            **dict.fromkeys(
                ["direct_knowledge", "self_attention", "gate", "separate", "share_weights"],
                st.booleans(),
            ),
        }
    )


@settings(max_examples=120, deadline=None)
@given(configurations())
def test_every_valid_configuration_equals_its_loops(changes: dict[str, Any]) -> None:
    try:
        config = small_config(**changes)
    except InputError:
        return
    assert_equals_loops(config)


def test_biases_before_a_softmax_change_nothing() -> None:
    """Of c2.1, r1's b_k, r2, r3.1 and w2.1: at other values the memory is the same."""
    config = small_config(self_attention=True)
    reasoner, case = randomized(Reasoner(config)), Case.of(config)
    memories: list[Tensor] = []
    for _ in range(2):
        omitted = OmittedBiases()
        memories.append(torch.stack([t[-1].m for t in case.transcribe(config, reasoner, omitted)]))
        assert omitted.sampled.keys() == {"c2.1", "r1", "r2", "r3.1", "w2.1"}
        for name, grad in zip(
            omitted.sampled, gradients(memories[-1], list(omitted.sampled.values())), strict=True
        ):
            assert_close(grad, torch.zeros_like(grad), f"gradient of the bias of {name}")
    assert_close(memories[0], memories[1], "memory")


@pytest.mark.parametrize("output", ["paper", "reference"])
@pytest.mark.parametrize("output_question", [True, False])
def test_the_output_unit_is_two_layers(output: str, output_question: bool) -> None:
    config = small_config(output=output, output_question=output_question)
    unit = randomized(OutputUnit(config, answers=4))
    q, m = (torch.randn(3, n, dtype=torch.float64, requires_grad=True) for n in (12, 6))
    wanted = torch.stack([answer(config, unit, q[b], m[b]) for b in range(3)])
    assert_same(unit(q, m), wanted, [q, m, *unit.parameters()])


@pytest.mark.parametrize("base", ["paper", "reference", "reference-recurrent"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"attend": "word vectors", "coordinates": True}, {"self_attention": True, "gate": True}],
    ids=str,
)
def test_the_whole_network_is_its_loops(base: str, changes: dict[str, Any]) -> None:
    """From features and tokens to logits, one question at a time."""
    config = small_config(base=base, **changes)
    net = network(config).eval()
    images, questions = maps(2), [[3, 1, 4, 1], [5], [2, 6], [8, 7, 3]]
    knowledge = [encode_image(config, weights_of(net.image), image) for image in images]
    wanted = []
    for b, tokens in enumerate(questions):
        q, words = encode(config, net.question, tokens)
        m = reason(config, net.reasoner, q, words, knowledge[b // 2], OmittedBiases())[-1].m
        wanted.append(answer(config, net.output, q, m))
    assert_close(net(images, padded(questions)), torch.stack(wanted), "logits")


# --- What must not change an answer ----------------------------------------------------------

NETWORKS = {
    "paper": small_config(),
    "every option": small_config(self_attention=True, gate=True),
    "one state": small_config("w/o memory-control separation"),
    "word vectors": small_config("attention over word vectors"),
    "unshared": small_config("unshared weights"),
    "reference": small_config(base="reference"),
    "reference, every option": small_config(base="reference", self_attention=True, gate=True),
    "reference-recurrent": small_config(base="reference-recurrent"),
}


@functools.cache
def built(name: str) -> MACNetwork:
    return network(NETWORKS[name]).eval()


def padded(questions: list[list[int]], extra: int = 0) -> Tensor:
    longest = max(map(len, questions)) + extra
    return torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens in questions])


@st.composite
def batches(draw: st.DrawFn) -> tuple[MACNetwork, Tensor, list[list[int]]]:
    """A network, the features of N images, and G questions to each."""
    n, g = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    question = st.lists(st.integers(1, 8), min_size=1, max_size=5)
    questions = draw(st.lists(question, min_size=n * g, max_size=n * g))
    images = maps(n, draw(st.integers(0, 99)))
    return built(draw(st.sampled_from(list(NETWORKS)))), images, questions


invariant = settings(max_examples=40, deadline=None)


@invariant
@given(batches(), st.integers(1, 6))
def test_padding_changes_no_answer(batch: Any, extra: int) -> None:
    net, images, questions = batch
    with torch.no_grad():
        assert_close(net(images, padded(questions, extra)), net(images, padded(questions)), "pad")


@invariant
@given(batches(), st.randoms(use_true_random=False))
def test_order_changes_no_answer(batch: Any, random: Any) -> None:
    """Not that of the images, nor that of the questions to an image."""
    net, images, questions = batch
    n, g = len(images), len(questions) // len(images)
    images_order = random.sample(range(n), n)
    order = [image * g + j for image in images_order for j in random.sample(range(g), g)]
    with torch.no_grad():
        answers = net(images, padded(questions))
        moved = net(images[images_order], padded([questions[b] for b in order]))
    assert_close(moved, answers[order], "moved")


@invariant
@given(batches())
def test_grouping_changes_no_answer(batch: Any) -> None:
    """G questions to one image, or each with its own copy of it; gradients included."""
    net, images, questions = batch
    images = images.requires_grad_()
    g = len(questions) // len(images)
    inputs = [images, *net.parameters()]
    grouped = net(images, padded(questions))
    apart = net(images.repeat_interleave(g, 0), padded(questions))
    assert_same(grouped, apart, inputs)


@invariant
@given(batches(), st.data())
def test_other_questions_in_the_batch_change_no_answer(batch: Any, data: st.DataObject) -> None:
    """The answer to a question alone is the same as in a batch."""
    net, images, questions = batch
    b = data.draw(st.integers(0, len(questions) - 1))
    image = b * len(images) // len(questions)
    with torch.no_grad():
        in_batch = net(images, padded(questions))[b]
        alone = net(images[image : image + 1], padded([questions[b]]))[0]
    assert_close(alone, in_batch, "alone")


@pytest.mark.parametrize("base", ["paper", "reference"])
@pytest.mark.parametrize("literal", [False, True])
def test_padded_elements_change_nothing(base: str, literal: bool) -> None:
    """Whatever their values, they are not attended to and have no gradient."""
    config = small_config(base=base, self_attention=True, gate=True)
    reasoner, case = randomized(Reasoner(config)).eval(), Case.of(config)
    question = EncodedQuestion(case.q, case.words, case.words_pad)
    elements = case.elements.detach()
    plain, steps = reasoner(question, KnowledgeBase(elements), literal=literal)
    garbage = 1e3 * torch.randn(2, 3, config.d, dtype=torch.float64)
    order = torch.tensor([6, 0, 1, 7, 2, 3, 4, 5, 8])
    longer = torch.cat([elements, garbage], 1)[:, order].requires_grad_()
    is_pad = (order >= 6).expand(2, -1)
    memory, longer_steps = reasoner(question, KnowledgeBase(longer, is_pad), literal=literal)
    assert_close(memory, plain, "memory")
    for step, longer_step in zip(steps, longer_steps, strict=True):
        assert_close(longer_step.knowledge[:, order < 6], step.knowledge, "rv")
        assert longer_step.knowledge[:, order >= 6].eq(0).all()
    (grad,) = gradients(memory, [longer])
    assert grad[:, order >= 6].eq(0).all()
    assert grad[:, order < 6].ne(0).all()


@pytest.mark.parametrize(("images", "questions"), [(2, 3), (0, 2), (2, 0)])
def test_questions_must_share_out_evenly(images: int, questions: int) -> None:
    words = torch.ones(questions, 1, dtype=torch.int64)
    with pytest.raises(
        InputError, match=f"{questions} questions cannot be shared out among {images} im"
    ):
        built("paper")(maps(images), words)


# --- The trace -------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(batches())
def test_attention_sums_to_one_and_is_zero_at_padding(batch: Any) -> None:
    net, images, questions = batch
    tokens = padded(questions, 2)
    with torch.no_grad():
        logits, steps = net.trace(images, tokens)
        assert_close(logits, net(images, tokens), "logits", 0)
    assert len(steps) == net.config.p
    for i, step in enumerate(steps):
        attention = {"words": step.words, "knowledge": step.knowledge, "self": step.self_attention}
        for name, weights in attention.items():
            if weights is not None:
                assert weights.ge(0).all(), name
                assert_close(weights.sum(-1), torch.ones(len(tokens), dtype=weights.dtype), name)
        assert step.words.shape == tokens.shape
        assert step.words[tokens == PAD].eq(0).all()
        assert step.knowledge.shape == (len(tokens), 6)
        assert step.control.shape == step.memory.shape == (len(tokens), net.config.d)
        if net.config.self_attention:
            recalled = i + (net.config.optional_steps == "reference")
            assert recalled == 0 or step.self_attention.shape == (len(tokens), recalled)
        if net.config.gate:
            width = 1 if net.config.optional_steps == "paper" else net.config.d
            assert step.gate.shape == (len(tokens), width)
            assert step.gate.gt(0).all()
            assert step.gate.lt(1).all()


# --- Dropout ---------------------------------------------------------------------------------


def without_dropout_but(**rates: Any) -> Dropout:
    return replace(NO_DROPOUT, **rates)


def masks_seen(
    base: str, rates: dict[str, float], *, literal: bool = False, train: bool = True
) -> Tensor:
    """What dropout multiplied each number with, at every step: (p, B, d).

    The cell is made transparent. Its matrices are identities, its control is 1, its memory what it
    retrieved, and its knowledge base holds the unit vectors and zero. So the logit of the j-th unit
    vector is m_j + 1, with b_m = 1. A mask on the memory is on its m_j; any other is on the whole.
    """
    d, questions = 32, 64
    separate = base != "one state"
    config = small_config(
        base="reference" if base == "reference" else "paper",
        d=d,
        p=4,
        control="paper",
        attend="nothing",
        write="retrieved" if separate else "linear",
        separate=separate,
        dropout=without_dropout_but(**rates),
    )
    reasoner = Reasoner(config).double().train(train)
    cell: Any = reasoner.cells[0]
    one = torch.eye(d)
    with torch.no_grad():
        reasoner.m0.fill_(1)
        cell.control.query.combine.weight.zero_()
        cell.control.query.combine.bias.fill_(1)
        cell.read.memory.weight.copy_(one)
        cell.read.memory.bias.fill_(1)
        cell.read.knowledge.weight.copy_(one)
        first = cell.read.hidden if base == "reference" else cell.read.combine
        first.weight.copy_(torch.cat([one, 0 * one], 1))
        if base == "reference":
            cell.read.combine.weight.copy_(one)
        cell.read.score.weight.fill_(1)
        if not separate:
            cell.write.weight.copy_(torch.cat([one, 0 * one, 0 * one], 1))
    torch.manual_seed(0)
    q = torch.zeros(questions, question_size(config), dtype=torch.float64)
    question = EncodedQuestion(q, q[:, None, :d], torch.zeros(questions, 1, dtype=torch.bool))
    elements = torch.cat([one, torch.zeros(1, d)]).double().expand(questions, -1, -1)
    _, steps = reasoner(question, KnowledgeBase(elements), literal=literal)
    m = torch.stack([reasoner.m0.expand(questions, d), *(step.memory for step in steps[:-1])])
    logits = torch.stack([step.knowledge.log() for step in steps])
    logits = logits[..., :-1] - logits[..., -1:]  # that of the zero vector is 0
    on_memory = rates.keys() <= {"memory", "memory_again"}
    return ((logits - 1) / m if on_memory else logits / (m + 1)).detach()


def assert_mask(mask: Tensor, rate: float) -> None:
    """Of 0 and 1/(1 - rate), in about the right shares."""
    dropped = mask.abs() < 1e-9
    assert_close(mask, (~dropped).to(mask.dtype) / (1 - rate), "mask", 1e-9)
    deviation = math.sqrt(rate * (1 - rate) / mask.numel())
    assert abs(dropped.double().mean().item() - rate) < 4 * deviation


HELD = [
    (base, place) for base in ("paper", "one state", "reference") for place in ("control", "memory")
]
FRESH = [
    ("paper", "memory_again"),
    ("one state", "memory_again"),
    ("reference", "memory_again"),
    ("reference", "knowledge"),
    ("reference", "interaction"),
]
both_forms = pytest.mark.parametrize("literal", [False, True])


@both_forms
@pytest.mark.parametrize(("base", "place"), HELD)
def test_a_held_mask_is_one_for_all_steps(base: str, place: str, literal: bool) -> None:
    masks = masks_seen(base, {place: 0.3}, literal=literal)
    assert_mask(masks[0], 0.3)
    assert_close(masks, masks[:1].expand_as(masks), "masks of the steps", 1e-9)


@both_forms
@pytest.mark.parametrize(("base", "place"), FRESH)
def test_a_fresh_mask_is_drawn_at_every_step(base: str, place: str, literal: bool) -> None:
    masks = masks_seen(base, {place: 0.3}, literal=literal)
    for mask in masks:
        assert_mask(mask, 0.3)
    kept = masks > 0.5
    for one, other in itertools.pairwise(kept):
        assert 0.3 < (one != other).double().mean() < 0.54  # 2 · 0.3 · 0.7 if independent


@pytest.mark.parametrize(("base", "place"), [*HELD, *FRESH])
def test_questions_have_masks_of_their_own(base: str, place: str) -> None:
    kept = masks_seen(base, {place: 0.3})[0] > 0.5
    assert len(kept.unique(dim=0)) == len(kept)


def test_two_masks_lie_on_the_memory_of_the_reference() -> None:
    """One held, one fresh on top of it: what the held one drops is gone at every step."""
    masks = masks_seen("reference", {"memory": 0.3, "memory_again": 0.2})
    gone = masks.abs() < 1e-9
    always = gone.all(0)
    assert 0.25 < always.double().mean() < 0.36  # 0.3 + 0.7 · 0.2⁴
    assert_close(masks[~gone], torch.full_like(masks[~gone], 1 / 0.7 / 0.8), "kept", 1e-9)
    assert_close(gone.double().mean(), torch.tensor(1 - 0.7 * 0.8).double(), "share", 0.03)


@pytest.mark.parametrize(("base", "place"), [*HELD, *FRESH])
def test_in_evaluation_nothing_is_dropped_from_the_state(base: str, place: str) -> None:
    masks = masks_seen(base, {place: 0.3}, train=False)
    assert_close(masks, torch.ones_like(masks), "masks", 1e-9)


@both_forms
@pytest.mark.parametrize("base", ["paper", "reference"])
def test_a_control_that_is_not_there_is_not_dropped(base: str, literal: bool) -> None:
    config = small_config("w/o control", base, dropout=without_dropout_but(control=0.5))
    reasoner, case = randomized(Reasoner(config)).train(), Case.of(config)
    one, other = (case.run(reasoner, literal=literal)[0] for _ in range(2))
    assert_close(one, other, "memory", 0)


def test_the_classifier_drops_the_inputs_of_both_layers() -> None:
    """Of nothing else: q is dropped once, before."""
    unit = OutputUnit(
        small_config(d=512, dropout=without_dropout_but(output=0.3)), answers=4
    ).double()
    seen: dict[str, Tensor] = {}
    for name in ("hidden", "answers"):
        unit.get_submodule(name).register_forward_hook(
            lambda layer, x, y, name=name: seen.update({name: x[0], f"after {name}": y})
        )
    q, m = torch.ones(8, 1024).double(), torch.ones(8, 512).double()
    torch.manual_seed(0)
    unit(q, m)
    assert_mask(seen["hidden"], 0.3)
    assert_mask(seen["answers"] / nn.functional.elu(seen["after hidden"]), 0.3)
    unit.eval()(q, m)
    assert_close(seen["hidden"], torch.ones(8, 1536).double(), "evaluation")


def test_cell_and_classifier_see_one_and_the_same_dropped_question() -> None:
    net = network(small_config(dropout=without_dropout_but(question=0.5)))
    seen: list[Tensor] = []
    net.reasoner.register_forward_hook(lambda module, inputs, _: seen.append(inputs[0].q))
    net.output.register_forward_hook(lambda module, inputs, _: seen.append(inputs[0]))
    net(maps(1), padded([[1, 2]]))
    assert seen[0].eq(0).any()
    assert torch.equal(*seen)


def write_gate(reasoner: Reasoner) -> Any:
    """The memory gate of its first cell."""
    return reasoner.get_submodule("cells.0.write.gate")


# --- Initialisation --------------------------------------------------------------------------


@pytest.mark.parametrize("optional_steps", ["paper", "reference"])
@pytest.mark.parametrize(("gate_bias", "kept"), [(None, -1), (1, -1), (0, 0), (-1, 1)])
def test_a_gate_bias_of_one_favours_new_memory(
    optional_steps: str, gate_bias: float | None, kept: float
) -> None:
    """Table 2 speaks of a gate on the new memory; the trace shows the share of the old."""
    config = small_config(optional_steps=optional_steps, gate=True, gate_bias=gate_bias)
    gate = write_gate(Reasoner(config))
    zeros = torch.zeros(1, config.d)
    share = gate(zeros, zeros, zeros)[1]
    assert_close(share, torch.full_like(share, kept).sigmoid(), "share of the old memory", 1e-6)
    assert share.shape[-1] == (1 if isinstance(gate, MemoryGate) else config.d)


@pytest.mark.parametrize("base", ["paper", "reference", "reference-recurrent"])
def test_weights_start_glorot_uniform_and_biases_zero(base: str) -> None:
    """But the LSTM's and the gate's biases, and the states, which are drawn from N(0, 1)."""
    torch.manual_seed(0)
    config = small_config(base=base, d=64, self_attention=True, gate=True)
    net = MACNetwork(config, vocabulary=9, answers=28)
    for name, values in net.named_parameters():
        if name.endswith(("m0", "c0")):
            assert abs(values.std() - 1) < 0.3, name
        elif name.startswith(("question.lstm", "question.embedding")):
            continue
        elif name.endswith("bias"):
            assert values.eq(0).all() or "gate" in name, name
        else:
            outputs, inputs = values.shape[-2:]
            if values.dim() == 4:  # a convolution
                outputs, inputs = (9 * channels for channels in values.shape[:2])
            if outputs == 1:  # a vector, for which TensorFlow takes d as both
                outputs = inputs
            bound = math.sqrt(6 / (inputs + outputs))
            assert 0.9 * bound < values.abs().max() <= bound, name
            assert abs(values.mean()) < 0.2 * bound, name


@both_forms
def test_what_is_summed_is_not_dropped(literal: bool) -> None:
    """r3.3 sums K itself, though r1 and r2 see it dropped; with m_i = r_i, the memory shows it."""
    dropout = without_dropout_but(knowledge=0.5)
    config = small_config(base="reference", write="retrieved", dropout=dropout)
    case = Case.of(config)
    _, steps = case.run(randomized(Reasoner(config)).train(), literal=literal)
    k = case.elements.repeat_interleave(2, 0)
    for step in steps:
        assert_close(torch.einsum("bl,bld->bd", step.knowledge, k), step.memory, "r")


@both_forms
def test_the_gate_sees_the_control_as_it_is(literal: bool) -> None:
    config = small_config(gate=True, dropout=without_dropout_but(control=0.5))
    reasoner = randomized(Reasoner(config)).train()
    _, steps = Case.of(config).run(reasoner, literal=literal)
    for step in steps:
        share = write_gate(reasoner)(step.control, step.memory, step.memory)[1]
        assert step.gate is not None
        assert_close(share, step.gate, "gate")


@pytest.mark.parametrize("base", ["paper", "reference"])
def test_a_step_changes_the_memory_as_far_as_the_gate_lets_it(base: str) -> None:
    config = small_config(base=base, gate=True)
    case = Case.of(config)
    memory, steps = case.run(randomized(Reasoner(config)).eval(), literal=False)
    for step, following in zip(steps, [*(s.before for s in steps[1:]), memory], strict=True):
        assert step.gate is not None
        assert step.change is not None
        assert_close(step.memory, following, "m is what the next step begins with")
        mixed = step.gate * step.before + (1 - step.gate) * step.ungated
        assert_close(mixed, step.memory, "ungated")
        fresh = (1 - step.gate).expand_as(step.memory)
        if base == "paper":
            assert_close(step.change, fresh[:, 0], "change")
        else:  # a gate for each number: between the least and the most of them
            assert ((fresh.amin(1) < step.change) & (step.change < fresh.amax(1))).all()
    assert steps[0]._replace(memory=steps[0].before).change.eq(0).all()  # type: ignore[union-attr]
    still = steps[0]._replace(memory=steps[0].before, ungated=steps[0].before)
    assert still.change.eq(0).all()  # type: ignore[union-attr]
    without = small_config(base=base)
    _, steps = Case.of(without).run(randomized(Reasoner(without)))
    assert all(step.change is None for step in steps)


# --- Precision, memory and errors ------------------------------------------------------------


@pytest.mark.parametrize("base", ["paper", "reference", "reference-recurrent"])
def test_autocast_stays_close(base: str) -> None:
    """The network runs in bfloat16 where it is asked to; its gradients are in float32."""
    net = network(small_config(base=base, self_attention=True, gate=True)).eval().float()
    images, questions = maps(2).float(), padded([[1, 2, 3], [4], [5, 6], [7, 8, 1]])
    exact = net(images, questions)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(images, questions)
    assert_close(logits.float(), exact, "logits", 0.1)
    logits.float().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_forward_pass_leaves_no_graph_behind(name: str) -> None:
    """The graph is freed with its result: no reference cycle waits for the garbage collector."""
    net, held = network(NETWORKS[name]), [Witness()]
    alive = weakref.ref(held[0])

    def watch(module: nn.Module, inputs: Any, knowledge: KnowledgeBase) -> None:
        witness = held.pop()
        knowledge.elements.register_hook(lambda grad, witness=witness: None)

    net.image.register_forward_hook(watch)
    with gc_disabled():
        logits = net(maps(2), padded([[1], [2]]))
        assert alive() is not None, "the graph is still needed"
        logits.sum().backward()
        del logits
        assert alive() is None


def test_a_knowledge_base_of_another_size_is_refused() -> None:
    reasoner = Reasoner(small_config())
    question = EncodedQuestion(torch.zeros(2, 16), torch.zeros(2, 3, 8), torch.zeros(2, 3).bool())
    with pytest.raises(InputError, match=r"the knowledge base is \(2, 5, 7\); it must be"):
        reasoner(question, KnowledgeBase(torch.zeros(2, 5, 7)))
    with pytest.raises(InputError, match="2 questions cannot be shared out among 4 images or kno"):
        reasoner(question, KnowledgeBase(torch.zeros(4, 5, 8)))
