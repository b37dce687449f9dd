# Two commands: `make run` and `make test`. `make help` lists the others.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
SBOM   := .venv-sbom
RUN    ?= runs/first

.DEFAULT_GOAL := help
.PHONY: help run serve test test-faults test-attacks check reproduce pages bench wheel sbom clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(READY)  ## set up, then train on the images that ship with the package (under five minutes)
	@if [ -f $(RUN)/report.html ]; then \
		$(BIN)/fedspm evaluate $(RUN) && echo "report    $(RUN)/report.html (delete $(RUN) to train anew)"; \
	elif [ -f $(RUN)/manifest.json ]; then \
		$(BIN)/fedspm resume $(RUN); \
	else \
		$(BIN)/fedspm train --rounds 40 --out $(RUN); \
	fi

serve: run  ## the same, then answer queries at http://127.0.0.1:8000/
	$(BIN)/fedspm serve all $(RUN)

test: $(DEV) check  ## lint, type-check, then run every test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal

# not part of `make test`: run it whenever engines/, deploy/ or the version of Flower change
test-faults: $(DEV)  ## run the long tests that start and kill real servers and sites (about a quarter of an hour)
	$(BIN)/python -m pytest tests/faults -o norecursedirs=

# the quick ones are part of `make test`; run the long ones whenever serve/ or runs/ change
test-attacks: $(DEV)  ## attack real services and trainings: floods, costly images, hostile requests, kills (under ten minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/attacks -m '' -s

check: $(DEV)  ## lint and type-check (half a minute, seconds when little has changed)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reproduce: $(READY)  ## train a slice of table 1 anew and compare it with the committed cells (under ten minutes)
	$(BIN)/python benchmarks/reproduce.py

pages: $(READY)  ## write anew what is generated in docs/: numbers of results/*/cells.jsonl, settings, what leaves a client
	$(BIN)/python -m fedspm.experiments.pages

bench: $(DEV)  ## measure a round against bare tensor work
	$(BIN)/fedspm bench round

wheel: $(DEV)  ## build dist/fedspm-*.whl
	$(BIN)/python -m build --wheel

sbom: $(READY)  ## write dist/fedspm.cdx.json: every package that `make run` installs, with version and licence (CycloneDX)
	@test -x $(SBOM)/bin/cyclonedx-py || { $(PYTHON) -m venv $(SBOM) && \
		$(SBOM)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt cyclonedx-bom; }
	@mkdir -p dist
	$(SBOM)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml -o dist/fedspm.cdx.json

clean:  ## remove the environment and what was built (runs stay)
	rm -rf $(VENV) $(SBOM) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `make run` needs the package alone; Flower with Ray and the tools for tests take another minute.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once, one to two minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "FedSPM needs Python 3.11 or newer; point to one with: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]'
	@touch $(READY)

$(DEV): $(READY)
	@echo "adding what tests need"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower,serve]'
	@touch $(DEV)
