"""The pages of explore in a real browser: filter, sort, look, tick, save; hostile texts stay text."""

import http.server
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

import raycomp
from raycomp.cli import main
from raycomp.data.samples import write_tar
from raycomp.look.config import ExploreConfig
from raycomp.look.explore import split_words
from tests.corpus import by_cpi, mean_drop, scenes
from tests.look.test_explore import read_cards, read_script

NUM = 90
HOSTILE = (
    "<script>document.title='owned'</script> a red cube",
    "<img src=x onerror=\"document.title='owned'\"> a dog on a beach",
    "\u202e a caf\u00e9 \U0001f600\U0001f600 beside a green ball \u0130stanbul __proto__ constructor",
    "');raycomp.put('index/about',{});// a blue star",
    "</script><style>*{display:none}</style> a moon \u2028 and a heart",
)


QUERIES = ("red", "Red CUBE", "caf\u00e9", "\u0130stanbul", "\U0001f600", "proto", "constructor", "nowhere")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium without a network but this machine's."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        why = "no chromium on PATH: apt-get install chromium"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def curated(tiny_scorer, tmp_path_factory) -> Path:
    """A curation of scenes, some with hostile captions, keys and urls, and two pairs of equal captions."""
    folder = tmp_path_factory.mktemp("browsed")
    samples = scenes(NUM, seed=1)
    for i, text in enumerate(HOSTILE):
        samples[7 * i]["txt"] = text.encode()
        samples[7 * i]["json"] = json.dumps({"url": f"javascript:document.title='owned'//{text}"}).encode()
    samples[3]["json"] = json.dumps({"url": "https://example.org/a.jpg"}).encode()
    for i in (50, 60):
        samples[i]["txt"] = samples[i + 1]["txt"] = b"a red cube on a green ball"
    keys = [f"{i:03d}<b onclick=alert(1)>'\"" for i in range(NUM)]
    write_tar(str(folder / "in/<i>0.tar"), list(zip(keys, samples, strict=True)))
    config = by_cpi(input=str(folder / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    raycomp.curate(config, folder / "scored")
    settings = {"near.rules": "captions", "near.action": "flag"}
    raycomp.select(folder / "scored", settings, folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def pages(curated) -> Path:
    out = curated.parent / "pages"
    raycomp.explore(curated, ExploreConfig(neighbours=4), out)
    return out


class View:
    """The page of a folder in a window of its own, and what a person does with it."""

    def __init__(self, browser, address: str, width: int = 1280):
        self.asked: list[str] = []
        self.page = browser.new_context(
            accept_downloads=True, viewport={"width": width, "height": 900}
        ).new_page()
        self.page.set_default_timeout(20_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.wait()

    def wait(self, after: int = 0) -> None:
        """Wait until the page shows a state later than ``after``; its policy lets no helper do so."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            latest, ready = self.page.evaluate("[latest, at('cards').dataset.ready]")
            if latest > after and ready == str(latest):
                return
            time.sleep(0.02)
        raise TimeoutError(self.said())

    def do(self, act) -> None:
        before = self.page.evaluate("latest")
        act()
        self.wait(before)

    def rows(self) -> list[int]:
        return self.page.eval_on_selector_all(".card", "cards => cards.map(card => Number(card.dataset.row))")

    def all_rows(self) -> list[int]:
        return self.page.evaluate("found")

    def said(self) -> str:
        return self.page.inner_text("#said")


@pytest.fixture
def view(browser, pages) -> Iterator[View]:
    one = View(browser, (pages / "report.html").as_uri())
    yield one
    assert not one.errors and all(url.startswith(("file:", "blob:", "data:")) for url in one.asked)
    assert one.page.title() != "owned"
    one.page.context.close()


def test_filters_find_what_a_plain_loop_finds(view, pages):
    cards = read_cards(pages)
    assert view.rows() == list(range(40)) and view.all_rows() == list(range(NUM))
    view.do(lambda: view.page.check("input[name=outcome][value=kept]"))
    kept = [row for row, card in enumerate(cards) if card["outcome"] == "kept"]
    assert view.all_rows() == kept and f"{len(kept)} of {NUM} rows" in view.said()
    field = "input[name=alignment_from]"
    view.do(lambda: view.page.fill(field, "0") or view.page.press(field, "Enter"))
    above = [row for row in kept if cards[row]["alignment"] >= 0]
    assert view.all_rows() == above
    view.do(lambda: view.page.select_option("#sort", "-alignment"))
    assert view.all_rows() == sorted(above, key=lambda row: (-cards[row]["alignment"], -row))
    address = view.page.url
    view.do(lambda: view.page.click("#reset"))
    assert view.all_rows() == list(range(NUM))
    view.do(lambda: view.page.go_back())
    assert view.page.url == address and len(view.all_rows()) == len(above)


def test_words_are_those_of_the_captions(view, pages):
    cards = read_cards(pages)
    for in_phrase in (False, True):
        if in_phrase:
            view.do(lambda: view.page.check("input[name=phrase]"))
        for query in QUERIES:
            view.do(lambda query=query: view.page.evaluate("q => go({ ...state, word: q })", query + " "))
            wanted = {*split_words(query)}
            assert view.page.evaluate("splitWords", query) == split_words(query)
            expected = []
            for row, card in enumerate(cards):
                parts = [card["caption"][one[0] : one[3]] for one in card["phrases"]]
                texts = parts if in_phrase else [card["caption"]]
                if wanted <= {word for text in texts for word in split_words(text)}:
                    expected.append(row)
            assert view.all_rows() == expected, (query, in_phrase)
            assert expected or "No row fits" in view.said()


def test_pages_nearest_rows_and_duplicates(view, pages):
    view.do(lambda: view.page.click(".pager >> nth=0 >> text=Next"))
    assert view.rows() == list(range(40, 80)) and "41 to 80" in view.said()
    view.do(lambda: view.page.evaluate("go({ ...state, page: '99' })"))
    assert view.rows() == list(range(80, NUM))
    card = read_cards(pages)[50]
    view.do(lambda: view.page.evaluate("go({ ...START, near: '50' })"))
    assert view.rows() == [50, *(row for row, _ in card["near"])]
    assert "its 4 nearest rows" in view.said()
    view.do(lambda: view.page.click("[data-row='50'] >> text=duplicates"))
    assert view.rows() == [50, 51, 60, 61]
    view.do(lambda: view.page.click("#back"))
    assert len(view.rows()) == 5


def test_hostile_texts_are_shown_as_they_are(view, pages):
    cards = read_cards(pages)
    for i, text in enumerate(HOSTILE):
        shown = view.page.locator(f"[data-row='{7 * i}'] .caption")
        assert shown.text_content() == text and shown.locator("script, style, img").count() == 0
        for mark, phrase in zip(shown.locator("mark").all(), cards[7 * i]["phrases"], strict=True):
            assert mark.text_content() == text[phrase[1] : phrase[2]] == phrase[5]
        assert view.page.locator(f"[data-row='{7 * i}'] a").count() == 0, "a link that is a script"
    assert view.page.locator("[data-row='3'] a").get_attribute("href") == "https://example.org/a.jpg"
    assert "001<b onclick" in view.page.locator("[data-row='1'] details").text_content()


def test_ticked_rows_are_saved_and_left_out(view, pages, curated, tmp_path):
    kept = [row for row, card in enumerate(read_cards(pages)) if card["outcome"] == "kept"][:3]
    view.do(lambda: view.page.check("input[name=outcome][value=kept]"))
    for row in kept:
        view.page.check(f"[data-row='{row}'] input")
    view.page.reload()
    view.wait()
    assert view.page.inner_text("#ticked") == "3"
    view.do(lambda: view.page.check("input[name=ticked]"))
    assert view.rows() == kept
    with view.page.expect_download() as download:
        view.page.click("#save")
    assert download.value.suggested_filename == "exclude.txt"
    download.value.save_as(tmp_path / "exclude.txt")
    uids = read_script(pages, "index/uids")
    lines = (tmp_path / "exclude.txt").read_text().splitlines()
    assert lines[0].startswith("# 3 samples") and lines[1:] == [uids[row] for row in kept]
    line = read_script(pages, "index/about")["select"]["command"]
    assert line in view.page.inner_text("main")
    words = re.sub("exclude.txt", str(tmp_path / "exclude.txt"), line)
    words = re.sub(r"--out \S+", f"--out {tmp_path / 'again'}", words)
    assert main([word.strip("'") for word in words.split()[1:]]) == 0
    run = json.loads((tmp_path / "again/run.json").read_text())
    assert run["funnel"]["dropped"]["excluded"] == 3
    view.page.click("#clear")
    assert view.page.inner_text("#ticked") == "0" and view.page.is_disabled("#save")
    view.do(lambda: view.page.evaluate("go({ ...START, word: 'red' })"))
    view.do(lambda: view.page.click("#tick-found"))
    assert view.page.inner_text("#ticked") == str(len(view.all_rows())) != "0"


def test_it_works_from_a_server_and_a_moved_folder_and_names_a_missing_part(browser, pages, tmp_path):
    moved = tmp_path / "a b#c"
    shutil.copytree(pages, moved)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{quote(moved.name)}/report.html"
    one = View(browser, address)
    assert one.rows() == list(range(40)) and not one.errors
    assert all(url.startswith((address[:25], "data:")) for url in one.asked)
    one.page.context.close()
    server.shutdown()
    server.server_close()
    shutil.rmtree(moved / "data/cards")
    page = browser.new_page()
    page.goto((moved / "report.html").as_uri())
    page.wait_for_selector("#said.alert")
    assert "data/cards/00000.js cannot be loaded; copy the whole folder" in page.inner_text("#said")
    page.close()


def test_it_fits_the_width(browser, pages):
    for width in (1280, 390):
        one = View(browser, (pages / "report.html").as_uri(), width)
        assert one.page.evaluate("document.documentElement.scrollWidth") == width
        images = "all => all.filter(i => i.naturalWidth > 0).length"
        assert one.page.eval_on_selector_all(".photo img", images) == 40
        one.page.context.close()
