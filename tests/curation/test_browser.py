"""The page in a real browser: it lays out, shows its photos, runs nothing and asks nobody for anything."""

import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from raycomp.curation.summary import choose_shown
from raycomp.report.page import SCRIPT, escape
from tests.curation.test_page import HOSTILE, hostile_page, photo, render, run_json, summarise_captions
from tests.report.html_tree import read_html

pytestmark = pytest.mark.browser

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars".split()
FLAGS += "--disable-background-networking --disable-component-update --disable-sync".split()
TIMEOUT_S = 60
WIDE = ("--dump-dom", "--window-size=1400,1000", "--virtual-time-budget=60000")
Browse = Callable[..., str]


@pytest.fixture(scope="module")
def browse(tmp_path_factory) -> Browse:
    """Open a page with further flags and return what Chromium prints."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        why = "no chromium on PATH: apt-get install chromium"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)

    def run(text: str, *flags: str) -> str:
        folder = tmp_path_factory.mktemp("page")
        (folder / "page.html").write_text(text, encoding="utf-8")
        address = (folder / "page.html").as_uri()
        command = [found, *FLAGS, f"--user-data-dir={folder / 'user'}", *flags, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout

    return run


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine: (its address, the paths it was asked for)."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def page() -> str:
    long = "w" * 300
    captions = [
        f"A very small dog number {i % 7} wearing a {long if i % 5 else 'hat'} in a river" for i in range(300)
    ]
    summary = summarise_captions(captions)
    photos = {s.uid: photo("seagreen") for s in choose_shown(summary).samples}
    run = run_json(config={"input": long, "scorer": {"model": long}}, versions={long: long}, warnings=[long])
    return render(summary, run, photos=photos)


def test_hostile_text_does_nothing(browse, asked):
    address, paths = asked
    call = f"<img src='{address}/img'><script>document.title='owned';fetch('{address}/js')</script>"
    control = f"<!doctype html><title>mine</title><p>{call}"
    dom = read_html(browse(control, "--dump-dom", "--virtual-time-budget=2000"))
    assert dom.all("title")[0].text == "owned" and {"/img", "/js"} <= set(paths), "the control shows nothing"
    paths.clear()
    text = hostile_page((*HOSTILE[:3], call))
    dom = read_html(browse(text, "--dump-dom", "--virtual-time-budget=2000"))
    assert dom.all("title")[0].text.startswith("raycomp: kept") and not paths
    assert [one.text for one in dom.all("script")] == [SCRIPT] and call in dom.text


def test_it_fits_the_width_and_every_photo_decodes(browse, page):
    for width in (1280, 400):
        title = read_html(browse(frame(page, width), *WIDE)).all("title")[0].text
        assert title == f"[{width},24,0]", "width, photos, captions that scroll sideways"


def frame(page: str, width: int) -> str:
    """Return a page that shows another in a frame, and has what the frame looks like for its title."""
    return (
        # Pictures decode in real time; virtual time must not run out before, so something ticks in it.
        "<!doctype html><title></title><script>setInterval(() => 0, 1);"
        " function look(frame) {"
        " const page = frame.contentDocument, images = [...page.images];"
        " Promise.all(images.map(i => i.decode())).then(() => { document.title = JSON.stringify(["
        " page.documentElement.scrollWidth, images.filter(i => i.naturalWidth === 240).length,"
        " [...page.querySelectorAll('.caption')].filter(c => c.scrollWidth > c.clientWidth"
        " && frame.contentWindow.getComputedStyle(c).overflowX !== 'hidden').length]); }); }"
        "</script>"
        f"<iframe width={width} height=900 style='border:0' onload='look(this)' srcdoc=\"{escape(page)}\">"
    )
