# demo · test · test-slow · check · bench: each sets up what it needs, from nothing but Python (3.11, 3.12 or 3.13), pip and venv.
ifeq ($(OS),Windows_NT)
# Commands run in the bash that comes with Git; a virtual environment keeps its programs in Scripts.
SHELL := bash
PYTHON ?= python
SCRIPTS := Scripts
else
PYTHON ?= python3
SCRIPTS := bin
endif
VENV ?= .venv
BIN := $(VENV)/$(SCRIPTS)
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL)
# Browser tests run where there is a browser.
BROWSER := $(shell command -v chromium chromium-browser google-chrome 2>/dev/null | head -n 1)
MARKERS := not slow $(if $(BROWSER),,and not browser)
# One test worker per core; each keeps torch to one thread, or they would compete for the cores. Tests read and write text
# as UTF-8 on every system; that hftune itself never relies on a default is checked by tests/test_portability.py. Compiled
# modules are kept: tests start many processes.
WORKERS ?= 2
# A file of tests runs in one worker: what its tests share is made once. conftest.py has the order.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST := env OMP_NUM_THREADS=1 PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=
# Variables that make this CPU compute as another does; each also changes the order of sums, and so the last digits.
CPUS := ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX512_CORE \
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 OMP_NUM_THREADS=2

.PHONY: demo test test-slow test-replicas test-numeric test-latest test-oldest check check-platforms bench clean

demo: $(VENV)/.installed
	$(BIN)/hftune classify --recipe classify/reviews

test: $(VENV)/.tested
	$(PYTEST) $(BIN)/python -m pytest $(SPREAD) -m "$(MARKERS)"

# Soaks and long matrices: everything that make test leaves out for its time. Of damaged files it tries new ones.
test-slow: $(VENV)/.tested
	$(PYTEST) $(BIN)/python -m pytest -n $(WORKERS) -m "slow$(if $(BROWSER),, and not browser)" --timeout 3600
	HFTUNE_SOAK=4 $(PYTEST) $(BIN)/python -m pytest -n $(WORKERS) tests/test_mutated_*.py --timeout 3600

# Every replica of a real Hub repository under every method; make test runs a part of them.
test-replicas: $(VENV)/.tested
	$(PYTEST) $(BIN)/python -m pytest -n $(WORKERS) -m "slow or not slow" tests/test_replicas.py tests/test_dataset_replicas.py

# The tests of values, once for each of CPUS: scores and tolerances must not depend on the machine that set them.
test-numeric: $(VENV)/.tested
	set -e; for cpu in $(CPUS); do echo "$$cpu"; \
	  $(PYTEST) "$$cpu" $(BIN)/python -m pytest $(SPREAD) -m "numeric and ($(MARKERS))"; done

# The suite with other versions than those of constraints.txt: the newest of every dependency, and the oldest that
# pyproject.toml allows (what these need in turn is the newest). Each has an environment of its own, brought up to date
# on every run. torch alone stays at its constraint: another version may pull gigabytes of CUDA packages.
test-latest test-oldest: test-%: .venv-%/constraints.txt
	test -x .venv-$*/$(SCRIPTS)/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/$(SCRIPTS)/python $(INSTALL) --upgrade --upgrade-strategy eager -c $< -e '.[test]'
	$(PYTEST) .venv-$*/$(SCRIPTS)/python -m pytest $(SPREAD) -m "$(MARKERS)"

.venv-latest/constraints.txt: constraints.txt
	mkdir -p $(@D)
	grep '^torch==' constraints.txt > $@

.venv-oldest/constraints.txt: constraints.txt pyproject.toml tests/lower_bounds.py
	mkdir -p $(@D)
	grep '^torch==' constraints.txt > $@
	$(PYTHON) tests/lower_bounds.py torch >> $@

check: $(VENV)/.checked
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The branches of each system, read as on that system. Each has a cache of its own: one for all would be rebuilt each time.
check-platforms: $(VENV)/.checked
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

bench: $(VENV)/.tested
	set -e; for script in training inference overhead; do \
	  $(BIN)/python benchmarks/$$script.py --save $(if $(CLOCK),--clock $(CLOCK)); done

# constraints.txt pins every version, so that two machines run the same code.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/.checked: $(VENV)/.tested
	$(PIP) -c constraints.txt -e '.[check]'
	touch $@

clean:
	rm -rf $(VENV) .venv-latest .venv-oldest build dist .mypy_cache .ruff_cache .pytest_cache
