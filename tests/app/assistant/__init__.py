"""Tests of the tools for an assistant."""
