# The commands that CI calls. `make` lists them.
.DEFAULT_GOAL := help
INSTALL ?= pip install
unexport PYTHONDONTWRITEBYTECODE  # some servers set it: each process would compile all of PyTorch anew
.PHONY: help install lint types test test-all test-nightly test-random slow-cases pythons release demo-page docs note

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

# KerasHub requires TensorFlow for its texts; its image models, which tests explain, run without.
install:  ## install camtool in editable mode, with all development tools
	$(INSTALL) -e '.[dev]'
	$(INSTALL) --no-deps 'keras-hub; python_version >= "3.11"'

lint:  ## check style, format and import directions
	ruff check .
	ruff format --check .
	lint-imports

types:  ## check types
	mypy

test:  ## run all quick tests, and a slow one of each subject
	pytest

COSTS = --case-costs=build/case_costs.json
test-all:  ## run all tests: slow ones, hundreds of architectures, the page in a browser
	pytest -m "not nightly" --most-mib=2800 $(COSTS) $(TESTS)

test-nightly:  ## run the benchmarks that pages quote
	pytest -m nightly $(TESTS)

test-random:  ## run all tests in random order; TESTS="--randomly-seed=1" repeats one
	pytest -m "not nightly" -p randomly $(TESTS)

slow-cases:  ## write tests/slow_cases.txt, which plain `pytest` leaves out, from the last `make test-all`
	python -m tests.helpers.slow_cases build/case_costs.json

# 3.11 first: CI works with it, so its files are there.
pythons:  ## build a release, install it alone on each Python, and run its demo
	bash tools/try_pythons.sh 3.11 3.10 3.12 3.13

release:  ## build wheel and sdist into dist/, and check them
	python tools/build_release.py dist

demo-page:  ## write a page that needs no server, build/pages/demo; with WEIGHTS=mobilenet_v2.safetensors another of that model
	rm -rf build/pages
	python tools/make_demo_page.py build/pages $(if $(WEIGHTS),--weights $(WEIGHTS))

docs:  ## build the documentation site, site/index.html; warnings are errors
	python -m tools.docs_site site

note:  ## fill in the numbers of docs/note.md, draw its figures, and print it, build/note.pdf
	python -m tools.note
