"""What the build of the documentation refuses, and where its links lead."""

from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

from lab.makers.pages import find_foreign, list_functions, on_page_markdown, write_options
from raycomp.config.commands import FOLDERS, import_command


@pytest.mark.parametrize(
    ("html", "is_foreign"),
    [
        ('<script src="https://cdn.example/a.js"></script>', True),
        ("<link rel=stylesheet href=//fonts.example/a.css>", True),
        ("<style>@import 'https://fonts.example/a.css'</style>", True),
        ('<script src="assets/a.js"></script>', False),
        ('<a href="https://arxiv.org/abs/2605.22651">a paper</a>', False),
        ('<link rel="canonical" href="https://docs.example/">', False),
    ],
)
def test_what_a_browser_would_load_from_a_network_is_found(html, is_foreign, tmp_path):
    (tmp_path / "a.html").write_text(html)
    assert bool([*find_foreign(tmp_path)]) == is_foreign


@pytest.mark.parametrize(
    ("page", "link", "built"),
    [
        ("sweeps.md", "../jobs/real_photos.py", "repo/jobs/real_photos.py.md"),
        ("howto/rule.md", "../../CONTRIBUTING.md#a-probe", "../repo/CONTRIBUTING.md#a-probe"),
        ("repo/CONTRIBUTING.md", "docs/scale.md", "../scale.md"),
        ("howto/rule.md", "../curation.md#choosing", "../curation.md#choosing"),
        ("sweeps.md", "no/such/file.md", "no/such/file.md"),
    ],
)
def test_a_link_leads_to_the_built_page(page, link, built):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert on_page_markdown(f"see [it]({link})", page=page) == f"see [it]({built})"


@pytest.mark.parametrize("name", FOLDERS)
def test_every_option_is_on_its_page(name):
    command, text = import_command(name), write_options(name)
    assert (text is not None) == ("--set" in command.arguments.split())
    if name == "select":
        assert text and "`align.keep`" in text and "`scorer.model`" not in text


def test_a_function_that_has_the_name_of_a_folder_is_described():
    assert "raycomp.curate(\n    config: CurateConfig | str" in list_functions()
