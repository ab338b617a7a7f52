# Everything a person or CI does here. Needs Python >= 3.11, make and the network; `make cluster-up` also root and Debian packages, or kind.
SHELL  := bash -o pipefail
# Keep .pyc files: every test process would otherwise recompile torch.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := .cache/uv/bin/uv
# A folder with the CPU build of torch, if there is one; otherwise torch comes from the package index, with its CUDA libraries.
WHEELS ?= $(wildcard ../shared/wheels)
TORCH  := $(if $(and $(wildcard $(WHEELS)/torch-*+cpu-cp311-*.whl),$(filter 3.11,$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))),torch-cpu,torch)
# The chart and the examples name it, too.
VERSION = $(shell $(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
SITE   ?= build/docs
DIST   ?= dist
# The address below which the files of releases are downloaded, for krew's manifest.
RELEASES ?= https://releases.invalid
HELM   ?= helm
PEERS  := benchmarks/baselines/.venv
STAMP  := $(VENV)/.made-$(TORCH)

# Three rings of tests; docs/testing.md lists the folders of each.
RING1 := tests/unit tests/contract tests/guard tests/simulation tests/processes tests/stores
RING2 := tests/cluster tests/crashes tests/local_runs tests/apiserver tests/conformance tests/chart tests/browser tests/s3_servers tests/kafka tests/walkthroughs tests/other_languages
PARTS := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard tests/soak/*/test_*.py)))) seeds-1 seeds-2 storms storm scale)
# A worker that dies is not replaced: its tests fail.
PYTEST := $(BIN)/pytest --quiet --run-report --durations 10 --max-worker-restart 0
WORKERS := --numprocesses auto
# Tests of processes wait a tenth of the time, which another worker uses.
ONE_MORE = --numprocesses $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')

.PHONY: env peers demo check lint types test prepare e2e soak parts storm cluster-up cluster-down crds kustomize docs images dist version pins

env: $(STAMP)  ## make .venv with cprjob and cprjob-bench in it

$(UV): requirements/uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cprjob needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .cache/uv
	.cache/uv/bin/pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

$(STAMP): $(UV) pyproject.toml benchmarks/pyproject.toml requirements/dev.txt requirements/docs.txt requirements/$(TORCH).txt
	$(UV) venv --quiet --clear --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/dev.txt -r requirements/docs.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps $(addprefix --find-links ,$(WHEELS)) -r requirements/$(TORCH).txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable . --editable benchmarks
	@touch $@

peers: env  ## make benchmarks/baselines/.venv with what CPRJob's speed is compared with
	$(UV) venv --quiet --clear --python $(PYTHON) $(PEERS)
	$(UV) pip install --quiet --python $(PEERS)/bin/python --require-hashes --no-deps -r benchmarks/baselines/requirements.txt
	$(UV) pip install --quiet --python $(PEERS)/bin/python --require-hashes --no-deps $(addprefix --find-links ,$(WHEELS)) -r requirements/$(TORCH).txt

demo: env  ## train a small model here and kill a shard half way
	$(BIN)/cprjob run examples/quickstart.yaml --kill shard/1@0.5:POD

check: lint types  ## lint, format, types, layers, the generated CRD

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m cpr_operator.api.crd --check crds/cprjobs.cprjob.io.yaml

types: env
	$(BIN)/mypy

test: lint  ## ring 1: lint, types and all tests that need Python alone; the types are checked beside the tests
	@mkdir -p .cache; \
	TIMEFORMAT="types: %U s user, %S s system"; { time $(BIN)/mypy; } >.cache/types.log 2>&1 & types=$$!; \
	trap "kill $$types; wait; exit 130" INT TERM; \
	$(PYTEST) $(ONE_MORE) $(RING1); tests=$$?; \
	wait $$types || tests=1; cat .cache/types.log; exit $$tests

prepare: env  ## build the binaries and images of ring 2, once
	tests/cluster/cluster.sh images
	tests/kafka/broker.sh lib

e2e: prepare  ## ring 2: the cluster, an API server, chosen crashes, S3 servers, Kafka, a browser, the chart, pages
	$(PYTEST) $(WORKERS) $(RING2)

# Parts with a command of their own; every other part is the folder tests/soak/PART.
SOAK_stores  = tests/cluster/binaries.sh minio versitygw azurite-blob weed localstack s3mock s3proxy garage rclone s3rver && $(PYTEST) tests/soak/stores
SOAK_peers   = $(MAKE) peers && $(PYTEST) tests/soak/peers
SOAK_seeds-1 = $(call seeds,0,2500,5000)
SOAK_seeds-2 = $(call seeds,5000,7500,10000)
seeds        = cd tests; ../$(BIN)/python -m simulation.data_plane $(1) $(2) & ../$(BIN)/python -m simulation.data_plane $(2) $(3) && wait $$!
SOAK_storms  = $(PYTEST) $(WORKERS) --hypothesis-profile soak -o faulthandler_timeout=0 tests/simulation/control_plane
SOAK_storm   = $(MAKE) storm
SOAK_kind    = tests/cluster/binaries.sh kubectl helm versitygw && $(PYTEST) -o faulthandler_timeout=0 tests/soak/kind
SOAK_scale   = $(BIN)/cprjob bench scale --curve passes && $(BIN)/python benchmarks/scripts/operator_scale.py --jobs 1000 --foreign 10000

soak: env  ## ring 3: PART=name, one of `make parts`; each takes at most an hour
	$(if $(filter $(PART),$(PARTS)),,$(error PART is "$(PART)"; give one of: $(PARTS)))
	$(or $(SOAK_$(PART)),$(PYTEST) tests/soak/$(PART))

parts:  ## print the names of the parts of `make soak`
	@printf '%s\n' $(PARTS)

# Without a seed, one is drawn. The storm prints its seed.
SEED    ?= $(shell $(PYTHON) -c 'import random; print(random.randrange(10**6))')
MINUTES ?= 60
# The round to begin with: of a seed that found something, the rounds before it can be left out.
FIRST   ?= 1
# Some of the catalogue's faults by their names, with semicolons between them. None: all of them.
ONLY    ?=
storm: env  ## faults of all kinds on the cluster, two or three at once: SEED=n MINUTES=m FIRST=round ONLY="fault; fault"
	SEED=$(SEED) MINUTES=$(MINUTES) FIRST=$(FIRST) ONLY="$(ONLY)" $(BIN)/pytest --capture no -o faulthandler_timeout=0 tests/simulation/real_cluster/run.py

cluster-up: env  ## a Kubernetes of three nodes on this machine, with MinIO and both images
	tests/cluster/cluster.sh up

cluster-down:  ## stop it
	tests/cluster/cluster.sh down

crds: env  ## generate the CRD from the pydantic source
	$(BIN)/python -m cpr_operator.api.crd > crds/cprjobs.cprjob.io.yaml

kustomize:  ## render the chart's defaults into charts/kustomize
	@{ echo "# Generated by make kustomize from the chart's defaults."; \
	  $(HELM) template cprjob charts/cprjob --namespace cprjob-system --skip-tests --set crds.install=false \
	  | sed -e '/helm.sh\//d' -e 's/managed-by: Helm/managed-by: Kustomize/' -e '/^# Source:/d'; } >charts/kustomize/operator.yaml

docs: env  ## the site, in build/docs: open index.html there; every link has to lead somewhere
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir $(SITE)/../doctrees . $(SITE)

images:  ## build cprjob-operator:VERSION and cprjob-trainer:VERSION with docker or buildah
	tests/cluster/images.sh cprjob-%:$(VERSION)

dist: $(UV)  ## the wheels of cprjob and cprjob-bench, the packaged chart, and krew's plugin, of this version, in dist/
	$(UV) build --quiet --wheel --no-create-gitignore --out-dir $(DIST)
	$(UV) build --quiet --wheel --no-create-gitignore --out-dir $(DIST) benchmarks
	$(HELM) package charts/cprjob --destination $(DIST)
	charts/krew/pack.sh $(VERSION) $(RELEASES) $(DIST)

version:  ## print it
	@echo $(VERSION)

pins: $(UV)  ## compile the pinned, hashed requirement files
	requirements/compile.sh $(UV)
