# Everything a newcomer needs: `make figures` and `make test`. Works from a path with a space in it, since every
# path here is relative. `make help` lists the rest.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLAGS ?=
MINUTES ?= 10
# Where this is set, every interpreter that starts compiles torch, timm and transformers anew: seconds each time.
unexport PYTHONDONTWRITEBYTECODE
# which tests run on one worker, and in which order: tests/conftest.py; numpy is there before it, and begins its threads
SPREAD := -n auto --dist loadfile --no-loadscope-reorder
test check versions: export OMP_NUM_THREADS = 1

.PHONY: help setup figures test check fuzz mutants lab lint format bench pictures pages train confirm embedded records scaling conformance access docs site chrome wheel ray peers versions clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install the package and its development tools

$(READY): pyproject.toml constraints.txt
	@sh scripts/make-venv "$(PYTHON)" "$(VENV)"
	@touch $@

figures: $(READY) ## render every notebook with the bundled models and inputs into figures/
	@sh scripts/ensure-chrome
	@$(BIN)/python -P -m workbench render -j 2 $(FLAGS)

test: $(READY) ## run every test
	@sh scripts/ensure-chrome
	@$(BIN)/python -m pytest $(SPREAD) --durations=30 $(FLAGS)

check: $(READY) ## run the fast tests: analyses, attention, frames, figures, a capture of every model family
	@$(BIN)/python -m pytest $(SPREAD) -m "not integration and not e2e" $(FLAGS)

fuzz: $(READY) ## damage files of every kind for MINUTES=10: whatever they hold, an error is one of ours
	@$(BIN)/python -m tests.fuzz $(MINUTES)

mutants: $(READY) ## change one line of the library at a time and see whether its tests notice (an hour; goes on)
	@$(BIN)/python -m tests.mutants $(FLAGS)

lab: $(READY) ## open the explorer in JupyterLab
	@$(BIN)/python -P -m workbench explore

lint: $(READY) ## style, types, spelling, notebooks without outputs
	@$(BIN)/python -m ruff check . && $(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ty check workbench
	@$(BIN)/lint-imports --no-cache --config pyproject.toml >.venv/imports.log || { cat .venv/imports.log; exit 1; }
	@$(BIN)/python -m codespell_lib workbench tests benchmarks conformance docs notebooks scripts *.md
	@$(BIN)/python -m nbstripout --verify --keep-metadata-keys "metadata.workbench cell.metadata.tags" notebooks/*.ipynb notebooks/*/*.ipynb

format: $(READY) ## rewrite the code in the project's style
	@$(BIN)/python -m ruff check --fix . ; $(BIN)/python -m ruff format .
	@$(BIN)/python -m nbstripout --keep-metadata-keys "metadata.workbench cell.metadata.tags" notebooks/*.ipynb notebooks/*/*.ipynb

bench: $(READY) ## print the speed table: ratios measured in one run
	@sh scripts/ensure-chrome
	@$(BIN)/python -P -m benchmarks $(FLAGS)

pictures: $(READY) ## draw the pictures of figures/examples again: README, examples, explorer, demo
	@sh scripts/ensure-chrome
	@$(BIN)/python scripts/pictures $(FLAGS)

train: $(READY) ## train the bundled models again, three seeds each, and their committed records
	@$(BIN)/python -P -m workbench study records training -j 2 $(FLAGS)

confirm: $(READY) ## train the models that claims compare with new seeds, and attack them (hours; goes on)
	@$(BIN)/python -P -m workbench study records training --confirm -j 2 $(FLAGS)
	@$(BIN)/python -P -m workbench study records robustness --confirm -j 2

embedded: $(READY) ## train what is recorded of the embedded tasks, three seeds each (hours; goes on)
	@$(BIN)/python -P -m workbench study records learned
	@$(BIN)/python -P -m workbench study records embedded -j 2 $(FLAGS)

records: $(READY) ## measure claims and theorems again, and evaluate the bundled models: attacks, corruptions, words (hours)
	@$(BIN)/python -P -m workbench study records claims -j 2
	@$(BIN)/python -P -m workbench study records theorems -j 2
	@$(BIN)/python -P -m workbench study records robustness -j 2 $(FLAGS)

scaling: $(READY) ## measure the attention operators again: time, memory, exponents (half an hour and more)
	@$(BIN)/python -P -m workbench study records operators $(FLAGS)

conformance: $(READY) ## capture every model type of transformers and timm, and write the table (a quarter of an hour and more; goes on)
	@$(BIN)/python -P -m conformance $(FLAGS)

access: $(READY) ## hold the explorer's page to the accessibility rules of axe-core, which npm brings
	@sh scripts/ensure-chrome
	@npm install --silent --no-save --prefix $(VENV)/axe axe-core@4.14.1
	@$(BIN)/python -m tests.apps.explorer.access $(VENV)/axe/node_modules/axe-core/axe.min.js

pages: $(READY) ## write the tables and numbers that pages take from records
	@$(BIN)/python -m docs.hooks.papers

docs: $(READY) ## build the documentation site into site/, with the figures that are there
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && touch site/.complete

site: docs ## put the site of this version beside earlier ones, on the branch gh-pages: make site VERSION=0.1
	@test -n "$(VERSION)" || { echo "say which version: make site VERSION=0.1"; exit 2; }
	@PATH="$$PWD/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(VERSION) latest
	@$(BIN)/mike set-default latest

chrome: $(READY) ## fetch a Chrome for static export where the system has none
	@$(BIN)/plotly_get_chrome -y

wheel: $(READY) ## build two wheels into dist/: package, notebooks, models, tables; and the weights of the extra "models"
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist data

ray: $(READY) ## install Ray, and test a sweep on a local cluster of it
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	@$(BIN)/python -m pytest tests/runs/sweep/test_workers.py -k ray

peers: $(READY) ## install TransformerLens and nnsight, and compare captures and interventions with theirs
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[peers]"
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/captures/test_peers.py

versions: $(READY) ## run the fast tests with the lowest and with the newest versions of the dependencies
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/python scripts/versions lowest $(SPREAD) $(or $(FLAGS),-m "not integration and not e2e")
	@$(BIN)/python scripts/versions highest $(SPREAD) $(or $(FLAGS),-m "not integration and not e2e")

clean: ## remove what the targets above made, the environment included
	rm -rf $(VENV) dist build site .pytest_cache .ruff_cache
