# `make qualify` and `make test` need Linux, Python >= 3.10 and make; everything else they install themselves.
PYTHON ?= python3
VENV ?= .venv
NODES ?= 2
ARGS ?=
BIN := $(VENV)/bin
LAB_PACKAGES := openssh-server openssh-client slurmctld slurmd slurm-client munge openmpi-bin iproute2 nftables \
	ethtool e2fsprogs gcc libc6-dev python3-venv

.PHONY: qualify test examples docs lab lab-packages lint clean

qualify: $(VENV)/.installed
	$(BIN)/python -m pytest qualification/ --nodes $(NODES) $(ARGS)

# What starts no ranks is tested on all cores; ranks have the machine for themselves. 5: ARGS left no test in one half.
test: $(VENV)/.examples lint
	$(BIN)/python -m pytest tests/unit -n auto $(ARGS) || test $$? = 5
	$(BIN)/python -m pytest tests/ranks tests/launch tests/plugin tests/examples tests/lab $(ARGS) || test $$? = 5

# The suite on every example with a trainer of its own; minutes. See docs/own-job.md.
examples: $(VENV)/.examples
	CLUSTERQUAL_EXAMPLES=full $(BIN)/python -m pytest tests/examples $(ARGS)

# All faults and whole qualifications on several real hosts of this machine; as root. See docs/faults.md.
lab: lab-packages $(VENV)/.installed
	CLUSTERQUAL_LAB=full $(BIN)/python -m pytest tests/lab tests/plugin/test_recovery.py $(ARGS)

# What the lab needs, on Debian; as root.
lab-packages:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(LAB_PACKAGES)

# The pages as a site, in build/site; a link that leads nowhere or a page that is missing ends it.
docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build

# The page of a run in a real browser; the first time as root, on Debian. See docs/report.md.
browser: $(VENV)/.installed
	command -v chromium > /dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	CLUSTERQUAL_BROWSER=required $(BIN)/python -m pytest tests/unit/test_report_browser.py $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test]"
	touch $@

# The trainers that the examples are shown with.
$(VENV)/.examples: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[examples]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info clusterqual-runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
