# Every target creates $(VENV) and installs the pinned dependencies when needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests of one file share what they compile, so a file stays in one process.
# Files are taken in the order of tests/conftest.py.
PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# A part of every room, for another Python or another JAX than that of .venv.
SMOKE := tests/conformance/test_oracle.py tests/evaluation/test_cards.py \
  tests/evaluation/test_evaluate.py tests/model/test_attention.py \
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

.PHONY: quickstart test test-rest test-all test-smoke test-faults check format
.PHONY: test-processor test-processors test-conformance parity bench plan-table
.PHONY: lock fuzz fuzz-runs audit tpu-session mutants

quickstart: $(VENV)/installed
	$(BIN)/transformer-xl --config=quickstart --workdir=runs/quickstart

# Nine and a half minutes on two idle cores.
test: $(VENV)/installed
	$(PYTEST) $(PARALLEL)

# What `make test` leaves out: every combination where it tries some.
test-rest: $(VENV)/installed
	$(PYTEST) $(PARALLEL) \
	  -m "rest and not faults"

test-all: $(VENV)/installed
	$(PYTEST) $(PARALLEL) -m "not faults"

test-smoke: $(VENV)/installed
	$(PYTEST) $(PARALLEL) $(SMOKE)

# The same as another processor computes it, by default an old one with a
# single core.
test-processor: $(VENV)/installed
	JAX_PLATFORMS=cpu GLIBC_TUNABLES=glibc.malloc.hugetlb=$(HUGE_PAGES) \
	  XLA_FLAGS="$(FLAGS_$(ISA))" taskset --cpu-list $(CORES) \
	  $(BIN)/python -m pytest $(SMOKE)

# All twelve cases.
test-processors: $(VENV)/installed
	set -e; \
	for isa in AVX2 AVX512 all; do \
	  for cores in 0 0,1; do \
	    for pages in 0 1; do \
	      $(MAKE) test-processor ISA=$$isa CORES=$$cores HUGE_PAGES=$$pages; \
	    done; \
	  done; \
	done

# Hurts runs in every way; writes the tables in docs/measurements/reliability.md.
test-faults: $(VENV)/installed
	$(PYTEST) tests/faults \
	  -m "faults or rest or slow" --numprocesses 2 --fault-table

# Every memory with every encoding; writes docs/measurements/conformance.md.
test-conformance: $(VENV)/installed
	$(PYTEST) tests/conformance \
	  -m "not faults" $(PARALLEL) --conformance-table

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m compileall -q transformer_xl data_prep experiments
	.ci/audit
	$(PYTEST) $(PARALLEL) \
	  -m "not (slow or rest or faults)"

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The tests that compare with PyTorch and HuggingFace, in an environment of
# their own: these old releases need older packages than users have.
parity: .venv-parity/installed
	JAX_PLATFORMS=cpu .venv-parity/bin/python -m pytest -m "not faults" \
	  tests/parity/test_huggingface.py tests/formats/test_torch_file.py \
	  tests/importers/test_vocabulary.py

.venv-parity/installed: requirements.lock pyproject.toml setup.cfg
	$(PYTHON) -m venv .venv-parity
	grep -vE '^(tokenizers|huggingface-hub)==' requirements.lock \
	  > .venv-parity/constraints
	.venv-parity/bin/python -m pip install --constraint .venv-parity/constraints \
	  --editable ".[test,parity]"
	touch $@

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.speed

# Plans what is missing in docs/measurements/plans.jsonl or was planned by older
# code; may be stopped at any time.
plan-table: $(VENV)/installed
	$(BIN)/pip install --constraint requirements.lock --editable ".[tpu]"
	nice $(BIN)/python -m benchmarks.plan_table

# A run on a stand-in for Cloud TPU that is preempted twice; writes
# docs/measurements/tpu_operations.md.
tpu-session: $(VENV)/installed
	$(PYTEST) tests/scripts/test_training.py \
	  -m rest --tpu-transcript

# Known vulnerabilities of what requirements.lock pins.
audit: $(VENV)/installed
	.ci/audit

# A million damaged and hostile files to every reader.
fuzz: $(VENV)/installed
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.fuzz --inputs=1000000

# Random configurations: each is refused, or trains, evaluates and resumes.
fuzz-runs: $(VENV)/installed
	JAX_PLATFORMS=cpu CONFIGURATIONS=300 $(BIN)/python -m pytest -s \
	  tests/fuzz/test_configurations.py -m rest

# Small mistakes in the package, one at a time, that the tests should see. A
# SAMPLE of 0 is all of them.
MODULES :=
SAMPLE := 8
mutants: $(VENV)/installed
	JAX_PLATFORMS=cpu nice $(BIN)/python -m tests.mutants \
	  --modules=$(MODULES) --sample=$(SAMPLE)

# Pins what pyproject.toml allows, for every supported Python at once.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 \
	  --extra test --extra tpu --extra cuda --extra gcs --extra wandb \
	  --extra tensorboard --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links \
	  --upgrade --output-file requirements.lock

$(VENV)/installed: requirements.lock pyproject.toml setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint requirements.lock --editable ".[test]"
	touch $@
