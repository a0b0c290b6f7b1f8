# `make demo` trains a model you can look at; `make test` is what must pass before a change goes in.
# Everything happens in .venv, which is installed anew only when pyproject.toml has changed.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input install

.DEFAULT_GOAL := help
.PHONY: help demo check test test-others test-full test-gpu lint format bench docs release clean

help:
	@echo "make demo       train, evaluate and export mnist/mlp in runs/demo"
	@echo "make check      lint, types, and the tests that train nothing: about two minutes"
	@echo "make test       lint, types and tests"
	@echo "make test-full  the same with the heavy versions of the tests, and Keras's own tests through fit"
	@echo "make test-gpu   engines, kills, exports and certified programs on a machine with a GPU that has PyTorch and JAX"
	@echo "make lint       ruff and mypy alone"
	@echo "make format     put the code in order"
	@echo "make bench      measure the loop and its data beside their peers; fails below a bar"
	@echo "make docs       build the documentation as a site in site/; with VERSION=0.1 in site/0.1/, beside other versions"
	@echo "make release    build what is uploaded in dist/, run the demo from the wheel and the tests of the sdist; uploads nothing"
	@echo "make clean      remove caches, builds and .venv; runs stay"

demo: $(VENV)/.everstep
	@echo "== training mnist/mlp in runs/demo (stopped and started again, it goes on; to start over: rm -r runs/demo)"
	@$(BIN)/everstep train mnist/mlp --model-dir runs/demo
	@echo "== evaluating the newest checkpoint of runs/demo"
	@$(BIN)/everstep eval runs/demo
	@echo "== where to look"
	@echo "the whole record    $(BIN)/everstep runs show runs/demo"
	@echo "the curves          $(BIN)/tensorboard --logdir runs/demo"
	@echo "the same as a table runs/demo/history.csv"
	@echo "the model to serve  runs/demo/export/saved_model, runs/demo/export/model.keras"

# All files of tests that neither train on the backend nor start a process.
check: lint
	$(PYTEST) -n 3 --backend jax -m "not full" --quick $(PYTEST_ARGS)

# Two things at once keep two cores busy: all tests on one backend, and beside them lint, types and the other backends.
# Tests that wait (for a server, a pause, a process that is to die) leave their core to others: three workers, not two.
test: $(VENV)/.dev $(VENV)/.torch
	@$(MAKE) --no-print-directory --keep-going lint test-others >$(VENV)/others.log 2>&1 & others=$$!; \
	$(PYTEST) -n 3 --backend $(FIRST) -m "not full" $(PYTEST_ARGS); first=$$?; \
	echo "== lint, types, and the tests that depend on the backend, on the other backends"; \
	wait $$others; others=$$?; cat $(VENV)/others.log; exit $$((first | others))

test-others:
	@status=0; \
	$(PYTEST) -n 1 --backend jax -m "backend and not full" $(ON_JAX) $(PYTEST_ARGS) || status=1; \
	$(PYTEST) -n 1 --backend tensorflow -m "backend and not full" $(ON_TENSORFLOW) $(PYTEST_ARGS) || status=1; \
	exit $$status

test-full: lint $(VENV)/.torch
	@status=0; \
	$(PYTEST) -n 3 --backend tensorflow -m "full or not full" $(PYTEST_ARGS) || status=1; \
	$(PYTEST) -n 3 --backend jax -m "backend and (full or not full)" $(PYTEST_ARGS) || status=1; \
	$(PYTEST) -n 3 --backend torch -m "backend and (full or not full)" $(PYTEST_ARGS) || status=1; \
	exit $$status
	$(BIN)/python -m tools.keras_tests

# On JAX and on PyTorch at once: most of the time goes into compiling. `tools/gpu_wheels.py` carries what is missing.
# Each worker gets two tests at a time: those that start several processes take minutes, and begin at once.
GPU := build/gpu
GPU_WORKERS ?= 7
GPU_PYTEST := XLA_PYTHON_CLIENT_PREALLOCATE=false $(GPU)/bin/python -m pytest -p no:benchmark -n $(GPU_WORKERS) --maxschedchunk 2 -m gpu --durations 8

test-gpu: $(GPU)/.everstep
	@nvidia-smi -L || echo "== there is no NVIDIA GPU: these tests run on the CPU"
	@$(GPU_PYTEST) --backend torch $(PYTEST_ARGS) >$(GPU)/torch.log 2>&1 & torch=$$!; \
	echo "== JAX"; $(GPU_PYTEST) --backend jax $(PYTEST_ARGS); jax=$$?; \
	echo "== PyTorch"; wait $$torch; torch=$$?; cat $(GPU)/torch.log; exit $$((jax | torch))

$(GPU)/.everstep: pyproject.toml $(wildcard build/gpu-wheels.tar.xz)
	@echo "== installing what PyTorch and JAX do not bring into $(GPU)"
	@$(PYTHON) -m tools.gpu_wheels install
	@touch $@

# ---- how tests are started: all of them on one backend, and on the others what depends on it ----------------------
# Bytecode is kept, whatever the environment says: tests start many processes, and each would compile everything anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder

# Every day PyTorch runs everything: it compiles nothing, so that short trainings are fastest there. Where it is not
# installed, JAX does. Full runs begin with TensorFlow, so that what does not depend on the backend has seen two.
FIRST = $(if $(wildcard $(VENV)/.torch),torch,jax)

# On JAX and TensorFlow, every day: engine, gradients, export, kills and resumes, own steps of models; on JAX also
# several processes, and what of data and checkpoints is marked for it; on TensorFlow the pages with long trainings.
# `make test-full` runs on each all that depends on the backend.
ON_BOTH := tests/engine tests/export tests/trained tests/task/test_grad.py tests/task/test_compiled_task.py \
           tests/test_resume_changed.py::test_run_resumes_on_another_backend tests/frontends/test_entry_points.py
ON_JAX := tests/several tests/reliability tests/data tests/checkpoint \
          tests/projects/components/test_components_data_edge_cases.py::test_masks_with_weights_pass_the_checks \
          tests/task/test_chunked_loss.py::test_a_logit_far_above_those_looked_at $(ON_BOTH)
GAN := tests/frontends/fit/test_fit_models.py::test_a_gan_resumes_with_its_optimizers_and_what_it_draws
ON_TENSORFLOW := tests/test_docs.py tests/reliability tests/task/test_tape.py $(GAN) $(ON_BOTH)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks bars --backends jax tensorflow

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(if $(VERSION),$(BIN)/python -m tools.docs.versions $(VERSION),$(BIN)/mkdocs build --strict)
	@echo "open site/index.html, or look at it while you write: $(BIN)/mkdocs serve"

# What is uploaded is what is tried: the demo runs from the wheel, in an empty environment, outside of this folder; the
# quick tests run in what the sdist unpacks to, and see neither this repository nor its code.
RELEASE := build/release
release: $(VENV)/.dev
	rm -rf dist $(RELEASE) && mkdir -p $(RELEASE)
	$(BIN)/python -m tools.release build
	$(PYTHON) -m venv $(RELEASE)/venv
	$(RELEASE)/venv/bin/python -m pip --quiet --disable-pip-version-check --no-input install "$$(ls dist/*.whl)[tensorflow]"
	cd $(RELEASE) && venv/bin/everstep train mnist/mlp --model-dir demo && venv/bin/everstep eval demo && venv/bin/everstep runs show demo
	cd build/sdist/everstep-* && GIT_CEILING_DIRECTORIES=$(CURDIR)/build PYTHONPATH="$$PWD/src" $(abspath $(BIN))/python -m pytest -n 3 --backend jax -m "not full" --quick
	$(BIN)/python -m tools.release describe $(RELEASE)/venv --extras tensorflow
	@echo "dist/ is ready; nothing was uploaded. $(RELEASE)/demo is the run of the wheel. CONTRIBUTING.md says what comes next."

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# ---- the environment: a stamp says that an installation was finished for this pyproject.toml ----------------------

$(VENV)/.everstep: pyproject.toml | $(VENV)/.created
	@echo "== installing everstep with TensorFlow into $(VENV); the first time this takes some minutes"
	@$(PIP) --editable '.[tensorflow]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.created
	@echo "== installing everstep with TensorFlow and the developers' tools into $(VENV); the first time this takes some minutes"
	@$(PIP) --editable '.[dev,tensorflow]'
	@touch $@ $(VENV)/.everstep

# One version, that the tests are known to pass with. Where it cannot be had, they say so and are skipped.
$(VENV)/.torch: pyproject.toml | $(VENV)/.dev
	@$(PIP) --retries 1 'torch==2.13.0' 2>$(VENV)/torch.log && touch $@ || true

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "everstep needs Python 3.11 or newer, and there is no '$(PYTHON)': install it, or run make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "everstep needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): run make PYTHON=/path/to/python" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo "'$(PYTHON) -m venv' does not work here; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@touch $@
