"""A headless Chromium. After every test, its console must be empty, and it must have requested nothing of others."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WIDE, NARROW = (1366, 768), (390, 844)

Page = Callable[..., Any]

DRAWN = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
"""Charts are drawn once their size is known, with the first frame: the second one begins after that."""


def _programs() -> tuple[str, str] | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="the page is tested with selenium: pip install selenium"
    )
    programs = _programs()
    if programs is None:
        pytest.skip("no Chromium with chromedriver here; on Debian and Ubuntu: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    profile = tmp_path_factory.mktemp("profile")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    for flag in (*flags, "--force-color-profile=srgb", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(programs[1], log_output=os.devnull)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(300)  # it only guards against waiting forever
    yield driver
    driver.quit()


def sized(browser: Any, size: tuple[int, int]) -> None:
    """Gives the window a size."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def forget(browser: Any) -> None:
    """Leaves the last page, and what it has logged."""
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")


def requests_of(browser: Any) -> list[str]:
    """Returns every URL that was requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """Opens a report in a window of a given size; the test fails if the console has messages or a URL is requested."""

    def show(path: Path, size: tuple[int, int] = WIDE) -> Any:
        sized(browser, size)
        browser.get(path.resolve().as_uri())
        browser.execute_async_script(DRAWN)
        return browser

    forget(browser)
    yield show
    messages_shown = [entry["message"] for entry in browser.get_log("browser")]
    requested = requests_of(browser)
    assert not messages_shown
    assert not [url[:80] for url in requested if not url.startswith(("file:///", "data:"))]
    assert len({url for url in requested if url.startswith("file:")}) <= 1


@pytest.fixture
def live_page(browser: Any) -> Iterator[Page]:
    """Opens the live page of a server; the test fails if the console has messages or another host is asked."""
    hosts = []

    def show(port: int, size: tuple[int, int] = WIDE, fragment: str = "") -> Any:
        hosts.append(f"http://127.0.0.1:{port}/")
        sized(browser, size)
        browser.get(f"{hosts[-1]}{fragment}")
        return browser

    forget(browser)
    yield show
    messages_shown = [entry["message"] for entry in browser.get_log("browser")]
    requested = requests_of(browser)
    forget(browser)
    assert not messages_shown
    assert not [url[:80] for url in requested if not url.startswith((*hosts, "data:", "about:"))]
