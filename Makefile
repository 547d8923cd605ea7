# Two commands: `make run` shows the product, `make test` checks it. Each sets itself up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint
run: .venv/installed
	$(BIN)/macnet generate out/world --train 24 --val 8 --test 8 --seed 1
	$(BIN)/macnet sheet out/world out/sheet.png
	$(BIN)/macnet pack out/world out/cache

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
