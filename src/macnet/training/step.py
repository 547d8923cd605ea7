"""One step of learning: gather, forward, backward, clip, optimise, average.

On CUDA all of it is one captured graph, and a step costs the host a copy of indices and a launch;
elsewhere the same code runs as it stands.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from macnet import parallel
from macnet.data.batches import Source
from macnet.errors import InputError
from macnet.models.registry import System
from macnet.training.augment import augmented
from macnet.training.checkpoint import check_tensors
from macnet.training.muon import Muon, is_matrix
from macnet.training.objectives import Objective
from macnet.training.recipes import Recipe

EAGER_STEPS = 3  # before a graph can be captured, kernels must be compiled and states be there


class Meters(NamedTuple):
    """Sums over all steps of a stage, and over all processes."""

    loss: float
    counted: float
    right: float
    asked: float
    gradient_norm: float

    @property
    def mean_loss(self) -> float:
        return self.loss / self.counted

    def since(self, before: Sequence[float]) -> Meters:
        """Without what they showed before, if they showed anything."""
        return Meters(*(a - b for a, b in zip(self, before, strict=True))) if before else self


OPTIMISERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "muon": Muon,
}


class Learner:
    """A network that learns, step by step; `average` is what it has become, for evaluation."""

    def __init__(
        self,
        system: System,
        network: nn.Module,
        objective: Objective,
        recipe: Recipe,
        source: Source,
        device: torch.device,
        *,
        capture: bool = True,
    ) -> None:
        self.system, self.network, self._objective = system, network.train(), objective
        self.recipe, self._source, self.device = recipe, source, device
        self._weights = chosen_weights(network, recipe.trains)
        on_gpu = device.type == "cuda"
        # A captured graph reads its numbers from the device.
        lr = torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr
        self.optimiser: torch.optim.Optimizer | None = None
        if self._weights:
            self.optimiser = OPTIMISERS[recipe.optimiser](
                self._weights.items(),
                lr=lr,
                weight_decay=recipe.weight_decay,
                fused=True,
                capturable=on_gpu,
            )
        self.average = copy.deepcopy(network).eval() if recipe.average else network
        averages = dict(self.average.named_parameters())
        self._averages: list[Tensor] = (
            [averages[name] for name in self._weights] if recipe.average else []
        )
        self._renewal = torch.tensor(1 - recipe.average, device=device)
        self._meters = torch.zeros(len(Meters._fields), dtype=torch.float64, device=device)
        self._capture = capture and on_gpu
        self._steps = 0
        self._drawn: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None

    def step(self, number: int, rate: float) -> None:
        """Learn from the next batch, the one after `number` of this stage, at a learning rate."""
        drawn = self._source.draw()
        self._set(number, rate)
        if not self._capture:
            self._learn(drawn)
        elif self._steps < EAGER_STEPS:
            side = torch.cuda.Stream(self.device)  # what will be captured must not have run
            side.wait_stream(torch.cuda.current_stream())  # on the stream that everybody uses
            with torch.cuda.stream(side):
                self._learn(drawn)
            torch.cuda.current_stream().wait_stream(side)
        else:
            if self._graph is None:
                self._graph = self._captured(drawn)
            for static, new in zip(self._drawn, drawn, strict=True):
                static.copy_(new, non_blocking=True)
            self._graph.replay()
        self._steps += 1

    def meters(self) -> Meters:
        """Waits for the device."""
        return Meters(*self._meters.tolist())

    def evaluated(self) -> nn.Module:
        """The network to evaluate: the average, with what batch normalisation has seen by now."""
        if self.average is not self.network:
            theirs = dict(self.network.named_buffers())
            for name, buffer in self.average.named_buffers():
                buffer.copy_(theirs[name])
        return self.average

    def _set(self, number: int, rate: float) -> None:
        if self.optimiser is not None:
            for group in self.optimiser.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
        if self.recipe.average_warm_up:
            self._renewal.fill_(1 - min(self.recipe.average, (1 + number) / (10 + number)))

    def _captured(self, drawn: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        self._drawn = tuple(tensor.clone() for tensor in drawn)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # Another thread may draw pictures or copy them meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._learn(self._drawn)
        return graph

    def _learn(self, drawn: tuple[Tensor, ...]) -> None:
        batch = self._source.gather(drawn)
        batch = batch._replace(images=augmented(batch.images, self.recipe))
        low = self.recipe.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            scored = self._objective(self.system, self.network, batch)
        sums = torch.stack([sum_.detach().double() for sum_ in scored])
        parallel.sum_over_all(sums)
        norm = sums.new_zeros(())
        if self.optimiser is not None:
            (scored.total / sums[1]).backward()
            norm = self._clipped()
            self.optimiser.step()
            self.optimiser.zero_grad()
            self._follow()
        self._meters += torch.cat([sums, norm.double()[None]])

    def _clipped(self) -> Tensor:
        """The norm of the gradients of all processes together, which is then no larger."""
        weights = self._weights.values()
        if parallel.size() > 1:
            # Not torch's wrapper: a module that no question of this share has used has no gradient,
            # and a graph must hold every exchange.
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
            flat = parallel.sum_over_all(_flatten_dense_tensors(gradients))
            summed = _unflatten_dense_tensors(flat, gradients)
            for weight, gradient in zip(weights, summed, strict=True):
                weight.grad = torch.empty_like(weight).copy_(gradient)
        return nn.utils.clip_grad_norm_(weights, self.recipe.clip or math.inf)

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the weights."""
        if self._averages:
            change = torch._foreach_sub([*self._weights.values()], self._averages)
            torch._foreach_mul_(change, self._renewal)
            torch._foreach_add_(self._averages, change)

    # --- state, by name --------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All that going on takes."""
        tensors = {f"network/{name}": t for name, t in self.network.state_dict().items()}
        if self.average is not self.network:
            tensors |= {f"average/{name}": t for name, t in self.average.state_dict().items()}
        if self.optimiser is not None:
            for name, weight in self._weights.items():
                for key, value in self.optimiser.state[weight].items():
                    tensors[f"optimiser/{key}/{name}"] = value
        tensors["meters"] = self._meters
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `state` gave, as `check_state` has found."""
        self.network.load_state_dict(_below("network/", tensors))
        if self.average is not self.network:
            self.average.load_state_dict(_below("average/", tensors))
        if self.optimiser is not None:
            for key in ("step", "exp_avg", "exp_avg_sq", "momentum"):
                for name, value in _below(f"optimiser/{key}/", tensors).items():
                    weight = self._weights[name]
                    kept = value.to(self.device if self.device.type == "cuda" else value.device)
                    if key != "step":
                        kept = torch.empty_like(weight).copy_(kept)  # in the weight's own layout
                    self.optimiser.state[weight][key] = kept
        self._meters.copy_(tensors["meters"])


def check_state(
    tensors: Mapping[str, Tensor], network: nn.Module, recipe: Recipe, path: Path
) -> None:
    """That what a file holds is what `state` gives of such a network, at some step."""
    kept = ("network", "average") if recipe.average else ("network",)
    wanted = {
        f"{kind}/{name}": tensor for kind in kept for name, tensor in network.state_dict().items()
    }
    for name, weight in chosen_weights(network, recipe.trains).items():
        is_pushed = recipe.optimiser == "muon" and is_matrix(name, weight)
        step = torch.zeros((), device="meta")
        moments = {"step": step, "exp_avg": weight, "exp_avg_sq": weight}
        state = {"momentum": weight} if is_pushed else moments
        named = {f"optimiser/{key}/{name}": tensor for key, tensor in state.items()}
        if named.keys() & tensors.keys():  # there is none before the first step
            wanted |= named
    wanted["meters"] = torch.zeros(len(Meters._fields), dtype=torch.float64, device="meta")
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith("random/")}
    check_tensors(found, wanted, path, exact=True)


def chosen_weights(network: nn.Module, parts: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The parameters of the parts named, all if none is; the others are held still."""
    weights = dict(network.named_parameters())

    def is_of(part: str, name: str) -> bool:
        return name == part or name.startswith(f"{part}.")

    for part in parts:
        if not any(is_of(part, name) for name in weights):
            known = sorted({name.partition(".")[0] for name in weights})
            raise InputError(
                f"recipe.trains is {part!r}, but the network has no such part; it has "
                f"{', '.join(known) or 'none that learns'}"
            )
    chosen = {
        name: weight
        for name, weight in weights.items()
        if not parts or any(is_of(part, name) for part in parts)
    }
    for name, weight in weights.items():
        weight.requires_grad_(name in chosen)
    return chosen


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
