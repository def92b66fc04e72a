# Two commands are the set-up: `make demo` and `make test`. Everything else is for those who change the code.
VENV := .venv
PY := $(VENV)/bin/python
RUNTIME := $(VENV)/.runtime
TIERS := $(VENV)/.tiers
STAMP := $(VENV)/.tests
TIER ?= dev
UV := $(shell command -v uv 2>/dev/null)
PIP := $(if $(UV),uv pip install --python $(PY),$(PY) -m pip install --disable-pip-version-check)
PYTHON ?= python3
RUN_TESTS := $(PY) -m pytest -q -p no:cacheprovider

.PHONY: help lock demo test slow chaos sim check lint law mutants bench bench-quick gates docs golden release clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The locks name exact versions and hashes; no address of any registry. What runs needs the first, the demo on servers the second, what
# tests needs the third.
define install
	$(if $(UV),uv venv -q --allow-existing --python "$$(command -v $(PYTHON))" $(VENV),test -x $(PY) || $(PYTHON) -m venv $(VENV))
	$(PIP) -q --require-hashes -r $(1)
	$(PIP) -q --no-deps --no-build-isolation -e .
	@touch $@
endef

$(RUNTIME): requirements.lock pyproject.toml
	$(call install,requirements.lock)

$(TIERS): requirements-tiers.lock pyproject.toml
	$(call install,requirements-tiers.lock)
	@touch $(RUNTIME)

$(STAMP): requirements-dev.lock pyproject.toml
	$(call install,requirements-dev.lock)
	@touch $(RUNTIME) $(TIERS)

lock: ## compile the locks anew (needs uv)
	uv pip compile -q pyproject.toml --group build --generate-hashes --no-header --no-annotate --universal --python-version 3.11 -o requirements.lock
	uv pip compile -q pyproject.toml --group tiers --generate-hashes --no-header --no-annotate --universal --python-version 3.11 -o requirements-tiers.lock
	uv pip compile -q pyproject.toml --group dev --generate-hashes --no-header --no-annotate --universal --python-version 3.11 -o requirements-dev.lock

demo: $(if $(filter dev,$(TIER)),$(RUNTIME),$(TIERS)) ## the whole story in one command, on a file or with TIER=postgres, TIER=nats on real servers
	@$(PY) -m mandamus demo --tier $(TIER)

test: $(STAMP) ## everything that one machine can run (under 10 minutes); of the longest walks a sample
	$(RUN_TESTS) -n 2 --dist loadfile tests

slow: $(STAMP) ## the longest walks to their end: every byte of whole bundles, signals at hundreds of places, 3000 seeds (about 8 minutes)
	$(RUN_TESTS) -n 2 -m slow tests/attack tests/crash tests/verifiers

chaos: $(STAMP) ## real servers and workers killed, paused and cut apart under load; as root with partitions (about 4 minutes)
	$(RUN_TESTS) -s -m slow tests/chaos

sim: $(STAMP) ## deterministic simulation: every single fault, then seeded lives (SEEDS=50000 for a night); PAIRS=1 for every two faults
	$(PY) tests/crash/simulate.py --singles
	$(if $(PAIRS),$(PY) tests/crash/simulate.py --pairs)
	$(PY) tests/crash/simulate.py --seeds $(or $(SEEDS),3000)

check: $(STAMP) ## the pure tests: no services, no network (under a minute)
	$(RUN_TESTS) -m "not service" tests/core tests/spec tests/golden

lint: $(STAMP) ## style, types, rings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check src tests
	$(VENV)/bin/mypy
	PYTHONPATH=src $(VENV)/bin/lint-imports

law: $(STAMP) ## each line of the law: proven, or what is not built yet
	$(PY) tests/law.py

mutants: $(STAMP) ## break the code on purpose; every break must be caught
	$(PY) tests/mutants.py

bench: $(STAMP) ## all work units against peers in their own environments (about an hour); stopped, it goes on; UNITS=w2,kills for some
	$(PY) bench/run.py $(if $(UNITS),--units $(UNITS))

bench-quick: $(STAMP) ## ours and the yardstick only
	$(PY) bench/run.py --quick --no-peers

gates: $(STAMP) ## counts that do not depend on the machine: flushes, bytes, calls, modules
	$(PY) bench/gates.py

docs: $(STAMP) ## check that every code block runs and every link leads somewhere; build the reference
	$(PY) docs/build.py

golden: $(STAMP) ## rewrite golden files and generated pages; read the diff as you would read code
	$(RUN_TESTS) --golden-update tests/core tests/e2e/test_cli_golden.py tests/e2e/test_cli_docs.py tests/e2e/test_replay.py
	$(PY) docs/build.py --write

release: $(RUNTIME) ## both wheels built twice to the same bytes, bills of materials, signed provenance, into dist/
	$(PY) -m release.make

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis mandamus-demo
