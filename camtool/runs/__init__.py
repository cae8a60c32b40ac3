"""Runs over many photos: plan, explain, write results, keep the manifest."""
