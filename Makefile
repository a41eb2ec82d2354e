SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
IN_VENV := $(VENV)/bin
ELASTICSEARCH_VERSION := 8.19.21
ALSO_ELASTICSEARCH := 9.1.10

# Each worker has a server of its own (1 GB); in the files' order, so that the long ones do not come last.
AT_ONCE := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

say = @printf '\n== %s ==\n' "$(1)"

.PHONY: help
help: ## Show this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: setup
setup: $(VENV)/installed ## Install the kit and its tools into .venv

$(VENV)/installed: pyproject.toml
	$(call say,Setting up $(VENV))
	python3 -c 'import sys; sys.exit("Python 3.10 or later is needed." if sys.version_info < (3, 10) else 0)'
	python3 -m venv $(VENV) || { rm -rf $(VENV); echo 'No virtual environment; on Debian: apt-get install python3-venv' >&2; exit 1; }
	$(IN_VENV)/pip install --quiet --upgrade pip # those before 25.1 know no dependency groups
	$(IN_VENV)/pip install --quiet --editable . --group dev
	touch $@

.PHONY: demo
demo: setup ## See it work: sample logs into Elasticsearch, what happened at one step
	$(call say,Demo)
	@$(IN_VENV)/python -m verl_ingest.demo

.PHONY: test
test: setup ## Run every test on Elasticsearch 8, those that need the server on 9 too
ifdef ELASTICSEARCH_URL
	$(call say,All tests on $(ELASTICSEARCH_URL))
	$(IN_VENV)/pytest
else
	$(call say,All tests on Elasticsearch $(ELASTICSEARCH_VERSION))
	VERL_TEST_ES_VERSION=$(ELASTICSEARCH_VERSION) $(IN_VENV)/pytest $(AT_ONCE)
	$(call say,Server tests on Elasticsearch $(ALSO_ELASTICSEARCH))
	VERL_TEST_ES_VERSION=$(ALSO_ELASTICSEARCH) $(IN_VENV)/pytest -m server $(AT_ONCE)
endif

.PHONY: check
check: setup ## Lint, format, generated files, the agent's configuration
	$(call say,Checks)
	$(IN_VENV)/ruff check
	$(IN_VENV)/ruff format --check
	$(IN_VENV)/verl-ingest render --check
	$(IN_VENV)/verl-ingest check

.PHONY: format
format: setup ## Format the code and mend what the linter can
	$(IN_VENV)/ruff check --fix
	$(IN_VENV)/ruff format

.PHONY: golden
golden: setup ## Rewrite the expected documents of tests/lines; read the diff before you commit it
	$(IN_VENV)/python -m tests.golden

.PHONY: pictures
pictures: setup ## Take the pictures of docs/images again, with Chromium
	$(IN_VENV)/python -m tests.screenshots

.PHONY: grafana
grafana: setup ## Ask Grafana's own code where the dashboards' links lead; needs npm, fetches 380 MB once
	$(IN_VENV)/python -m tests.grafana_links

.PHONY: bench
bench: setup ## Measure loading, storage and queries; ARGS='scale --lines 10000000' for what takes longer
	$(call say,Benchmarks)
	$(IN_VENV)/python -m bench.run $(ARGS)

.PHONY: chaos
chaos: setup ## Kill, stop, refuse and rotate for ten minutes; is nothing lost, nothing twice?
	$(call say,Chaos)
	$(IN_VENV)/python -m chaos.run

SETTINGS := settings.yml

.PHONY: deploy
deploy: setup ## Roll out to the cluster of SETTINGS=cluster.yml: check, plan, assets, agents, a record from each node
	$(IN_VENV)/verl-ingest --settings $(SETTINGS) deploy $(ARGS)

.PHONY: status
status: setup ## Show each node of SETTINGS=cluster.yml: agent, lag, flagged records, missing ranks
	$(IN_VENV)/verl-ingest --settings $(SETTINGS) status $(ARGS)

.PHONY: undeploy
undeploy: setup ## Remove the agents of SETTINGS=cluster.yml; the data stay
	$(IN_VENV)/verl-ingest --settings $(SETTINGS) undeploy $(ARGS)

.PHONY: up
up: setup ## Start everything on this machine in Docker: Elasticsearch, agent, pages, Kibana, Grafana, Prometheus
	@$(IN_VENV)/python -m verl_ingest.cluster.up

.PHONY: down
down: ## Stop it; the data stay (docker compose down --volumes removes them)
	docker compose --profile '*' down

.PHONY: clean
clean: ## Stop the demo's server; remove .venv and everything that was built
	[ ! -e $(VENV)/installed ] || $(IN_VENV)/python -m verl_ingest.local stop
	rm -rf $(VENV) .demo build dist .pytest_cache .ruff_cache .hypothesis
