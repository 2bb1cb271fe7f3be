# Two commands need only Python 3.11 to 3.13, make and a package index: make demo, make test.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -V > /dev/null 2>&1 && echo $$p && break; done)
BIN = .venv/bin
# Files keep the order of tests/conftest.py, and what ends a process ends the run.
IN_PROCESSES = $(BIN)/python -m pytest -q --no-loadscope-reorder --max-worker-restart 0
OUT ?= out/demo
# Real photos and captions, which are no part of the project.
SHARED ?= $(or $(RAYCOMP_SHARED),../shared)

.PHONY: demo test test-more test-gpu chromium nightly gpu-kit digests chaos breaks mutants check docs clean

demo: .venv/demo
	$(BIN)/python -m lab demo --out $(OUT)

# Everything that needs neither a store, a browser nor real photos. The third process has the Ray cluster, and waits.
# Each process collects all tests, and dozens import raycomp: what these compile is kept.
test: .venv/dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(IN_PROCESSES) -n 3 --ignore tests/lab

# The other tests, by what they need: a group is a mark of pyproject.toml. `make test-ray+data` runs two of them at once.
GROUPS = ray faults stores docs deploy browser data engine lab
test-more: $(GROUPS:%=test-%)

test-%: .venv/dev
	OMP_NUM_THREADS=1 $(IN_PROCESSES) -n 2 -m "($(subst +, or ,$*)) and not slow"

test-browser: chromium
test-docs: .venv/docs .venv/bin/promtool

# The engine takes all cores.
test-engine: .venv/dev
	$(BIN)/python -m pytest -q -m "engine and not slow"

# The drawn worlds, and what is measured in them: no part of the product.
test-lab: .venv/dev
	OMP_NUM_THREADS=1 $(IN_PROCESSES) -n 2 -m "not slow and not gpu" tests/lab

chromium:
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq chromium) > /dev/null

# The program of Prometheus that evaluates alerts.
.venv/bin/promtool: | .venv/dev
	apt-get update -qq
	cd .venv && apt-get download -qq prometheus && dpkg -x prometheus_*.deb prometheus
	ln -s ../prometheus/usr/bin/promtool $@

# Every test but those of a GPU, with the long draws and every fault there is: hours.
nightly: test test-more test-peers
	OMP_NUM_THREADS=1 $(IN_PROCESSES) -n 2 -m "slow and not gpu" \
		-o faulthandler_timeout=7200

# What only a CUDA device can show.
test-gpu: .venv/dev
	$(BIN)/python -m pytest -q -m gpu

# What a CUDA machine without a package index needs for test-gpu and for measuring, in out/gpu_kit/.
gpu-kit: .venv/dev
	$(BIN)/python -m bench.gpu_kit pack $(SHARED) out/gpu_kit

# Every fault there is, with a line of bench/RESULTS.md for each; about an hour on two cores.
chaos: .venv/dev
	$(BIN)/python -m pytest -q -s -m "faults and not gpu" tests/faults

# The bytes that every command writes, against the committed table: before and after each change of structure.
digests: .venv/dev
	$(BIN)/python -m bench.digests out/digests.csv --core

# Thirty mistakes on purpose (bench/breaks.toml), each of which the tests named for it must catch.
breaks: .venv/dev
	$(BIN)/python -m bench.mutations --csv bench/results/breaks.csv

# Random mistakes (bench/results/mutants.csv). `python -m bench.covered run` writes which tests reach them: COVERAGE and
# DURATIONS. An hour on two cores.
mutants: .venv/dev
	$(BIN)/python -m bench.mutants run --coverage $(COVERAGE) --durations $(DURATIONS) --jobs 2

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as HTML in site/, which loads nothing from a network. Its search needs a server:
# python -m http.server -d site
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Where Python may not write bytecode, every Ray worker would compile its imports anew: compile them here. Tests start
# many processes at once, which would all compile the same: a collection compiles raycomp and the tests.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt \
		$(if $(PYTHONDONTWRITEBYTECODE)$(findstring dev,$@),--compile-bytecode) $(1)
	touch $@
endef

.venv/demo: pyproject.toml constraints.txt
	$(call install,-e .)

.venv/dev: pyproject.toml constraints.txt
	$(call install,-e '.[dev]')
	touch .venv/demo
	-PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --collect-only > /dev/null

.venv/docs: pyproject.toml constraints.txt
	$(call install,-e '.[docs]')

clean:
	rm -rf .venv out site
