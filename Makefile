# The two commands: `make reproduce` and `make test`. `make help` lists all.
PYTHON ?= python3
PROFILE ?= quick
NOTEBOOKS ?=
JOBS ?=
CHANGE ?=

BIN = .venv/bin
CPU = $(if $(CURLNB_TORCH_BACKEND),--torch-backend $(CURLNB_TORCH_BACKEND))
LOCKED = notebooks graphs control cluster course docs dev
RUN = $(BIN)/python -m curlnb

.PHONY: help setup reproduce test oldest bench data report site paper course lab clean reference restamp lock
.DEFAULT_GOAL := help

# Keep freed memory for the next tensors (glibc): 5% of a run.
export MALLOC_MMAP_THRESHOLD_ ?= 2147483647
export MALLOC_TRIM_THRESHOLD_ ?= 2147483647

# With these, a hundred processes would compile torch anew, or find other packages than the locked.
unexport PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PYTHONSTARTUP PIP_USER PIP_TARGET PIP_PREFIX

help:                ## this list
	@sed -nE 's/^([a-z]+):[^#]*## /\1@/p' $(MAKEFILE_LIST) | \
		awk -F@ '{ printf "  make %-12s %s\n", $$1, $$2 }'
	@echo "  with PROFILE=quick|night|gpu|paper, NOTEBOOKS='file or folder ...', JOBS=notebooks at a time,"
	@echo "  CHANGE='epochs=12 batch=64' (settings of reproduced notebooks)"

setup:               ## install everything into .venv (the other commands do it when needed)
	@$(PYTHON) tools/bootstrap.py

reproduce: setup     ## run the notebooks and write results/PROFILE/report.html; resumable
	@$(RUN) reproduce --profile $(PROFILE) $(if $(JOBS),--jobs $(JOBS)) \
		$(if $(CHANGE),--change '$(CHANGE)') $(NOTEBOOKS)

test: setup          ## style, types, unit tests, every notebook on the reference runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --nbval-lax \
		-p no:cacheprovider tests notebooks

oldest: setup        ## test the losses, encoders and evaluation with the oldest torch that they support
	$(BIN)/python -m uv venv --quiet --allow-existing --python 3.11 results/oldest
	$(BIN)/python -m uv pip install --quiet --python results/oldest $(CPU) torch==2.4.1 torchvision==0.19.1 "numpy<2.3" \
		scikit-learn scipy pandas threadpoolctl pytest hypothesis
	PYTHONPATH=. OMP_NUM_THREADS=1 results/oldest/bin/python -m pytest --noconftest -p no:cacheprovider \
		tests/losses tests/evaluation/test_evaluation.py tests/models/test_encoders.py

bench: setup         ## measure speed as ratios in one run
	@$(BIN)/python tools/bench/bench.py $(PROFILE)

data: setup          ## fetch what PROFILE needs, or read official files that you have: FROM=folder
	@$(RUN) data --profile $(PROFILE) $(if $(FROM),--from "$(FROM)")

report: setup        ## write the report page again
	@$(RUN) report --profile $(PROFILE)

site: setup          ## build the web site in results/site/html, executing nothing
	@$(BIN)/python tools/build_site.py $(if $(BROWSE),--browse)

paper: setup         ## write the paper about the ledger, results/paper/paper.pdf, in seconds
	@PYTHONPATH=tools $(BIN)/python tools/paper/paper.py

course: setup        ## write a student edition into results/course (docs/course.md)
	@$(BIN)/python tools/course.py

lab: setup           ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab notebooks/0_start_here.ipynb

reference: setup     ## make a finished reproduction the reference, or judge NOTEBOOKS anew
	@$(RUN) reference --profile $(PROFILE) $(NOTEBOOKS)

restamp: setup       ## after a pure refactoring: renew the digests of what kept its bits
	@$(RUN) reference --profile $(PROFILE) --restamp

UV_LOCK = $(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
	--python-version 3.11 --no-header

lock: setup          ## resolve requirements.lock and tools/uv.lock again
	@$(UV_LOCK) $(LOCKED:%=--extra %) pyproject.toml -o requirements.lock
	@grep -oE '^setuptools==[0-9.]+' requirements.lock | sed '$$ a uv' | \
		$(UV_LOCK) --no-deps --no-annotate - -o tools/uv.lock

clean:               ## remove what was computed here; not the data cache, not .venv
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} +
