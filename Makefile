# Python and pip are all that has to be there; `make PYTHON=/path/to/python3.11 …` names another one.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do command -v $$p && break; done)
VENV_PYTHON := .venv/bin/python
# Words after a target's name, e.g. make test ARGS="-k webshop -x"
ARGS ?=
PARALLEL = $(VENV_PYTHON) -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal

.DEFAULT_GOAL := help
# Two workers, and each command that a test starts, would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# Quick checks first, also with make -j.
.NOTPARALLEL:
.PHONY: help setup demo test fast unit thorough coverage e2e lint format docs docs-serve clean

help: ## show this page
	@echo "agentgym: LLM-agent tasks as Gymnasium environments, rollouts and GRPO training"
	@echo
	@echo "  make demo     evaluate a small policy on held-out WebShop tasks, train it with GRPO on vLLM,"
	@echo "                evaluate it again; some 4 minutes on 2 cores"
	@echo "  make test     everything that has to pass: lint, types, fast, thorough and e2e tests"
	@echo "  make fast     lint, types and the fast tests"
	@echo "  make thorough every task, policy and attack; commands in processes of their own;"
	@echo "                four times as many examples of each property"
	@echo "  make e2e      the tests that drive real vLLM, TRL and servers"
	@echo "  make coverage the fast tests with coverage"
	@echo "  make lint     ruff and mypy only;  make format mends what ruff can mend"
	@echo "  make docs     build the documentation site into build/site;  make docs-serve shows it on port 8000"
	@echo "  make setup    only create .venv (the targets above do it when something changed)"
	@echo "  make clean    remove .venv and the tools' caches"
	@echo
	@echo '  One test:     make fast ARGS="-k webshop -x"'
	@echo "  The program:  . .venv/bin/activate && agentgym --help"

setup: ## create .venv, or do nothing if it is current
	@test -n "$(PYTHON)" || { echo "no python3 on the PATH; install Python 3.11 or newer" >&2; exit 1; }
	@"$(PYTHON)" scripts/setup_env.py

demo: setup
	$(VENV_PYTHON) -m agentgym.cli demo $(ARGS)

test: lint unit thorough e2e

fast: lint unit

unit: setup
	$(PARALLEL) -m "not e2e and not thorough" --hypothesis-profile=quick $(ARGS)

thorough: setup
	$(PARALLEL) -m "thorough or (hypothesis and not e2e)" $(ARGS)

coverage: setup ## the fast tests' coverage, which takes three times as long
	$(PARALLEL) -m "not e2e" --cov --cov-report=term $(ARGS)

e2e: setup
	$(VENV_PYTHON) -m pytest -m e2e $(ARGS)

lint: setup
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy

format: setup
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

# The theme's advertisement for its successor.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: setup ## every warning is an error: a dead link, a page in no menu, a name that isn't there
	$(VENV_PYTHON) -m mkdocs build --strict $(ARGS)

docs-serve: setup
	$(VENV_PYTHON) -m mkdocs serve --livereload $(ARGS)

clean:
	rm -rf .venv build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
