# demo · test · check · bench: each sets up what it needs, from nothing but Python 3.11, pip and venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Browser tests run where there is a browser.
BROWSER := $(shell command -v chromium chromium-browser google-chrome 2>/dev/null | head -n 1)
MARKERS := not slow $(if $(BROWSER),,and not browser)
# One test worker a core; each keeps torch to one thread, or they would fight over the cores.
WORKERS ?= 2

.PHONY: demo test check bench clean

demo: $(VENV)/.installed
	$(BIN)/hftune classify --recipe classify/reviews

test: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "$(MARKERS)"

check: $(VENV)/.checked
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.tested
	$(BIN)/hftune bench run --keep benchmarks $(if $(CLOCK),--clock $(CLOCK))

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
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
