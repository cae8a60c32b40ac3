"""Runs on a cluster: a batch class for any framework, sources of images, and shards computed on Ray Data."""
