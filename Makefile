# `make demo` and `make test` do all the set-up they need: Python 3.11 to 3.13 with venv, git, make and PyPI.
PYTHON ?= python3
UV = .venv/bin/uv
# -qq: errors alone. --no-compile: Python compiles what the server imports at its first start; all of it takes 40 s.
ENGINE_PIP = .venv-sglang/bin/python -m pip install -qq --no-compile --no-input --disable-pip-version-check
VLLM_PIP = .venv-vllm/bin/python -m pip install -qq --no-compile --no-input --disable-pip-version-check
SPECULATORS_PIP = .venv-speculators/bin/python -m pip install -qq --no-input --disable-pip-version-check
RUN = .venv/bin/rawtokens
CHECK_PYTHON = $(PYTHON) -c 'import sys, venv, ensurepip; assert (3, 11) <= sys.version_info < (3, 14)' 2>/dev/null || \
		{ echo "make: $$($(PYTHON) --version 2>&1) is not one of Python 3.11 to 3.13 with venv; try make PYTHON=python3.12, or install python3-venv" >&2; exit 2; }
SET_UP_BOTH = $(PYTHON) lib/rawtokens/exclusive.py .setup.lock \
	$(MAKE) --silent --no-print-directory -j2 .venv/.ready .venv-sglang/.ready
# A kernel without compiled modules takes seconds longer to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup engine vllm demo test test-vllm test-trainers trainers test-chromium example lab check bench chaos drift-study study study-short test-study lock

demo: ## everything: both environments, the demo model, a real server, the report
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(RUN) demo-model .demo-model
	@$(RUN) run notebooks/demo.yaml --demo-server

test: ## unit tests, the notebooks, and the tests on the real server
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@.venv/bin/python -m pytest --numprocesses 2 -m "not engine and not vllm and not chromium and not trainers and not study"
	@.venv/bin/python -m pytest -m engine

test-vllm: ## the tests on the real vLLM, its greedy ids beside SGLang's
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(PYTHON) lib/rawtokens/exclusive.py .setup.lock $(MAKE) --silent --no-print-directory .venv-vllm/.ready
	@.venv/bin/python -m pytest -m vllm

test-chromium: .venv/.ready ## the demo's report in a headless Chromium, which must be installed; make demo first
	@.venv/bin/python -m pytest -m chromium

test-trainers: ## speculators' and SpecForge's own loading code on exported files
	@$(CHECK_PYTHON)
	@$(PYTHON) lib/rawtokens/exclusive.py .setup.lock $(MAKE) --silent --no-print-directory -j2 .venv/.ready trainers
	@.venv/bin/python -m pytest -m trainers

test-study: ## two draft models trained on the CPU, as captured against re-rendered; some minutes
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(PYTHON) lib/rawtokens/exclusive.py .setup.lock $(MAKE) --silent --no-print-directory .venv-speculators/.ready
	@.venv/bin/python -m pytest -m study

example: .venv/.ready ## outputs/example/ anew from the demo's run; pictures where there is a chromium
	@.venv/bin/python tests/make_example.py

lab: ## JupyterLab on the notebooks with a demo server running
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(RUN) demo-model .demo-model
	@$(RUN) lab

check: .venv/.ready ## linters and the type check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/nbstripout --verify notebooks/*.ipynb

bench: .venv/.ready ## speed, each figure beside its limit, in one run
	@for script in tests/benchmarks/bench_*.py; do .venv/bin/python $$script || exit 1; done

chaos: ## kills, full disks and wire faults against the real server; about half an hour
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@.venv/bin/python tests/chaos

drift-study: ## how often re-tokenising changes what a real model said; downloads 97 MB, about an hour on two idle cores
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@.venv/bin/python -m rawtokens.demo.drift_study

study: ## what infidelity costs a draft model: 35 EAGLE-3 heads on the CPU, 40 minutes on two cores
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(PYTHON) lib/rawtokens/exclusive.py .setup.lock $(MAKE) --silent --no-print-directory .venv-speculators/.ready .venv-vllm/.ready
	@.venv/bin/python -m rawtokens.study --publish outputs/example

study-short: ## the same with two arms and one seed, some minutes
	@$(CHECK_PYTHON)
	@$(SET_UP_BOTH)
	@$(PYTHON) lib/rawtokens/exclusive.py .setup.lock $(MAKE) --silent --no-print-directory .venv-speculators/.ready
	@.venv/bin/python -m rawtokens.study --form short

setup: .venv/.ready ## the client's environment
engine: .venv-sglang/.ready ## the CPU engine's environment
trainers: .venv-speculators/.ready .venv-specforge/.ready ## the environments of drafter trainers, for make test-trainers
vllm: .venv-vllm/.ready ## vLLM's environment, for make test-vllm

.venv/.ready: requirements.lock pyproject.toml
	@echo "setting up .venv from requirements.lock"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(UV) pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
	@$(UV) pip install --quiet --python .venv/bin/python --no-deps --editable .
	@touch $@

.venv-sglang/.ready: lib/rawtokens/demo/engine_requirements.txt
	@echo "setting up .venv-sglang, the CPU engine: about 2 GB, 5 GB where pip offers no CPU build of torch"
	@[ "$$(uname -s)" = Linux ] || \
		{ echo "make: SGLang has no packages for $$(uname -s); give servers.urls in the run file a server of your own" >&2; exit 2; }
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear .venv-sglang
	@$(ENGINE_PIP) --constraint $< "$$(grep ^torch== $<)" && $(ENGINE_PIP) --no-deps --requirement $< || \
		{ echo "make: pip can't install the CPU engine here (its error is above); give servers.urls in the run file a server of your own" >&2; exit 1; }
	@touch $@

.venv-vllm/.ready: lib/rawtokens/demo/vllm_requirements.txt
	@echo "setting up .venv-vllm, vLLM on the CPU: about 2 GB"
	@[ "$$(uname -s)" = Linux ] || { echo "make: vLLM's CPU build is for Linux only" >&2; exit 2; }
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear .venv-vllm
	@$(VLLM_PIP) --constraint $< "$$(grep ^torch== $<)" && $(VLLM_PIP) --no-deps --requirement $< || \
		{ echo "make: pip can't install vLLM here (its error is above)" >&2; exit 1; }
	@touch $@

.venv-speculators/.ready: lib/rawtokens/demo/speculators_requirements.txt
	@echo "setting up .venv-speculators, a drafter trainer on the CPU: about 1.2 GB"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear .venv-speculators
	@$(SPECULATORS_PIP) --constraint $< "$$(grep ^torch== $<)" && $(SPECULATORS_PIP) --no-deps --requirement $< || \
		{ echo "make: pip can't install speculators here (its error is above)" >&2; exit 1; }
	@touch $@

.venv-specforge/.ready: lib/rawtokens/demo/specforge_requirements.txt
	@echo "setting up .venv-specforge, SpecForge's prompt loader"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear .venv-specforge
	@.venv-specforge/bin/python -m pip install -qq --no-input --disable-pip-version-check --no-deps --requirement $< || \
		{ echo "make: pip can't install SpecForge here (its error is above)" >&2; exit 1; }
	@touch $@

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

lock: ## rewrite requirements.lock from pyproject.toml
	$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra dev \
		--python-version 3.11 --upgrade pyproject.toml -o requirements.lock
