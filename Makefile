# `make train` and `make test` are all that a fresh machine needs: Python 3.11 or newer, and this file.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SC2 := .venv-sc2
# Environments of games whose libraries do not go with ours; see `ludus games`.
export LUDUS_GAMES ?= $(CURDIR)/.games
PEERS := .peers
RECIPE ?= connect_four
ARGS ?=
N ?= 1
RUNTIMES ?= local ray device

# One thread per process: the tests and the workers bring their own processes, hundreds of them, which find
# their modules compiled. Three at a time for two cores, as many tests wait for processes to start and to end;
# worksteal, as one slow file at the end would keep the others waiting.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
PYTEST := $(TEST_ENV) $(BIN)/pytest -n 3 --dist worksteal

# Tests whose libraries `make test` does not install: it leaves them out where they are installed too.
WITH_MORE := tests/observe/test_wandb.py tests/games/adapters/test_atari.py tests/recipes/test_atari_recipe.py \
  tests/games/adapters/test_pgx.py tests/workers/device/test_games_in_jax.py tests/export

# These of W&B offline, Atari, Pgx and ONNX, those of Optuna, Ray, Redis, Godot and the pages in a browser; and the
# quick rows of the fault matrix.
MORE := tests/cluster tests/browser tests/store/test_model_cache.py tests/faults/test_matrix.py $(WITH_MORE) \
  tests/test_godot.py "tests/test_docs.py::test_code_runs[docs/take-an-agent-out.md]" \
  tests/test_study.py::test_an_optimiser_draws_from_what_it_has_seen

.PHONY: help train test test-more test-all test-faults test-sc2 peers bench bench-league reference docs lint clean
.DEFAULT_GOAL := help

help:
	@echo "make train     train a league on $(RECIPE) (RECIPE=name or file.py:name, ARGS='--set path=value')"
	@echo "make test      the quick tests, a few minutes"
	@echo "make test-more quick tests of Ray, Atari, Pgx, W&B, Redis, ONNX, Godot and the pages in a browser (apt install chromium redis-server godot3-server)"
	@echo "make test-all  every test, with other people's games (football: after ludus games --install football)"
	@echo "make test-faults  every fault of docs/faults.md N times at random moments (N=1), then bad input; goes on where it ended"
	@echo "make test-sc2  the tests of StarCraft II, in an environment of their own"
	@echo "make bench     the benchmarks of the parts, then Ludus beside its peers (ARGS=--quick: a short look)"
	@echo "make bench-league  every league preset beside plain self-play, about two hours on two cores"
	@echo "make peers     environments of their own for the libraries that the benchmarks compare with"
	@echo "make docs      the site of the documentation, into site/"
	@echo "make reference the pages of docs/reference, from the code"
	@echo "make lint      formatting, style and types"
	@echo "make clean     remove the environment and every cache; runs stay"

# A stamp per set of packages: installed again only when what is asked for has changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,games,pettingzoo,openspiel,web,server,redis,tensorboard,prometheus,report,docs,dev]'
	touch $@

# OpenCV only for a test that compares pictures with it.
$(VENV)/.installed-more: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[atari,ray,browser,wandb,pgx,export,optuna]' opencv-python-headless
	touch $@

$(VENV)/.installed-games: $(VENV)/.installed-more
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[multi-atari,slimevolley,vizdoom]'
	$(BIN)/ludus games --install microrts
	touch $@

# PySC2 needs an old protobuf, so it lies beside the environment and sees the rest of it.
$(SC2)/.installed: $(VENV)/.installed
	test -x $(SC2)/bin/python || $(BIN)/python -m venv $(SC2)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('platlib'))" \
	  > $$($(SC2)/bin/python -c "import sysconfig; print(sysconfig.get_path('platlib'))")/beside.pth
	$(SC2)/bin/python -m pip install --quiet -e '.[sc2]'
	touch $@

train: $(VENV)/.installed
	$(BIN)/ludus train $(RECIPE) $(ARGS)

test: $(VENV)/.installed
	$(PYTEST) -m "not slow" $(WITH_MORE:%=--ignore=%) $(ARGS)

# One after another: each Ray cluster looks whether it has left something behind. A test that is skipped has not
# run, and everything that these need is here.
test-more: $(VENV)/.installed-more
	$(TEST_ENV) $(BIN)/pytest -m "not slow or ci" --no-skips $(MORE) $(ARGS)

test-all: $(VENV)/.installed-games test-sc2
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist loadfile $(ARGS)

# Each injection is kept in .faults/ when it is over, so that the same command goes on; the table is a dated report.
test-faults: $(VENV)/.installed-more
	cd tests/faults && for runtime in $(RUNTIMES); do \
	  $(TEST_ENV) $(CURDIR)/$(BIN)/python -m matrix --times $(N) --runtime $$runtime $(ARGS) || failed=1; done; \
	  $(TEST_ENV) $(CURDIR)/$(BIN)/python -m matrix --inputs || failed=1; \
	  $(TEST_ENV) $(CURDIR)/$(BIN)/pytest test_fuzz.py --fuzz-seconds=60 || failed=1; \
	  test -z "$$failed"

test-sc2: $(SC2)/.installed
	$(TEST_ENV) $(SC2)/bin/python -m pytest -n 2 --dist worksteal $(ARGS) \
	  tests/games/adapters/test_pysc2*.py tests/recipes/test_sc2_recipes.py

$(PEERS)/%/.installed: benchmarks/peers/%.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

peers: $(PEERS)/sb3/.installed $(PEERS)/sample_factory/.installed

bench: $(VENV)/.installed peers
	$(BIN)/python benchmarks/micro.py $(if $(filter --quick,$(ARGS)),--no-report)
	$(BIN)/python benchmarks/peers.py $(ARGS)

bench-league: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,bench]'
	$(BIN)/python benchmarks/league.py $(ARGS)

reference: $(VENV)/.installed
	$(TEST_ENV) $(BIN)/python tools/reference.py

docs: reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: it would hide the warnings from --strict
	@echo "open site/index.html; or look on while you write: $(BIN)/mkdocs serve"

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tools

clean:
	rm -rf $(VENV) $(SC2) $(PEERS) .games .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
