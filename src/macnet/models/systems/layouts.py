"""Layouts, the programs of N2NMN: which modules are executed, in postfix order.

"How many big things are left of the cube?" has the layout

    Find[cube]  Transform[left of]  Filter[big]  Count

of which the generator writes only the names; what to find, each module learns from the words that
it attends to. A module that takes an attention map takes that of the module before it; And, Or and
comparisons also take the last map before that which no other module has taken.

A layout is coarser than CLEVR's program. `unique` is left out, and so are `count` and `query_*`
below a comparison, which compares maps. `scene` with filters after it is one Find, and filters
elsewhere are one Filter. CLEVR's longest programs have 25 functions, its longest layouts 8 modules.

B layouts of at most T modules are a tensor (B, T) of tokens, filled up with <eos>. As in
`programs.py`, nothing here loops over questions or waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.clevr.program import arity, from_prefix, to_postfix
from macnet.data.vocab import PAD, PROGRAM_TOKENS, SPECIALS
from macnet.models.systems.programs import lookup_table, read_prefix

ATTENTION_MODULES = ("Scene", "Find", "Filter", "FindSameProperty", "Transform", "And", "Or")
"""Modules whose output is an attention map, in the order of their tokens, from 1."""
ANSWER_MODULES = (
    "Exist", "Count", "EqualNum", "MoreNum", "LessNum", "SameProperty", "Describe",
)  # fmt: skip
"""Modules whose output is an answer, in the order of their tokens, which follow."""
TOKENS = ("<eos>", *ATTENTION_MODULES, *ANSWER_MODULES)
"""The 15 tokens of layouts by id."""
EOS, SCENE, FIND, FILTER = (TOKENS.index(name) for name in ("<eos>", "Scene", "Find", "Filter"))
FIRST_ANSWER = TOKENS.index(ANSWER_MODULES[0])
PAIRED = ("And", "Or", "EqualNum", "MoreNum", "LessNum", "SameProperty")
INPUTS = tuple(0 if name in ("<eos>", "Scene", "Find") else 1 + (name in PAIRED) for name in TOKENS)
"""Number of attention maps that each token takes."""
LEFT_OUT = len(TOKENS)
"""In place of a token: a function that no module stands for."""
SHORTEST = 2
"""The fewest steps in which a question can be answered, such as by Find and Exist."""

_MODULE_OF = {
    "scene": "Scene",
    "relate": "Transform",
    "intersect": "And",
    "union": "Or",
    "exist": "Exist",
    "count": "Count",
    "equal_integer": "EqualNum",
    "greater_than": "MoreNum",
    "less_than": "LessNum",
}
_MODULE_OF_KIND = {
    "filter": "Filter",
    "same": "FindSameProperty",
    "equal": "SameProperty",
    "query": "Describe",
}


def _module_of(token: str) -> str | None:
    """The module that stands for a token of a CLEVR program, if there is one."""
    function = token.partition("[")[0]
    if function == "unique" or function in SPECIALS:
        return None
    return _MODULE_OF.get(function) or _MODULE_OF_KIND[function.partition("_")[0]]


def _is_comparison(token: str) -> bool:
    return arity(token.partition("[")[0]) == 2 and token not in ("union", "intersect")


_MODULES = tuple(
    LEFT_OUT if (module := _module_of(token)) is None else TOKENS.index(module)
    for token in PROGRAM_TOKENS
)
_IS_COMPARISON = tuple(int(_is_comparison(token)) for token in PROGRAM_TOKENS)
_IS_COMPARED = tuple(int(_module_of(token) in ("Count", "Describe")) for token in PROGRAM_TOKENS)


# --- from CLEVR's programs -------------------------------------------------------------------


def layout_names(prefix: Sequence[str]) -> list[str]:
    """The modules of the layout of a CLEVR program in prefix form, in order of execution."""
    modules: list[str] = []
    compared = _is_comparison(prefix[0])
    for token in to_postfix(from_prefix(prefix)):
        module = _module_of(token)
        if module is None or (compared and module in ("Count", "Describe")):
            continue
        if module == "Filter" and modules[-1] == "Scene":
            modules[-1] = "Find"
        elif module != "Filter" or modules[-1] not in ("Find", "Filter"):
            modules.append(module)
    return modules


def layouts_of(programs: Tensor, steps: int) -> Tensor:
    """The layouts (B, T) of CLEVR programs (B, L) in prefix form; T is `steps`.

    A layout is all <eos> where there is no program, or where it is longer than T.
    """
    trees, device = read_prefix(programs), programs.device
    modules = lookup_table(_MODULES, device)[trees.tokens]  # (B, P)
    is_comparison = lookup_table(_IS_COMPARISON, device)[trees.tokens].bool()
    is_compared = lookup_table(_IS_COMPARED, device)[trees.tokens].bool()
    below = is_comparison.take_along_dim(trees.parent.clamp(min=0), 1) & (trees.parent >= 0)
    left_out = ~trees.is_node | (modules == LEFT_OUT) | (is_compared & below)
    modules = modules.masked_fill(left_out, LEFT_OUT)
    modules = torch.empty_like(modules).scatter(1, trees.postfix, modules)  # in postfix order
    modules = _pack(modules, modules != LEFT_OUT)
    # A filter has one input, which is the module before it.
    is_filter, is_scene = modules == FILTER, modules == SCENE
    merged = is_filter & F.pad((is_filter | is_scene)[:, :-1], (1, 0))
    is_find = is_scene & F.pad(is_filter[:, 1:], (0, 1))
    kept = (modules != EOS) & ~merged
    modules = _pack(modules.masked_fill(is_find, FIND), kept)
    modules = F.pad(modules, (0, max(0, steps - modules.shape[1])))[:, :steps]
    known = (programs != PAD).any(1) & (kept.sum(1) <= steps)
    return modules.masked_fill(~known[:, None], EOS)


def _pack(tokens: Tensor, kept: Tensor) -> Tensor:
    """The tokens (B, P) that are kept, one after another, and <eos> after them."""
    place = torch.where(kept, kept.cumsum(1) - 1, tokens.shape[1])  # the rest in a column too many
    packed = F.pad(torch.full_like(tokens, EOS), (0, 1), value=EOS)
    return packed.scatter(1, place, tokens.masked_fill(~kept, EOS))[:, :-1]


# --- what can be executed --------------------------------------------------------------------


def valid_tokens(attentions: Tensor, answers: Tensor, steps_left: Tensor | int) -> Tensor:
    """(…, 15) bool: the tokens after which a layout can still be completed.

    Args:
        attentions: (…) the number of maps that no module has taken yet.
        answers: (…) the number of answers, 0 or 1.
        steps_left: The number of tokens to come, with this one; 2 at the start at least.
    """
    token = torch.arange(len(TOKENS), device=attentions.device)
    inputs = lookup_table(INPUTS, attentions.device)
    before = attentions[..., None]
    left = steps_left[..., None] if isinstance(steps_left, Tensor) else steps_left
    after = before - inputs + 1  # if the module makes a map
    # An answer takes one map or two; each further one takes an And, and if there is none, a Find.
    completion = torch.where(after == 0, SHORTEST, (after - 1).clamp(min=1))
    can_attend = (before >= inputs) & (completion < left)
    can_answer = before == inputs  # no map is left over
    is_open = (answers == 0)[..., None]
    valid = torch.where(token < FIRST_ANSWER, can_attend, can_answer) & is_open
    return torch.where(token == EOS, ~is_open, valid)


def count_outputs(layouts: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) each: the maps not yet taken, and the answers, after each token of the layouts."""
    is_answer = layouts >= FIRST_ANSWER
    makes_map = (layouts != EOS) & ~is_answer
    taken = lookup_table(INPUTS, layouts.device)[layouts]
    return (makes_map.long() - taken).cumsum(1), is_answer.cumsum(1)


def valid_choices(layouts: Tensor) -> Tensor:
    """(B, T, 15) bool: the tokens among which each token of valid layouts was chosen."""
    attentions, answers = (F.pad(counts, (1, -1)) for counts in count_outputs(layouts))  # before it
    steps_left = torch.arange(layouts.shape[1], 0, -1, device=layouts.device)
    return valid_tokens(attentions, answers, steps_left)


def first_inputs(layouts: Tensor) -> Tensor:
    """(B, T): where the first of two inputs of And, Or and comparisons is made.

    The second, like the only input of other modules, is made by the module before; where a module
    has no two inputs, the place is one of its past or 0.
    """
    steps = layouts.shape[1]
    attentions, answers = count_outputs(layouts)
    outputs = attentions + answers  # on the stack, after each token
    position = torch.arange(steps, device=layouts.device)
    # What lies under the second input was on top when the stack was last as high as it is after
    # both have been replaced by the output.
    as_high = outputs[:, None] == outputs[..., None]  # (B, t, earlier)
    earlier = position < (position - 1)[:, None]
    return torch.where(as_high & earlier, position, 0).amax(2)


def answer_steps(layouts: Tensor) -> Tensor:
    """(B,): where the answer module is; 0 if there is none."""
    return (layouts >= FIRST_ANSWER).int().argmax(1)
