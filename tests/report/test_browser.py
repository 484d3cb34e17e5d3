"""The page in headless Chromium: drawn, answering, silent and offline."""

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common import by
from selenium.webdriver.common import keys
from selenium.webdriver.support import wait

from tests.report import conftest
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.report import report

pytestmark = pytest.mark.skipif(
  not (shutil.which("chromium") and shutil.which("chromedriver")),
  reason="Debian's packages chromium and chromium-driver are not installed",
)

OPTIONS = (
  "--no-sandbox",
  "--headless=new",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
  "--hide-scrollbars",
)
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
DESKTOP = PHONE | {"width": 1180, "height": 900, "mobile": False}
PATIENCE = 120  # Seconds, on a busy machine.


@pytest.fixture(scope="module")
def browser():
  """Debian's Chromium without a window; nothing is downloaded."""
  options = webdriver.ChromeOptions()
  options.binary_location = shutil.which("chromium")
  for option in OPTIONS:
    options.add_argument(option)
  logs = {"browser": "ALL", "performance": "ALL"}
  options.set_capability("goog:loggingPrefs", logs)
  service = webdriver.ChromeService(shutil.which("chromedriver"))
  driver = webdriver.Chrome(options=options, service=service)
  yield driver
  driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The workdir of a run on hostile text, beside another of 100,000 lines."""
  top = tmp_path_factory.mktemp("pages")
  data_dir = conftest.write_hostile(top / "data")
  conftest.write_run(data_dir, top / "long", num_lines=100_000)
  config = conftest.write_run(data_dir, top / "run")
  for name, content in (
    ("recl", conftest.RECL),
    ("attention", conftest.ATTENTION),
  ):
    path = top / "run" / "results" / f"{name}.json"
    path.write_text(json.dumps(content))
  values = {"report.runs": (str(top / "long"),)}
  report.run(load.replaced(config, values), str(top / "run"))
  return top / "run"


@pytest.fixture
def page(browser, folder):
  """The page as a desktop shows it, after the last figure is drawn."""
  for log in ("browser", "performance"):
    browser.get_log(log)  # Forgets the page before.
  show(browser, folder, DESKTOP)
  return browser


def show(browser, folder, device):
  """Opens the report of a workdir and waits until every figure is drawn."""
  browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
  browser.get((folder / report.FILE).as_uri())
  script = "return document.body.dataset.drawn"
  wait.WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(
    lambda driver: driver.execute_script(script)
  )


def find(page, selector):
  return page.find_elements(by.By.CSS_SELECTOR, selector)


def details(page):
  return find(page, "#details")[0].text


def click(element):
  """Scrolls there first; a person would."""
  element.parent.execute_script(
    "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})",
    element,
  )
  element.click()


def test_the_console_is_silent_and_nothing_is_fetched(page):
  said = [
    entry for entry in page.get_log("browser") if entry["level"] != "INFO"
  ]
  assert said == []
  messages = (
    json.loads(entry["message"])["message"]
    for entry in page.get_log("performance")
  )
  fetched = [
    message["params"]["request"]["url"]
    for message in messages
    if message["method"] == "Network.requestWillBeSent"
  ]
  assert len(fetched) >= 1
  assert not [
    url for url in fetched if not url.startswith(("file:", "data:", "blob:"))
  ]


def test_every_part_is_drawn(page):
  figures = find(page, ".figure")
  assert len(figures) == 4 + 1 + 2 + 2
  for figure in figures:
    assert find(figure, ".bk-Figure"), figure.get_attribute("id")
  assert len(find(page, "#tokens span[data-at]")) == 150
  assert len(find(page, "#differences")) == 1
  assert len(find(page, "#evaluation tbody tr")) == 6


def test_the_time_of_each_run_is_a_bar_and_a_column(page):
  """2999 of 4000 s are updates; less than 0.05 % is not shown."""
  bars = find(page, "#time .shares")
  assert len(bars) == 2
  parts = bars[0].find_elements(by.By.TAG_NAME, "i")
  assert [part.get_attribute("title") for part in parts] == [
    "updates: 75.0%, 49 min 59 s",
    "compiling: 2.5%, 1 min 40 s",
    "lost to restarts: 22.5%, 15 min",
  ]
  width = bars[0].size["width"] - 2  # Two gaps of one pixel.
  widths = [part.size["width"] / width for part in parts]
  assert widths == pytest.approx([0.74975, 0.025, 0.225], abs=0.003)
  colours = {part.value_of_css_property("background-color") for part in parts}
  assert len(colours) == 3
  rows = [row.text for row in find(page, "#time tbody tr")]
  assert rows[2] == "lost to restarts 22.5% 15 min 22.5% 15 min"


def test_a_click_on_a_token_shows_its_prediction(page):
  tokens = find(page, "#tokens span[data-at]")
  click(tokens[20])
  first = details(page)
  assert "Position 20, pinned" in first
  assert len(find(page, ".bars i")) == 8
  click(tokens[30])
  assert "Position 30, pinned" in details(page)
  assert details(page) != first
  page.find_element(by.By.ID, "tokens").send_keys(keys.Keys.ARROW_RIGHT)
  assert "Position 31, pinned" in details(page)


def test_keys_alone_choose_tokens_and_heads(page):
  tokens = page.find_element(by.By.ID, "tokens")
  tokens.send_keys(keys.Keys.HOME)
  assert "Position 1, pinned" in details(page)
  assert tokens.get_attribute("aria-activedescendant") == "token-1"
  tokens.send_keys(keys.Keys.END)
  assert "Position 149, pinned" in details(page)
  tokens.send_keys(keys.Keys.ESCAPE)
  assert "Position 149." in details(page)
  buttons = find(page, ".heads button")
  assert len(buttons) == 4
  buttons[3].send_keys(keys.Keys.ENTER)
  assert "What layer 2, head 2 saw" in details(page)
  focused = page.switch_to.active_element
  assert focused.get_attribute("aria-label") == "layer 2, head 2"


def test_paper_is_white_and_whole(page):
  dark = [{"name": "prefers-color-scheme", "value": "dark"}]
  media = {"media": "print", "features": dark}
  page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
  colour = "return getComputedStyle(document.body).backgroundColor"
  assert page.execute_script(colour) == "rgb(255, 255, 255)"
  tokens = page.find_element(by.By.ID, "tokens")
  assert tokens.value_of_css_property("overflow-y") == "visible"
  none = {"media": "", "features": []}
  page.execute_cdp_cmd("Emulation.setEmulatedMedia", none)


@pytest.mark.rest
def test_pointing_at_a_token_shows_it_until_another_is_pointed_at(page):
  tokens = find(page, "#tokens span[data-at]")
  webdriver.ActionChains(page).move_to_element(tokens[25]).perform()
  assert "Position 25." in details(page)
  webdriver.ActionChains(page).move_to_element(tokens[26]).perform()
  assert "Position 26." in details(page)


@pytest.mark.rest
def test_a_click_on_a_head_shows_what_it_saw(page):
  heads = find(page, ".heads tbody tr")
  assert len(heads) == 4
  for index, name in ((0, "layer 1, head 1"), (3, "layer 2, head 2")):
    click(find(page, ".heads tbody tr")[index])
    assert f"What {name} saw" in details(page)
    assert len(find(page, ".keys tbody tr")) == 8
  terms = [cell.text for cell in find(page, ".keys thead th")][-4:]
  assert terms == ["(a)", "(b)", "(c)", "(d)"]
  assert len(find(page, "#tokens span[style*='--seen']")) >= 8
  places = set()
  for position in range(24, 32):  # All of a segment.
    click(find(page, "#tokens span[data-at]")[position])
    places |= {cell.text for cell in find(page, ".keys td:nth-child(3)")}
  assert places == {"memory", "segment"}


def test_hostile_words_are_words(page):
  assert page.title == "run · report"
  text = page.find_element(by.By.ID, "tokens").text
  assert "document.title='owned'" in text
  assert "<b>" in text
  assert "&lt;" in text
  assert not find(page, "#tokens b")
  assert "document.title='owned'" in find(page, ".sample")[0].text


def test_a_phone_scrolls_in_one_direction(browser, folder):
  show(browser, folder, PHONE)
  width = "return document.documentElement.scrollWidth"
  assert browser.execute_script(width) == 390
  click(find(browser, "#tokens span[data-at]")[40])
  assert "Position 40, pinned" in details(browser)
  assert browser.execute_script(width) == 390


@pytest.mark.parametrize(("device", "in_a_row"), [(PHONE, 1), (DESKTOP, 3)])
def test_a_sample_and_its_reference_are_side_by_side_or_stacked(
  browser, data_dir, tmp_path, monkeypatch, device, in_a_row
):
  monkeypatch.setattr(report.reading, "read", _no_text)
  config = conftest.write_run(data_dir, tmp_path)
  content = json.dumps(conftest.EXCERPT)
  (tmp_path / "results" / "generate.json").write_text(content)
  report.run(config, str(tmp_path))
  show(browser, tmp_path, device)
  columns = find(browser, "#sample .columns > div")
  heads = [column.text.split("\n")[0] for column in columns]
  assert heads == [
    *("Seed text 1,512 tokens", "Sample 40 tokens", "Reference 30 tokens"),
  ]
  tops = [column.rect["y"] for column in columns]
  assert len(columns) // len({*tops}) == in_a_row
  assert {column.rect["width"] > 250 for column in columns} == {True}
  width = "return document.documentElement.scrollWidth"
  assert browser.execute_script(width) == device["width"]


def _no_text(*_):
  raise errors.UserError("this test shows none.")


def test_a_dark_page_is_dark(page):
  colour = "return getComputedStyle(document.body).backgroundColor"
  light = page.execute_script(colour)
  dark = [{"name": "prefers-color-scheme", "value": "dark"}]
  page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
  assert light == "rgb(255, 255, 255)" != page.execute_script(colour)
  page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
