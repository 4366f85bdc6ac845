# Everything a person types. `make run` and `make test` do all of their own set-up.

VENV := .venv
BIN := $(VENV)/bin
# What serving needs, and what work on llmd needs besides: two stamps, one virtual environment.
SERVE := $(VENV)/.made-to-serve
DEV := $(VENV)/.made-to-develop
PACKAGES := pyproject.toml constraints.txt scripts/make_venv.sh scripts/packages.sh scripts/stage.py scripts/torch_build.py
# Which build of torch: cpu, cuda, or an index's address. Without it the NVIDIA driver decides, or
# what was given before.
TORCH ?=
export TORCH
# Commands on a bare GPU machine use its own python3, or the one given as PYTHON=...
PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
WHEELS := .wheels
WHEELS_PYTHON ?= 3.12
WHEELS_PLATFORM ?= manylinux_2_31_x86_64 manylinux_2_28_x86_64 manylinux2014_x86_64 \
  manylinux_2_17_x86_64
# What `llmd serve`, gpu-check, gpu-bench and the tests import beside torch, Triton, transformers
# and what these bring along.
GPU_PACKAGES := msgspec uvloop aiohttp prometheus-client jinja2 llguidance gguf nvidia-ml-py \
  markdown-it-py linkify-it-py pytest pytest-asyncio pytest-timeout hypothesis

.PHONY: help venv venv-dev torch-wish run test suites check style tree soak bench-cpu gpu-check gpu-bench gpu-wheels install uninstall clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

venv: $(SERVE)  ## .venv with all that serving needs (TORCH=cpu|cuda|URL)

venv-dev: $(DEV)  ## and with what tests, checks and benchmarks need

$(SERVE): $(PACKAGES) $(if $(TORCH),torch-wish)
	@bash scripts/make_venv.sh $(VENV) serve
	@touch $@

$(DEV): $(PACKAGES) $(if $(TORCH),torch-wish)
	@bash scripts/make_venv.sh $(VENV) dev
	@touch $(SERVE) $@

torch-wish:

run: $(SERVE)  ## serve the embedded model (ARGS="--port 9000 ...")
	@$(BIN)/python scripts/torch_build.py check $(VENV)
	$(BIN)/llmd serve $(ARGS)

test: $(DEV)  ## checks, and beside them every suite with its budget
	@$(MAKE) --no-print-directory -j2 style suites

suites: $(DEV)
	$(BIN)/python -m tests.run_suites $(SUITES)

check: style  ## style, types, import contracts, house rules
	$(BIN)/python -m pytest -q tests/house

tree:  ## every file of the product with its purpose
	@$(PYTHON) -m tests.house.tree

style: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py
	$(BIN)/lint-imports

soak: $(DEV)  ## the long runs: 10,000 aborts and more (minutes)
	LLMD_SOAK=1 $(BIN)/python -m tests.run_suites $(SUITES)

bench-cpu: $(DEV)  ## Core's cost, SSE fan-out, llmd-top, and the peers installed here
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.fanout
	$(BIN)/python -m benchmarks.top
	$(BIN)/python -m benchmarks.peers $(ARGS)

gpu-check:  ## kernels and engine against references, on this machine's GPU
	$(PYTHON) -m tests.gpu $(ARGS)

gpu-bench:  ## its limits, and kernels, engine and daemon against them (docs/gpu.md)
	$(PYTHON) -m benchmarks.gpu_bench $(ARGS)

gpu-wheels: $(SERVE)  ## wheels that a bare GPU machine lacks, into .wheels/
	mkdir -p $(WHEELS)
	$(BIN)/pip download --dest $(WHEELS) --constraint constraints.txt --only-binary :all: \
	  --python-version $(WHEELS_PYTHON) --implementation cp \
	  $(foreach tag,$(WHEELS_PLATFORM),--platform $(tag)) $(GPU_PACKAGES)
	rm -f $(WHEELS)/numpy-*  # such a machine has the numpy that its torch was built beside

install:  ## the service: /opt/llmd, /etc/llmd, a unit (DESTDIR=... PREFIX=... as root)
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" bash scripts/install.sh

uninstall:  ## the service again, but for its configuration, models and cache
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" bash scripts/uninstall.sh

clean:  ## remove what was built, the venv included
	rm -rf $(VENV) $(WHEELS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache
	find daemon tui tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
