"""Whether attention agrees with programs: by made-up attention whose agreement is known."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.scene import MAX_OBJECTS
from macnet.explain.agreement import (
    NETWORK,
    OTHER_QUESTION,
    UNTRAINED,
    PeakTargets,
)
from macnet.explain.comparison import hit_probability, measure
from macnet.paper import COLUMNS
from made_up_attention import (
    STEPS,
    agreement,
    at_random,
    gated,
    made_up,
    pointing_in_order,
    watched,
)

# --- chance ----------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 4), st.data())
@settings(deadline=None)
def test_the_chance_of_some_hit_is_counted(places: int, looks: int, data: st.DataObject) -> None:
    on = data.draw(st.sets(st.integers(0, places - 1)))
    ways = list(itertools.product(range(places), repeat=looks))
    counted = sum(bool(on & set(way)) for way in ways) / len(ways)
    assert math.isclose(
        hit_probability(np.array([len(on) / places]), looks)[0], counted, abs_tol=1e-12
    )


def test_one_who_points_at_all_that_is_visited_and_at_nothing_else() -> None:
    truth = made_up()
    found = agreement(truth, pointing_in_order(truth))
    referenced = truth.unique_objects | truth.counted_objects
    for name, count in (
        ("unique", truth.unique_objects.sum()),
        ("counted", truth.counted_objects.sum()),
        ("referenced", referenced.sum()),
    ):
        share = found.objects[name].hits[NETWORK]
        assert (share.correct, share.total) == (count, count)
        assert found.objects[name].attention[NETWORK] == 1
    share = found.objects["not referenced"].hits[NETWORK]
    assert (share.correct, share.total) == (0, 5 * len(referenced) - referenced.sum())
    assert found.steps[NETWORK] == [PeakTargets(1, 0, 0)] * STEPS
    assert found.top_object_referenced[NETWORK] == [1] * STEPS
    assert math.isclose(found.random_object, referenced.sum() / (5 * len(referenced)))
    for order in (found.order[NETWORK], found.order_by_attention[NETWORK]):
        assert found.hops == len(truth.hops) == order.total == order.correct
    both = found.both_pointed_at[NETWORK]
    assert (both.correct, both.total) == (found.hops, found.hops)
    assert found.by_answer["wrong"].hits[NETWORK].total == 0
    assert found.answers.value == 1
    assert [found.groups[name].hits[NETWORK].total > 0 for name in COLUMNS] == [True] * 2 + [
        False
    ] * 3
    again = agreement(truth, pointing_in_order(truth, reverse=True))
    for order in (again.order[NETWORK], again.order_by_attention[NETWORK]):
        assert (order.correct, order.total) == (0, found.hops)


def test_one_who_rests_on_the_ground_may_favour_what_is_visited() -> None:
    truth, rng = made_up(), np.random.default_rng(3)
    referenced = (truth.unique_objects | truth.counted_objects)[:, None]
    ground = truth.cells.any(1).argmin(1)[truth.images]  # a place that shows nothing
    peaks = np.repeat(ground[:, None], STEPS, 1)
    there = truth.exists[truth.images][:, None]
    attention = there * (1 + referenced) * rng.uniform(0.01, 0.02, (len(peaks), STEPS, MAX_OBJECTS))
    own = replace(watched(truth, peaks), attention=attention)
    found = measure(truth, own, replace(own, attention=attention * (1 - referenced)))
    assert found.steps[NETWORK] == [PeakTargets(0, 0, 1)] * STEPS
    assert found.top_object_referenced[NETWORK] == [1] * STEPS
    assert found.top_object_referenced[UNTRAINED] == [0] * STEPS
    assert all(0 < share < 1 for share in found.top_object_referenced[OTHER_QUESTION])
    most = attention.argmax(1)
    told = [(most[q, a], most[q, b]) for q, a, b in truth.hops if most[q, a] != most[q, b]]
    order = found.order_by_attention[NETWORK]
    assert (order.correct, order.total) == (sum(a < b for a, b in told), len(told))
    assert found.order[NETWORK].total == 0


def test_one_who_looks_at_random() -> None:
    truth = made_up(400)
    found = agreement(truth, at_random(truth))
    for name, pointed in (*found.objects.items(), ("Count", found.groups["Count"])):
        areas = truth.cells.mean(2)[truth.images]
        which = {
            "unique": truth.unique_objects,
            "counted": truth.counted_objects,
            "referenced": truth.unique_objects | truth.counted_objects,
            "not referenced": truth.exists[truth.images]
            & ~(truth.unique_objects | truth.counted_objects),
            "Count": (truth.unique_objects | truth.counted_objects)
            & (truth.groups == "Count")[:, None],
        }[name]
        chance = np.mean([1 - (1 - area) ** STEPS for area in areas[which]])
        assert math.isclose(pointed.random_cells, chance)
        assert math.isclose(pointed.area, areas[which].mean())
        assert math.isclose(pointed.random_objects, 1 - 0.8**STEPS)
        for source in (NETWORK, OTHER_QUESTION, UNTRAINED):
            share = pointed.hits[source]
            assert abs(share.value - chance) < 5 * math.sqrt(0.25 / share.total)
    for source in (NETWORK, OTHER_QUESTION, UNTRAINED):
        order = found.order[source]
        assert order.total > 100
        assert abs(order.value - 0.5) < 5 * math.sqrt(0.25 / order.total)
        for aim in found.steps[source]:
            assert np.allclose(aim, found.random_cell, atol=5 * math.sqrt(0.25 / 2000))
    assert math.isclose(sum(found.random_cell), 1)


def test_both_ends_of_a_hop_are_pointed_at_or_not() -> None:
    truth = made_up()
    peaks = pointing_in_order(truth)
    ground = truth.cells.any(1).argmin(1)[truth.images]
    peaks[:, 1] = ground  # where three objects follow one another, the second is left out
    found = agreement(truth, peaks)
    assert (found.both_pointed_at[NETWORK].correct, found.order[NETWORK].total) == (0, 0)
    assert found.both_pointed_at[NETWORK].total == found.hops
    # Of a hop that starts to be pointed at with both ends at once there is no order.
    everywhere = replace(truth, cells=np.repeat(truth.cells.any(1, keepdims=True), 10, 1))
    found = agreement(everywhere, pointing_in_order(truth))
    assert found.both_pointed_at[NETWORK].correct == found.hops
    assert found.order[NETWORK].total == 0


def test_one_who_looks_at_random_objects() -> None:
    truth = made_up(400)
    things = at_random(truth, places=5)
    peaks = truth.cells[truth.images[:, None], things].argmax(2)
    pointed = agreement(truth, peaks).objects["referenced"]
    share = pointed.hits[NETWORK]
    assert abs(share.value - pointed.random_objects) < 5 * math.sqrt(0.25 / share.total)


def test_one_who_always_looks_at_the_same_of_a_picture_is_found_out() -> None:
    truth = made_up()
    peaks = at_random(truth)[truth.images]  # whatever is asked
    found = agreement(truth, peaks)
    assert (
        found.objects["referenced"].hits[NETWORK]
        == found.objects["referenced"].hits[OTHER_QUESTION]
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_another_question_is_about_the_same_picture(counts: list[int]) -> None:
    pictures = np.repeat(np.arange(len(counts)), counts)
    others = replace(made_up(2, 1), images=pictures).other_questions
    assert (pictures[others] == pictures).all()
    assert sorted(others) == list(range(len(pictures)))
    assert all((others[q] == q) == (counts[pictures[q]] == 1) for q in range(len(pictures)))


@given(st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_margin_is_the_places_around(seed: int) -> None:
    truth = made_up(2, 1, seed)
    wide = truth.with_margin()
    for picture, thing in itertools.product(range(2), range(MAX_OBJECTS)):
        own = [divmod(place, 6) for place in np.flatnonzero(truth.cells[picture, thing])]
        around = {
            6 * row + column
            for y, x in own
            for row, column in itertools.product(range(y - 1, y + 2), range(x - 1, x + 2))
            if 0 <= row < 5 and 0 <= column < 6
        }
        assert set(np.flatnonzero(wide.cells[picture, thing])) == around


def test_one_who_looks_beside_what_is_visited() -> None:
    truth = made_up()
    shows = np.zeros_like(truth.cells)
    shows[:, range(5), [0, 2, 4, 24, 26]] = True  # five places of which no two touch
    truth = replace(truth, cells=shows)
    at = pointing_in_order(truth)
    found = agreement(truth, at + np.where(at < 6, 6, -6))  # a row below, or above
    assert found.objects["referenced"].hits[NETWORK].correct == 0
    assert found.with_margin["referenced"].hits[NETWORK].value == 1
    assert found.with_margin["referenced"].random_cells > found.objects["referenced"].random_cells
    exactly = agreement(truth, at)
    assert exactly.with_margin["not referenced"].hits[NETWORK].value == 0


def test_an_only_question_has_no_other() -> None:
    truth = made_up(6, 1)
    found = agreement(truth, pointing_in_order(truth))
    assert found.objects["referenced"].hits[OTHER_QUESTION].total == 0
    assert found.both_pointed_at[OTHER_QUESTION].total == found.order[OTHER_QUESTION].total == 0
    assert found.both_pointed_at[NETWORK].total == len(truth.hops) > 0
    assert math.isnan(found.all_steps[OTHER_QUESTION].targets.referenced)
    assert json.loads(json.dumps(found.to_record(), allow_nan=False))["objects"]["referenced"][
        "attention"
    ] == {
        NETWORK: 1.0,
        OTHER_QUESTION: None,
        UNTRAINED: found.objects["referenced"].attention[UNTRAINED],
    }


def test_a_step_that_begins_to_point_at_both_tells_no_order() -> None:
    truth = made_up(3, 1)
    first = truth.hops[0, 0]
    shows = truth.cells.copy()
    shows[truth.images[first], :, 0] = True  # a place that shows all objects
    truth = replace(truth, cells=shows)
    peaks = np.zeros((3, STEPS), int)
    assert agreement(truth, peaks).order[NETWORK].total == 0


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5).map(
        lambda rows: np.array(rows) / 3
    )
)
@settings(deadline=None)
def test_backwards_is_more_falls_than_rises(positions: np.ndarray) -> None:
    truth = made_up(len(positions), 1)
    own = watched(truth, at_random(truth)[:, :4], positions)
    found = measure(truth, own, own)
    reads_backwards = 0
    for row in positions:
        pairs = list(itertools.combinations(row, 2))
        reads_backwards += sum(b < a for a, b in pairs) > sum(b > a for a, b in pairs)
    assert (found.reads_backwards[NETWORK].correct, found.reads_backwards[NETWORK].total) == (
        reads_backwards,
        len(positions),
    )
    assert np.allclose(found.positions[NETWORK], positions.mean(0))


# --- steps that count for what they changed --------------------------------------------------


def test_a_step_counts_for_what_it_changed() -> None:
    truth, seed = made_up(30, 3), 5
    own, random = gated(truth, seed), gated(truth, seed + 1)
    found = measure(truth, own.weighted(), random.weighted())
    referenced = truth.unique_objects | truth.counted_objects
    active = own.changes >= 0.1
    hit = np.zeros(referenced.shape, bool)
    targets: list[list[tuple[bool, bool]]] = [[] for _ in range(STEPS)]
    for q, step in itertools.product(range(len(hit)), range(STEPS)):
        at = truth.cells[truth.images[q], :, own.peaks[q, step]]
        if active[q, step]:
            hit[q] |= at
            targets[step].append((bool((at & referenced[q]).any()), bool(at.any())))
    pointed = found.objects["referenced"]
    assert pointed.hits[NETWORK].correct == hit[referenced].sum()
    pairs = [(q, thing) for q, thing in np.argwhere(referenced)]
    tries = active.sum(1)
    areas = truth.cells.mean(2)[truth.images]
    assert math.isclose(
        pointed.random_cells, np.mean([1 - (1 - areas[q, t]) ** tries[q] for q, t in pairs])
    )
    assert math.isclose(pointed.random_objects, np.mean([1 - 0.8 ** tries[q] for q, _ in pairs]))
    assert math.isclose(
        pointed.attention[NETWORK],
        np.mean([max(own.changes[q] * own.attention[q, :, t]) for q, t in pairs]),
    )
    for step, (aims, seen) in enumerate(zip(found.steps[NETWORK], targets, strict=True)):
        assert math.isclose(found.idle[NETWORK][step], 1 - len(seen) / len(hit))
        assert math.isclose(found.change[NETWORK][step], own.changes[:, step].mean())
        if step == 2:  # always idle
            assert all(map(math.isnan, aims))
        else:
            assert math.isclose(aims.referenced, np.mean([on for on, _ in seen]))
            assert math.isclose(aims.ground, np.mean([not some for _, some in seen]))
            tops = own.attention[active[:, step], step].argmax(1)
            top = referenced[active[:, step]][np.arange(len(tops)), tops].mean()
            assert math.isclose(found.top_object_referenced[NETWORK][step], top)
            assert math.isclose(
                found.positions[NETWORK][step], own.positions[active[:, step], step].mean()
            )
    every = found.all_steps[NETWORK]
    assert math.isclose(every.targets.referenced, np.mean([on for s in targets for on, _ in s]))
    assert math.isclose(every.idle, 1 - active.mean())
    assert math.isclose(every.change, own.changes.mean())
    backwards = []
    for row, reads in zip(own.positions, active, strict=True):
        if reads.sum() >= 2:
            order = list(itertools.combinations(row[reads], 2))
            backwards.append(sum(b < a for a, b in order) > sum(b > a for a, b in order))
    assert len(backwards) < len(hit)
    reads_backwards = found.reads_backwards[NETWORK]
    assert (reads_backwards.correct, reads_backwards.total) == (sum(backwards), len(backwards))
    record = json.loads(json.dumps(found.to_record(), allow_nan=False))
    assert record["steps"][NETWORK][2] == {"referenced": None, "other": None, "ground": None}


def test_attention_travels_from_each_active_step_to_the_next() -> None:
    truth, rng = made_up(4, 1), np.random.default_rng(0)
    pairs = rng.random((4, STEPS, STEPS))
    changes = np.ones((4, STEPS))
    changes[0, :2], changes[1, 1:5], changes[2, 1:], changes[3] = 0, 0, 0, 0
    own = replace(
        watched(truth, at_random(truth), changes=changes),
        image_divergence=pairs + pairs.swapaxes(1, 2),
        word_divergence=pairs * pairs.swapaxes(1, 2),
    )
    found, random = measure(truth, own.weighted(), own), own.image_divergence.diagonal(1, 1, 2)
    image, words = own.image_divergence, own.word_divergence
    way = [*((0, i, i + 1) for i in range(2, STEPS - 1)), (1, 0, 5)]  # two have a step at most
    assert math.isclose(found.image_travel[NETWORK], sum(image[step] for step in way) / 4)
    assert math.isclose(found.word_travel[NETWORK], sum(words[step] for step in way) / 4)
    assert math.isclose(found.image_travel[UNTRAINED], random.sum(1).mean())


def test_all_steps_count_as_they_are_without_a_gate() -> None:
    truth = made_up()
    own, random = (watched(truth, at_random(truth, seed)) for seed in (3, 4))
    plain = measure(truth, own, random)
    assert plain == measure(truth, own.weighted(), random.weighted())
    assert plain.idle[NETWORK] == [0] * STEPS
    assert plain.change[NETWORK] == [1] * STEPS


def test_the_plain_reading_does_not_depend_on_changes() -> None:
    truth = made_up()
    own = gated(truth)
    plain = replace(own, changes=np.ones(own.changes.shape))
    found, same = (measure(truth, record, own) for record in (own, plain))
    assert replace(found, change={}, all_steps={}) == replace(same, change={}, all_steps={})
