"""The loop of a stage: steps, learning rates, log, validation, checkpoints, early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NoReturn

import torch
from torch import nn

from macnet import distributed
from macnet.checkpoint import LAST
from macnet.errors import InputError, NotFiniteError
from macnet.evaluation.accuracy import Results
from macnet.evaluation.report import summary_line
from macnet.models.recipe import Recipe
from macnet.progress import Advance, progress
from macnet.signals import Interrupts
from macnet.training.log import TrainingLog
from macnet.training.run_folder import RunFolder, TrainState
from macnet.training.step import Learner, Meters

# Steps between readings of the meters, each of which waits for a GPU, or for other processes.
READ_EVERY = {"cpu": 10, "cuda": 40}  # one process on a CPU reads them after each step
LOG_LINES = 50  # in an epoch, at most
DIVERGED = 10  # times the loss of a uniform guess: training does not recover from there
# The authors halve the rate after an epoch if the loss before it was below the second number and
# has fallen by less than the first, as long as the rate is above the third.
AUTHORS_RULE = ((0.015, 0.5, 2e-5), (0.008, 0.15, 1e-5), (0.003, 0.10, 5e-6))
# The public codes of relation networks start at a hundredth of the maximum (5e-6 of 5e-4) and
# double the rate every 20 epochs, which one of them calls crucial. They double it as long as it is
# below the maximum and so end above, at 6.4e-4; here it stays at the maximum.
DOUBLING_SPAN, DOUBLING_EPOCHS = 100, 20


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    recipe: Recipe
    steps: int
    """Number of steps of the stage."""
    steps_per_epoch: int
    """Number of steps of an epoch."""

    def rate(self, step: int, losses: Sequence[float] = ()) -> float:
        """The rate of the step after so many; `losses` are those of the epochs before it."""
        rate = self.recipe.lr
        if self.recipe.schedule == "doubling":
            doublings = step // (DOUBLING_EPOCHS * self.steps_per_epoch)
            rate /= max(1, DOUBLING_SPAN * 0.5**doublings)
        warmup = round(self.recipe.warmup * self.steps_per_epoch)
        if step < warmup:
            return rate * (step + 1) / warmup
        if self.recipe.schedule == "cosine":
            progress = (step - warmup) / max(1, self.steps - warmup)
            return rate * (1 + math.cos(math.pi * progress)) / 2
        if self.recipe.schedule == "authors":
            return self._halved(losses)
        return rate

    def _halved(self, losses: Sequence[float]) -> float:
        rate = self.recipe.lr
        for before, now in pairwise(losses):
            if any(
                before - now < fall and before < below and rate > above
                for fall, below, above in AUTHORS_RULE
            ):
                rate /= 2
        return rate


class Loop:
    """The training of one stage; how far it has come is in `state`."""

    def __init__(
        self,
        name: str,
        learner: Learner,
        validate: Callable[[nn.Module], Results],
        folder: RunFolder,
        log: TrainingLog,
        state: TrainState,
        *,
        steps_per_epoch: int,
        uniform_loss: float,
        save_every: float,
        selects_by: Literal["answers", "programs"] = "answers",
    ) -> None:
        """`uniform_loss`: that of a uniform guess. `selects_by`: the accuracy of the best."""
        self._name, self._learner, self._validate = name, learner, validate
        self._selects_by = selects_by
        self._folder, self._log, self.state = folder, log, state
        recipe = learner.recipe
        self._patience, self._batch = recipe.patience, recipe.images * recipe.questions
        self._steps = max(1, round(recipe.epochs * steps_per_epoch))
        self._steps_per_epoch = steps_per_epoch
        if not 0 <= state.step <= self._steps:
            raise InputError(
                f"{folder.path / LAST}: step is {state.step:,}, but the stage has {self._steps:,}"
            )
        self._schedule = Schedule(recipe, self._steps, steps_per_epoch)
        self._validate_every = max(1, round(recipe.validate_every * steps_per_epoch))
        on_gpu, kind = learner.device.type == "cuda", learner.device.type
        self._read_every = READ_EVERY[kind] if on_gpu or distributed.size() > 1 else 1
        self._log_every = max(self._read_every if on_gpu else 1, steps_per_epoch // LOG_LINES)
        self._max_loss = DIVERGED * uniform_loss
        self._save_every, self._saved_at = save_every, time.monotonic()
        self._started_at = time.monotonic() - state.seconds
        self._last_logged = state.questions, state.seconds
        self._questions_before = state.questions - round(learner.meters().labelled)

    def run(self) -> None:
        """Train to the end of the stage."""
        state = self.state
        total, done = self._steps * self._batch, state.step * self._batch
        moments = self._read_every, self._log_every, self._steps_per_epoch, self._validate_every
        is_alone = distributed.size() == 1  # several stop after the same step
        with Interrupts() as interrupts, progress(self._name, "questions", total, done) as advance:
            while state.step < self._steps and not self._is_stalled():
                rate = self._schedule.rate(state.step, state.epoch_losses)
                self._learner.step(state.step, rate)
                state.step += 1
                if self._is_time(*moments) or (is_alone and interrupts.asked):
                    self._read_meters(advance)
                    self._save_or_stop(interrupts)
        ended = state.step == self._steps
        if not ended and state.step % self._log_every:
            self._log_training(self._learner.meters().since(state.meters_at_log))
        self._write("end", reason="all epochs are over" if ended else "early stopping")

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.seconds = self._seconds()
        self._log.sync()
        self.state.log_size = self._log.size
        self._folder.save(self.state, self._learner.state())
        self._saved_at = time.monotonic()

    def _is_stalled(self) -> bool:
        return 0 < self._patience <= self.state.validations_since_best

    def _is_time(self, *every: int) -> bool:
        """Whether a step is one of every so many, or the last; in all processes alike."""
        step = self.state.step
        return step == self._steps or any(step % few == 0 for few in every)

    def _read_meters(self, advance: Advance) -> None:
        """Show, check and log the loss, and validate when it is time."""
        state, meters = self.state, self._learner.meters()
        # A batch may have holes: not all its questions are labelled.
        state.questions = self._questions_before + round(meters.labelled)
        recent = meters.since(state.meters_at_log)
        if not all(map(math.isfinite, recent)) or recent.mean_loss >= self._max_loss:
            self._end_diverged(f"the loss was {recent.mean_loss:.3g}")
        advance.to(state.step * self._batch, f"loss {recent.mean_loss:.4f}, lr {self._rate():.1e}")
        if self._is_time(self._log_every):
            self._log_training(recent)
            state.meters_at_log = list(meters)
        if state.step % self._steps_per_epoch == 0:
            state.epoch_losses.append(meters.since(state.meters_at_epoch).mean_loss)
            state.meters_at_epoch = list(meters)
        if self._is_time(self._validate_every):
            self._run_validation(advance)

    def _log_training(self, recent: Meters) -> None:
        state, (questions, seconds) = self.state, self._last_logged
        self._last_logged = state.questions, self._seconds()
        self._write(
            "train",
            loss=recent.mean_loss,
            accuracy=recent.correct / max(recent.labelled, 1),
            lr=self._rate(),
            questions_per_second=(state.questions - questions) / (self._seconds() - seconds),
            gradient_norm=recent.gradient_norm / (state.step % self._log_every or self._log_every),
        )

    def _run_validation(self, advance: Advance) -> None:
        """Validate, and keep the network if it is the best so far."""
        state, network = self.state, self._learner.ema_network()
        try:
            results = self._validate(network)
        except NotFiniteError:  # the step just made was one too far
            self._end_diverged("answers at validation were not finite")
        accuracy = results.overall.value
        if self._selects_by == "programs" and results.programs:
            accuracy = results.programs["Overall"].value
        # What such a stage learns does not show in the answers: without programs, the last is best.
        is_best = accuracy > state.best_accuracy or (
            self._selects_by == "programs" and not results.programs
        )
        state.validations_since_best = 0 if is_best else state.validations_since_best + 1
        if is_best:
            state.best_accuracy = accuracy
            self._folder.set_best(state, results.accuracies(), network.state_dict())
        self._write("validation", accuracy=results.accuracies(), best=is_best)
        epoch = state.step / self._steps_per_epoch
        advance.say(f"epoch {epoch:.2f}: {summary_line(results, 'val')}")

    def _write(self, kind: str, **numbers: object) -> None:
        state = self.state
        self._log.write(
            kind=kind,
            stage=self._name,
            step=state.step,
            epoch=state.step / self._steps_per_epoch,
            questions=state.questions,
            seconds=self._seconds(),
            **numbers,
        )

    def _rate(self) -> float:
        """The learning rate of the last step."""
        return self._schedule.rate(self.state.step - 1, self.state.epoch_losses)

    def _seconds(self) -> float:
        """Seconds of training, without the time between a stop and a resumption."""
        return time.monotonic() - self._started_at

    def _save_or_stop(self, interrupts: Interrupts) -> None:
        """What any process was asked to do, all do: each has its share of what is saved."""
        late = time.monotonic() - self._saved_at >= self._save_every
        asked = [interrupts.asked, late and distributed.is_rank_zero()]
        wishes = torch.tensor(asked, dtype=torch.int32, device=self._learner.device)
        stop, save = distributed.all_reduce_sum(wishes).tolist()
        if stop or save:
            self.save()
        if stop:
            raise KeyboardInterrupt(
                f"stopped after step {self.state.step:,} and saved to {self._folder.path}; the "
                "same with `resume` goes on from there"
            )

    def _end_diverged(self, sign: str) -> NoReturn:
        self._write("end", reason="diverged")
        self._folder.save_best()
        is_saved = (self._folder.path / LAST).exists()
        raise InputError(
            f"{self._folder.path}: {sign} at step {self.state.step:,}, at a learning rate of "
            f"{self._rate():.1e}, and training will not recover; try a smaller `recipe.lr`, a "
            "longer `recipe.warmup`, a small `recipe.clip` or `recipe.precision` float32"
            + (f" ({LAST} is of an earlier, sound step)" if is_saved else "")
        )
