"""Training of a network, stage by stage, that can be stopped at any moment and resumed.

    trainer = Trainer(Path("RUN"), plan, training_data, device=torch.device("cuda"))
    trainer.train(resume=False)

What a stage does is data (`models.system.Stage`); nothing here knows one system from another.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from macnet import distributed
from macnet.checkpoint import LAST, Checkpoint, load_weights, train_share
from macnet.errors import InputError
from macnet.evaluation.accuracy import Results, measure
from macnet.evaluation.predict import Predictor
from macnet.models.guide import guided_answer_loss
from macnet.models.system import Stage
from macnet.training.curve import draw_curve
from macnet.training.log import TrainingLog
from macnet.training.loop import Loop
from macnet.training.plan import TrainingPlan
from macnet.training.run_folder import CURVE, LOG, RunFolder, TrainState, restore_random_state
from macnet.training.step import Learner, check_state, trainable_parameters
from macnet.training.training_data import TrainingData


class Trainer:
    """Carries out a training plan, in the folder of a run."""

    results: Results
    """The accuracy of the best network on the validation data, once training has ended."""

    def __init__(
        self,
        folder: Path,
        plan: TrainingPlan,
        training_data: TrainingData,
        *,
        device: torch.device,
        workers: int = 0,
        save_every: float = 60.0,
        tensorboard: bool = False,
        capture: bool = True,
    ) -> None:
        """`save_every`: seconds between checkpoints. `capture`: steps on CUDA as a graph."""
        if plan.start is not None:
            plan.start.check_compatible(plan.system, training_data.vocabulary)
        # What is built, and so what is recorded, follows from the data in part.
        plan = replace(plan, model=plan.system.resolve(plan.model, training_data.data_spec()))
        self.plan, self.training_data = plan, training_data
        data = training_data.to_record()
        share = train_share(data["train"])
        if plan.start is not None and not share == plan.start.share == 1:
            share = None  # of two trainings, only that which had all of both is one of the paper's
        if plan.start is None and plan.stages != plan.system.training.stages:
            share = None  # nor is one of some stages only
        if plan.recipe.guide:
            share = None  # nor one that learned from more than answers
        programs = {"programs": plan.programs} if plan.programs else {}
        metadata = {
            **plan.to_record(),
            "experiment": {"row": plan.row, "share": share, **programs},
            "data_spec": training_data.data_spec()._asdict(),
            "vocabulary": training_data.vocabulary.to_record(),
            "data": data,
        }
        self._folder = RunFolder(folder, metadata)
        self.device, self._workers, self._save_every = device, workers, save_every
        self._tensorboard, self._capture = tensorboard, capture

    def train(self, *, resume: bool = False) -> bool:
        """Train to the end; returns False if the run was finished before."""
        network = self._build()  # first of all: what does not fit together leaves no run behind
        with self._folder.lock(resume=resume) as checkpoint, ExitStack() as self._stack:
            self._predictor: Predictor | None = None
            state = self._read_state(checkpoint, network) if checkpoint else TrainState()
            left = self.plan.stages[state.stage + state.finished :]
            is_first, folder = distributed.is_rank_zero(), self._folder.path
            if left:
                boards = folder / "tensorboard" if self._tensorboard else None
                path = folder / LOG if is_first else None
                with TrainingLog(path, state.log_size, boards) as log:
                    for stage in self.plan.stages[state.stage :]:
                        state = self._train_stage(stage, network, state, checkpoint, log)
                        checkpoint = None
            if is_first:
                draw_curve(folder / LOG, folder / CURVE, self.plan.preset)
            load_weights(network, self._folder.best_weights(), folder)
            self.results = self._validate(network, show=False)
        return bool(left)

    def _read_state(self, checkpoint: Checkpoint, network: nn.Module) -> TrainState:
        """The state in a checkpoint, if all that it holds may be of such a run."""
        path, stages = self._folder.path / LAST, self.plan.stages
        state = TrainState.from_record(checkpoint.metadata["state"], len(stages), path)
        recipe = stages[state.stage].recipe(self.plan.recipe)
        check_state(checkpoint.tensors, network, recipe, path)
        meters = checkpoint.tensors["meters"].tolist()
        for before in ([0.0] * len(meters), state.meters_at_log, state.meters_at_epoch):
            # All but a loss, which rewards may make negative, are sums of what is not.
            grown = [a <= b for a, b in zip(before[1:], meters[1:], strict=False)]
            sound = len(before) == len(meters) and all(grown) and all(map(math.isfinite, meters))
            if before and not sound:
                raise InputError(f"{path}: its meters are at {meters}, and were at {before} before")
        return state

    def _build(self) -> nn.Module:
        seed, start = self.plan.seed, self.plan.start
        torch.manual_seed(seed)  # every process builds the same network
        network = self.plan.system.build(self.plan.model, self.training_data.data_spec())
        if start is not None:
            load_weights(network, start.weights, start.path)
        for stage in self.plan.stages:
            recipe = stage.recipe(self.plan.recipe)
            trainable_parameters(network, recipe.trainable)
            subset = stage.subset(self.plan.recipe, seed)
            self.training_data.check(recipe, subset, programs=stage.uses_programs)
        torch.manual_seed(seed * 1_000_003 + 1 + distributed.rank())  # and has its own dropout
        return network.to(self.device)

    def _train_stage(
        self,
        stage: Stage,
        network: nn.Module,
        state: TrainState,
        checkpoint: Checkpoint | None,
        log: TrainingLog,
    ) -> TrainState:
        """Train one stage, from its state to its end; gives the state of the next stage."""
        recipe = stage.recipe(self.plan.recipe)
        subset = stage.subset(self.plan.recipe, self.plan.seed)
        source = self.training_data.open(
            recipe,
            subset,
            seed=self.plan.seed,
            device=self.device,
            position=state.step,
            workers=self._workers,
        )
        with closing(source):
            if state.stage > 0 and checkpoint is None and stage.start_from == "best":
                load_weights(network, self._folder.best_weights(), self._folder.path)
            objective = partial(stage.objective, self.plan.system)
            if recipe.guide:
                objective = partial(guided_answer_loss, self.plan.system, weight=recipe.guide)
            learner = Learner(
                network, objective, recipe, source, self.device, capture=self._capture
            )
            if checkpoint is not None:
                learner.restore(checkpoint.tensors)
                restore_random_state(checkpoint.tensors, self._folder.path / LAST)
            loop = Loop(
                stage.name,
                learner,
                self._validate,
                self._folder,
                log,
                state,
                steps_per_epoch=self.training_data.steps_per_epoch(source, recipe, subset),
                selects_by=stage.selects_by,
                uniform_loss=stage.uniform_loss(self.plan.model, self.training_data.data_spec()),
                save_every=self._save_every,
            )
            if state.stage > 0 and checkpoint is None:
                loop.save()  # or the best of this stage could be taken for that of the one before
            if not state.finished:
                loop.run()
                state.finished = True
                loop.save()
        return state.next_stage()

    def _validate(self, network: nn.Module, *, show: bool = True) -> Results:
        val = self.training_data.val
        if self._predictor is None:  # opened at the first validation: images go to the device
            precision = self.plan.recipe.precision
            self._predictor = self._stack.enter_context(
                Predictor(val, device=self.device, precision=precision)
            )
        return measure(val, *self._predictor(self.plan.system, network, show=show))
