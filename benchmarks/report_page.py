r"""Size and opening time of a run's report, in headless Chromium.

    python -m benchmarks.report_page --run=runs/quickstart

makes the report of a copy of the run, opens it and waits until every figure is
drawn. --num_lines=100000 gives the copy a log of that many lines first.
--pictures=docs also writes report_desktop.png and report_phone.png there:

    python -m benchmarks.report_page --run=runs/quickstart \
      --num_tokens=1000 --pictures=docs
"""

import base64
import json
import math
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from typing import Any

from absl import app
from absl import flags
from selenium import webdriver
from selenium.webdriver.support import wait

from transformer_xl.config import load
from transformer_xl.report import report

_RUN = flags.DEFINE_string("run", None, "Workdir of the run.", required=True)
_NUM_LINES = flags.DEFINE_integer(
  "num_lines", 0, "Lines of the log; 0 for the run's own."
)
_NUM_TOKENS = flags.DEFINE_integer(
  "num_tokens", 512, "Length of the text that is shown."
)
_PICTURES = flags.DEFINE_string("pictures", None, "Folder for two pictures.")
NUM_OPENINGS = 5
OPTIONS = (
  *("--no-sandbox", "--headless=new", "--disable-gpu", "--no-first-run"),
  *("--disable-background-networking", "--disable-component-update"),
  *("--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
DESKTOP = PHONE | {"width": 1180, "height": 900, "mobile": False}
PATIENCE = 120  # Seconds, on a busy machine.


def main(argv: list[str]) -> None:
  """Measures, and prints the result as JSON."""
  del argv
  with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top, pathlib.Path(_RUN.value).resolve().name)
    copy(pathlib.Path(_RUN.value).resolve(), folder)
    config = load.saved(str(folder))
    config.report.num_tokens = _NUM_TOKENS.value
    config = load.from_config_dict(config)
    start = time.perf_counter()
    made = report.run(config, str(folder))
    seconds = time.perf_counter() - start
    browser = start_browser()
    openings = [_opening(browser, folder) for _ in range(NUM_OPENINGS)]
    if _PICTURES.value:
      _draw(browser, folder, _PICTURES.value)
    browser.quit()
  result = {
    "num_bytes": made["num_bytes"],
    "seconds_to_make": round(seconds, 1),
    "seconds_to_open_first": round(openings[0], 2),
    "seconds_to_open": round(statistics.median(openings[1:]), 2),
    "cores": os.cpu_count(),
    "load": round(os.getloadavg()[0], 1),
  }
  print(json.dumps(result))


def copy(workdir: pathlib.Path, folder: pathlib.Path) -> None:
  """Makes a run whose report can be written without touching the original."""
  folder.mkdir()
  for path in workdir.iterdir():
    if path.name not in ("results", "metrics.jsonl", report.FILE):
      (folder / path.name).symlink_to(path)
  if (workdir / "results").exists():
    shutil.copytree(workdir / "results", folder / "results")
  if _NUM_LINES.value:
    write_log(folder / "metrics.jsonl", _NUM_LINES.value)
  elif (workdir / "metrics.jsonl").exists():
    shutil.copy(workdir / "metrics.jsonl", folder)


def write_log(path: pathlib.Path, num_lines: int) -> None:
  """Writes a log with a falling, noisy loss."""
  with open(path, "w", encoding="utf-8") as file:
    for step in range(1, num_lines + 1):
      noise = math.sin(12.9 * step)
      line = {
        **{"step": step, "tokens": 2048 * step},
        **{"loss": 1 + 4 / math.sqrt(step) + noise / 10},
        **{"learning_rate": 1e-3 * (1 - step / (num_lines + 1))},
        **{"gradient_norm": 0.5 + 0.1 * noise, "tokens_per_second": 1e4},
      }
      file.write(json.dumps(line) + "\n")


def start_browser() -> Any:
  """Debian's Chromium without a window; nothing is downloaded."""
  options = webdriver.ChromeOptions()
  options.binary_location = shutil.which("chromium")
  for option in OPTIONS:
    options.add_argument(option)
  logs = {"browser": "ALL", "performance": "ALL"}
  options.set_capability("goog:loggingPrefs", logs)
  service = webdriver.ChromeService(shutil.which("chromedriver"))
  return webdriver.Chrome(options=options, service=service)


def show(browser: Any, folder: pathlib.Path, device: dict[str, Any]) -> None:
  """Opens the report of a workdir and waits until every figure is drawn."""
  browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
  browser.get((folder / report.FILE).as_uri())
  script = "return document.body.dataset.drawn"
  wait.WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(
    lambda driver: driver.execute_script(script)
  )


def _opening(browser: Any, folder: pathlib.Path) -> float:
  start = time.perf_counter()
  show(browser, folder, DESKTOP)
  return time.perf_counter() - start


def _draw(browser: Any, folder: pathlib.Path, output: str) -> None:
  """The text on a desktop, and the top of the page on a dark phone."""
  for name, device, selector, height, theme in (
    ("desktop", DESKTOP, "#text", 1010, "light"),
    ("phone", PHONE, "body", 1240, "dark"),
  ):
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd(
      "Emulation.setEmulatedMedia", {"features": features}
    )
    show(browser, folder, device)
    top = browser.execute_script(
      f"return document.querySelector('{selector}').offsetTop"
    )
    clip = {"x": 0, "y": top, "width": device["width"], "height": height}
    picture = browser.execute_cdp_cmd(
      "Page.captureScreenshot",
      {"captureBeyondViewport": True, "clip": clip | {"scale": 1}},
    )
    path = pathlib.Path(output, f"report_{name}.png")
    path.write_bytes(base64.b64decode(picture["data"]))


if __name__ == "__main__":
  app.run(main)
