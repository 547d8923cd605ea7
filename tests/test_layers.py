"""The layout is the map: a module imports only from lines above its own in shared/design.md."""

import ast
from pathlib import Path

import macnet

ORDER = [
    "errors",
    "configuration",
    "disk",
    "progress",
    "workers",
    "parallel",
    "clevr.camera",
    "clevr.scene",
    "clevr.table",
    "clevr.fuse",
    "clevr.vector",
    "clevr.shapes",
    "clevr.light",
    "clevr.surface",
    "clevr.render",
    "clevr.program",
    "clevr.visits",
    "clevr.families",
    "clevr.questions",
    "clevr.release",
    "clevr.pictures",
    "clevr.world",
    "clevr.generate",
    "clevr.sheet",
    "data.splits",
    "data.clevr",
    "data.vocab",
    "data.spelling",
    "data.reading",
    "data.questions",
    "data.community",
    "data.resnet",
    "data.packed",
    "data.features",
    "data.extract",
    "data.dataset",
    "data.pack",
    "data.ahead",
    "data.batches",
    "data.stream",
    "data.drawn",
    "data.mixture",
    "models.config",
    "models.layers",
    "models.norm",
    "models.attention_kernel",
    "models.attention",
    "models.repeated",
    "models.lstm_persistent",
    "models.lstm_kernel",
    "models.lstm",
    "models.encoders",
    "models.interaction_kernel",
    "models.interaction",
    "models.reference",
    "models.ablations",
    "models.mac",
    "models.presets",
    "models.systems.prior",
    "models.systems.baselines",
    "models.registry",
    "evaluation.answering",
    "evaluation.accuracy",
    "evaluation.paper",
    "evaluation.report",
    "evaluation.occlusion",
    "training.recipes",
    "training.objectives",
    "training.schedule",
    "training.augment",
    "training.muon",
    "training.checkpoint",
    "training.step",
    "training.record",
    "training.curve",
    "training.data",
    "training.run",
    "training.interrupts",
    "training.loop",
    "training.trainer",
    "explain.reply",
    "explain.picture",
    "explain.model",
    "explain.overlay",
    "explain.figure",
    "explain.page",
    "explain.pointing",
    "explain.agreement",
    "explain.findings",
    "cli.options",
    "cli.worlds",
    "cli.datasets",
    "cli.opening",
    "cli.lessons",
    "cli.overrides",
    "cli.train",
    "cli.evaluate",
    "cli.export",
    "cli.ask",
    "cli.explain",
    "cli.commands",
    "cli.streams",
    "cli.main",
    "__main__",
]
ROOT = Path(macnet.__file__).parent


def test_every_module_has_a_place_and_imports_only_from_above() -> None:
    offences = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name == "__init__.py":
            continue
        assert name in ORDER, f"{name} has no place in the order"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("macnet"):
                package = (node.module or "").removeprefix("macnet").removeprefix(".")
                names = {f"{package}.{alias.name}".lstrip(".") for alias in node.names}
                for source in names & set(ORDER) or {package}:
                    if ORDER.index(source) >= ORDER.index(name):
                        offences.append(f"{name} imports {source}")
    assert not offences
