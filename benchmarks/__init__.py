"""Measurements of speed, memory, coverage and faithfulness: ``python -m benchmarks`` lists them."""
