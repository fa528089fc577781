# make train    train CartPole (options: make train ARGS="--placement hybrid --seed 1")
# make test     the default tests, in more processes than cores (options: make test ARGS="tests/agents -n 0")
# make lint     style, docstrings, types, plain English, and the number of lines and files
# make slow     the tests that take minutes, also those of the extras
# make gpu      the tests that need a CUDA device (options: make gpu ARGS="-k resume --last-failed")
# make oldest   the default tests with the oldest packages that setup.cfg allows, and the torch of constraints.txt (the oldest
#               Python: make oldest PYTHON=python3.10)
# make extras   install the packages that few have, and run the tests that need them or combine what others cover
# make notebooks  run the notebooks, and store their outputs in them (options: make notebooks ARGS="01 06")
# make docs     build the site; the notebooks are run (options: make docs ARGS="--no-notebooks")
# make worlds   try other people's environments, and write the table of docs/worlds.md (options: make worlds ARGS="rware")
# make wheel    build the wheel and prove that it works alone
# make bench    compare with stable-baselines3 and skrl on fixed work
# make bench-peers  the same beside PPO of other libraries, each in an environment of its own
# make bench-all  speed, memory, learning and placements without a GPU, and the tables of benchmarks/README.md
# make gpu-day  on a machine with a CUDA device: its tests and measurements, in 25 minutes (options: make gpu-day
#               ARGS="--minutes 9 --output day"; with wheels of benchmarks/carry.py and no .venv: WHEELS=folder)
# Bytecode is kept: each process would else compile all that it imports, and tests be rewritten for their asserts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test oldest lint slow gpu extras docs notebooks worlds wheel bench bench-peers bench-all gpu-day clean
.DEFAULT_GOAL := train

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported, once; pip would compile all that is installed, which takes longer than unpacking it.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

train: $(VENV)/installed
	$(BIN)/python scripts/train_cartpole.py $(ARGS)

# Where a process has nothing left, it takes tests from another: few of them take most of the time.
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# Only what the library itself needs is old; the tools of the tests are new.
oldest: build/oldest/installed
	build/oldest/bin/python -m pytest -n auto --dist worksteal $(ARGS)

slow: $(VENV)/installed-extras
	$(BIN)/python -m pytest -m "slow and not gpu" $(ARGS)

gpu: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m gpu $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/prose.py
	$(BIN)/python scripts/lines.py

extras: $(VENV)/installed-extras
	$(BIN)/python -m pytest -m "extras and not slow" -n auto --dist worksteal $(ARGS)

docs: $(VENV)/installed-docs
	$(BIN)/python scripts/site.py $(ARGS)

notebooks: $(VENV)/installed-extras
	$(BIN)/python scripts/notebooks.py $(ARGS)

worlds: $(VENV)/installed-dev
	$(BIN)/python scripts/worlds.py $(ARGS)

wheel: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py $(ARGS)

bench: $(VENV)/installed-bench
	$(BIN)/python benchmarks/speed.py $(ARGS)

bench-peers: $(VENV)/installed-extras
	$(BIN)/python benchmarks/field.py $(ARGS)

gpu-day: $(if $(WHEELS),,$(VENV)/installed-bench)
	$(if $(WHEELS),$(PYTHON),$(BIN)/python) benchmarks/gpu.py $(if $(WHEELS),--wheels $(WHEELS)) $(ARGS)

bench-all: $(VENV)/installed-bench
	$(BIN)/python benchmarks/speed.py --cases small,wide,lander,cheetah,racing
	for name in memory learning scale; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python scripts/compare_placements.py
	$(BIN)/python benchmarks/pictures.py
	$(BIN)/python benchmarks/tables.py

# torch comes first and by its exact version, so that nothing asks for a build with CUDA on its own.
$(VENV)/installed: setup.cfg constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable ".[plot]"
	touch $@

build/oldest/installed: setup.cfg constraints.txt
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	sed -n '/^install_requires/,/^$$/s/ *\(.*\)>=\(.*\)/\1==\2/p' setup.cfg | grep --invert-match torch > build/oldest/versions
	build/oldest/bin/python -m pip install --quiet --no-compile --requirement build/oldest/versions --editable ".[dev,plot]"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[dev,plot]"
	touch $@

$(VENV)/installed-docs: $(VENV)/installed-dev
	$(INSTALL) --editable ".[docs]"
	touch $@

# What `make extras` installs: extras of setup.cfg, a line for each kind of part, and some packages of `make worlds`.
COMPILED := compiled,ptx
CLUSTERS := ray
TOOLS := plot,video,onnx,tune,hub,docs
TRACKERS := tensorboard,wandb,trackio,mlflow
ENVIRONMENTS := atari,box2d,envpool,minatar,minigrid,mujoco,pettingzoo
WORLDS := econgym lbforaging mo-gymnasium

$(VENV)/installed-extras: $(VENV)/installed-dev
	$(INSTALL) --editable ".[$(COMPILED),$(CLUSTERS),$(ENVIRONMENTS),$(TOOLS),$(TRACKERS)]" $(WORLDS)
	touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	$(INSTALL) --editable ".[benchmark]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
