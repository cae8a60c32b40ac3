"""Writing a report: from the folder of a run to its page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from camtool.arguments.messages import add_article, suggest_names
from camtool.errors import CamtoolError
from camtool.rendering.image_writing import open_atomically
from camtool.runs.report.page import GENERATOR, render_page
from camtool.runs.report.payload import build_payload, summarize
from camtool.runs.report.pictures import PictureSettings, Progress, prepare_pictures
from camtool.runs.report.rows import ReportContents
from camtool.runs.report.run_folders import EXPLANATIONS, FAILURES, MAX_ROWS, read_run_description, read_run_folder
from camtool.runs.report.shards import list_shards, read_shards

PAGE = "index.html"
"""Name of the page in the folder of the run."""

# The meta element that names us stands in the first lines.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written.

    Attributes:
        path: The page.
        explanations: The number of explanations on it.
        failures: The number of failed photos on it.
        notices: Sentences about what it leaves out.
    """

    path: Path
    explanations: int
    failures: int
    notices: tuple[str, ...]


def write_report(
    folder: Path | str,
    *,
    photos: Path | None = None,
    copy_photos: bool = False,
    is_quick: bool = False,
    max_rows: int = MAX_ROWS,
    progress: Progress = lambda done, total: None,
) -> WrittenReport:
    """Write ``index.html`` in the folder of a run, and small pictures in the subfolder ``index_files``.

    The page works from disk and without a network. It links to the pictures of the run, and to the photos where they
    are.

    Args:
        folder: The output folder of a run, the folder with the Parquet shards of a cluster run, or one shard.
        photos: The folder that the photos have been moved to; by default they are looked up where the run found them.
        copy_photos: Put reduced copies of the photos beside the page, so that the folder can be given to others.
        is_quick: Make no new thumbnails and copies of photos. Large pictures then take longer to show.
        max_rows: The number of explanations on the page at most.
        progress: Called with the number of finished steps and of all steps.

    Returns:
        What was written.

    Raises:
        CamtoolError: The folder holds no results, or a page that is not a report.
        OSError: A file cannot be read or written.
    """
    source = Path(folder)
    target = source.parent if source.is_file() else source
    page = target / PAGE
    contents = _read_contents(source, max_rows)
    check_page(page, GENERATOR)
    directory = contents.run.get("directory")
    settings = PictureSettings(
        target, Path(directory) if isinstance(directory, str) else None, photos, copy_photos, is_quick
    )
    pictures = prepare_pictures(contents.rows, settings, progress)
    summary = summarize(contents)
    html = render_page(build_payload(contents, pictures, summary), summary, contents.run, tuple(contents.notices))
    with open_atomically(page) as stream:
        stream.write(html.encode())
    return WrittenReport(page, len(contents.rows), len(contents.failures), tuple(contents.notices))


def _read_contents(source: Path, max_rows: int) -> ReportContents:
    """Read a run's folder, or shards.

    Raises:
        CamtoolError: There is neither.
    """
    if not source.exists():
        folders = [path.name for path in source.parent.iterdir() if path.is_dir()] if source.parent.is_dir() else []
        near = suggest_names(source.name, folders)
        raise CamtoolError(f"run {str(source)!r}: no such folder.{near}")
    if any((source / name).is_file() for name in (EXPLANATIONS, FAILURES)):
        return read_run_folder(source, max_rows=max_rows)
    if shards := list_shards(source):
        run = read_run_description(source.parent if source.is_file() else source)
        return replace(read_shards(shards, max_rows=max_rows), run=run)
    raise CamtoolError(
        f"run {str(source)!r} holds neither {EXPLANATIONS} nor Parquet files; give the output folder of camtool run."
    )


def check_page(page: Path, generator: str) -> None:
    """Check that there is no page, or one that the same command wrote.

    Args:
        page: The page.
        generator: The command, as in the page's meta element.

    Raises:
        CamtoolError: There is something else.
    """
    name = generator.rpartition(" ")[2]
    if page.is_symlink() or (page.exists() and not _is_written_by(page, generator)):
        raise CamtoolError(f"{str(page)!r} exists and is not {add_article(name)}; move it, and run {generator}.")


def _is_written_by(page: Path, generator: str) -> bool:
    if not page.is_file():
        return False
    with page.open("rb") as stream:
        return f'<meta name="generator" content="{generator}">'.encode() in stream.read(_HEAD_BYTES)
