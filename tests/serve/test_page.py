"""The page in a real Chromium, against a router and three nodes that are processes of their own."""

import base64
import io
import re
import subprocess
import sys

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

import chromium
from commands import PATIENCE, fedspm, wait
from fedspm.base.ports import free_port

SMALL = [f"{role}.{setting}" for role in ("predictor", "router") for setting in ("encoder=mlp", "steps=5")]


def noise() -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


expect.set_options(timeout=1000 * PATIENCE)
NOISE = {"name": "noise.png", "mimeType": "image/png", "buffer": noise()}


@pytest.fixture(scope="module")
def browser():
    path, why = chromium.installed()
    if path is None:
        pytest.skip(why)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield browser
        browser.close()


class Site:
    """Router and nodes as `fedspm serve` starts them; a node can be killed and started again."""

    def __init__(self, folder):
        self._folder = folder
        self._ports = {f"client-{i}": free_port() for i in range(3)}
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/"
        (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
        lines = [f'{name} = "http://127.0.0.1:{port}"' for name, port in self._ports.items()]
        (folder / "nodes.toml").write_text("\n".join(lines))
        self.nodes = {}
        for name in self._ports:
            self.start(name)
        router = [
            folder / "bundle" / "router",
            "--nodes",
            folder / "nodes.toml",
            "--samples",
            folder / "run" / "samples",
        ]
        self._router = self._serve("router", *router, "--port", self._port, "--deadline", PATIENCE)
        wait(lambda: httpx.get(self.url + "readyz").status_code == 200)

    def start(self, name):
        self.nodes[name] = self._serve("node", self._folder / "bundle" / "clients" / name, "--port", self._ports[name])

    def _serve(self, *arguments):
        command = [
            sys.executable,
            "-m",
            "fedspm",
            "serve",
            *map(str, arguments),
            "--secret",
            self._folder / "secret",
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def all_up(self):
        return all(client["up"] for client in httpx.get(self.url + "v1/clients").json())

    def stop(self):
        for process in (self._router, *self.nodes.values()):
            process.terminate()
        for process in (self._router, *self.nodes.values()):
            process.wait(PATIENCE)


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    settings = [part for setting in SMALL for part in ("--set", setting)]
    fedspm("train", "--clients", 3, "--rounds", 4, "--out", folder / "run", *settings)
    fedspm("export", folder / "run", "--out", folder / "bundle")
    site = Site(folder)
    wait(site.all_up)
    yield site
    site.stop()


@pytest.fixture
def page(browser, site):
    page = browser.new_context(viewport={"width": 1100, "height": 800}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    problems = []
    outside = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: None if request.url.startswith((site.url, "data:", "blob:")) else outside.append(request.url),
    )
    page.goto(site.url)
    expect(page.locator("#samples button")).to_have_count(3)
    yield page
    assert not problems
    assert not outside
    page.context.close()


def test_a_sample_is_routed_and_everything_is_shown(page):
    page.get_by_role("button", name="Sample of client-1").click()
    expect(page.locator("#result")).to_be_visible()
    assert page.locator("#view").evaluate("image => image.naturalWidth") == 28
    expect(page.get_by_role("list", name="Clients: P(client | image)").get_by_role("listitem")).to_have_count(3)
    expect(page.locator("#classes").get_by_role("listitem")).to_have_count(10)
    expect(page.locator("#components").get_by_role("listitem")).to_have_count(3)
    first = page.locator("#posterior .first .name").inner_text()
    expect(page.locator("#who")).to_have_text(first)
    expect(page.locator("#meant")).to_contain_text(first)
    label = page.locator("#classes .first .name").inner_text()
    expect(page.locator("#prediction")).to_have_text(re.compile(rf"^{first}'s (own name|name for [\w /-]+): {label}$"))
    expect(page.locator("#classes-title")).to_have_text(f"Classes, in {first}'s own names: P(class | image)")
    expect(page.locator("#time")).to_have_text(re.compile(r"^\d+\.\d ms$"))
    expect(page.get_by_role("status")).to_contain_text(f"answered by {first}")
    expect(page.locator(".banner")).to_have_count(0)


def test_an_image_no_client_has_is_called_novel(page):
    page.set_input_files("#file", NOISE)
    expect(page.get_by_role("alert")).to_contain_text("resembles no client")


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_an_image_can_be_dropped_and_pasted(page, how):
    encoded = base64.b64encode(NOISE["buffer"]).decode()
    page.evaluate(
        """([how, encoded]) => {
            const bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "noise.png", { type: "image/png" }));
            const event = how === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true })
                                         : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
            document.getElementById("drop").dispatchEvent(event);
        }""",
        [how, encoded],
    )
    expect(page.locator("#prediction")).not_to_be_empty()
    expect(page.get_by_role("alert")).to_contain_text("resembles no client")


def test_a_file_that_is_no_image_gets_a_sentence(page):
    page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    expect(page.get_by_role("status")).to_have_text("That is not an image file.")


def test_it_works_with_the_keyboard_alone(page):
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.locator("#samples button").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#result")).to_be_visible()
    expect(page.locator("#samples button").first).to_have_attribute("aria-pressed", "true")


def test_a_blend_names_its_clients(page):
    page.set_input_files("#file", NOISE)
    expect(page.locator("#result")).to_be_visible()
    page.get_by_label("a blend of the best three").check()
    expect(page.locator("#who")).to_contain_text("client-")


def test_nothing_sticks_out_on_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 740})
    page.get_by_role("button", name="Sample of client-0").click()
    expect(page.locator("#result")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_dark_follows_the_system(page):
    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.emulate_media(color_scheme="dark")
    assert ground() != light


def test_a_killed_node_is_seen_and_another_answers(page, site):
    page.get_by_role("button", name="Sample of client-2").click()
    expect(page.locator("#result")).to_be_visible()
    meant = page.locator("#who").inner_text()
    site.nodes[meant].kill()
    site.nodes[meant].wait()
    page.get_by_role("button", name="Sample of client-2").click()
    expect(page.get_by_role("alert")).to_contain_text(f"answered instead of {meant}")
    expect(page.locator("#who")).not_to_have_text(meant)
    expect(page.locator("#meant")).to_contain_text(meant)
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=meant))
    expect(row).to_contain_text("down")
    site.start(meant)
    wait(site.all_up)
    expect(row).to_contain_text("up")
    page.get_by_role("button", name="Sample of client-2").click()
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator("#who")).to_have_text(meant)
