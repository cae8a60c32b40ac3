"""Runs whose process is killed at random moments, and at each rename: continued, they end with the same bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults import Server, kill_at_moments, kill_at_renames, read_files, write_images

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each start of a run is a fork"),
]


@pytest.fixture(scope="module")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("none")) as server:
        yield server


@pytest.fixture
def server(warm_server: Server, tmp_path: Path) -> Server:
    """Let each run of the test, a fork of the warm process, read the images of the test."""
    warm_server.images = tmp_path / "images"
    return warm_server


def test_runs_of_200_images_that_are_killed_at_random_moments_end_with_the_same_bytes(
    server: Server, tmp_path: Path
) -> None:
    write_images(tmp_path / "images", 200)
    seed = random.SystemRandom().randrange(10**6)
    found = kill_at_moments(server, tmp_path, 4, seed)
    assert found["killed"] == 4
    assert found["identical"] == found["rounds in all"], f"seed {seed}: {found}"


def test_runs_that_are_killed_at_a_rename_end_with_the_same_bytes(server: Server, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 4)
    found = kill_at_renames(server, tmp_path)
    # Eight pictures and arrays, and five lists: each is killed before its rename, and after it.
    assert found["rounds in all"] == 2 * (8 + 5)
    assert found["identical"] == found["rounds in all"], found


def test_a_full_disk_is_continued_when_there_is_space(server: Server, tmp_path: Path) -> None:
    """The same on a real file system of 400 KiB, where the superuser may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=400k none {disk} 2>/dev/null") != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        write_images(tmp_path / "images", 100)
        assert server.start(tmp_path / "whole")["status"] == 0
        assert server.start(disk / "out")["status"] == 1
        assert os.system(f"mount -o remount,size=64m {disk}") == 0
        assert server.start(disk / "out")["status"] == 0
        assert read_files(disk / "out") == read_files(tmp_path / "whole")
    finally:
        os.system(f"umount {disk}")
