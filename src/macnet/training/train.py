"""`macnet.train`: from data and the names of a preset and a recipe to a trained network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from macnet import devices, distributed
from macnet.checkpoint import TrainedNetwork, load_trained
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS
from macnet.data.sources import LoadOptions
from macnet.errors import InputError
from macnet.evaluation.accuracy import Results
from macnet.models.recipe import Recipe
from macnet.training.log import read_log
from macnet.training.open_data import DataOptions, Location, open_training_data
from macnet.training.plan import make_plan
from macnet.training.run_folder import CURVE, LOG, check_new
from macnet.training.trainer import Trainer
from macnet.training.warm_up import warm_up

SIZE = 128, 128


@dataclass(frozen=True)
class Run:
    """A finished training run; functions that take the folder of a run take it as well."""

    folder: Path
    """The folder, with checkpoints, log and learning curve."""
    results: Results
    """The accuracy of the best network on the validation data, by question type too."""
    steps: int
    """Number of optimizer steps, in all stages together."""
    questions: int
    """Number of training questions seen."""
    seconds: float
    """Seconds of training, validation included."""
    was_finished: bool
    """Whether the run was finished before, so that this time nothing was trained."""

    @property
    def accuracy(self) -> float:
        """The accuracy of the best network on the validation data, between 0 and 1."""
        return self.results.overall.value

    @property
    def curve(self) -> Path:
        """The image of the learning curve."""
        return self.folder / CURVE

    def load(self) -> TrainedNetwork:
        """The best network."""
        return load_trained(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)


def image_size(start: TrainedNetwork | None) -> tuple[int, int]:
    """The default width and height of images: those of the network to start from, if any."""
    spec = None if start is None else start.data_spec
    return (spec.width, spec.height) if spec is not None and spec.pixels else SIZE


def train(
    data: Location | None = None,
    *,
    out: Location,
    preset: str | None = None,
    ablation: str | None = None,
    model: Any = None,
    recipe: str | Recipe = "paper",
    recipe_changes: Mapping[str, Any] | None = None,
    programs: int | Literal["all"] | None = None,
    overrides: Location | None = None,
    start: Location | None = None,
    split: str = "train",
    val: Location | None = None,
    val_split: str | None = None,
    images: Location | None = None,
    val_images: Location | None = None,
    vocabulary: Location | None = None,
    tokenizer: Literal["mac", "clevr-iep", "n2nmn"] | None = None,
    min_count: int | None = None,
    skip_missing: bool = False,
    replay: Location | None = None,
    replay_share: float = 0.5,
    world_seed: int = 1,
    world_images: int | None = None,
    world_val_images: int = 1000,
    world_num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS),
    world_families: tuple[str, ...] = (),
    size: tuple[int, int] | None = None,
    subset_questions: float | None = None,
    subset_images: float | None = None,
    fresh_questions: bool = False,
    validate_on: int | None = None,
    cache: Location | None = None,
    seed: int = 0,
    resume: bool = False,
    device: str = "auto",
    workers: int | None = None,
    save_every: float = 60.0,
    tensorboard: bool = False,
    capture: bool = True,
    on_start: Callable[[Trainer], None] | None = None,
) -> Run:
    """Train a network, and validate it as it learns.

    A run is a folder: training that was stopped, even killed, goes on with `resume`. Processes that
    torchrun has started train together. The command `macnet train` has these arguments as flags.
    Workers import the calling script again: it must call this under `if __name__ == "__main__":`.

    Args:
        data: A dataset, or a questions file (.h5). By default, the generated world.
        out: The folder of the run, for the log, the checkpoints and the learning curve.
        preset: The network and its configuration, by name; by default "paper", or as in `start`.
        ablation: A row of the paper's table 2 by its label, such as "w/ memory gate".
        model: Single fields of the network, as in {"p": 4}; or a whole configuration.
        recipe: "paper" has the paper's values, and others where it gives none; "fast" is for a
            modern GPU; "humans" is the published fine-tuning of `start` on CLEVR-Humans.
        recipe_changes: Single fields of the recipe, as in {"lr": 1e-3}.
        programs: The number of questions whose programs are learned from, chosen by the seed, such
            as 9000, or all; for systems that write programs.
        overrides: A .toml or .json with tables "model" and "recipe"; single fields overrule it.
        start: A run, or its best.safetensors, to start from: its network and its vocabulary.
        split: The split to train on; of CoGenT, trainA.
        val: Other data to validate on, such as a second questions file (.h5).
        val_split: The split to validate on; by default val, or valA beside trainA.
        images: A folder of images, or a file of features (.h5), if they are not in `data`.
        val_images: A folder of images, or a file of features (.h5), to validate on.
        vocabulary: A vocabulary file, ours or a vocab.json; by default that of `data` or `start`.
        tokenizer: How questions become words, if no vocabulary says so; by default mac.
        min_count: Add words to the vocabulary that occur so often in the training split.
        skip_missing: Leave out questions about images that are missing.
        replay: Other data to mix in, so that what was learned from it is not forgotten.
        replay_share: The share of batches that come from `replay`.
        world_seed: The seed of the generated world.
        world_images: Train on so many generated images; by default every image is new.
        world_val_images: Validate on so many generated images.
        world_num_objects: The smallest and the largest number of objects in a generated scene.
        world_families: Generate questions of these groups of families only, such as zero_hop and
            one_hop; `macnet generate --help` lists them.
        size: Width and height of images in pixels; by default 128x128, or as in `start`.
        subset_questions: Train on a share of the questions, such as 0.1, as the paper does.
        subset_images: Train on all questions about a share of the images.
        fresh_questions: Generate new questions about the training images in every epoch, for which
            their scenes must be known; the paper's accuracies are not comparable then.
        validate_on: Validate on so many questions at most, about images chosen at random.
        cache: The folder for packed data; by default $MACNET_CACHE or ~/.cache/macnet.
        seed: The seed of initial weights, order of questions, dropout and subsets.
        resume: Go on with the run in the folder; all other arguments must be as before.
        device: auto takes a GPU if there is one; for several, start the command with torchrun.
        workers: The number of processes that decode or generate images; by default one per core.
        save_every: Seconds between checkpoints; Ctrl-C saves one too.
        tensorboard: Write logs for TensorBoard too.
        capture: Capture steps on a GPU as a CUDA graph; without it they are slower.
        on_start: Called with the trainer before the first step, in the first process.
    """
    given = locals()
    if not save_every >= 0:
        raise InputError(f"`save_every` is {save_every}; it must be a number from 0")
    if programs not in (None, "all") and (type(programs) is not int or programs < 1):
        raise InputError(f"`programs` is {programs!r:.40}; it must be a number from 1, or all")
    folder, workers = Path(out), devices.choose_share_of_workers(workers)
    with distributed.process_group(devices.choose_device(device)) as own:
        if not resume:
            distributed.from_rank_zero(lambda: check_new(folder))  # before hours of packing
        if own.type == "cpu":
            devices.keep_freed_memory()
        trained = None if start is None else load_trained(Path(start))
        changes = dict(recipe_changes or {})
        if programs is not None:
            changes["programs"] = 0 if programs == "all" else programs
        plan = make_plan(
            preset, ablation, model, recipe, changes, overrides, seed=seed, start=trained
        )
        size = size or image_size(trained)
        load = LoadOptions(devices.choose_cache(cache), size, str(own), workers)
        options = DataOptions(**{field.name: given[field.name] for field in fields(DataOptions)})
        with warm_up(plan, size, own) if data is None else nullcontext():
            training_data = open_training_data(data, options, load, seed=seed, start=trained)
        trainer = Trainer(
            folder,
            plan,
            training_data,
            device=own,
            workers=workers,
            save_every=save_every,
            tensorboard=tensorboard,
            capture=capture,
        )
        if on_start is not None and distributed.is_rank_zero():
            on_start(trainer)
        trained_now = trainer.train(resume=resume)
        lines = distributed.from_rank_zero(lambda: read_log(folder / LOG))
        ends = [line for line in lines if line["kind"] == "end"]
        return Run(
            folder,
            trainer.results,
            steps=sum(line["step"] for line in ends),
            questions=ends[-1]["questions"],
            seconds=ends[-1]["seconds"],
            was_finished=not trained_now,
        )
