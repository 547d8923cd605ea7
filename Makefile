# Two commands: `make run` shows the product, `make test` checks it. Each sets itself up.
PYTHON ?= python3
BIN := .venv/bin

# To answer it, find the cube, then what is in front of it, and then what is left of that.
QUESTION := What color is the cylinder that is left of the small metal thing \
	that is in front of the red metal cube?

# Where no bytecode is kept, every run of the tests would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test pytest gpu-test lint
# The shipped network answers about a fresh scene, and 500 questions about others. Then a small one learns an easier
# world on the CPU: one to three objects, and questions with one relation at most. An LSTM, which sees no image, does too.
run: .venv/installed
	$(BIN)/macnet ask --seed 12 --save out/scene.png "Are there more cubes than cylinders?"
	$(BIN)/macnet ask out/scene.png \
		"How many red things are made of the same material as the brown cylinder?"
	$(BIN)/macnet ask out/scene.png "$(QUESTION)"
	$(BIN)/macnet explain out/scene.png "$(QUESTION)" --out out/explanation.html
	$(BIN)/macnet evaluate --world-images 50 --world-seed 12 --cache out/cache --json out/shipped.json
	$(BIN)/macnet generate out/world --train 16000 --val 500 --size 64x64 --seed 1 \
		--num-objects 1 3 --families zero_hop one_hop
	$(BIN)/macnet sheet out/world out/sheet.png
	$(BIN)/macnet train out/world --size 64x64 --recipe fast --overrides examples/small_mac.toml \
		--cache out/cache --out out/mac --resume --preset small
	$(BIN)/macnet train out/world --size 64x64 --recipe fast --overrides examples/small_lstm.toml \
		--cache out/cache --out out/lstm --resume --preset lstm

# Lint and types are checked while the tests wait for their processes.
test: .venv/installed
	$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: .venv/installed
	$(BIN)/pytest -n auto --dist worksteal

# Where there is a GPU: the tests that CI skips. What came of them is kept with the commit.
gpu-test: .venv/installed
	$(BIN)/python benchmarks/gpu_tests.py --out results/gpu_tests.json

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@
