"""Training: a network, taught stage by stage, that can be stopped at any moment and go on.

    trainer = Trainer(Path("RUN"), plan, lessons, device=torch.device("cuda"))
    trainer.train(resume=False)

What a stage does is data (`recipes`); nothing here knows one system from another.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from macnet import parallel
from macnet.errors import InputError
from macnet.evaluation.accuracy import Results, measure
from macnet.evaluation.answering import Answering
from macnet.models.registry import System, find_preset
from macnet.training.checkpoint import LAST, Checkpoint, Trained, load_weights, share_of
from macnet.training.curve import draw_curve
from macnet.training.data import Lessons, steps_of_epoch
from macnet.training.loop import Loop
from macnet.training.objectives import OBJECTIVES
from macnet.training.recipes import TEACHINGS, Recipe, Stage, of_stage
from macnet.training.record import Record
from macnet.training.run import CURVE, RECORD, Run, Standing, restore_randomness
from macnet.training.step import Learner, check_state, chosen_weights


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how. With the same data, equal plans give equal networks."""

    preset: str
    model: Any
    """A configuration of the preset's system."""
    recipe: Recipe
    seed: int = 0
    start: Trained | None = None
    """What was learned before, to go on from."""

    @property
    def system(self) -> System:
        return find_preset(self.preset).system

    @property
    def stages(self) -> tuple[Stage, ...]:
        return TEACHINGS[self.system.name].stages

    def to_record(self) -> dict[str, Any]:
        return {
            "preset": self.preset,
            "system": self.system.name,
            "model": asdict(self.model),
            "recipe": asdict(self.recipe),
            "stages": [asdict(stage) for stage in self.stages],
            "seed": self.seed,
            "start": self.start and str(self.start.path.resolve()),
        }


class Trainer:
    """Carries out a plan, in the folder of a run."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        lessons: Lessons,
        *,
        device: torch.device,
        workers: int = 0,
        save_every: float = 60.0,
        tensorboard: bool = False,
        capture: bool = True,
        compile: bool = False,
    ) -> None:
        """`save_every`: seconds. `compile`: the world's pictures, if it is drawn as it is learned.

        Without `capture`, steps on CUDA are launched piece by piece, which is slower.
        """
        if plan.start is not None:
            plan.start.refuse_another(plan.system, lessons.vocabulary)
        # What is built, and so what is recorded, follows from the data in part.
        plan = replace(plan, model=plan.system.fitted(plan.model, lessons.fit()))
        self.plan, self.lessons = plan, lessons
        data = lessons.to_record()
        share = share_of(data["train"])
        if plan.start is not None and not share == plan.start.share == 1:
            share = None  # of two trainings, only that which had all of both is one of the paper's
        about = {
            **plan.to_record(),
            "experiment": {"row": plan.system.find_row(plan.model), "share": share},
            "fit": lessons.fit()._asdict(),
            "vocabulary": lessons.vocabulary.to_record(),
            "data": data,
        }
        self._run = Run(folder, about)
        self._device, self._workers, self._save_every = device, workers, save_every
        self._tensorboard, self._capture, self._compile = tensorboard, capture, compile
        self._opened = ExitStack()  # what training has opened, and closes again
        self._answering: Answering | None = None

    def train(self, *, resume: bool = False) -> bool:
        """To the end; False if that was reached before."""
        network = self._build()  # first of all: what does not fit together leaves no run behind
        with self._run.held(resume=resume) as checkpoint:
            standing = self._checked(checkpoint, network) if checkpoint else Standing()
            left = self.plan.stages[standing.stage + standing.over :]
            first, folder = parallel.is_first(), self._run.folder
            if left:
                logs = folder / "tensorboard" if self._tensorboard else None
                path = folder / RECORD if first else None
                with Record(path, standing.record, logs) as record, ExitStack() as self._opened:
                    self._answering = None
                    for stage in self.plan.stages[standing.stage :]:
                        standing = self._teach(stage, network, standing, checkpoint, record)
                        checkpoint = None
            if first:
                draw_curve(folder / RECORD, folder / CURVE, self.plan.preset)
        return bool(left)

    def _checked(self, checkpoint: Checkpoint, network: nn.Module) -> Standing:
        """Where a checkpoint says that the run stands, if all that it holds is of such a run."""
        path, stages = self._run.folder / LAST, self.plan.stages
        standing = Standing.from_record(checkpoint.about["standing"], len(stages), path)
        recipe = of_stage(self.plan.recipe, stages[standing.stage])
        check_state(checkpoint.tensors, network, recipe, path)
        meters = checkpoint.tensors["meters"].tolist()
        for before in ([0.0] * len(meters), standing.at_line, standing.at_epoch):
            # All but a loss, which rewards may make negative, are sums of what is not.
            grown = [a <= b for a, b in zip(before[1:], meters[1:], strict=False)]
            sound = len(before) == len(meters) and all(grown) and all(map(math.isfinite, meters))
            if before and not sound:
                raise InputError(f"{path}: its meters are at {meters}, and were at {before} before")
        return standing

    def _build(self) -> nn.Module:
        seed, start = self.plan.seed, self.plan.start
        torch.manual_seed(seed)  # every process builds the same network,
        network = self.plan.system.build(self.plan.model, self.lessons.fit())
        if start is not None:
            load_weights(network, start.weights, start.path)
        for stage in self.plan.stages:
            recipe = of_stage(self.plan.recipe, stage)
            chosen_weights(network, recipe.trains)
            self.lessons.check(recipe, stage.subset)
        torch.manual_seed(seed * 1_000_003 + 1 + parallel.rank())  # and drops in its own way
        return network.to(self._device)

    def _teach(
        self,
        stage: Stage,
        network: nn.Module,
        standing: Standing,
        checkpoint: Checkpoint | None,
        record: Record,
    ) -> Standing:
        """One stage, from where it stands to its end; gives where the next one stands."""
        recipe = of_stage(self.plan.recipe, stage)
        source = self.lessons.open(
            recipe,
            stage.subset,
            seed=self.plan.seed,
            device=self._device,
            position=standing.step,
            workers=self._workers,
            compile=self._compile,
        )
        with closing(source):
            if standing.stage > 0 and checkpoint is None and stage.begins == "best":
                load_weights(network, self._run.best(), self._run.folder)
            objective = OBJECTIVES[stage.objective]
            learner = Learner(
                self.plan.system,
                network,
                objective,
                recipe,
                source,
                self._device,
                capture=self._capture,
            )
            if checkpoint is not None:
                learner.restore(checkpoint.tensors)
                restore_randomness(checkpoint.tensors, self._run.folder / LAST)
            loop = Loop(
                stage.name,
                learner,
                self._validate,
                self._run,
                record,
                standing,
                steps_per_epoch=steps_of_epoch(source, recipe),
                save_every=self._save_every,
            )
            if standing.stage > 0 and checkpoint is None:
                loop.save()  # or the best of this stage could be taken for that of the one before
            if not standing.over:
                loop.run()
                standing.over = True
                loop.save()
        return standing.next_stage()

    def _validate(self, system: System, network: nn.Module) -> Results:
        dataset = self.lessons.val
        if self._answering is None:  # opened when first it is wanted: images go to the device
            precision = self.plan.recipe.precision
            self._answering = self._opened.enter_context(
                Answering(dataset, device=self._device, precision=precision)
            )
        return measure(dataset, self._answering(system, network))
