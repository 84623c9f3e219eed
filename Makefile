# Pollux. `make help` lists the targets; everything they need is set up by the first one (tools/setup_environment.py).
# The system's Python where it is new enough: distributions compile it with optimizations that pyenv leaves out (the tests
# take a fifth longer there). `make PYTHON=...` takes another one.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo /usr/bin/python3 || echo python3)
BIN := .venv/bin
# The sources that ruff and mypy judge, and those that only ruff does (Ansible has no types).
SOURCES := broker/src pipeline/src harness tests benchmarks tools examples molecule
BUNDLE := filter_plugins collections callback_plugins roles

# What some shells and images say. Programs are started by the hundred, and may keep what they have compiled; and modules
# of Ansible come through standard input, which Python without buffers reads byte by byte.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONUNBUFFERED :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster check test lint lint-python lint-bundle unit molecule wheelhouse soak mutants crash lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Make .venv with the locked packages (the other targets do it by themselves)
	@$(PYTHON) tools/setup_environment.py

demo: setup  ## Deploy a live/backup pair here, kill the live under traffic, fail back, and count what was lost
	@$(BIN)/python tools/demo.py

demo-cluster: setup  ## Three brokers that are a cluster: produced on one, consumed on another, which is killed
	@$(BIN)/python examples/cluster.py

check: setup lint unit  ## The fast part: ruff, mypy and the tests without real processes

lint:
	@$(MAKE) --no-print-directory --jobs=2 lint-python lint-bundle

lint-python:
	$(BIN)/ruff check $(SOURCES) $(BUNDLE)
	$(BIN)/ruff format --check $(SOURCES) $(BUNDLE)
	$(BIN)/mypy $(SOURCES)

lint-bundle:
	$(BIN)/yamllint --strict roles playbooks inventories
	@PATH="$(CURDIR)/$(BIN):$$PATH" ANSIBLE_HOME=.pollux/ansible ansible-lint -q --nocolor

unit:
	$(BIN)/python -m pytest -n auto -m "not processes" tests/broker tests/ledger tests/tooling tests/benchmarks

test:  ## Lint and all tests: units, playbooks, other people's clients, kills under load, scenarios on hosts
	@$(PYTHON) tools/setup_environment.py --tests --lab
	@$(MAKE) --no-print-directory lint
	$(BIN)/python tools/run_tests.py

molecule: setup  ## Scenarios on hosts that are broken under traffic: all, or SCENARIO=default (molecule/lab/README.md)
	@$(PYTHON) tools/setup_environment.py --lab
	@$(BIN)/python molecule/lab test $(SCENARIO)

wheelhouse: setup  ## Make .pollux/wheelhouse (brokers) and .pollux/wheelhouse-pipeline: all that machines without a network install
	@$(BIN)/python tools/wheelhouse.py
	@$(BIN)/python tools/wheelhouse.py --pipeline

soak: setup  ## Random faults on groups under traffic: SEQUENCES=5000 of them (one to three faults each), from SEED
	@$(PYTHON) tools/setup_environment.py --tests
	$(BIN)/python -m pytest tests/e2e/test_failover_random.py --sequences $(or $(SEQUENCES),5000) --seed $(or $(SEED),$(shell date +%s))

mutants: setup  ## Break the product on purpose, again and again, and see that the test named for it fails
	$(BIN)/python tools/mutants.py

HOURS ?= 8
crash: setup  ## Cut the power of stores on a disk that loses what was not synced, for HOURS=8 (SEED=, see docs/testing.md)
	$(BIN)/python tests/crash.py --hours $(HOURS) $(if $(SEED),--seed $(SEED))

lock: setup  ## Choose versions anew and write the lock files (after editing requirements*.in or a pyproject.toml)
	@$(BIN)/python tools/lock.py

clean:  ## Remove what set-up and tests made in this checkout
	@[ ! -d .pollux/lab ] || $(BIN)/python molecule/lab down --everything
	rm -rf .venv .pollux .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/conformance/node/node_modules
