"""Programs are read as a plain recursive reader reads them, chosen by chance, and rewarded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from macnet.clevr.program import from_prefix, to_postfix, to_prefix
from macnet.clevr.questions import QuestionGenerator
from macnet.clevr.scene import sample_scenes
from macnet.data.question_arrays import program_ids
from macnet.data.vocab import END, PAD, PROGRAM_TOKENS, START, UNK
from macnet.models.systems.programs import (
    ARITIES,
    SCENE,
    MovingBaseline,
    Trees,
    choose,
    lookup_table,
    lstm_cell,
    read_prefix,
    reinforce,
    token_log_probs,
)
from pg_ee_loops import Node, in_postfix, read
from processes import in_processes

# --- reading ---------------------------------------------------------------------------------


def height(node: Node) -> int:
    return 1 + max(map(height, node.inputs)) if node.inputs else 0


def assert_read(trees: Trees, b: int, tokens: Sequence[int]) -> Node:
    """One program of a batch is read as the tree that it is; gives its root."""
    root = read(tokens)
    nodes = in_postfix(root)
    size = trees.tokens.shape[1]
    assert [i for i in range(size) if trees.is_node[b, i]] == [*range(len(nodes))]
    parents = {child.position: n.position for n in nodes for child in n.inputs}
    for place, found in enumerate(nodes):
        i = found.position
        assert PROGRAM_TOKENS[int(trees.tokens[b, i])] == found.token
        inputs = [child.position for child in found.inputs]
        assert trees.inputs[b, i].tolist() == [*inputs, -1, -1][:2]
        assert trees.parent[b, i] == parents.get(i, -1)
        assert trees.height[b, i] == height(found)
        assert trees.postfix[b, i] == place
    assert (trees.inputs[b, len(nodes) :] == -1).all()
    assert (trees.parent[b, len(nodes) :] == -1).all()
    assert (trees.height[b, len(nodes) :] == -1).all()
    assert sorted(trees.postfix[b].tolist()) == [*range(size)], "each has a place of its own"
    return root


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9, 30])
def test_any_tokens_are_read_as_by_recursion(length: int) -> None:
    chance = random.Random(length)
    unary, pairs = PROGRAM_TOKENS.index("unique"), PROGRAM_TOKENS.index("union")
    rows = [[chance.randrange(len(PROGRAM_TOKENS)) for _ in range(length)] for _ in range(30)]
    rows += [[chance.choice([PAD, SCENE, unary, pairs, END]) for _ in rows[0]] for _ in range(70)]
    rows += [[token] * length for token in (PAD, START, END, UNK, SCENE, unary, pairs)]
    trees = read_prefix(torch.tensor(rows))
    assert trees.tokens.shape == (107, 2 * length + 1)
    for b, row in enumerate(rows):
        assert_read(trees, b, row)


def test_programs_by_hand() -> None:
    rows = {
        "": [0],
        "scene": [0],
        "count": [1, 0],
        "count scene exist": [1, 0],  # what follows the end is ignored
        "union scene": [1, 0, 0],
        "union unique scene": [2, 1, 0, 0],
        "equal_integer count scene count union scene scene": [3, 1, 0, 2, 1, 0, 0],
        "count <END>": [2, 1, 0],  # of which the last is missing
        "<START> <UNK> scene": [2, 1, 0],
    }
    longest = max(len(row.split()) for row in rows)
    ids = [[*program_ids(row.split())] for row in rows]
    trees = read_prefix(torch.tensor([row + [PAD] * (longest - len(row)) for row in ids]))
    for b, heights in enumerate(rows.values()):
        assert trees.height[b, trees.is_node[b]].tolist() == heights
        assert_read(trees, b, ids[b])


def test_what_follows_in_a_batch_is_not_the_same_program() -> None:
    """PAD in the middle is `scene`, and what comes after it is still read."""
    union, exist = (PROGRAM_TOKENS.index(name) for name in ("union", "exist"))
    tokens = [union, PAD, exist, PAD, exist]
    root = assert_read(read_prefix(torch.tensor([tokens])), 0, tokens)
    assert [child.token for child in root.inputs] == ["scene", "exist"]


def test_generated_programs_are_read_as_they_were_written() -> None:
    generator, programs = QuestionGenerator(random.Random(0)), []
    for scene in sample_scenes([random.Random(i) for i in range(8)]):
        programs += [question.program for question in generator.generate(scene)]
    prefixes = [to_prefix(program) for program in programs]
    width = max(map(len, prefixes))
    ids = [[*program_ids(p), *[PAD] * (width - len(p))] for p in prefixes]
    trees = read_prefix(torch.tensor(ids))
    for b, prefix in enumerate(prefixes):
        assert_read(trees, b, ids[b])
        count = len(prefix)
        assert int(trees.is_node[b].sum()) == count
        order = trees.postfix[b, :count].argsort()
        written = [PROGRAM_TOKENS[token] for token in trees.tokens[b, order].tolist()]
        assert written == to_postfix(from_prefix(prefix))
    assert len({*map(len, prefixes)}) > 10, "of many lengths"


def test_every_token_has_as_many_inputs_as_published() -> None:
    counts = {n: sum(arity == n for arity in ARITIES) for n in range(3)}
    assert counts == {0: 1, 1: 34, 2: 9}
    assert ARITIES[:4] == (1, 1, 1, 1), "special tokens are modules of one input"


def test_a_table_can_be_learned_with_though_it_was_first_used_in_inference() -> None:
    values = (3, 1, 4, 1, 5, 9, 2, 6)
    with torch.inference_mode():
        table = lookup_table(values, torch.device("cpu"))
    assert not table.is_inference()
    assert table is lookup_table(values, torch.device("cpu"))
    weight = torch.ones(10, requires_grad=True)
    weight[table].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 2, 1, 1, 1, 1, 1, 0, 0, 1]


# --- writing ---------------------------------------------------------------------------------


def test_an_lstm_cell_is_that_of_torch() -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(3, 5).double()
    x, h, c = (torch.randn(4, n, dtype=torch.float64) for n in (3, 5, 5))
    gates = x @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
    for found, wanted in zip(lstm_cell(gates, c), cell(x, (h, c)), strict=True):
        torch.testing.assert_close(found, wanted)
    assert [part.dtype for part in lstm_cell(gates.bfloat16(), c.float())] == [torch.float32] * 2


def test_log_probabilities_of_tokens() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).double()
    tokens = torch.tensor([[0, 4, 2], [3, 3, 1]])
    found = token_log_probs(logits, tokens)
    for b in range(2):
        for t in range(3):
            p = logits[b, t].exp()
            wanted = (p[tokens[b, t]] / p.sum()).log()
            torch.testing.assert_close(found[b, t], wanted)
    low = token_log_probs(logits.bfloat16(), tokens)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, found.float(), atol=2e-2, rtol=0)


def test_the_most_probable_is_chosen() -> None:
    logits = torch.tensor([[0.0, 2, 1], [3, -1, -torch.inf]])
    assert choose(logits, sample=False).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_samples_are_as_frequent_as_they_are_probable(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.tensor([-torch.inf, 0.0, 1.0, -2.0, -torch.inf, 3.0], dtype=dtype)
    count = 40_000
    chosen = choose(logits.expand(count, -1), sample=True)
    shares = chosen.bincount(minlength=6) / count
    wanted = logits.float().softmax(0)
    assert shares[[0, 4]].tolist() == [0, 0]
    deviation = (wanted * (1 - wanted) / count).sqrt()
    assert ((shares - wanted).abs() <= 4 * deviation).all()


def test_samples_are_independent_and_follow_the_seed() -> None:
    logits = torch.zeros(1000, 2)
    torch.manual_seed(1)
    one, other = (choose(logits, sample=True) for _ in range(2))
    assert 400 < int((one == other).sum()) < 600
    torch.manual_seed(1)
    assert choose(logits, sample=True).equal(one)


def test_what_is_impossible_is_not_chosen_by_any_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for extreme in (0.0, 1e-45, 100.0):
        monkeypatch.setattr(Tensor, "exponential_", lambda x, value=extreme: x.fill_(value))
        logits = torch.full((3, 4), -torch.inf)
        logits[:, 2] = -50
        assert choose(logits, sample=True).tolist() == [2, 2, 2]


# --- rewards ---------------------------------------------------------------------------------


def test_a_baseline_moves_before_it_is_used_and_by_known_questions_only() -> None:
    baseline = MovingBaseline(0.5, decay=0.9)
    cost = torch.tensor([1.0, 3.0, 100.0], requires_grad=True)
    known = torch.tensor([True, True, False])
    first = baseline.update(cost, known)
    assert first.item() == pytest.approx(0.9 * 0.5 + 0.1 * 2)
    assert not first.requires_grad
    second = baseline.update(cost, known)
    assert second.item() == pytest.approx(0.9 * first.item() + 0.1 * 2)
    assert first.item() == pytest.approx(0.65), "what was given does not move"
    unmoved = baseline.update(cost, torch.zeros(3, dtype=torch.bool))
    assert unmoved.equal(second)
    assert [*baseline.state_dict()] == ["mean"], "it is saved with the network"


def test_a_baseline_ignores_costs_that_are_not_known_even_if_they_are_wild() -> None:
    baseline = MovingBaseline(0.5, decay=0.5)
    cost = torch.tensor([2.0, torch.inf, torch.nan])
    assert baseline.update(cost, torch.tensor([True, False, False])).item() == 1.25


def share_of_a_baseline() -> tuple[float, float]:
    """Three questions here and one there, of which two are known."""
    rank = torch.distributed.get_rank()
    baseline = MovingBaseline(0.0, decay=0.9)
    costs = torch.tensor([[1.0, 2.0, 50.0], [6.0, 70.0, 80.0]])[rank]
    known = torch.tensor([[True, True, False], [True, False, False]])[rank]
    first = baseline.update(costs, known).item()
    return first, baseline.update(costs, known & (rank == 1)).item()


def test_processes_have_one_baseline() -> None:
    one, other = in_processes(share_of_a_baseline)
    assert one == other
    assert one == pytest.approx((0.1 * 3, 0.9 * 0.3 + 0.1 * 6))


def test_reinforce_is_the_sum_written_out() -> None:
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=chance).double().requires_grad_()
    cost = torch.randn(4, generator=chance).double().requires_grad_()
    baseline, chosen = torch.tensor(0.3).double(), [2, 0, 1, 1]
    log_p = logits.log_softmax(1)[torch.arange(4), chosen]
    known = torch.tensor([True, False, True, True])
    found = reinforce(log_p, cost, baseline, known)
    wanted = sum((cost[b].item() - 0.3) * log_p[b].item() for b in (0, 2, 3))
    assert found.item() == pytest.approx(wanted)
    gradient, of_cost = torch.autograd.grad(found, [logits, cost], allow_unused=True)
    assert of_cost is None, "a cost is no path for gradients"
    for b in range(4):
        p = logits[b].softmax(0)
        for k in range(3):  # d log p_chosen / d logit_k = [k is chosen] − p_k
            slope = (cost[b] - 0.3) * (float(k == chosen[b]) - p[k]) * float(b != 1)
            assert gradient[b, k].item() == pytest.approx(slope.item())


def test_questions_that_are_not_known_do_nothing_even_if_they_are_wild() -> None:
    log_p = torch.tensor([-1.0, -2.0], requires_grad=True)
    cost, known = torch.tensor([2.0, torch.inf]), torch.tensor([True, False])
    found = reinforce(log_p, cost, torch.tensor(1.0), known)
    found.backward()
    assert found.item() == -1
    assert log_p.grad is not None
    assert log_p.grad.tolist() == [1, 0], "and not NaN"
