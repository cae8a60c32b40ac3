"""Files of figures, and the settings of matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
import torch
from PIL import Image

from camtool import figures
from tests.figures.drawing_helpers import build_figures, get_titles, make_explanation, to_png

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
def test_same_figure_gives_the_same_bytes(tmp_path, suffix):
    one, other = (figures.save(build_figures()["kernels in a table"](), tmp_path / f"{i}{suffix}") for i in range(2))
    assert one.read_bytes() == other.read_bytes()


def test_files_hold_no_date_and_text_stays_text(tmp_path):
    pdf, svg, png_ = (
        figures.save(figures.gallery(make_explanation("tabby")), tmp_path / f"deep/a{s}")
        for s in (".pdf", ".svg", ".png")
    )
    assert b"CreationDate" not in pdf.read_bytes()
    assert b"/FontFile2" in pdf.read_bytes()  # TrueType, not Type 3, which journals reject
    assert b"/Type3" not in pdf.read_bytes()
    assert "<dc:date>" not in svg.read_text()
    assert re.search(r"<text[^>]*>tabby 42%</text>", svg.read_text())
    with Image.open(png_) as image:
        assert image.size[0] == round(3.25 * 300)
        assert round(image.info["dpi"][0]) == 300


def test_each_map_is_a_separate_image_in_a_pdf(net, tmp_path):
    figure = figures.feature_maps(net, torch.rand(1, 3, 8, 8), "first")
    assert figures.save(figure, tmp_path / "a.pdf").read_bytes().count(b"/Subtype /Image") == 6 + 1


def test_other_matplotlib_figures_are_saved_too(tmp_path):
    from matplotlib.figure import Figure

    assert figures.save(Figure((2, 1)), tmp_path / "a.PNG", dpi=50).stat().st_size > 0


def test_failed_save_leaves_no_file(tmp_path, monkeypatch):
    figure = figures.gallery(make_explanation())
    monkeypatch.setattr(figure, "savefig", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        figures.save(figure, tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


def test_figures_are_shown_in_notebooks():
    assert figures.gallery(make_explanation())._repr_png_().startswith(b"\x89PNG")


def test_figure_can_be_edited_and_pickled():
    import pickle

    figure = figures.gallery(make_explanation())
    figure.axes[0].set_title("edited")
    again = pickle.loads(pickle.dumps(figure))
    assert get_titles(again) == ["edited"]
    assert to_png(again) == to_png(figure)


def test_user_settings_change_nothing_but_the_font():
    draw_without_map = {
        kind: to_png(draw())
        for kind, draw in build_figures().items()
        if kind in ("gallery", "feature maps", "kernels in a table")
    }
    wild = dict.fromkeys(
        ("axes.facecolor", "figure.facecolor", "savefig.facecolor", "text.color", "ytick.color"), "red"
    )
    wild |= dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "ytick.labelcolor", "xtick.labelcolor"), "green")
    wild |= dict.fromkeys(("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "font.size"), 30)
    wild |= dict.fromkeys(("axes.grid", "figure.constrained_layout.use", "xtick.top", "ytick.right"), True)
    wild |= dict.fromkeys(("axes.titleweight", "axes.labelweight", "figure.titleweight"), "bold")
    wild |= dict.fromkeys(("axes.titlelocation", "xaxis.labellocation", "xtick.alignment"), "left")
    wild |= {"ytick.alignment": "top"}
    wild |= {"yaxis.labellocation": "top", "axes.titley": 0.1, "axes.labelpad": 50, "lines.marker": "o"}
    wild |= {"image.origin": "lower", "image.aspect": "auto", "image.interpolation": "bilinear", "image.cmap": "gray"}
    wild |= {"savefig.bbox": "tight", "axes.spines.left": True, "axes.linewidth": 5, "lines.linewidth": 9}
    with matplotlib.rc_context(wild):
        assert {kind: to_png(build_figures()[kind]()) for kind in draw_without_map} == draw_without_map


def test_matplotlib_is_imported_with_the_first_figure_and_settings_and_pyplot_are_untouched(tmp_path):
    program = """
import sys, camtool, torch
camtool.figures.gallery, camtool.compare
assert "matplotlib" not in sys.modules
import matplotlib
settings = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
figure = camtool.figures.kernels(torch.nn.Conv2d(3, 4, 3))
figure._repr_png_()
for suffix in ("pdf", "svg", "png"):
    camtool.figures.save(figure, f"{sys.argv[1]}/a.{suffix}")
assert settings() == before
print("matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_threads_can_draw_and_save_at_the_same_time(tmp_path):
    before = dict(matplotlib.rcParams)
    expected = to_png(figures.gallery(make_explanation()))
    seen: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(2):
            figures.save(figures.gallery(make_explanation()), tmp_path / f"{number}-{turn}.pdf", dpi=50)
            seen.append(to_png(figures.gallery(make_explanation())))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 6
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert dict(matplotlib.rcParams) == before
