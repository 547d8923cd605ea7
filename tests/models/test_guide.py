"""The guide's loss against plain loops, and its gradient in both forms of a network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from macnet.data.batches import Batch, GuidedBatch
from macnet.data.question_arrays import UNKNOWN
from macnet.models import guide
from macnet.models.guide import guide_loss, guided_answer_loss
from macnet.models.mac import MACNetwork, Reasoner, StepTrace
from macnet.models.objectives import answer_loss
from macnet.models.presets import MAC
from transcription import Case, assert_close, assert_same, maps, network, randomized, small_config

HEIGHT, WIDTH = 16, 24  # 2×3 cells
REFERENCES = torch.tensor([0b0101, 0b1000000000, 0, 0b0011])  # of four questions about two images


def objects() -> Tensor:
    """Masks of two images: object 2 of the first is in two cells, one of them object 0's too."""
    masks = torch.full((2, HEIGHT, WIDTH), -1, dtype=torch.int8)
    masks[0, 0:4, 0:3] = 0
    masks[0, 3:5, 3:8] = 2
    masks[0, 15, 23] = 9
    masks[1, 6:, 20:] = 1
    masks[1, 0, 0] = 4  # the object 0 is outside of this image
    return masks


def step(knowledge: Tensor, change: Tensor | None = None) -> StepTrace:
    """A step that attends so, and changes the memory so far: by one gate, if by any."""
    before = torch.zeros(len(knowledge), 3, dtype=torch.float64)
    fresh = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64).expand_as(before)
    gate = None if change is None else 1 - change[:, None]
    memory = fresh if gate is None else gate * before + (1 - gate) * fresh
    return StepTrace(None, knowledge, None, gate, before, memory, before, fresh)


def by_hand(attention: list[Tensor], change: list[Tensor] | None) -> Tensor:
    """The loss of the questions, one number at a time."""
    total, masks = torch.zeros((), dtype=torch.float64), objects().tolist()
    for b in range(4):
        cells: dict[int, set[int]] = {}
        for y, row in enumerate(masks[b // 2]):
            for x, thing in enumerate(row):
                cell = 3 * min((y + 3) // 8, 1) + min((x + 3) // 8, 2)
                cells.setdefault(thing, set()).add(cell)
        referred = [o for o in range(10) if REFERENCES[b] >> o & 1 and o in cells]
        if not referred:
            continue
        u = [c[b] for c in change] if change else [torch.ones((), dtype=torch.float64)] * 3
        for thing in referred:
            on = [u[i] * sum(attention[i][b, cell] for cell in cells[thing]) for i in range(3)]
            total = total - torch.log(max(on) + guide.FLOOR) / len(referred)
        everywhere = set[int]().union(*(cells[thing] for thing in referred))
        for i in range(3):
            on_all = torch.stack([attention[i][b, cell] for cell in everywhere]).sum()
            total = total - u[i] * torch.log(on_all + guide.FLOOR) / 3
    return total


@pytest.mark.parametrize("gated", [False, True])
def test_the_loss_is_that_written_out(gated: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(4, 6, generator=generator).double().requires_grad_() for _ in range(3)]
    gates = [torch.randn(4, generator=generator).double().requires_grad_() for _ in range(3)]

    def steps() -> tuple[list[Tensor], list[Tensor] | None]:
        return [x.softmax(-1) for x in given], [g.sigmoid() for g in gates] if gated else None

    attention, change = steps()
    taken = [step(a, None if change is None else change[i]) for i, a in enumerate(attention)]
    found = guide_loss(taken, objects(), REFERENCES)
    assert_same(found, by_hand(*steps()), [*given, *(gates if gated else [])])


def test_nothing_is_asked_of_a_question_that_refers_to_nothing_in_the_image() -> None:
    attention = torch.rand(4, 6, dtype=torch.float64).requires_grad_()
    few = torch.tensor([0b0100, 0, 0b0001, 0b0010])  # the third object is outside of its image
    guide_loss([step(attention)], objects(), few).backward()
    assert attention.grad is not None
    assert attention.grad.any(1).tolist() == [True, False, False, True]


def test_the_best_is_nothing_and_the_worst_is_bounded() -> None:
    """Attention on what is referred to alone, in one step each; and none at all on it."""
    first, second = torch.zeros(4, 6).double(), torch.zeros(4, 6).double()
    first[0, 0], second[0, 1], first[1, 5], second[1, 5] = 1, 1, 1, 1
    first[3, 5], second[3, 5] = 1, 1
    good = guide_loss([step(first), step(second)], objects(), REFERENCES)
    assert good.item() == pytest.approx(0, abs=1e-4)
    elsewhere = torch.zeros(4, 6).double()
    elsewhere[:2, 3] = elsewhere[2:, 1] = 1
    bad = guide_loss([step(elsewhere)] * 2, objects(), REFERENCES)
    assert bad.item() == pytest.approx(-3 * 2 * math.log(guide.FLOOR))


def test_a_step_that_changes_nothing_is_free() -> None:
    """It may attend to whatever it likes, but finds nothing either."""
    on, off = torch.zeros(4, 6).double(), torch.zeros(4, 6).double()
    on[0, [0, 1]], off[0, 3] = 0.5, 1
    only = torch.tensor([0b0101, 0, 0, 0])
    one, none = torch.ones(4).double(), torch.zeros(4).double()
    alone = guide_loss([step(on, one), step(on, one)], objects(), only)
    beside = guide_loss([step(on, one), step(off, none)], objects(), only)
    assert_close(beside, alone, "loss", 1e-5)
    assert guide_loss([step(on, none), step(off, one)], objects(), only) > alone + 10


# --- its gradient ----------------------------------------------------------------------------

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "basic": {},
    "one step": {"p": 1},
    "gate": {"gate": True},
    "self-attention": {"self_attention": True},
    "both": {"self_attention": True, "gate": True, "p": 4},
    "without separation": {"separate": False},
    "unshared weights": {"share_weights": False, "gate": True},
}


@pytest.mark.parametrize("base", ["paper", "reference"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_forms_have_one_gradient(base: str, name: str) -> None:
    """Of the guide alone, and with that of the memory; some cells are padding."""
    config = small_config(base=base, **CONFIGURATIONS[name])
    reasoner, case = randomized(Reasoner(config)).eval(), Case.of(config)
    inputs = [*case.inputs, *reasoner.parameters()]

    def results(literal: bool) -> tuple[Tensor, Tensor]:
        memory, steps = case.run(reasoner, literal=literal)
        return guide_loss(steps, objects(), REFERENCES), memory

    assert_same(results(False)[0], results(True)[0], inputs)
    found, wanted = (torch.cat([r.flatten() for r in results(form)]) for form in (False, True))
    assert_same(found, wanted, inputs)
    assert torch.autograd.grad(results(False)[0], case.elements)[0].any()


def guided_batch() -> GuidedBatch:
    """Four questions, of which one is a filler, about two images of features."""
    questions = torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0], [7, 8, 1]])
    index = torch.tensor([0, 1, UNKNOWN, 3])
    answers = torch.tensor([0, 1, UNKNOWN, 3])
    batch = Batch(maps(2), questions, index, answers, index, questions, index)
    return GuidedBatch.of(batch, objects(), REFERENCES)


def trained(weight: float) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    net = network(small_config(gate=True)).eval()
    if weight:
        sums = guided_answer_loss(MAC, net, guided_batch(), weight=weight)
    else:
        sums = answer_loss(MAC, net, guided_batch())
    return sums, list(torch.autograd.grad(sums.total, [*net.parameters()], allow_unused=True))


def test_the_sums_are_those_of_the_answers_and_the_gradient_is_of_both() -> None:
    answers, of_answers = trained(0)
    found, of_both = trained(0.5)
    assert all(map(torch.equal, answers, found))
    net = network(small_config(gate=True)).eval()
    _, steps = net.trace(maps(2), guided_batch().questions)
    loss = guide_loss(steps, objects(), REFERENCES)
    of_guide = torch.autograd.grad(loss, [*net.parameters()], allow_unused=True)
    for one, guided, both in zip(of_answers, of_guide, of_both, strict=True):
        assert one is not None
        assert both is not None
        wanted = one if guided is None else one + 0.5 * guided
        assert_close(both, wanted, "gradient")
    assert any(g is not None and g.any() for g in of_guide)


@pytest.mark.parametrize("base", ["paper", "reference"])
def test_low_precision_stays_close(base: str) -> None:
    config = small_config(base=base, gate=True, self_attention=True)
    net: MACNetwork = network(config).eval().float()
    batch = GuidedBatch.of(guided_batch()._replace(images=maps(2).float()), objects(), REFERENCES)
    losses, norms = [], []
    for low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            _, steps = net.trace(batch.images, batch.questions)
            sums = guided_answer_loss(MAC, net, batch, weight=1.0)
        loss = guide_loss(steps, batch.objects, batch.references)
        assert loss.dtype == torch.float32
        losses.append(loss.item())
        grads = torch.autograd.grad(sums.total, [*net.parameters()])
        assert all(grad.isfinite().all() for grad in grads)
        norms.append(torch.cat([grad.flatten() for grad in grads]))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert torch.cosine_similarity(norms[0], norms[1], 0) > 0.98
