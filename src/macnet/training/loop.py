"""The loop of a stage: learn, look how it goes, validate, save, and end when it is time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NoReturn

import torch

from macnet import parallel
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError, NotFiniteError
from macnet.evaluation.accuracy import Results
from macnet.evaluation.report import in_one_line
from macnet.models.registry import System
from macnet.progress import Advance, progress
from macnet.training.checkpoint import LAST
from macnet.training.interrupts import Interrupts
from macnet.training.record import Record
from macnet.training.run import Run, Standing
from macnet.training.schedule import Schedule
from macnet.training.step import Learner, Meters

LOOK_EVERY = 10  # steps: a look at how it goes waits for the device
LINES = 50  # of the record, in an epoch
HOPELESS = 10  # times the loss of a guess among the answers: nothing comes back from there

Validate = Callable[[System, torch.nn.Module], Results]


class Loop:
    """A stage on its way; how far it has come is in `standing`."""

    def __init__(
        self,
        name: str,
        learner: Learner,
        validate: Validate,
        run: Run,
        record: Record,
        standing: Standing,
        *,
        steps_per_epoch: int,
        save_every: float,
    ) -> None:
        self._name, self._learner, self._validate = name, learner, validate
        self._run, self._record, self.standing = run, record, standing
        recipe = learner.recipe
        self._patience, self._batch = recipe.patience, recipe.images * recipe.questions
        self._steps = max(1, round(recipe.epochs * steps_per_epoch))
        self._steps_per_epoch = steps_per_epoch
        if not 0 <= standing.step <= self._steps:
            raise InputError(
                f"{run.folder / LAST}: step is {standing.step:,}, but the stage has {self._steps:,}"
            )
        self._schedule = Schedule(recipe, self._steps, steps_per_epoch)
        self._validate_every = max(1, round(recipe.validate * steps_per_epoch))
        self._line_every = max(1, steps_per_epoch // LINES)
        waits = learner.device.type != "cpu" or parallel.size() > 1
        self._look_every = LOOK_EVERY if waits else 1
        self._save_every, self._saved = save_every, time.monotonic()
        self._began = time.monotonic() - standing.seconds
        self._lined = standing.questions, standing.seconds  # at the last line of the record
        self._of_earlier_stages = standing.questions - round(learner.meters().asked)

    def run(self) -> None:
        """To the end of the stage."""
        now = self.standing
        size = self._steps * self._batch, now.step * self._batch
        moments = self._look_every, self._line_every, self._steps_per_epoch, self._validate_every
        with Interrupts() as interrupts, progress(self._name, "questions", *size) as advance:
            while not self._is_over():
                self._learner.step(now.step, self._schedule.rate(now.step, now.losses))
                now.step += 1
                if self._is_time(*moments):
                    self._look_at_it(advance)
                    self._save_or_stop(interrupts)
        self._write(
            "end", why="all epochs are over" if now.step == self._steps else "early stopping"
        )

    def save(self) -> None:
        self.standing.seconds = self._seconds()
        self._record.sync()
        self.standing.record = self._record.size
        self._run.save(self.standing, self._learner.state())
        self._saved = time.monotonic()

    def _is_over(self) -> bool:
        stopped = 0 < self._patience <= self.standing.waited
        return stopped or self.standing.step >= self._steps

    def _is_time(self, *every: int) -> bool:
        """Whether a step is one of every so many, or the last. All processes think the same."""
        step = self.standing.step
        return step == self._steps or any(step % few == 0 for few in every)

    def _look_at_it(self, advance: Advance) -> None:
        now, meters = self.standing, self._learner.meters()
        now.questions = self._of_earlier_stages + round(meters.asked)  # a batch may have holes
        lately = meters.since(now.at_line)
        self._refuse_divergence(lately)
        note = f"loss {lately.mean_loss:.4f}, lr {self._rate():.1e}"
        advance.to(now.step * self._batch, note)
        if self._is_time(self._line_every):
            self._write_line(lately)
            now.at_line = list(meters)
        if now.step % self._steps_per_epoch == 0:
            now.losses.append(meters.since(now.at_epoch).mean_loss)
            now.at_epoch = list(meters)
        if self._is_time(self._validate_every):
            self._take_stock(advance)

    def _write_line(self, lately: Meters) -> None:
        now, (questions, seconds) = self.standing, self._lined
        self._lined = now.questions, self._seconds()
        self._write(
            "train",
            loss=lately.mean_loss,
            accuracy=lately.right / max(lately.asked, 1),
            lr=self._rate(),
            questions_per_second=(now.questions - questions) / (self._seconds() - seconds),
            gradient_norm=lately.gradient_norm / (now.step % self._line_every or self._line_every),
        )

    def _take_stock(self, advance: Advance) -> None:
        """Validate, and see whether it was ever better."""
        now, network = self.standing, self._learner.evaluated()
        try:
            results = self._validate(self._learner.system, network)
        except NotFiniteError:  # the step just made was one too far
            self._end_diverged("answers at validation were not finite")
        better = results.overall.value > now.best
        now.waited = 0 if better else now.waited + 1
        if better:
            now.best = results.overall.value
            self._run.remember(now, results.accuracies(), network.state_dict())
        self._write("validation", accuracy=results.accuracies(), best=better)
        advance.say(f"epoch {now.step / self._steps_per_epoch:.2f}: {in_one_line(results, 'val')}")

    def _write(self, kind: str, **numbers: object) -> None:
        now = self.standing
        self._record.write(
            kind=kind,
            stage=self._name,
            step=now.step,
            epoch=now.step / self._steps_per_epoch,
            questions=now.questions,
            seconds=self._seconds(),
            **numbers,
        )

    def _rate(self) -> float:
        """Of the step just made."""
        return self._schedule.rate(self.standing.step - 1, self.standing.losses)

    def _seconds(self) -> float:
        """Since the run began, without the time it stood still."""
        return time.monotonic() - self._began

    def _save_or_stop(self, interrupts: Interrupts) -> None:
        """What any process was asked to do, all do: each has its share of what is saved."""
        due = parallel.is_first() and time.monotonic() - self._saved >= self._save_every
        wishes = torch.tensor(
            [interrupts.asked, due], dtype=torch.int32, device=self._learner.device
        )
        stop, save = parallel.sum_over_all(wishes).tolist()
        if stop or save:
            self.save()
        if stop:
            raise KeyboardInterrupt(
                f"stopped after step {self.standing.step:,} and saved to {self._run.folder}; the "
                "same command with --resume goes on from there"
            )

    def _refuse_divergence(self, lately: Meters) -> None:
        loss, guess = lately.mean_loss, math.log(len(ANSWERS))
        if not all(map(math.isfinite, lately)) or loss >= HOPELESS * guess:
            self._end_diverged(f"the loss was {loss:.3g}")

    def _end_diverged(self, sign: str) -> NoReturn:
        self._write("end", why="diverged")
        self._run.save_best()
        saved = (self._run.folder / LAST).exists()
        raise InputError(
            f"{self._run.folder}: {sign} at step {self.standing.step:,}, learning at "
            f"{self._rate():.1e}, and will not recover; try a smaller --recipe.lr, a longer "
            "--recipe.warm-up, a small --recipe.clip or --recipe.precision float32"
            + (f" ({LAST} is of an earlier, sound step)" if saved else "")
        )
