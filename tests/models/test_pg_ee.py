"""PG+EE equals what was published, token by token and module by module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closeness import off_by
from macnet.data.spec import DataSpec
from macnet.data.vocab import END, PAD, PROGRAM_TOKENS, START, UNK
from macnet.errors import InputError
from macnet.models.systems.execution_engine import ExecutionEngine
from macnet.models.systems.pg_ee import (
    PG_EE,
    PGEE,
    PGEEConfig,
    is_written,
    module_names,
    trace,
    with_end,
)
from pg_ee_loops import in_postfix, read, run_program, up_to_end, write_alone
from small_pg_ee import FEATURES, SMALL, TEXTS, batch_of, ids_of, network_for, undecided
from system_checks import (
    QUESTIONS,
    assert_answers_stand_alone,
    assert_refuses_bad_inputs,
    count_parameters,
    data_spec,
    images_of,
    padded,
)
from transcription import assert_close, assert_same

pytestmark = pytest.mark.usefixtures("narrow_backbone")
INPUT_KINDS = pytest.mark.parametrize(
    "sizes", [FEATURES, data_spec(True, 18, 26)], ids=["features", "pixels"]
)
MALFORMED = [
    "",
    "scene",
    "less_than count",
    "union <END>",
    "exist scene count scene scene",
    "<START> <UNK> unique",
    "unique unique unique unique unique unique unique unique unique",
    "union union union union union union union union union",
]


def test_numbers_of_parameters_are_as_published() -> None:
    sizes = DataSpec(93, 32, 13, pixels=False, channels=1024, height=14, width=14)
    with torch.device("meta"):
        network = PGEE(PGEEConfig(), sizes)
    assert len(PROGRAM_TOKENS) == 44
    assert count_parameters(network.generator) == 2_510_008
    assert count_parameters(network.executor) == 40_400_800
    assert count_parameters(network) == 2_510_008 + 40_400_800


def test_modules_start_as_those_of_torch() -> None:
    """Weights and biases are uniform, between −1/√n and 1/√n for n inputs."""
    torch.manual_seed(0)
    bank = ExecutionEngine(FEATURES, channels=16, pooled=4, hidden=4).bank
    for name, inputs in (("1", 9 * 16), ("2", 9 * 16), ("pair", 2 * 16)):
        like = nn.Linear(inputs, 1000)
        for kind in ("weight", "bias"):
            own, theirs = getattr(bank, f"{kind}_{name}"), getattr(like, kind)
            assert own.abs().max() <= inputs**-0.5
            assert own.std().item() == pytest.approx(theirs.std().item(), rel=0.1)


# --- the generator ---------------------------------------------------------------------------


def test_programs_are_followed_token_by_token() -> None:
    network = network_for()
    generator, programs = network.generator, with_end(ids_of([*TEXTS, "", "unique"], 8))
    found = generator(padded(QUESTIONS, extra=2), programs)
    mine, wanted = [], []
    for b, words in enumerate(QUESTIONS):
        tokens = up_to_end(programs[b].tolist())
        wanted.append(write_alone(generator, words, tokens[:-1]))
        mine.append(found[b, : len(tokens)])
    assert_same(torch.cat(mine), torch.cat(wanted), [*generator.parameters()])


def test_a_program_without_an_end_is_followed_to_its_last_token() -> None:
    generator = network_for().generator
    programs = torch.tensor([[7, PAD, 9, START, 30], [8, 8, 8, 8, 8]])  # PAD was written
    found = generator(padded(QUESTIONS[:2]), programs)
    for b in range(2):
        wanted = write_alone(generator, QUESTIONS[b], programs[b, :-1].tolist())
        assert_close(found[b], wanted, f"program {b}")


def test_each_token_is_the_most_probable_after_those_before() -> None:
    generator = network_for().generator
    written = generator.write(padded(QUESTIONS * 4, extra=1))
    assert written.shape == (24, SMALL.program_length)
    lengths = set()
    for words, program in zip(QUESTIONS, written.tolist(), strict=False):
        tokens = up_to_end(program)
        for t, token in enumerate(tokens):
            assert token == int(write_alone(generator, words, tokens[:t])[-1].argmax())
        assert program[len(tokens) :] == [PAD] * (len(program) - len(tokens))
        lengths.add(len(tokens))
    assert len(lengths) > 2, "or nothing would have been compared"
    assert SMALL.program_length in lengths, "or none would lack its end"


def test_samples_are_as_frequent_as_they_are_probable() -> None:
    generator = undecided(network_for()).generator
    count = 4000
    torch.manual_seed(1)
    written = generator.write(torch.tensor(QUESTIONS[:1]).expand(count, -1), sample=True)
    first = written[:, 0].bincount(minlength=44) / count
    p = write_alone(generator, QUESTIONS[0], [])[0].softmax(0)
    assert ((first - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-3).all()
    (token,) = written[written[:, 0] != END][:1, 0].tolist()
    second = written[written[:, 0] == token][:, 1]
    p = write_alone(generator, QUESTIONS[0], [token])[1].softmax(0)
    apart = (second.bincount(minlength=44) / len(second) - p).abs()
    assert (apart <= 5 * (p * (1 - p) / len(second)).sqrt() + 1e-2).all()
    assert (is_written(written) | (written == PAD)).all()


def test_ends_of_programs() -> None:
    assert with_end(torch.tensor([[7, 8, 9], [7, PAD, PAD], [PAD] * 3])).tolist() == [
        [7, 8, 9, END],
        [7, END, PAD, PAD],
        [END, PAD, PAD, PAD],
    ]
    assert with_end(torch.zeros(2, 0, dtype=torch.int64)).tolist() == [[END], [END]]
    written = is_written(torch.tensor([[7, END, PAD, END], [PAD, 7, 8, 9], [END] * 4]))
    assert written.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


# --- the execution engine --------------------------------------------------------------------


def test_literal_execution_is_as_published() -> None:
    network, images = network_for(), images_of(FEATURES).requires_grad_()
    programs = ids_of([*TEXTS, "query_size unique equal_color <UNK> scene less_than", ""])
    rows = programs.tolist()
    wanted = torch.stack(
        [run_program(network.executor, images[b // 3], row) for b, row in enumerate(rows)]
    )
    found = network.executor.literal(images, programs)
    assert_same(found, wanted, [images, *network.executor.parameters()])


@INPUT_KINDS
def test_execution_by_levels_equals_the_literal_one(sizes: DataSpec) -> None:
    network, images = network_for(sizes), images_of(sizes)
    inputs: list[Tensor] = [*network.executor.parameters()]
    if not sizes.pixels:
        inputs.append(images.requires_grad_())
    random = torch.randint(0, 44, (6, 9), generator=torch.Generator().manual_seed(1))
    programs = torch.cat([ids_of(TEXTS + MALFORMED), random])
    programs = programs[torch.randperm(18, generator=torch.Generator().manual_seed(2))]
    found = network.executor(images, programs)
    assert found.shape == (18, sizes.answers)
    assert_same(found, network.executor.literal(images, programs), inputs)


def test_a_program_is_executed_alone_as_among_others() -> None:
    network, images = network_for(), images_of(FEATURES)
    texts = TEXTS + MALFORMED
    logits = network.executor(images, ids_of(texts))
    assert logits.isfinite().all()
    for b, text in enumerate(texts):
        for width in (max(1, len(text.split())), 14):
            alone = network.executor(images[b // 6][None], ids_of([text], width))
            assert_close(alone, logits[b][None], text)


def test_every_module_has_weights_of_its_own() -> None:
    network, images = network_for(), images_of(FEATURES, 1)
    programs = torch.arange(4, 44)[:, None]
    logits = network.executor(images, programs)
    assert len({tuple(row) for row in logits.round(decimals=6).tolist()}) == 40


# --- both ------------------------------------------------------------------------------------


@INPUT_KINDS
def test_answers_are_those_of_the_written_programs(sizes: DataSpec) -> None:
    network, images = network_for(sizes), images_of(sizes)
    written = network.generator.write(padded(QUESTIONS))
    logits, programs = network.answer(images, padded(QUESTIONS))
    assert programs.equal(written)
    assert_close(logits, network.executor.literal(images, written), "logits")
    assert network(images, padded(QUESTIONS)).equal(logits)
    assert PG_EE.forward(network, batch_of(images)).shape == (8, sizes.answers)
    assert_answers_stand_alone(network, images)


def test_low_precision_stays_close() -> None:
    network, images = network_for().float(), images_of(FEATURES)
    programs = ids_of(TEXTS + MALFORMED)
    wanted = network.executor(images.float(), programs)
    with torch.autocast("cpu", torch.bfloat16):
        found = network.executor(images.half(), programs)
        written = network.generator.write(padded(QUESTIONS))
        followed = network.generator(padded(QUESTIONS), with_end(ids_of([*TEXTS, "", ""])))
    assert off_by(found.float(), wanted) < 5e-2
    exact = network.generator(padded(QUESTIONS), with_end(ids_of([*TEXTS, "", ""])))
    assert off_by(followed.float(), exact) < 5e-2
    # Of two tokens that are almost as probable, rounding may choose the other.
    assert (written == network.generator.write(padded(QUESTIONS))).all(1).sum() >= 4


@INPUT_KINDS
def test_bad_inputs_are_refused(sizes: DataSpec) -> None:
    assert_refuses_bad_inputs(network_for(sizes), sizes)


def test_images_of_one_cell_are_refused() -> None:
    with pytest.raises(InputError, match=r"images are 1×5; PG.EE needs at least 2×2 cells"):
        network_for(data_spec(False, 1, 5))
    with pytest.raises(InputError, match=r"images are 8×32; PG.EE needs at least 2×2 cells, each"):
        network_for(data_spec(True, 8, 32))


@pytest.mark.parametrize("field", [n for n in vars(SMALL) if n != "executor_learns_from"])
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_bad_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        PGEEConfig(**{field: value})


def test_other_programs_to_learn_from_are_refused() -> None:
    with pytest.raises(InputError, match=r"executor_learns_from is 'sampled'; .*written.*true"):
        PGEEConfig(executor_learns_from="sampled")  # type: ignore[arg-type]


@INPUT_KINDS
def test_a_trace_tells_what_was_executed(sizes: DataSpec) -> None:
    network, images = network_for(sizes), images_of(sizes)
    for b, words in enumerate(QUESTIONS):
        image, question = images[b // 3][None], torch.tensor([words])
        logits, modules = trace(network, image, question)
        wanted, written = network.answer(image, question)
        assert_close(logits, wanted, "logits")
        nodes = in_postfix(read(written[0].tolist()))
        assert [module.name for module in modules] == [node.token for node in nodes]
        places = {node.position: place for place, node in enumerate(nodes)}
        for module, node in zip(modules, nodes, strict=True):
            assert module.inputs == tuple(places[child.position] for child in node.inputs)
            assert module.words is None
            assert module.map is not None
            assert module.map.shape == (15 if sizes is FEATURES else 12,)
            assert module.map.min() >= 0
            assert module.map.sum().item() == pytest.approx(1, abs=1e-6)


def test_modules_of_a_true_program() -> None:
    assert module_names(TEXTS[2].split()) == [
        *("scene", "filter_color[red]", "count", "scene", "count", "equal_integer")
    ]


def test_special_tokens_are_executed() -> None:
    """Whatever a generator writes has an answer."""
    network, images = network_for(), images_of(FEATURES, 1)
    programs = torch.tensor([[START, UNK, END, PAD], [UNK, PAD, PAD, PAD]])
    found = network.executor(images, programs)
    wanted = [run_program(network.executor, images[0], row) for row in programs.tolist()]
    assert_close(found, torch.stack(wanted), "logits")
