# The commands that CI calls. `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help install lint types test app zoo pythons

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

install:  ## install camtool in editable mode, with all development tools
	pip install -e '.[dev]'

lint:  ## check style, format and import directions
	ruff check .
	ruff format --check .
	lint-imports

types:  ## check types
	mypy

test:  ## run all tests but the zoo's and the app's, slow ones included
	pytest -n auto --ignore=tests/zoo --ignore=tests/app

app:  ## test the page of `camtool app` in a browser
	pytest -n auto --dist loadfile tests/app

zoo:  ## explain hundreds of architectures with random weights
	pytest -n auto tests/zoo

pythons:  ## install the package alone on other Pythons, and run its demo
	bash tools/try_pythons.sh 3.10 3.13
