"""Runs on a cluster: a batch class for any engine, sources of images, and shards computed on Ray Data."""
