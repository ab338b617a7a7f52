# Everything a person or CI does here. Needs Python >= 3.11, make and the network; `make cluster-up` also root and Debian packages, or kind.
SHELL  := bash -o pipefail
# Thousands of Python processes start here. Without files of bytecode each would compile all that it imports, torch among it.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := .cache/uv/bin/uv
# A folder with the CPU build of torch, if there is one; otherwise torch comes from the package index, with its CUDA libraries.
WHEELS ?= $(wildcard ../shared/wheels)
TORCH  := $(if $(and $(wildcard $(WHEELS)/torch-*+cpu-cp311-*.whl),$(filter 3.11,$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))),torch-cpu,torch)
# What the chart and the examples name, too.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
SITE   ?= build/docs
DIST   ?= dist
HELM   ?= helm
PEERS  := laboratory/contenders/.venv
STAMP  := $(VENV)/.made-$(TORCH)

# Tests run on all cores: tests/support/side_by_side.py says which goes first, and a worker that dies is not replaced.
# All others run at the lowest priority beside the cluster's, which wait half of the time: first those that only compute,
# because the cluster and its binaries take minutes to build. Their log follows, and what failed comes last.
COMPUTE := tests/unit tests/contract tests/golden tests/guard
WORKERS := --numprocesses auto --max-worker-restart 0
BESIDE  := .cache/beside.log
CLUSTER := .cache/cluster.log
# Each test by its name as it runs, and which took longest.
SHOWN    := --verbose --durations 10

.PHONY: env peers demo check lint types compute processes test soak storm e2e cluster-up cluster-down crds docs images dist version pins

env: $(STAMP)  ## make .venv with cprjob and cprjob-bench in it

$(UV): requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cprjob needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .cache/uv
	.cache/uv/bin/pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

$(STAMP): $(UV) pyproject.toml laboratory/pyproject.toml requirements/dev.txt requirements/docs.txt requirements/$(TORCH).txt
	$(UV) venv --quiet --clear --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt -r requirements/docs.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps $(addprefix --find-links ,$(WHEELS)) -r requirements/$(TORCH).txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable . --editable laboratory
	@touch $@

peers: env  ## make laboratory/contenders/.venv with what CPRJob's speed is compared with
	$(UV) venv --quiet --clear --python $(PYTHON) $(PEERS)
	$(UV) pip install --quiet --python $(PEERS)/bin/python --require-hashes --no-deps -r laboratory/contenders/requirements.txt
	$(UV) pip install --quiet --python $(PEERS)/bin/python --require-hashes --no-deps $(addprefix --find-links ,$(WHEELS)) -r requirements/$(TORCH).txt

demo: env  ## train a small model here and kill a shard half way
	$(BIN)/cprjob run examples/quickstart.yaml --kill shard/1@0.5:POD

check: lint types  ## lint, types, layers

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m cpr_operator.api.crd --check crds/cprjobs.cprjob.io.yaml

types: env
	$(BIN)/mypy

compute: env
	$(BIN)/pytest $(SHOWN) $(WORKERS) $(COMPUTE)

processes: env
	-tests/cluster/cluster.sh prepare  # waits while another one prepares
	$(BIN)/pytest $(SHOWN) $(WORKERS) $(COMPUTE:%=--ignore=%) --ignore=tests/cluster

test: lint  ## check, and all tests; those that this machine cannot run skip and say why
	tests/support/lowest.sh $(MAKE) --keep-going types compute processes >$(BESIDE) 2>&1 & beside=$$!; \
	trap "kill $$beside; wait; exit 130" INT TERM; \
	tests/cluster/cluster.sh prepare; \
	$(BIN)/pytest $(SHOWN) tests/cluster | tee $(CLUSTER); cluster=$$?; \
	wait $$beside; others=$$?; cat $(BESIDE); \
	if [ $$((cluster | others)) != 0 ]; then \
	echo "What failed:"; grep -h '^E  ' $(CLUSTER) $(BESIDE) | tail -n 40; \
	grep -hE '^(FAILED |ERROR |make.*Error)' $(BESIDE) $(CLUSTER); exit 1; fi

soak: env  ## what needs hours: many storms, 10,000 seeds of the simulation, the cluster's tests five times, a storm on it (SEED, MINUTES), the operator's benches
	$(BIN)/pytest $(SHOWN) $(WORKERS) --hypothesis-profile soak -o faulthandler_timeout=0 tests/simulation/control_plane
	PYTHONPATH=tests $(BIN)/python -m simulation.data_plane 0 10000
	for run in 1 2 3 4 5; do $(BIN)/pytest $(SHOWN) tests/cluster || exit 1; done
	$(MAKE) storm
	$(BIN)/python laboratory/scripts/passes.py
	$(BIN)/python laboratory/scripts/operator_scale.py --jobs 1000 --foreign 10000

# Without a seed, a storm that nobody has seen. It prints its seed.
SEED    ?= $(shell $(PYTHON) -c 'import random; print(random.randrange(10**6))')
MINUTES ?= 60
# The round to begin with: of a seed that found something, the rounds before it can be left out.
FIRST   ?= 1
# Some of the catalogue's faults by their names, with semicolons between them. None: all of them.
ONLY    ?=
storm: env  ## faults of all kinds on the cluster, two or three at once: SEED=n MINUTES=m FIRST=round ONLY="fault; fault"
	SEED=$(SEED) MINUTES=$(MINUTES) FIRST=$(FIRST) ONLY="$(ONLY)" $(BIN)/pytest --capture no -o faulthandler_timeout=0 tests/simulation/real_cluster/run.py

e2e: env  ## only the tests on the several-node cluster
	$(BIN)/pytest tests/cluster

cluster-up: env  ## a Kubernetes of three nodes on this machine, with MinIO and both images
	tests/cluster/cluster.sh up

cluster-down:  ## stop it
	tests/cluster/cluster.sh down

crds: env  ## generate the CRD from the pydantic source
	$(BIN)/python -m cpr_operator.api.crd > crds/cprjobs.cprjob.io.yaml

docs: env  ## the site, in build/docs: open index.html there; every link has to lead somewhere
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir $(SITE)/../doctrees . $(SITE)

images:  ## build cprjob-operator:VERSION and cprjob-trainer:VERSION with docker or buildah
	tests/cluster/images.sh cprjob-%:$(VERSION)

dist: $(UV)  ## the wheels of cprjob and cprjob-bench and the packaged chart, of this version, in dist/
	$(UV) build --quiet --wheel --no-create-gitignore --out-dir $(DIST)
	$(UV) build --quiet --wheel --no-create-gitignore --out-dir $(DIST) laboratory
	$(HELM) package charts/cprjob --destination $(DIST)

version:  ## print it
	@echo $(VERSION)

pins: $(UV)  ## compile the pinned, hashed requirement files
	requirements/compile.sh $(UV)
