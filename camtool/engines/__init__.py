"""How explaining is compiled: prepared models, graphs for other runtimes, and files for deployment."""
