"""Questions are read forwards and backwards by the LSTM equations, whatever pads them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from closeness import off_by
from macnet.models.layers import can_use_triton
from macnet.models.lstm import BiLSTM, run_lstm, run_lstm_with_cells, torch_lstm

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def network(inputs: int, units: int) -> BiLSTM:
    """A BiLSTM in float64 with random biases."""
    lstm = BiLSTM(inputs, units).double()
    with torch.no_grad():
        lstm.bias.add_(torch.randn_like(lstm.bias), alpha=0.3)
    return lstm


def questions(batch: int, steps: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Random words (B, S, e) and lengths (B), of which the first is S and the last 1."""
    lengths = torch.randint(1, steps + 1, (batch,))
    lengths[0], lengths[-1] = steps, 1
    return torch.randn(batch, steps, inputs, dtype=torch.float64), lengths


def run(lstm: BiLSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, last states, and the last cells, which the network itself does not give."""
    return run_lstm_with_cells(x, lengths, lstm.weight_x, lstm.weight_h, lstm.bias)


def literal(lstm: BiLSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM's equations, one question, direction and word at a time."""
    units = lstm.weight_h.shape[-1]
    states, last, cells = [], [], []
    for words, length in zip(x, lengths.tolist(), strict=True):
        found = [[words.new_zeros(units) for _ in words] for _ in range(2)]
        for d, positions in enumerate((range(length), reversed(range(length)))):
            h = c = words.new_zeros(units)
            for s in positions:
                z = lstm.weight_x[d] @ words[s] + lstm.weight_h[d] @ h + lstm.bias[d]
                i, f, g, o = z.split(units)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                found[d][s] = h
            cells.append(c)
        forwards, backwards = (torch.stack(states) for states in found)
        states.append(torch.cat([forwards, backwards], dim=-1))
        last.append(torch.cat([forwards[length - 1], backwards[0]]))
    return torch.stack(states), torch.stack(last), torch.stack(cells).view(len(x), 2 * units)


def results(run: Callable[[], tuple[Tensor, Tensor, Tensor]], leaves: list[Tensor]) -> list[Tensor]:
    """States, last states, last cells, and the gradients of a random projection of all three."""
    outputs = run()
    chance = torch.Generator().manual_seed(0)
    down = [torch.randn(y.shape, generator=chance).to(y) for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, down)]


def test_torchs_lstm_equals_the_equations() -> None:
    torch.manual_seed(1)
    lstm = network(5, 4)
    x, lengths = questions(6, 7, 5)
    x.requires_grad_()
    leaves = [x, *lstm.parameters()]
    expected = results(lambda: literal(lstm, x, lengths), leaves)
    for found, wanted in zip(results(lambda: run(lstm, x, lengths), leaves), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_one_direction_is_the_first_of_two() -> None:
    torch.manual_seed(2)
    lstm = network(5, 4)
    x, lengths = questions(6, 7, 5)
    weights = [weight[:1] for weight in lstm.parameters()]
    one = run_lstm_with_cells(x, lengths, *weights)
    for found, same in zip(run_lstm(x, lengths, *weights), one, strict=False):
        torch.testing.assert_close(found, same)
    for found, both in zip(one, run(lstm, x, lengths), strict=True):
        torch.testing.assert_close(found, both[..., :4])


@pytest.mark.parametrize("starts", [False, True])
def test_cells_and_gradients_through_them_are_those_of_torchs_layer(starts: bool) -> None:
    torch.manual_seed(3)
    layer = torch.nn.LSTM(5, 4, batch_first=True).double()
    x, lengths = questions(6, 7, 5)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, lengths, batch_first=True, enforce_sorted=False
    )
    weight_x, weight_h, bias_x, bias_h = layer.all_weights[0]
    weights = weight_x[None], weight_h[None], (bias_x + bias_h)[None]
    leaves = [*layer.parameters()]
    start = None
    if starts:
        h, c = start = tuple(torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True))
        leaves += start
    wanted = layer(packed, start and (h[None], c[None]))[1][1][0]  # (B, u)
    found = run_lstm_with_cells(x, lengths, *weights, start=start)[2]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    down = torch.randn_like(found)
    grads = [torch.autograd.grad(cells, leaves, down) for cells in (found, wanted)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    padding=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_padding_changes_nothing(lengths: list[int], padding: int, seed: int) -> None:
    torch.manual_seed(seed)
    lstm, steps = network(3, 2), max(lengths)
    x = torch.randn(len(lengths), steps, 3, dtype=torch.float64)
    more = torch.nn.functional.pad(x, (0, 0, 0, padding), value=7.0)
    states, last = lstm(x, torch.tensor(lengths))
    padded_states, padded_last = lstm(more, torch.tensor(lengths))
    torch.testing.assert_close(padded_states[:, :steps], states)
    torch.testing.assert_close(padded_last, last)
    is_pad = torch.arange(steps + padding) >= torch.tensor(lengths)[:, None]
    assert not padded_states[is_pad].any()


def test_values_at_padding_change_nothing() -> None:
    torch.manual_seed(2)
    lstm = network(5, 4)
    x, lengths = questions(6, 7, 5)
    is_pad = (torch.arange(7) >= lengths[:, None])[..., None]
    clean = x.masked_fill(is_pad, 0).requires_grad_()
    dirty = x.masked_fill(is_pad, torch.nan).requires_grad_()
    expected = results(lambda: run(lstm, clean, lengths), [clean, *lstm.parameters()])
    found = results(lambda: run(lstm, dirty, lengths), [dirty, *lstm.parameters()])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert not found[3].masked_select(is_pad).any()  # nor does a gradient leak in


def test_a_question_of_one_word_has_one_state() -> None:
    lstm = network(3, 2)
    states, last = lstm(torch.randn(4, 1, 3, dtype=torch.float64), torch.ones(4, dtype=torch.int64))
    assert torch.equal(states[:, 0], last)


def test_the_order_of_questions_changes_nothing() -> None:
    torch.manual_seed(3)
    lstm = network(5, 4)
    x, lengths = questions(6, 7, 5)
    shuffled = torch.randperm(6)
    for one, other in zip(lstm(x[shuffled], lengths[shuffled]), lstm(x, lengths), strict=True):
        torch.testing.assert_close(one, other[shuffled])


def test_the_forget_gate_starts_at_one() -> None:
    lstm = BiLSTM(30, 40)
    bound = (6 / (30 + 40 + 160)) ** 0.5
    for weight in (lstm.weight_x, lstm.weight_h):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    i, f, g, o = lstm.bias.split(40, dim=-1)
    assert (f == 1).all()
    assert not torch.cat([i, g, o]).any()


@pytest.fixture
def one_launch_per_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for other GPUs than the H100 and H200."""
    from macnet.models.kernels import lstm

    monkeypatch.setattr(lstm, "persistent", None)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "steps", "inputs", "units"),
    [(640, 46, 300, 512), (130, 12, 300, 256), (37, 9, 7, 48), (1, 3, 16, 16), (65, 20, 64, 400)],
)
def test_the_kernels_equal_torchs_lstm(
    batch: int, steps: int, inputs: int, units: int, parameters: torch.dtype
) -> None:
    assert can_use_triton(torch.device("cuda"), torch.bfloat16)
    torch.manual_seed(4)
    x, lengths = (a.cuda() for a in questions(batch, steps, inputs))
    lengths[-1] = 2  # so that the recurrent weights have a gradient even in a batch of one
    lstm, x = network(inputs, units).to("cuda", parameters), x.to(parameters).requires_grad_()
    exact = [a.detach().double().requires_grad_() for a in (x, *lstm.parameters())]
    expected = results(lambda: torch_lstm(exact[0], lengths, *exact[1:]), exact)
    with torch.autocast("cuda", torch.bfloat16, enabled=parameters == torch.float32):
        by_kernels = results(lambda: run(lstm, x, lengths), [x, *lstm.parameters()])

    dtypes = [output.dtype for output in by_kernels]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32] + [parameters] * 4
    for found, wanted in zip(by_kernels, expected, strict=True):
        assert off_by(found, wanted) <= 2e-2
    is_pad = torch.arange(steps, device="cuda") >= lengths[:, None]
    assert not by_kernels[0][is_pad].any()
    assert not by_kernels[3][is_pad].any()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("units", [128, 256, 48])
def test_the_kernels_of_one_direction_equal_torchs_lstm(units: int, starts: bool) -> None:
    torch.manual_seed(5)
    x, lengths = (a.cuda() for a in questions(130, 12, 20))
    lengths[-1] = 2
    one = [w[:1] for w in network(20, units).cuda().parameters()]
    before = [torch.randn(130, units, device="cuda").double() for _ in range(2 * starts)]
    exact = [a.detach().requires_grad_() for a in (x, *one, *before)]
    single = [a.detach().float().requires_grad_() for a in exact]

    def run_with(run: Any, given: list[Tensor]) -> Any:
        x, *weights = given[:4]
        return run(x, lengths, *weights, start=tuple(given[4:]) or None)

    expected = results(lambda: run_with(torch_lstm, exact), exact)
    with torch.autocast("cuda", torch.bfloat16):
        by_kernels = results(lambda: run_with(run_lstm_with_cells, single), single)
    assert by_kernels[0].dtype == by_kernels[1].dtype == torch.bfloat16
    assert by_kernels[2].dtype == torch.float32
    for found, wanted in zip(by_kernels, expected, strict=True):
        assert off_by(found, wanted) <= 2e-2


@pytest.mark.gpu
@needs_cuda
def test_frozen_weights_are_no_different_on_a_gpu() -> None:
    """As in a stage that trains another part: gradients are on, but none is needed."""
    torch.manual_seed(5)
    x, lengths = (a.cuda() for a in questions(9, 7, 20))
    weights = [w[:1].detach().bfloat16() for w in network(20, 32).cuda().parameters()]
    found = run_lstm(x.bfloat16(), lengths, *weights)
    assert not any(output.requires_grad for output in found)
    for one, other in zip(
        found, torch_lstm(x, lengths, *(w.double() for w in weights)), strict=False
    ):
        assert off_by(one, other) <= 2e-2


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("one_launch_per_word")
def test_one_launch_per_word_equals_torchs_lstm() -> None:
    test_the_kernels_equal_torchs_lstm(640, 46, 300, 512, torch.float32)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("batch", "steps", "units"), [(1, 3, 128), (63, 5, 512), (257, 7, 384), (1000, 9, 256)]
)
def test_the_persistent_kernel_equals_one_launch_per_word(
    batch: int, steps: int, units: int, request: pytest.FixtureRequest
) -> None:
    torch.manual_seed(8)
    lstm = network(20, units).to("cuda", torch.bfloat16)
    x, lengths = (a.cuda() for a in questions(batch, steps, 20))
    lengths[-1] = 2
    x = x.bfloat16().requires_grad_()
    leaves = [x, *lstm.parameters()]
    found, again = (results(lambda: run(lstm, x, lengths), leaves) for _ in range(2))
    with torch.no_grad():  # which leaves out what gradients would need
        assert torch.equal(lstm(x, lengths)[0], found[0])
    request.getfixturevalue("one_launch_per_word")
    wanted = results(lambda: run(lstm, x, lengths), leaves)
    for one, same, other in zip(found, again, wanted, strict=True):
        assert torch.equal(one, same)
        assert off_by(one, other) <= 5e-3


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("units", [32, 128])
def test_values_at_padding_change_nothing_on_a_gpu(units: int) -> None:
    torch.manual_seed(5)
    lstm = network(20, units).to("cuda", torch.bfloat16)
    x, lengths = (a.cuda() for a in questions(9, 7, 20))
    x.masked_fill_((torch.arange(7, device="cuda") >= lengths[:, None])[..., None], torch.nan)
    x = x.bfloat16().requires_grad_()
    for found in results(lambda: run(lstm, x, lengths), [x, *lstm.parameters()]):
        assert found.isfinite().all()


@pytest.mark.gpu
@needs_cuda
def test_torchs_lstm_is_the_same_on_a_gpu() -> None:
    torch.manual_seed(6)
    lstm = network(5, 4)
    x, lengths = questions(6, 7, 5)
    expected = results(lambda: run(lstm, x, lengths), list(lstm.parameters()))
    lstm = lstm.cuda()
    on_gpu = results(lambda: run(lstm, x.cuda(), lengths.cuda()), list(lstm.parameters()))
    for found, wanted in zip(on_gpu, expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("units", [32, 128])
def test_a_captured_graph_takes_new_inputs(units: int) -> None:
    torch.manual_seed(7)
    lstm = network(20, units).to("cuda", torch.bfloat16)
    x = torch.zeros(70, 9, 20, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    lengths = torch.ones(70, device="cuda", dtype=torch.int64)
    leaves = [x, *lstm.parameters()]
    down = [torch.randn(70, 9, 2 * units, device="cuda").bfloat16()]
    down += [torch.randn(70, 2 * units, device="cuda").to(t) for t in (x.dtype, torch.float32)]

    def step() -> list[Tensor]:
        outputs = run(lstm, x, lengths)
        gradients = torch.autograd.grad(outputs, leaves, down)
        # Detached, or the graph would live on and be met again on another stream.
        return [*(output.detach() for output in outputs), *gradients]

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()  # compiles
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()

    words, new_lengths = questions(70, 9, 20)
    with torch.no_grad():
        x.copy_(words)
    lengths.copy_(new_lengths)
    graph.replay()
    for found, wanted in zip(captured, step(), strict=True):
        assert off_by(found, wanted) <= 1e-3  # sums may be cut differently
