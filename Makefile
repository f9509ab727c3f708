# The two commands of this project, `make fuzz` and `make test`, from a clean clone.
# The environment is made once and stamped; it is remade when the lock changes.

PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3.12),python3)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
TREE_CACHE := $(or $(KVFUZZ_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kvfuzz)
ARGS ?=
# A file's tests stay together and share its processes; the longest files come first.
TWO := -n 2 --dist loadfile --no-loadscope-reorder
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help env fuzz test test-slow lock clean

help:
	@echo "make fuzz [ARGS='--vllm 0.20.1']  fuzz the subject, then show the report"
	@echo "make test                         lint, types and the harness's own tests"
	@echo "make test-slow                    long searches that make test leaves out"
	@echo "make lock                         resolve requirements.lock anew"
	@echo "make clean                        remove the environment and its leftovers"
	@echo "Fetched vLLM trees stay in $(TREE_CACHE) (KVFUZZ_CACHE moves them)."

env: $(STAMP)

$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = (3, 11) <= v[:2] < (3, 13); \
	ok or sys.exit("kvfuzz needs Python 3.11 or 3.12, and $(PYTHON) is %d.%d.%d: " \
	"install one of them or run make PYTHON=/path/to/python3.11" % v[:3])'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@echo "installing requirements.lock into $(VENV) (torch is large: some minutes, once)"
	$(PY) -m pip install --quiet --no-deps -r requirements.lock
	@$(PY) -c 'import torch' 2>/dev/null || { \
	echo "torch came as a CUDA build: installing the libraries it needs, some GB" \
	"(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS can offer pip the smaller CPU build)"; \
	$(PY) -m pip install --quiet -c requirements.lock \
	"$$(grep '^torch==' requirements.lock)"; $(PY) -c 'import torch'; }
	touch $@

$(STAMP): $(VENV)/.locked pyproject.toml
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $(STAMP)

# The report is shown whatever pytest said, and pytest's exit status is kept: 0 green,
# 1 findings, 2 could not tell (make itself turns any failure into its own status 2).
fuzz: $(STAMP)
	@status=0; $(PY) -m pytest fuzz/ -n auto $(ARGS) || status=$$?; \
	$(PY) -m reports show; exit $$status

test: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(PY) -m pytest tests $(TWO) $(ARGS)

test-slow: $(STAMP)
	$(PY) -m pytest tests $(TWO) --slow -m slow $(ARGS)

# A fresh environment gets the newest versions that the ranges of pyproject.toml allow;
# what pip chose is the lock. torch and triton are kept at the versions named here.
lock:
	rm -rf $(VENV).lock
	$(PYTHON) -m venv $(VENV).lock
	$(VENV).lock/bin/python -m pip install --quiet torch==2.13.0 triton==3.7.1
	$(VENV).lock/bin/python -m pip install --quiet 'setuptools>=77' '.[subject,dev]'
	{ sed -n '/^#/p' requirements.lock; \
	  $(VENV).lock/bin/python -m pip freeze --all --exclude pip --exclude kvfuzz \
	  | sed 's/+cpu$$//'; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV).lock build

clean:
	rm -rf $(VENV) $(VENV).lock build dist .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis kvfuzz.egg-info reports/latest
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
