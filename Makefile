# Two commands matter: `make ask` and `make test`. Both need Python 3.11+, make and a package index, nothing else.
#
#   make ask                                  a default question on the bundled database
#   make ask Q="How many orders?" DB=shop.db  your question, your database (file, folder or URL)
#   make ui                                   the web chat on DB (default: the bundled database); open the address that it prints
#   make test                                 the tests        make check     ruff, mypy, import-linter
#   make test-lab                             the tests of training and measuring alone, which `make test` runs, too
#   make test-ui                              the chat in a headless browser; installs Chromium where it can;
#                                             times=20: what is done while a question is answered, 20 times each, not 6
#   make screenshots OUT=folder               pictures of the chat's main states
#   make animation OUT=file.webp              the replay of a step's decoding as a moving picture
#   make measure-ui                           how fast the chat is: first paint, first token, much data, ten people at once
#   make retrain DATA=folder OUT=folder       retrains the shipped adapter, every stage; RECIPE=cpu or gpu, then
#                                             heads, and doubt for confidence and verifier; resumes when stopped;
#                                             RECIPE=text: masks for the base model's ordinary text, without data
#   make fuzz minutes=60                      the guard against statements nobody thought of: half the time engines tell what was
#                                             read (PostgreSQL and MariaDB where installed), half led by coverage, in out/fuzz
#   make demo-check                           60 questions about the bundled data: right, wrong, and headed "Probably wrong";
#                                             SET=fresh asks 30 others, SET=more 40
#   make soak questions=2000                  questions in a row; fails where memory, files, threads or caches grow
#   make wheel                                dist/*.whl, tried in a clean environment and another folder
#   make bundle                               dist/sqlagent.mcpb, which a program with MCP installs by a click
#   make lock                                 writes constraints.txt again, from a clean environment
#   make clean                                remove .venv and caches of tools
#
# PYTHON=python3.12         another interpreter for .venv
# TORCH_INDEX_URL=...       for what needs torch (`make test`, `make retrain`; asking does not): an index to look for it in,
#                           in addition to pip's own; on Linux https://download.pytorch.org/whl/cpu avoids gigabytes of CUDA packages
# JOBS=2                    processes that the tests use

PYTHON ?= python3
JOBS ?= 2
TORCH := 2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; pip would compile all, which takes half of its time and 90 MB.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
	$(if $(TORCH_INDEX_URL),--extra-index-url "$(TORCH_INDEX_URL)")

# A question may hold quotes, dollars and backquotes: it travels in the environment, expanded by neither make nor shell.
QUESTION := $(value Q)
DATABASE := $(value DB)
export QUESTION DATABASE
unexport Q DB
MAKEOVERRIDES :=

.PHONY: help ask ui test test-lab demo-check fuzz soak test-ui measure-ui screenshots animation check retrain wheel bundle lock clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,/^JOBS/p'

ask: $(VENV)/.ready
	@[ -n "$$QUESTION" ] || exec </dev/null; \
		[ -n "$$QUESTION$$DATABASE" ] || QUESTION="What is the average list price of the albums?"; \
		exec $(BIN)/sqlagent ask $${DATABASE:+--db "$$DATABASE"} $${QUESTION:+-- "$$QUESTION"}

ui: $(VENV)/.ready-ui
	@exec $(BIN)/sqlagent ui $${DATABASE:+--db "$$DATABASE"}

# The laboratory's part of the tests: training, measuring, and their commands.
LAB := tests/eval tests/decoding/training tests/app/measure tests/app/train

test test-lab: $(VENV)/.ready-dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(if $(filter test-lab,$@),$(LAB))

fuzz: $(VENV)/.ready-dev
	@half=$$(awk 'BEGIN { print $(or $(minutes),10) / 2 }'); export OMP_NUM_THREADS=1; \
		$(BIN)/python -m tests.tools.guard.fuzzing.differential $$half && \
		$(BIN)/python -m tests.tools.guard.fuzzing.guided_fuzz $$half out/fuzz

demo-check: $(VENV)/.ready
	@out=$$(mktemp -d) && $(BIN)/sqlagent eval dialogues eval/dialogues/record_shop_questions$(SET:%=_%).jsonl --rerank \
		--out "$$out" >/dev/null; code=$$?; rm -rf "$$out"; exit $$code

soak: $(VENV)/.ready-dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.ui.soak $(or $(questions),2000) $(MODEL)

test-ui: $(VENV)/.ready-browser
	@SQLAGENT_BROWSER=1 SQLAGENT_TIMES=$(times) SQLAGENT_ALLOWED_SKIPS='^$$' OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile \
		tests/ui/page/*_browser.py tests/ui/views/*/*_browser.py

measure-ui: $(VENV)/.ready-browser
	@$(BIN)/python -m tests.ui.measure

screenshots: $(VENV)/.ready-browser
	@$(BIN)/python -m tests.ui.screenshots "$(if $(filter file,$(origin OUT)),out/screenshots,$(OUT))"

animation: $(VENV)/.ready-browser
	@$(BIN)/python -m tests.ui.page.animation "$(if $(filter file,$(origin OUT)),ui/pictures/decoding.webp,$(OUT))"

check: $(VENV)/.ready-dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

DATA ?= data
OUT ?= retrained
RECIPE ?= cpu

retrain: $(VENV)/.ready-train
	@$(BIN)/sqlagent train all --data "$(DATA)" --out "$(OUT)" --recipe "$(RECIPE)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		v >= (3, 11) or sys.exit("sqlagent needs Python 3.11 or newer, and $(PYTHON) is %d.%d; try: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=24"

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (once) ..." >&2
	@$(INSTALL) -e .
	@touch $@

# With an extra: ui, train, dev.
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) with what the extra $* needs (once; a few minutes) ..." >&2
	@$(INSTALL) -e '.[$*]'
	@touch $(VENV)/.ready $(if $(filter dev,$*),$(VENV)/.ready-ui $(VENV)/.ready-train) $@

$(VENV)/.ready-browser: $(VENV)/.ready-dev
	@$(INSTALL) -e '.[dev,browser]'
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >&2 || \
		{ echo "the browser tests need Chromium; on Debian and Ubuntu: apt install chromium" >&2; exit 1; }
	@touch $@

wheel: $(VENV)/bin/python
	@rm -rf $(VENV)-wheel dist && $(PYTHON) -m venv $(VENV)-wheel
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd / && "$(CURDIR)/$(VENV)-wheel/bin/sqlagent" sql "SELECT count(*) AS albums FROM albums"
	@rm -rf $(VENV)-wheel

bundle: wheel $(VENV)/.ready-dev
	@$(BIN)/python hatch_build.py dist/*.whl dist/sqlagent.mcpb && echo dist/sqlagent.mcpb

# torch is pinned by hand, for not every index has a CPU build of the newest release.
# Local version labels such as +cpu say which build of torch this machine has; every build may satisfy the pin.
lock:
	@rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check "pip>=24"
	@$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX_URL),--extra-index-url "$(TORCH_INDEX_URL)") '.[dev,browser]' torch==$(TORCH)
	@{ echo "# What the tests use. Made by: make lock"; \
		$(VENV)-lock/bin/python -m pip freeze --exclude sqlagent-local | sed 's/+[a-z0-9.]*$$//'; } > constraints.txt
	@rm -rf $(VENV)-lock

clean:
	@rm -rf $(VENV) $(VENV)-lock $(VENV)-wheel .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
