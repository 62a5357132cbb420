# Every check and tool of devicecore. Only make and Python 3.11 or newer are required: the first target that needs the
# environment creates it, and later ones use it until pyproject.toml changes.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input

# Containers often tell Python not to write .pyc files. Then each of the hundreds of processes that the tests start would
# compile devicecore again. An empty value allows Python to write them.
export PYTHONDONTWRITEBYTECODE :=

.NOTPARALLEL: # two runs of pip must not change the environment at the same time
.DEFAULT_GOAL := help
.PHONY: help test quick lint mypy types imports unit slow branches coverage laws faults found cross judge matrix simulate bench storm fuzz demo zipapp dist wheelhouse kind docs format protos mutants zoo peers oracle recordings clean FORCE

# What a newcomer needs. `make help` lists all other targets after these.
FOR_EVERYBODY := demo zipapp wheelhouse kind quick test

help: ## list the targets
	@echo "For everybody:"
	@for target in $(FOR_EVERYBODY); do sed -n "s/^\($$target\):.*## /  make \1	/p" Makefile; done
	@echo
	@echo "For maintainers:"
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile | grep -vE "make ($$(echo $(FOR_EVERYBODY) | tr ' ' '|'))	"
	@echo
	@echo "  make test PYTHON=python3.13	run the tests with a different interpreter"

# $(call beside,TESTS,CHECKS) runs the tests and, at the same time, static checks, which keep one processor busy while many
# tests wait.
beside = $(MAKE) --no-print-directory $(2) >$(VENV)/checks.txt 2>&1 & checks=$$!; \
  trap "kill $$checks" INT TERM; $(1); tests=$$?; \
  wait $$checks; checks=$$?; cat $(VENV)/checks.txt; [ $$tests = 0 ] && [ $$checks = 0 ]

test: $(VENV)/.dev ## run the checks that need only Python, except for long runs
	@$(call beside,$(MAKE) --no-print-directory unit,lint mypy imports)
	@echo "== all checks passed"

# The tests that neither start processes nor open sockets.
FAST_TESTS := tests/unit tests/property tests/contract tests/test_house_rules.py tests/test_imports.py

quick: $(VENV)/.dev ## lint, mypy, layers and the fast tests with few examples, to run while you work; half a minute
	@echo "== pytest, the fast tests"
	@$(call beside,$(BIN)/pytest --quiet --numprocesses=6 --hypothesis-profile=quick --ignore=tests/contract/test_lifecycle.py $(FAST_TESTS),lint mypy imports)

matrix: $(VENV)/.dev ## the fast tests and the adapters' tests with each Python on this machine and the oldest and newest dependencies; some minutes
	@$(BIN)/python tools/matrix.py

lint: $(VENV)/.dev ## style: ruff
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check --quiet

mypy: $(VENV)/.dev ## types: strict mypy
	@echo "== mypy"
	@$(BIN)/mypy
	@# As if a reader had copied all blocks of a guide into one file.
	@rm -rf build/guides && mkdir -p build/guides && $(BIN)/python -m tests.guides build/guides
	@$(BIN)/mypy build/guides

# pyright installs Node.js and ten thousand files, so `make test` does not run it. CI runs this target.
types: mypy $(VENV)/.types ## types: strict mypy, and pyright on what users see
	@echo "== pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python tests/typing >$(VENV)/pyright.txt || { cat $(VENV)/pyright.txt; exit 1; }
	@# Not in this directory, because next to src/, pyright does not find the installed package.
	@cd $(VENV) && PATH="$$PWD/bin:$$PATH" bin/pyright --verifytypes devicecore --ignoreexternal >pyright.txt || { cat pyright.txt; exit 1; }

imports: $(VENV)/.dev ## layers: import-linter
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-logo

# Some tests start processes and wait for them while they share the processor with other tests. A test that fails
# then but passes alone depends too much on timing. This is a defect, so the test is named, but no one has to run thousands
# of tests again because of it.
unit: $(VENV)/.dev ## the tests, including the examples in README.md and docs/
	@echo "== pytest"
	@$(BIN)/pytest --quiet --numprocesses=10 || { [ $$? = 1 ] \
	  && echo "== pytest: tests that failed next to other tests run once more, alone" \
	  && $(BIN)/pytest --quiet --exitfirst --last-failed --last-failed-no-failures=none \
	  && echo "== these tests pass only when they run alone: please report them, with the output above"; }

# These tests run the programs as users start them, in separate processes. `make test` tests the parts of the programs.
slow: $(VENV)/.dev ## the tests that `make test` skips because they are slow and other tests show nearly the same; three minutes
	@SLOW=1 $(BIN)/pytest --quiet --numprocesses=8 -m slow

# Each of these must be covered on its own, because an average would hide a part that is not.
FULLY_TESTED := domain ports runtime manager dra_manager

# Measuring coverage more than doubles a test's time, so `make test` does not measure it. CI runs this target.
CORE_TESTS := tests/unit tests/allocation tests/contract/test_policy.py \
  $(addprefix tests/property/test_,dra_files.py dra_slices.py topology.py) \
  packages/tools/tests/judge/test_allocation_judge.py packages/tools/tests/command/test_checkpoint_repair.py

branches: $(VENV)/.dev ## the branch coverage of each part of the core, by the tests that test it; half a minute
	@$(BIN)/pytest --quiet --numprocesses=4 -ppytest_cov --cov-report= $(FULLY_TESTED:%=--cov=devicecore.%) $(CORE_TESTS)
	@$(BIN)/python tools/coverage_of_parts.py 95 $(FULLY_TESTED)

coverage: $(VENV)/.dev ## the branch coverage of everything, by all tests that do not run in a separate process; some minutes
	@$(BIN)/pytest --quiet --numprocesses=4 -ppytest_cov --cov --cov-report=
	@$(BIN)/coverage report

# Tests of which `make test` runs only a share of the cases, because the other cases are different data for the same code.
SHARED_TESTS := packages/tools/tests/command/test_demo.py packages/tools/tests/command/test_doctor.py \
  packages/tools/tests/command/test_checkpoint_repair.py packages/tools/tests/kit/test_denominator.py \
  packages/tools/tests/doctor packages/tools/tests/property tests/adapters/test_wire.py tests/adapters/test_dra_wire.py \
  packages/fleet/tests/property tests/allocation tests/contract tests/simulation tests/system/test_json_values.py tests/unit/test_histories.py \
  tests/unit/test_dra_histories.py tests/unit/test_dra_state_vectors.py tests/unit/test_json_size.py

laws: $(VENV)/.dev ## tests/property with 1,000 new examples each instead of 10, and all cases of tests that `make test` runs in part; many minutes
	@SLOW=1 $(BIN)/pytest --quiet --numprocesses=auto --hypothesis-profile=thorough --override-ini=faulthandler_timeout=1800 \
	  tests/property $(SHARED_TESTS)

faults: $(VENV)/.dev ## the faulty plugins and drivers of all conformance checks, not only of those that run by default; some minutes
	@FAULTS=1 SLOW=1 $(BIN)/pytest --quiet --numprocesses=3 packages/tools/tests/conformance \
	  $(addprefix packages/tools/tests/kit/test_,conformance.py conformance_health.py conformance_restarts.py dra_guide.py)

found: $(VENV)/.dev ## write docs/maintain/found-faults.md from `devicecore conformance` with each injected fault; half an hour
	@$(BIN)/python -m tools.find_faults

cross: $(VENV)/.dev ## all conformance checks with each faulty DRA driver; about an hour
	@STORM=1 $(BIN)/pytest --quiet packages/tools/tests/conformance

CASES ?= 100000

judge: $(VENV)/.dev ## compare our allocation with an exhaustive search on CASES (100000) random cases, and with Kubernetes' recorded answers; some minutes
	@PYTHONPATH=packages/tools $(BIN)/python -m tools.judge_allocations $(CASES)

SEEDS ?= 0-119
STEPS ?= 1000

MUTANTS ?= 300
SEED ?= 41
ROOM ?= core

mutants: $(VENV)/.dev ## make MUTANTS (300) random changes to ROOM (core, allocation, doctor, conformance, testing, fleet or numa), chosen by SEED (41), and list those that the room's tests miss; half an hour. KIND=oracle injects the faults that `make oracle` must find
	@$(if $(filter oracle,$(KIND)),$(BIN)/python -m tests.oracle.planted --kubernetes $(KUBERNETES) --seed $(SEED), \
	SLOW=1 $(BIN)/python -m tools.mutants --room $(ROOM) --count $(MUTANTS) --seed $(SEED))

simulate: $(VENV)/.dev ## simulate a node for STEPS (1000) random steps with each of SEEDS (0-119); two or three minutes
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --steps $(STEPS)

storm: $(VENV)/.dev ## the full reliability tests, with 10,000 registrations, 1,000 plugins and many crashes; some minutes
	@STORM=1 SLOW=1 $(BIN)/pytest --quiet --override-ini=faulthandler_timeout=3600 tests/reliability packages/tools/tests/reliability packages/fleet/tests/cluster/test_cluster_pods.py

FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= checkpoint wire manifest pods_file kubeconfig api_answer questions

fuzz: $(VENV)/.dev ## look for input that breaks devicecore, for FUZZ_SECONDS (600); atheris needs Python 3.11 to 3.13
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(PIP) install atheris==3.0.0
	@for target in $(FUZZ_TARGETS); do \
	  echo "== fuzzing $$target for $$(( $(FUZZ_SECONDS) / $(words $(FUZZ_TARGETS)) )) seconds"; \
	  PYTHONPATH=packages/tools $(BIN)/python -m tests.reliability.fuzz $$target $$(( $(FUZZ_SECONDS) / $(words $(FUZZ_TARGETS)) )) || exit 1; \
	done

bench: $(VENV)/.dev ## compare our performance with that of Kubernetes' own device manager, which needs Go; BENCH=--quick for a first impression, BENCH=--json to keep the results in benchmarks/ and docs/
	@PYTHONPATH=. $(BIN)/python benchmarks/run.py $(BENCH)
	@$(if $(filter --json,$(BENCH)),$(BIN)/python benchmarks/plot.py)
	@PYTHONPATH=. $(BIN)/python benchmarks/numa.py
	@$(BIN)/python benchmarks/fleet.py $(or $(FLEET),$(if $(findstring quick,$(BENCH)),--nodes 50 --seconds 5))

demo: $(VENV)/.runtime ## see devicecore at work on this machine; KEEP=1 keeps the files of its two nodes
	@$(BIN)/devicecore demo $(if $(KEEP),--keep)

zipapp: $(VENV)/.runtime ## write devicecore.pyz: doctor, why, fits, nodes and checkpoint in one file that needs only Python
	@$(BIN)/python tools/make_zipapp.py

dist: $(VENV)/.dist ## write wheels and source distributions to dist/, and try them in new environments of each Python on this machine
	@$(BIN)/python -m tools.make_dist

wheelhouse: $(VENV)/.dev ## write one archive to dist/ with all distributions and their dependencies, to install without a network
	@$(BIN)/python tools/make_wheelhouse.py

KIND ?= kind

kind: ## build the images and apply deploy/kind, for simulated GPUs in the kind cluster KIND (kind); needs Docker, kind and kubectl
	@for tool in docker kind kubectl; do command -v $$tool >/dev/null || { echo "$$tool was not found. make kind needs Docker, kind and kubectl." >&2; exit 1; }; done
	@for part in plugin driver; do docker build --quiet --target $$part --tag devicecore-$$part:local . || exit 1; done
	@kind load docker-image --name $(KIND) devicecore-plugin:local devicecore-driver:local
	@kubectl apply -k deploy/kind

docs: $(VENV)/.docs ## build the guides, the conformance checks and the reference into build/site/; a warning is an error; a minute
	@$(BIN)/python -m tools.make_conformance
	@$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -d build/doctrees docs build/site
	@echo "== the site is in build/site/index.html"

format: $(VENV)/.dev ## let ruff fix and format what it can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet

protos: $(VENV)/.dev ## compile the .proto files again
	@$(BIN)/python tools/make_protos.py

zoo: $(VENV)/.dev ## write docs/cards.md, with the results of the conformance checks on third-party plugins and drivers; needs Go; up to 20 minutes
	@$(BIN)/python -m tools.make_zoo

KUBERNETES ?= $(shell sed -n 's|^\tk8s.io/kubernetes v\([0-9.]*\).*|\1|p' peers/go.mod)

peers: ## build the programs of KUBERNETES (1.37.2), and ours around its code, in a cache outside the tree; needs Go 1.26; 20 minutes the first time
	@$(PYTHON) tools/make_peers.py --kubernetes $(KUBERNETES)

# PART is one of doctor, fleet, kind, nodes, numa, pods, requests, sink and story, and SITUATION is a function in
# tests/real_cluster/situations.py. With OUTAGES=5, the fleet goes through long outages in an order that depends on SEED. CI runs
# SHARE=1. PLANT=all injects one fault after another (tests/real_cluster/plants.py), each of which its check must find, and
# PLANT=NAME injects one fault.
.PHONY: cluster guests
cluster: $(VENV)/.dev peers ## compare devicecore with the programs of KUBERNETES (1.37.2); PART=nodes and SITUATION=NAME run only a part; 15 minutes
	@$(if $(PLANT),KUBERNETES=$(KUBERNETES) PLANT= $(BIN)/python -m tests.real_cluster.plants $(PLANT), \
	KUBERNETES=$(KUBERNETES) SHARE=$(SHARE) $(BIN)/pytest -s -rs --tb=short --override-ini=faulthandler_timeout=900 --numprocesses=$(if $(SHARE),2,5) \
	  tests/real_cluster/checks_$(or $(PART),$(if $(SITUATION),doctor))*.py $(if $(SITUATION),-k $(SITUATION)))

guests: $(VENV)/.dev peers ## run Kueue, descheduler and an autoscaler, or GUEST, on a fleet (docs/test-your-scheduler.md); needs Go 1.26
	@$(BIN)/python -m tests.real_cluster.guests $(GUEST)

oracle: $(VENV)/.dev ## compare devicecore with Kubernetes' own code on CASES (1000) new cases of each kind, or of KIND; SEED= and CASE= repeat one; needs Go 1.26
	@$(BIN)/python -m tests.oracle --kubernetes $(KUBERNETES) $(if $(filter file,$(origin CASES)),,--cases $(CASES)) \
	  $(if $(filter file,$(origin KIND)),,$(KIND:%=--kind %)) $(if $(filter file,$(origin SEED)),,--seed $(SEED)) $(if $(CASE),--case $(CASE))

recordings: $(VENV)/.dev ## make the recordings for the tests from Kubernetes' own code again; needs Go 1.26
	@$(BIN)/python -m tests.oracle.recordings --kubernetes $(KUBERNETES)

clean: ## remove the environment that make has created, and everything else that can be made again
	@if [ -f $(VENV)/.made ] && ! grep -qx adopted $(VENV)/.made; then rm -rf $(VENV); fi
	@rm -rf build dist devicecore.pyz .matrix .cards .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests packages -name __pycache__ -prune -exec rm -rf {} +

# --- the environment --------------------------------------------------------------------------------------------------

PROJECTS := pyproject.toml packages/numa/pyproject.toml packages/tools/pyproject.toml packages/fleet/pyproject.toml

# pip 25.1 is the first version that knows dependency groups. The other packages build our four packages in this environment
# instead of in four new ones. pip compiles nothing, because Python compiles the few modules that are imported.
BUILDERS := "pip>=25.1" editables hatch-fancy-pypi-readme hatchling

$(VENV)/.dev: $(PROJECTS) $(VENV)/.made
	@echo "== installing devicecore, its managers, tools and fleet into $(VENV)"
	@$(PIP) install --no-compile --upgrade $(BUILDERS)
	@$(PIP) install --no-compile --no-build-isolation --editable ".[cel,kubernetes,manifests,prometheus,testing]" --editable packages/numa --editable packages/tools --editable packages/fleet --group dev
	@touch $(VENV)/.runtime $@

$(VENV)/.dist: $(VENV)/.dev
	@$(PIP) install --group dist
	@touch $@

$(VENV)/.types: $(VENV)/.dev
	@echo "== installing pyright into $(VENV)"
	@$(PIP) install --group types
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@echo "== installing Sphinx into $(VENV)"
	@$(PIP) install --group docs
	@touch $@

$(VENV)/.runtime: $(PROJECTS) $(VENV)/.made
	@echo "== installing devicecore into $(VENV)"
	@$(PIP) install --no-compile --upgrade $(BUILDERS)
	@$(PIP) install --no-compile --no-build-isolation --editable . --editable packages/numa --editable packages/tools --editable packages/fleet
	@touch $@

# If PYTHON is given, it has to be this interpreter, so an environment that make has created with another one is created
# again. An environment that make has not created is used as it is, and never cleared.
ifneq ($(origin PYTHON),file)
ifneq ($(PYTHON),$(shell cat $(VENV)/.made 2>/dev/null))
$(VENV)/.made: FORCE
endif
endif

$(VENV)/.made:
	@if [ -f $(VENV)/pyvenv.cfg ] && { [ ! -f $@ ] || grep -qx adopted $@; }; then \
	  $(BIN)/python -c "import sys, pip; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
	    echo "$(VENV) exists, and make has not created it. It needs Python 3.11 or newer, and pip. Remove it, or name" \
	      "another one: make VENV=..." >&2; exit 1; }; \
	  [ "$(origin PYTHON)" = file ] || { \
	    echo "$(VENV) exists, and make has not created it, so it is not replaced by one with $(PYTHON). Name another one:" \
	      "make VENV=... PYTHON=$(PYTHON)" >&2; exit 1; }; \
	  echo "== using the existing environment $(VENV)"; \
	  echo adopted > $@; \
	  exit; \
	fi; \
	command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. Install Python 3.11 or newer, or name an interpreter: make PYTHON=..." >&2; exit 1; }; \
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	  echo "$(PYTHON) is too old: devicecore needs Python 3.11 or newer. Name another interpreter: make PYTHON=..." >&2; exit 1; }; \
	echo "== creating $(VENV) with $$($(PYTHON) --version)"; \
	clear=$$(test ! -f $(VENV)/pyvenv.cfg || echo --clear); \
	if { $(PYTHON) -c "import pip, venv" && $(PYTHON) -m venv $$clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip -qq --python $(BIN)/python install --no-compile "pip>=25.1"; } 2>/dev/null; then \
	  : "ensurepip would install and compile an older pip first"; \
	elif $(PYTHON) -c "import ensurepip, venv" 2>/dev/null; then \
	  $(PYTHON) -m venv $$clear $(VENV); \
	else \
	  echo "$(PYTHON) cannot create environments. Install what is missing (Debian, Ubuntu: apt install python3-venv)," \
	    "or name another interpreter: make PYTHON=..." >&2; exit 1; \
	fi && echo "$(PYTHON)" > $@
