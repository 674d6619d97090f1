# The two commands: `make reproduce` and `make test`. `make help` lists all.
PYTHON ?= python3
PROFILE ?= quick
NOTEBOOKS ?=
JOBS ?=
EXPERIMENTS ?=

BIN = .venv/bin
RUN = $(BIN)/python -m curlnb

.PHONY: help setup reproduce test bench data report site course lab clean reference restamp lock
.DEFAULT_GOAL := help

unexport PYTHONDONTWRITEBYTECODE  # some machines set it, and each of a hundred processes would compile torch anew

help:                ## this list
	@grep -E '^[a-z]+: .*## |^[a-z]+: +## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /@/' | awk -F@ '{ printf "  make %-12s %s\n", $$1, $$2 }'
	@echo "  with PROFILE=quick|night|gpu|paper, NOTEBOOKS='file or folder ...', JOBS=n notebooks at a time"

setup:               ## install everything into .venv (the other commands do it when needed)
	@$(PYTHON) tools/bootstrap.py

reproduce: setup     ## run the notebooks and write results/PROFILE/report.html; resumable
	@$(RUN) reproduce --profile $(PROFILE) $(if $(JOBS),--jobs $(JOBS)) $(NOTEBOOKS)

test: setup          ## style, types, unit tests, every notebook on the reference runs, a sample of runs computed again
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --nbval-lax -p no:cacheprovider tests notebooks

bench: setup         ## measure speed as ratios in one run
	@$(BIN)/python tools/bench/bench.py $(PROFILE)

data: setup          ## fetch what PROFILE needs, or read official files that you have: FROM=folder
	@$(RUN) data --profile $(PROFILE) $(if $(FROM),--from "$(FROM)")

report: setup        ## write the report page again
	@$(RUN) report --profile $(PROFILE)

site: setup          ## build the pages of notebooks, claims and modules in results/site/html, executing nothing
	@$(BIN)/python tools/build_site.py $(if $(BROWSE),--browse)

course: setup        ## write the course's assignments into results/course; docs/course.md tells how to use and grade them
	@$(BIN)/python tools/course.py

lab: setup           ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab notebooks/0_start_here.ipynb

reference: setup     ## make a finished reproduction the committed reference, or judge NOTEBOOKS anew on the committed runs
	@$(RUN) reference --profile $(PROFILE) $(NOTEBOOKS)

restamp: setup       ## after a pure refactoring: recompute a run a branch, renew the digests of what kept its bits
	@$(RUN) reference --profile $(PROFILE) --restamp $(if $(EXPERIMENTS),--experiments $(EXPERIMENTS))

lock: setup          ## resolve requirements.lock and tools/uv.lock again
	@$(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 --no-header \
		--all-extras pyproject.toml -o requirements.lock
	@echo uv | $(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 --no-header \
		--no-deps --no-annotate - -o tools/uv.lock

clean:               ## remove what was computed here (results/, caches); not the data cache, not .venv
	@$(PYTHON) tools/clean.py
