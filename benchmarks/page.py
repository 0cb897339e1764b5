"""How soon a page that kann wrote can be read, opened as a reader opens it.

    kann demo --out demo && python benchmarks/page.py demo/report.html

A new browser opens the file, without a window and without a graphics card, and nothing watches it until all is drawn.
An inspector, which every test in a browser is, would make it write down where each error inside Plotly was thrown and
caught, which takes most of a second. Ready: text, tables and the first chart are there, and buttons work. Drawn: all
charts are.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

UNTIL_DRAWN = 8
"""Seconds that a page is left alone; it must be drawn by then."""

STAGES = ("ready", "drawn")


def milliseconds(driver, browser: str, page: Path) -> list[float]:
    """Milliseconds from the opening of the page to each stage, in a browser of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", f"--remote-debugging-port={port}"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *flags, f"--user-data-dir={profile}", page.resolve().as_uri()]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            time.sleep(UNTIL_DRAWN)
            opened = driver.chromium.connect_over_cdp(f"http://127.0.0.1:{port}").contexts[0].pages[0]
            return [opened.evaluate(f"performance.getEntriesByName({stage!r})[0].startTime") for stage in STAGES]
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Print when each page was ready and drawn: the middle of several times, and the ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium or google-chrome was found; set CHROMIUM to one")
    with sync_playwright() as driver:
        for page in options.pages:
            times = [milliseconds(driver, browser, page) for _ in range(options.times)]
            print(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
            for stage, each in zip(STAGES, zip(*times, strict=True), strict=True):
                low, middle, high = (value / 1000 for value in (min(each), statistics.median(each), max(each)))
                print(f"  {stage} after {middle:.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
