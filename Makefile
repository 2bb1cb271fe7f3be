# Two commands need only python3.11, make and a package index: make demo, make test.
PYTHON ?= python3.11
BIN = .venv/bin
OUT ?= out/demo

.PHONY: demo test test-all chaos check clean

demo: .venv/demo
	$(BIN)/python -m raycomp demo --out $(OUT)

test: .venv/dev
	$(BIN)/python -m pytest -q

test-all: .venv/dev
	$(BIN)/python -m pytest -q -m "not gpu and not chaos"

# Every fault there is, with a line of bench/RESULTS.md for each; an hour or more.
chaos: .venv/dev
	$(BIN)/python -m pytest -q -s -m "not gpu" tests/faults

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Where Python may not write bytecode, every Ray worker would compile its imports anew: compile them here.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || python3 -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt \
		$(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode) $(1)
	touch $@
endef

.venv/demo: pyproject.toml constraints.txt
	$(call install,-e .)

.venv/dev: pyproject.toml constraints.txt
	$(call install,-e '.[dev]')
	touch .venv/demo

clean:
	rm -rf .venv out
