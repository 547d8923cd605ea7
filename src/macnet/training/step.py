"""One training step: gather, forward, backward, clip, optimizer, average of the weights.

On CUDA all of it is one captured graph, and a step costs the host a copy of indices and a launch;
elsewhere the same code runs eagerly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from macnet import distributed
from macnet.checkpoint import check_tensors
from macnet.data.batches import Batch, BatchSource
from macnet.errors import InputError
from macnet.models.kernels.streams import MAIN_PRIORITY
from macnet.models.objectives import LossSums
from macnet.models.recipe import Recipe
from macnet.training.augment import augment_batch
from macnet.training.ema import WeightEMA
from macnet.training.muon import Muon

EAGER_STEPS = 3  # before a graph can be captured, kernels must be compiled and states exist


class Meters(NamedTuple):
    """Sums over all steps of a stage and over all processes: those of `LossSums`, and a norm."""

    loss: float
    counted: float
    correct: float
    labelled: float
    gradient_norm: float

    @property
    def mean_loss(self) -> float:
        """The loss, averaged over its terms; 0 if there are none."""
        return self.loss / max(self.counted, 1)

    def since(self, before: Sequence[float]) -> Meters:
        """The sums since an earlier reading; since the start, if that is empty."""
        return Meters(*(a - b for a, b in zip(self, before, strict=True))) if before else self


AnyOptimizer = Optimizer | Muon
OPTIMIZERS: Mapping[str, Callable[..., AnyOptimizer]] = {"adam": Adam, "adamw": AdamW, "muon": Muon}


class Learner:
    """A network that is trained step by step."""

    def __init__(
        self,
        network: nn.Module,
        objective: Callable[[nn.Module, Batch], LossSums],
        recipe: Recipe,
        source: BatchSource,
        device: torch.device,
        *,
        capture: bool = True,
    ) -> None:
        self.network, self._objective = network.train(), objective
        self.recipe, self._source, self.device = recipe, source, device
        self._weights = trainable_parameters(network, recipe.trainable)
        self.optimizer = make_optimizer(self._weights, recipe)
        self._ema: WeightEMA | None = None
        self._ema_network = network
        if recipe.ema:
            self._ema_network = copy.deepcopy(network).eval()
            if self._weights:
                self._ema = WeightEMA([*self._weights.values()], recipe.ema)
        self._meters = torch.zeros(len(Meters._fields), dtype=torch.float64, device=device)
        self._capture = capture and device.type == "cuda"
        # What will be captured must not have run on the stream that everybody uses.
        self._stream: torch.cuda.Stream | None = None
        if self._capture:
            self._stream = torch.cuda.Stream(device, priority=MAIN_PRIORITY)
        self._steps = 0
        self._static_inputs: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None

    def step(self, number: int, rate: float) -> None:
        """Train on the next batch, at a learning rate, after so many steps of the stage."""
        sampled = self._source.sample()
        self._set_rates(number, rate)
        if not self._capture:
            self._train_on(sampled)
        elif self._steps < EAGER_STEPS:
            assert self._stream is not None
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._train_on(sampled)
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            if self._graph is None:
                self._graph = self._captured(sampled)
            for static, new in zip(self._static_inputs, sampled, strict=True):
                static.copy_(new, non_blocking=True)
            self._graph.replay()
        self._steps += 1

    def meters(self) -> Meters:
        """The sums so far; this waits for the device."""
        return Meters(*self._meters.tolist())

    def ema_network(self) -> nn.Module:
        """The network to evaluate: averaged weights, and the present buffers of normalisation."""
        if self._ema is not None:
            self._ema.copy_to(self._averages())
        if self._ema_network is not self.network:
            theirs = dict(self.network.named_buffers())
            for name, buffer in self._ema_network.named_buffers():
                buffer.copy_(theirs[name])
        return self._ema_network

    def _averages(self) -> list[Tensor]:
        """The averaged weights in the network that is evaluated."""
        averages = dict(self._ema_network.named_parameters())
        return [averages[name] for name in self._weights]

    def _set_rates(self, number: int, rate: float) -> None:
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
        if self._ema is not None and self.recipe.ema_warmup:
            self._ema.set_decay(min(self.recipe.ema, (1 + number) / (10 + number)))

    def _captured(self, sampled: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        self._static_inputs = tuple(tensor.clone() for tensor in sampled)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        # Another thread may render images or copy them meanwhile.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._train_on(self._static_inputs)
        return graph

    def _train_on(self, sampled: tuple[Tensor, ...]) -> None:
        batch = augment_batch(self._source.gather(sampled), self.recipe)
        low = self.recipe.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            scored = self._objective(self.network, batch)
        sums = torch.stack([sum_.detach().double() for sum_ in scored])
        distributed.all_reduce_sum(sums)
        norm = sums.new_zeros(())
        if self.optimizer is not None:
            (scored.total / sums[1].clamp(min=1)).backward()  # there may be no known answer
            norm = self._clip_gradients()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self._ema is not None:
                self._ema.update()
        self._meters += torch.cat([sums, norm.double()[None]])

    def _clip_gradients(self) -> Tensor:
        """Sum the gradients of all processes and clip them; gives their norm before."""
        weights = self._weights.values()
        if distributed.size() > 1:
            # Not torch's wrapper: a module that no question of this share has used has no gradient,
            # and a graph must hold every exchange.
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
            summed = distributed.all_reduce_sum(torch.cat([g.flatten() for g in gradients]))
            parts = summed.split([weight.numel() for weight in weights])
            for weight, part in zip(weights, parts, strict=True):
                weight.grad = torch.empty_like(weight).copy_(part.view(weight.shape))
        most = self.recipe.clip or math.inf
        if self.recipe.clip_each:
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            norms = [gradient.norm() for gradient in gradients]
            for gradient, norm in zip(gradients, norms, strict=True):
                gradient.mul_((most / (norm + 1e-6)).clamp(max=1))
            total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
            return total
        return nn.utils.clip_grad_norm_(weights, most)

    # --- state, by name --------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All tensors that resuming takes."""
        tensors = {f"network/{name}": t for name, t in self.network.state_dict().items()}
        if self.ema_network() is not self.network:
            tensors |= {f"ema/{name}": t for name, t in self._ema_network.state_dict().items()}
        tensors |= _optimizer_state(self.optimizer, self._weights)
        tensors["meters"] = self._meters
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the state to that which `state` gave; `check_state` has accepted it."""
        if self.optimizer is not None:
            _initialize_state(self.optimizer)  # in the optimizer's own layout; weights follow
            for name, weight in self._weights.items():
                state = self.optimizer.state[weight]
                kept = {key: tensors.get(f"optimizer/{key}/{name}") for key in state}
                if any(value is None for value in kept.values()):  # no step has used this weight
                    del self.optimizer.state[weight]
                    continue
                for key, value in kept.items():
                    if isinstance(state[key], Tensor):
                        state[key].copy_(value)
                    else:
                        state[key] = type(state[key])(value)
        self.network.load_state_dict(_below("network/", tensors))
        if self._ema_network is not self.network:
            self._ema_network.load_state_dict(_below("ema/", tensors))
        if self._ema is not None:
            self._ema.copy_from(self._averages())
        self._meters.copy_(tensors["meters"])


def make_optimizer(weights: Mapping[str, nn.Parameter], recipe: Recipe) -> AnyOptimizer | None:
    """The optimizer of a recipe; None if there is nothing to train."""
    if not weights:
        return None
    device = next(iter(weights.values())).device
    on_gpu = device.type == "cuda"
    # A captured graph reads its numbers from the device.
    lr = torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr
    return OPTIMIZERS[recipe.optimizer](
        weights.items(), lr=lr, weight_decay=recipe.weight_decay, fused=True, capturable=on_gpu
    )


def _initialize_state(optimizer: AnyOptimizer) -> None:
    """Let an optimizer make the state it keeps of each weight, by a step with zero gradients."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()


def _optimizer_state(
    optimizer: AnyOptimizer | None, weights: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """All that an optimizer keeps of each weight, by name; a plain number as a tensor."""
    if optimizer is None:
        return {}
    return {
        f"optimizer/{key}/{name}": value
        if isinstance(value, Tensor)
        else torch.tensor(value, dtype=torch.float64)
        for name, weight in weights.items()
        for key, value in optimizer.state[weight].items()
    }


def check_state(
    tensors: Mapping[str, Tensor], network: nn.Module, recipe: Recipe, path: Path
) -> None:
    """Check that the tensors of a file are a state of such a network, after some step or none."""
    kept = ("network", "ema") if recipe.ema else ("network",)
    wanted = {
        f"{kind}/{name}": tensor for kind in kept for name, tensor in network.state_dict().items()
    }
    trained = trainable_parameters(network, recipe.trainable)
    zeros = {name: nn.Parameter(torch.zeros_like(weight)) for name, weight in trained.items()}
    optimizer = make_optimizer(zeros, recipe)
    if optimizer is not None:
        _initialize_state(optimizer)
    for name, zero in zeros.items():
        state = _optimizer_state(optimizer, {name: zero})
        if state.keys() & tensors.keys():  # there is none before the first step
            wanted |= state
    wanted["meters"] = torch.zeros(len(Meters._fields), dtype=torch.float64, device="meta")
    found = {name: tensor for name, tensor in tensors.items() if not name.startswith("random/")}
    check_tensors(found, wanted, path, exact=True)


def trainable_parameters(network: nn.Module, parts: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The parameters of the named parts, all if none is named; the others are frozen."""
    weights = dict(network.named_parameters())
    for part in parts:
        if not any(f"{name}.".startswith(f"{part}.") for name in weights):
            known = sorted({name.partition(".")[0] for name in weights})
            raise InputError(
                f"`recipe.trainable` is {part!r}, but the network has no such part; it has "
                f"{', '.join(known) or 'none that learns'}"
            )
    prefixes = tuple(f"{part}." for part in parts)
    for name, weight in weights.items():
        weight.requires_grad_(not parts or f"{name}.".startswith(prefixes))
    return {name: weight for name, weight in weights.items() if weight.requires_grad}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
