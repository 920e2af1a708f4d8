# Everything that a developer or CI runs. `make` alone tells what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell scripts/find-python)
VENV ?= .venv
PY = $(VENV)/bin/python
STAGE = scripts/stage

export PYTHONUNBUFFERED = 1
# Small matrices on few cores: threads of one process only get in the way of the others.
export OMP_NUM_THREADS ?= 1

.NOTPARALLEL:

.PHONY: help
help: ## tell what there is
	@echo "REX: elastic PyTorch training on mixed GPU pools. Targets:"
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: VENV (environment, now $(VENV)), PYTHON (interpreter to make it with, now $(PYTHON))."

.PHONY: setup
setup: ## make the environment in VENV; re-used while the requirements are unchanged
	@scripts/prerequisites "$(PYTHON)" setup
	@$(STAGE) "Environment" "2 to 5 minutes the first time, then seconds" scripts/setup "$(PYTHON)" "$(VENV)"

.PHONY: demo
demo: setup ## train the digits example on four emulated devices, with a report; about 3 minutes
	@$(PY) scripts/demo.py

.PHONY: check
check: setup lint types contracts unit ## quick: lint, types, import contracts, unit tests; about 5 minutes

.PHONY: test
test: prerequisites setup lint types contracts unit programs component e2e ## everything, on a real cluster; about 50 minutes the first time, then 25
	@printf '\nEvery test passed.\n'

.PHONY: prerequisites
prerequisites:
	@scripts/prerequisites "$(PYTHON)" test

.PHONY: lint
lint: setup ## ruff: rules and formatting
	@$(STAGE) "Lint and formatting (ruff)" "seconds" $(PY) -m ruff check .
	@$(STAGE) "Formatting (ruff format)" "seconds" $(PY) -m ruff format --check .

.PHONY: types
types: setup ## mypy --strict
	@$(STAGE) "Types (mypy --strict)" "1 to 2 minutes the first time" $(PY) -m mypy

.PHONY: contracts
contracts: setup ## who may import whom (import-linter)
	@$(STAGE) "Import contracts (import-linter)" "seconds" $(VENV)/bin/lint-imports

.PHONY: unit
unit: setup ## pure tests, in virtual time
	@$(STAGE) "Unit tests" "2 to 4 minutes" $(PY) -m pytest -m "not component and not e2e and not cuda"

.PHONY: component
component: programs ## tests with real processes on this machine
	@$(STAGE) "Component tests: real worker processes" "10 to 15 minutes" $(PY) -m pytest -m "component and not cuda"

.PHONY: programs
programs: setup
	@$(STAGE) "Programs and images of the test cluster: Kubernetes, etcd, containerd from Go modules" \
	  "15 to 25 minutes the first time, then seconds" $(PY) -m tests.cluster build

.PHONY: e2e
e2e: programs ## tests on a real cluster with kubelets
	@$(STAGE) "End-to-end tests: real kubelets, real pods" "5 to 15 minutes" $(PY) -m pytest -m e2e

.PHONY: test-cuda
test-cuda: setup ## tests that need an NVIDIA GPU
	@$(STAGE) "CUDA tests" "about a minute" $(PY) -m pytest -m cuda

.PHONY: soak
soak: setup ## random elastic events on real workers, each round checked to the last sample; MINUTES=30
	@$(PY) -m tests.worker.soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

.PHONY: cluster
cluster: prerequisites programs ## start a local Kubernetes cluster and keep it
	@$(STAGE) "Cluster" "under a minute" $(PY) -m tests.cluster up

.PHONY: cluster-down
cluster-down: setup ## stop it and clean up
	@$(STAGE) "Cluster down" "seconds" $(PY) -m tests.cluster down

.PHONY: bench
bench: setup ## run every benchmark, quick form
	@for file in benchmarks/[a-z]*.py; do \
	  name=$$(basename $$file .py); \
	  $(STAGE) "Benchmark $$name" "up to a minute" $(PY) -m benchmarks.$$name --quick; \
	done

.PHONY: crd
crd: setup ## generate the CRD and the reference from the models
	@$(PY) -m rex_operator.api.crd >crds/rexjobs.yaml
	@cp crds/rexjobs.yaml deploy/rexjobs.yaml
	@cp crds/rexjobs.yaml charts/rex-operator/files/rexjobs.yaml
	@$(PY) scripts/reference.py >docs/reference/rexjob.md

.PHONY: reference
reference: setup ## generate the worker library's reference and the table of policies
	@$(PY) scripts/worker_reference.py >docs/reference/worker.md
	@$(PY) scripts/policy_table.py docs/planner.md

.PHONY: format
format: setup ## let ruff format and fix
	@$(PY) -m ruff check --fix --quiet .
	@$(PY) -m ruff format .

.PHONY: lock
lock: setup ## pin the requirements anew (UPGRADE=1 takes newer versions)
	@scripts/lock "$(VENV)" $(if $(UPGRADE),--upgrade)
