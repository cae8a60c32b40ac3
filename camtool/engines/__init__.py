"""Engines: prepared copies of models, compiled graphs for other runtimes, and files for deployment."""
