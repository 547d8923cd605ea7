"""Layers used at every step: their gradients equal autograd's, and no memory is leaked."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from macnet.models.attention import attend_backward
from macnet.models.kernels import deferred_grad
from macnet.models.kernels.deferred_grad import DeferredGradAttention, DeferredGradLinear
from transcription import Witness, assert_close, assert_same, gc_disabled


def values(*size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()


def plain_attention(elements: Tensor, is_pad: Tensor | None = None) -> Callable[[Tensor], Any]:
    """What DeferredGradAttention computes, in plain torch."""

    def attend(z: Tensor) -> tuple[Tensor, Tensor]:
        groups = len(z) // len(elements)
        of_each = elements.repeat_interleave(groups, 0)
        logits = torch.einsum("bd,bld->bl", z, of_each)
        if is_pad is not None:
            logits = logits.masked_fill(is_pad.repeat_interleave(groups, 0), -torch.inf)
        return torch.einsum("bl,bld->bd", logits.softmax(-1), of_each), logits.softmax(-1)

    return attend


def recur(step: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = torch.tanh(step(x))
    return x


# --- The product -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_recurrence_has_the_gradients_of_autograd(steps: int, has_bias: bool) -> None:
    x, weight, bias = values(3, 4), values(4, 4, seed=1), values(4, seed=2)
    inputs = [x, weight, bias][: 2 + has_bias]
    layer = DeferredGradLinear(*inputs[1:])
    found = recur(layer, x, steps)
    assert_same(found, recur(lambda x: F.linear(x, *inputs[1:]), x, steps), inputs)


def test_a_term_may_be_given_with_each_input() -> None:
    """A different one at every step, or the same at all steps."""
    x, weight, terms, term = (
        values(3, 5),
        values(4, 5, seed=1),
        values(2, 3, 4, seed=2),
        values(3, 4),
    )
    layer = DeferredGradLinear(weight)
    found = torch.cat([layer(x, terms[0]), layer(2 * x, terms[1]), layer(x, term), layer(-x, term)])
    wanted = torch.cat([x @ weight.T + terms[0], 2 * x @ weight.T + terms[1]])
    wanted = torch.cat([wanted, x @ weight.T + term, -x @ weight.T + term])
    assert_same(found, wanted, [x, weight, terms, term])


def test_an_unused_step_does_not_change_the_gradients() -> None:
    x, weight, bias = values(3, 4), values(4, 4, seed=1), values(4, seed=2)
    layer = DeferredGradLinear(weight, bias)
    first, _, third = layer(x), layer(5 * x), layer(2 * x)
    wanted = F.linear(x, weight, bias) * F.linear(2 * x, weight, bias)
    assert_same(first * third, wanted, [x, weight, bias])


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, weight = values(3, 4), values(4, 4, seed=1)
    for inputs in ([x], [weight]):
        given = [v if any(v is i for i in inputs) else v.detach() for v in (x, weight)]
        found = recur(DeferredGradLinear(given[1]), given[0], 3)
        wanted = recur(functools.partial(F.linear, weight=given[1]), given[0], 3)
        assert_same(found, wanted, inputs)


# --- Attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("padded", [True, False])
def test_attention_has_the_gradients_of_autograd(steps: int, groups: int, padded: bool) -> None:
    z, elements = values(2 * groups, 4), values(2, 5, 4, seed=1)
    is_pad = torch.tensor([[False] * 5, [True, False, False, True, False]]) if padded else None
    attend, plain = DeferredGradAttention(elements, is_pad), plain_attention(elements, is_pad)
    found = recur(lambda z: attend(z)[0], z, steps)
    assert_same(found, recur(lambda z: plain(z)[0], z, steps), [z, elements])
    assert_close(attend(z)[1], plain(z)[1], "weights")


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("used", ["weights", "both", "some"])
def test_its_weights_have_gradients_too(steps: int, padded: bool, used: str) -> None:
    """Those of all steps or of the first alone; with the last sums, and without."""
    z, elements = values(6, 4), values(2, 5, 4, seed=1)
    is_pad = torch.tensor([[False] * 5, [True, False, False, True, False]]) if padded else None

    def results(attend: Callable[[Tensor], Any]) -> Tensor:
        x, found = z, []
        for _ in range(steps):
            sums, weights = attend(x)
            x = torch.tanh(sums)
            found.append(weights)
        taken = found[:1] if used == "some" else found
        return torch.cat([*taken, *([] if used == "weights" else [x])], 1)

    attend, plain = DeferredGradAttention(elements, is_pad), plain_attention(elements, is_pad)
    assert_same(results(attend), results(plain), [z, elements])


def test_nothing_is_computed_for_weights_without_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that without a loss of the weights a step costs what it did, and gives the same bits."""
    given: list[Tensor | None] = []

    def backward(*arguments: Any) -> tuple[Tensor, Tensor]:
        given.append(arguments[4])
        return attend_backward(*arguments)

    monkeypatch.setattr(deferred_grad, "attend_backward", backward)
    attend = DeferredGradAttention(values(2, 5, 4, seed=1))
    sums, weights = attend(values(6, 4))
    again = attend(sums)[0]
    assert weights.requires_grad
    again.sum().backward()
    assert given == [None, None]


def test_an_unused_attention_does_not_change_the_gradients() -> None:
    z, elements = values(4, 4), values(2, 5, 4, seed=1)
    attend, plain = DeferredGradAttention(elements), plain_attention(elements)
    first, _, third = attend(z)[0], attend(5 * z)[0], attend(2 * z)[0]
    assert_same(first * third, plain(z)[0] * plain(2 * z)[0], [z, elements])


def test_elements_may_be_a_view_and_gradients_may_be_expanded() -> None:
    """An image encoder's K is a transposed view, and a sum's gradient an expanded number."""
    z, maps = values(4, 3), values(2, 3, 5, seed=1)
    found = DeferredGradAttention(maps.transpose(1, 2))(z)[0].sum()
    wanted = plain_attention(maps.transpose(1, 2))(z)[0].sum()
    assert_same(found, wanted, [z, maps])


# --- What holds for both ---------------------------------------------------------------------

LAYERS: dict[str, Callable[[Tensor], Callable[[Tensor], Tensor]]] = {
    "product": lambda weight: DeferredGradLinear(weight[0]),
    "attention": lambda weight: first_of(DeferredGradAttention(weight)),
}
"""From a weight of (2, 4, 4) to a step from (6, 4) to (6, 4)."""
both = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def first_of(attend: DeferredGradAttention) -> Callable[[Tensor], Tensor]:
    """Its sums, without the weights."""
    return lambda z: attend(z)[0]


@both
def test_separate_passes_add_up(layer: Any) -> None:
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    alone = [torch.autograd.grad(recur(layer(weight), n * x, 3).sum(), weight)[0] for n in (1, 2)]
    passes = [recur(layer(weight), n * x, 3).sum() for n in (1, 2)]
    for result in passes:
        result.backward()
    assert weight.grad is not None
    assert_close(weight.grad, alone[0] + alone[1], "gradient")


@both
def test_a_kept_graph_gives_the_same_gradient_again(layer: Any) -> None:
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    y = recur(layer(weight), x, 3).sum()
    once = torch.autograd.grad(y, [x, weight], retain_graph=True)
    again = torch.autograd.grad(y, [x, weight])
    for one, other in zip(once, again, strict=True):
        assert_close(one, other, "gradient", 0)


@both
def test_a_gradient_of_the_inputs_first_does_not_change_that_of_the_weights(layer: Any) -> None:
    """As in a study of what a trained network is sensitive to."""
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    (wanted,) = torch.autograd.grad(recur(layer(weight), x, 3).sum(), [weight])
    y = recur(layer(weight), x, 3).sum()
    torch.autograd.grad(y, [x], retain_graph=True)
    assert_close(torch.autograd.grad(y, [weight])[0], wanted, "gradient")


@both
@pytest.mark.parametrize("used", [0, 1, 2])
def test_a_pass_over_fewer_steps_forgets_those_of_the_pass_before(layer: Any, used: int) -> None:
    """The first pass asks for the inputs alone, so that no weight's gradient takes what it kept."""
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    step = layer(weight)
    results = [step(n * x) for n in (1.0, 2.0, 3.0)]
    torch.autograd.grad(torch.stack(results).sum(), [x], retain_graph=True)
    (wanted,) = torch.autograd.grad(layer(weight)((used + 1) * x).square().sum(), [weight])
    (found,) = torch.autograd.grad(results[used].square().sum(), [weight])
    assert_close(found, wanted, "gradient")


class NoGradient(Function):
    """A function of no gradient, though autograd asks it for one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


@both
def test_steps_without_a_gradient_give_none_to_the_weight(layer: Any) -> None:
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    y = recur(layer(weight), x, 3)
    torch.autograd.grad(y.sum(), [x], retain_graph=True)
    blocked = NoGradient.apply(y)  # type: ignore[no-untyped-call]
    (found,) = torch.autograd.grad(blocked.sum(), [weight], allow_unused=True)
    assert found is None


@both
def test_it_works_without_gradients(layer: Any) -> None:
    x, weight = values(6, 4), values(2, 4, 4, seed=1)
    wanted = recur(layer(weight), x, 3)
    with torch.no_grad():
        found = recur(layer(weight), x, 3)
    assert not found.requires_grad
    assert_close(found, wanted, "value", 0)


@both
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_outlives_the_pass(layer: Any, backward: bool) -> None:
    """Neither inputs nor graph: no reference cycle waits for the garbage collector."""
    x, weight = 2 * values(6, 4), 2 * values(2, 4, 4, seed=1)
    alive: list[weakref.ref[Any]] = [weakref.ref(x), weakref.ref(weight)]
    for tensor in (x, weight):
        witness = Witness()
        tensor.register_hook(lambda grad, witness=witness: None)
        alive.append(weakref.ref(witness))
    with gc_disabled():
        repeated = layer(weight)
        y = recur(repeated, x, 3).sum()
        del x, weight, tensor, witness
        assert all(witness() for witness in alive[2:]), "the graph is still needed"
        if backward:
            y.backward()
        del y, repeated
        assert [ref() for ref in alive] == [None] * 4


@pytest.mark.parametrize("layer", [DeferredGradLinear, DeferredGradAttention])
def test_a_change_in_place_before_the_backward_pass_is_noticed(layer: Any) -> None:
    shared = values(3, 3) if layer is DeferredGradLinear else values(2, 4, 3)
    out = layer(shared)(values(2, 3, seed=1))
    with torch.no_grad():
        shared.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (out if isinstance(out, Tensor) else out[0]).sum().backward()
