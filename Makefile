# Every target installs the pinned dependencies when needed: into the environment
# that is activated, or else into .venv, which it creates. What only runs the
# package takes it as it is installed; the tools of the tests come with `make
# test` and its like.
PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
# What is imported is compiled when it first is; all that is installed takes half
# of pip's time.
INSTALL := -m pip install --no-compile --constraint requirements.lock
# Tests of one file share what they compile, so a file stays in one process.
# Files are taken in the order of tests/conftest.py.
PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# A part of every room, for another Python or another JAX than that of .venv.
SMOKE := tests/analysis/test_vanilla.py \
  tests/conformance/test_oracle.py tests/evaluation/test_evaluate.py \
  tests/model/kernels/test_xla_attention.py \
  tests/model/test_network.py tests/training/test_loop.py \
  tests/training/test_resume.py tests/training/test_step.py \
  tests/workdir/test_checkpoint.py

# Huge pages make the tests faster: they save page faults.
PYTEST := JAX_PLATFORMS=cpu GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
  $(BIN)/python -m pytest

# How XLA computes on other processors. The first limit is on the instructions
# that it compiles to. The kernels of YNNPACK, which it calls, would still look
# for AVX-512 and AMX by themselves, so the second flag leaves them out.
FLAGS_AVX2 := --xla_cpu_max_isa=AVX2 --xla_cpu_experimental_ynn_fusion_type=
FLAGS_AVX512 := --xla_cpu_max_isa=AVX512
FLAGS_all :=
# The case that `test-processor` runs: instructions, cores (XLA has a thread for
# each) and whether memory comes in huge pages.
ISA ?= AVX2
CORES ?= 0
HUGE_PAGES ?= 0

.PHONY: help quickstart test test-rest test-all test-smoke test-faults check format
.PHONY: test-processor test-processors test-conformance parity bench plan-table
.PHONY: lock fuzz fuzz-runs audit deploy-check release-check
.PHONY: transformers-check lm-eval-check mutants site

# What stands behind ## is the help of a target.
help: ## This list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) \
	  | while IFS='|' read -r target text; do \
	    printf '%-19s %s\n' "$$target" "$$text"; \
	  done
	@echo
	@echo "  Into $(VENV), where pip installs what is pinned: VENV=FOLDER changes it."

quickstart: $(BIN)/transformer-xl ## Train a small model, and evaluate it; STEPS=300 shortens it
	$(BIN)/transformer-xl --config=quickstart --workdir=runs/quickstart \
	  $(if $(STEPS),--config.train.num_steps=$(STEPS))

# Seven to fourteen minutes on two idle cores, by the processor.
test: $(VENV)/installed ## The tests
	$(PYTEST) $(PARALLEL)

# What `make test` leaves out: more combinations where it tries some. EVERY=8
# takes an eighth of them, and PART says which.
EVERY := 1
PART := 0
test-rest: $(VENV)/installed ## What `test` leaves out: more combinations; EVERY, PART
	$(PYTEST) $(PARALLEL) \
	  -m "rest and not faults" --every=$(EVERY) --part=$(PART)

# Those, and every check of `make test-conformance`.
test-all: $(VENV)/installed ## Both
	$(PYTEST) $(PARALLEL) -m "not faults"

test-smoke: $(VENV)/installed ## A part of the tests, for another Python: VENV, PYTHON
	$(PYTEST) $(PARALLEL) $(SMOKE)

# The same as another processor computes it, by default an old one with a
# single core.
test-processor: $(VENV)/installed ## The same part on another processor: ISA, CORES
	JAX_PLATFORMS=cpu GLIBC_TUNABLES=glibc.malloc.hugetlb=$(HUGE_PAGES) \
	  XLA_FLAGS="$(FLAGS_$(ISA))" taskset --cpu-list $(CORES) \
	  $(BIN)/python -m pytest $(SMOKE)

# All twelve cases.
test-processors: $(VENV)/installed ## The same part in twelve such cases
	set -e; \
	for isa in AVX2 AVX512 all; do \
	  for cores in 0 0,1; do \
	    for pages in 0 1; do \
	      $(MAKE) test-processor ISA=$$isa CORES=$$cores HUGE_PAGES=$$pages; \
	    done; \
	  done; \
	done

# Hurts runs in every way; writes counts into docs/measurements/reliability.md.
test-faults: $(VENV)/installed ## Hurt runs on purpose
	$(PYTEST) tests/faults \
	  -m "faults or rest or slow" --numprocesses 2 --fault-table

# Every memory with every encoding; writes docs/measurements/conformance.md.
test-conformance: $(VENV)/installed ## Every mixer with every encoding
	$(PYTEST) tests/conformance \
	  -m "not faults" $(PARALLEL) --conformance-table

check: $(VENV)/installed ## Formatting, linting, types, vulnerabilities, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m compileall -q transformer_xl data_prep experiments
	.ci/audit
	$(PYTEST) $(PARALLEL) \
	  -m "not (slow or rest or combinations or faults)"

format: $(VENV)/installed ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The tests that compare with PyTorch and HuggingFace, in an environment of
# their own: these old releases need older packages than users have.
parity: .venv-parity/installed ## The tests against PyTorch and HuggingFace
	JAX_PLATFORMS=cpu .venv-parity/bin/python -m pytest -m "not faults" \
	  tests/parity/test_huggingface.py tests/parity/test_relative_attention.py \
	  tests/formats/test_torch_file.py tests/importers/test_vocabulary.py

.venv-parity/installed: requirements.lock pyproject.toml setup.cfg
	$(PYTHON) -m venv .venv-parity
	grep -vE '^(tokenizers|huggingface-hub)==' requirements.lock \
	  > .venv-parity/constraints
	.venv-parity/bin/python -m pip install --constraint .venv-parity/constraints \
	  --editable ".[test,parity]"
	touch $@

# What is exported for the newest transformers, in an environment of its own.
# PyTorch comes from its index for CPUs, a tenth of what PyPI would install.
transformers-check: .venv-transformers/tests/installed ## Exports in the newest transformers
	JAX_PLATFORMS=cpu .venv-transformers/bin/python -m pytest $(PARALLEL) \
	  tests/importers/test_transformers*.py

# The tests that transformers has for all of its models come with its sources.
.venv-transformers/tests/installed: .venv-transformers/installed
	rm -rf .venv-transformers/tests
	.venv-transformers/bin/python -m pip download --no-deps \
	  --no-binary transformers --dest .venv-transformers/tests \
	  "$$(.venv-transformers/bin/python -m pip freeze | grep ^transformers==)"
	tar --extract --file .venv-transformers/tests/transformers-*.tar.gz \
	  --directory .venv-transformers/tests
	touch $@

.venv-transformers/installed: requirements.lock pyproject.toml setup.cfg
	$(PYTHON) -m venv .venv-transformers
	.venv-transformers/bin/python -m pip install --no-deps \
	  --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
	.venv-transformers/bin/python $(INSTALL) --editable ".[test,transformers]"
	touch $@

# The tests with the evaluation harness, in an environment of their own: it
# brings some thirty packages.
lm-eval-check: .venv-lm-eval/installed ## The tests with the evaluation harness
	JAX_PLATFORMS=cpu .venv-lm-eval/bin/python -m pytest tests/integrations

.venv-lm-eval/installed: requirements.lock pyproject.toml setup.cfg
	$(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/python $(INSTALL) --editable ".[test,lm-eval]"
	touch $@

bench: $(BIN)/transformer-xl ## Measure the speed on this machine
	$(BIN)/python -m benchmarks.speed

# Plans what is missing in docs/measurements/plans.jsonl or was planned by older
# code; may be stopped at any time.
plan-table: $(BIN)/transformer-xl ## Plan what is missing in docs/measurements/plans.jsonl
	$(BIN)/python $(INSTALL) --editable ".[tpu]"
	nice $(BIN)/python -m benchmarks.plan_table

# SkyPilot reads deploy/sky.yaml, in an environment of its own. It would keep
# its settings in the home folder.
deploy-check: .venv-deploy/installed ## SkyPilot reads its task file
	HOME=$(abspath .venv-deploy) SKYPILOT_DISABLE_USAGE_COLLECTION=1 \
	  .venv-deploy/bin/python tests/deploy/check_sky.py

.venv-deploy/installed:
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip install "skypilot[gcp]==0.14.1"
	touch $@

# The documentation as pages for the browser, in build/site. A warning is an
# error, a link that leads nowhere included. The tables of all fields are made
# from their declarations.
site: .venv-site/installed $(BIN)/transformer-xl ## The documentation site, in build/site
	mkdir -p build
	JAX_PLATFORMS=cpu PYTHONPATH=. $(BIN)/python docs/site/fields.py > build/fields.md
	.venv-site/bin/sphinx-build --fail-on-warning --keep-going --quiet --fresh-env \
	  --doctree-dir build/doctrees --conf-dir docs/site . build/site
	.venv-site/bin/python docs/site/check_search.py build/site
	.venv-site/bin/python docs/site/llms.py > build/site/llms.txt
	@echo "The documentation is in build/site: open build/site/index.html."

.venv-site/installed: docs/site/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --requirement docs/site/requirements.txt
	touch $@

# Builds the wheel, says what is in it, installs it elsewhere and trains there.
release-check: $(VENV)/installed ## Build, install and try the wheel
	$(PYTEST) tests/test_package.py -m rest -s

# Known vulnerabilities of what requirements.lock pins.
audit: $(VENV)/installed ## Known vulnerabilities of the dependencies
	.ci/audit

# A million damaged and hostile files to every reader.
fuzz: $(VENV)/installed ## A million damaged files to every reader
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.fuzz --inputs=1000000

# Random configurations: each is refused, or trains, evaluates and resumes.
fuzz-runs: $(VENV)/installed ## Random configurations: refused, or trained and resumed
	JAX_PLATFORMS=cpu CONFIGURATIONS=300 $(BIN)/python -m pytest -s \
	  tests/fuzz/test_configurations.py -m rest

# Small mistakes in the package, one at a time, that the tests should see. A
# SAMPLE of 0 is all of them.
MODULES :=
SAMPLE := 8
mutants: $(VENV)/installed ## Small mistakes that the tests should see: MODULES, SAMPLE
	JAX_PLATFORMS=cpu nice $(BIN)/python -m tests.mutants \
	  --modules=$(MODULES) --sample=$(SAMPLE)

# Pins what pyproject.toml allows, for every supported Python at once.
lock: ## Renew requirements.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 \
	  --extra test --extra tpu --extra cuda --extra cuda13 --extra gcs --extra wandb \
	  --extra stablehlo --extra tensorboard --extra lm-eval --extra agents \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  --upgrade --output-file requirements.lock

# Nothing that it depends on: what is there is used.
$(BIN)/transformer-xl:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --version || $(BIN)/python -m ensurepip
	$(BIN)/python $(INSTALL) --editable .

$(VENV)/installed: requirements.lock pyproject.toml setup.cfg
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --version || $(BIN)/python -m ensurepip
	$(BIN)/python $(INSTALL) --editable ".[test]"
	touch $@
