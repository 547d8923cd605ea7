# Two commands: `make run` shows the product, `make test` checks it. Each sets itself up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint
run: .venv/installed
	$(BIN)/macnet generate out/world --train 4000 --val 500 --size 64x64 --seed 1
	$(BIN)/macnet sheet out/world out/sheet.png
	$(BIN)/macnet train out/world --size 64x64 --recipe fast --overrides examples/small_mac.toml \
		--cache out/cache --out out/mac --resume
	$(BIN)/macnet train out/world --size 64x64 --recipe fast --overrides examples/small_lstm.toml \
		--cache out/cache --out out/lstm --resume --preset lstm

test: .venv/installed lint
	$(BIN)/pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@
