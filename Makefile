# Everything runs in .venv, which is made when missing. Targets may be called again at any time:
# stamp files in .venv remember what is installed, and a run picks up where it was interrupted.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   := $(shell nproc 2>/dev/null || echo 1)
CASES  := $(filter-out benchmarks/_% benchmarks/study.py,$(wildcard benchmarks/*.py))
AGENTS  := agents cases planner_windows planner_agents planner_reward
SYSTEMS := accuracy adaptdl classes coach configuration_manager estimates generated knowledge lengths planner_generated pollux rivals schedulearn sia stopping windows

# A test that hangs fails. Each process imports all tests: 13 s of a core, and more without the bytecode of the last run.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --timeout 600
# More processes than there are cores, since tests with clusters mostly wait; at most 8, of 1 GB each.
processes = $(shell echo $$(($(JOBS) + $(1) < 8 ? $(JOBS) + $(1) : 8)))

.PHONY: help quickstart install dev serve test test-all test-quick test-gpu lint bench results systems docs dist clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(VENV)/.installed  ## install, train a small agent, compare it with five policies: runs/quickstart/evaluation/report.html
	if [ -e runs/quickstart/last.safetensors ]; then $(BIN)/rlpto train --resume runs/quickstart; \
	else $(BIN)/rlpto train configs/quickstart.yaml --run-dir runs/quickstart; fi
	$(BIN)/rlpto evaluate --run runs/quickstart --policies fifo,srtf,optimus,reward_greedy,tuned_index --jobs $(JOBS)

install: $(VENV)/.installed  ## make .venv with RLPTO in it

dev: $(VENV)/.dev  ## the same, with all that tests and checks need

test: $(VENV)/.dev  ## run all tests but the slow ones: about 6 minutes on two cores, real training on local Ray clusters included
	.ci/chromium
	$(TESTS) -n $(call processes,1)

test-all: docs $(VENV)/.dev  ## build the site and run all tests, slow ones and more examples of property tests included
	.ci/chromium
	$(TESTS) -n $(call processes,2) --all

test-quick: $(VENV)/.test  ## run those that need no cluster; of libraries the extra `test`, without Ray, is enough
	$(TESTS) -n $(call processes,1) -m "not cluster"

test-gpu: $(VENV)/.dev  ## run those that need a GPU with CUDA; where there is none it says so
	$(BIN)/python -m pytest -q -rs tests/ray_cluster/test_cuda.py

lint: $(VENV)/.dev  ## formatting, style, types, and which package may import which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

serve: $(VENV)/.service  ## run the job service of configs/service.yaml: prints its address and a token
	$(BIN)/rlpto serve configs/service.yaml

bench: $(VENV)/.dev  ## run every program in benchmarks/, fail if one falls short
	@status=0; for case in $(CASES); do echo "== $$case"; $(BIN)/python $$case || status=1; done; exit $$status

results: $(VENV)/.installed  ## train agents, compare them with everything, write docs/results.md (hours; resumable)
	$(BIN)/python benchmarks/study.py $(AGENTS)

systems: $(VENV)/.installed  ## measure the published systems and small studies, write their tables (hours; resumable)
	$(BIN)/python benchmarks/study.py $(SYSTEMS)

docs: $(VENV)/.docs  ## make the documentation site: site/index.html; PICTURES=0: without the schedule of every policy
	$(BIN)/python .ci/docs.py $(if $(filter 0,$(PICTURES)),--no-pictures)
	$(BIN)/zensical build --strict

dist: $(VENV)/.dev  ## build the source distribution and the wheel, and check both: dist/
	rm -rf dist build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

clean:  ## remove .venv and all caches; runs/ and traces/ stay
	rm -rf $(VENV) build dist site .cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find rlpto agents envs forecasting benchmarks examples tests .ci -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("RLPTO needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing RLPTO and what it needs into $(VENV): 1.9 GB with torch, some minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.service: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[service]'
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing what tests and checks need into $(VENV): 1.5 GB more, some minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.test

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
