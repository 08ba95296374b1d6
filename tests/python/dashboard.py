"""Tests the dashboard in headless Chromium: python3 dashboard.py BROWSER PAGE [SCREENSHOT].

Fails if the page reports an error, a table stays empty, the keyboard does not reach a control, or a
control has no name. Talks to the browser over pipes, so nothing but the browser is needed.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time

TIMEOUT_S = 60
TABLES = ["devices", "units", "functions", "events", "latency", "memory", "tenants", "usage"]


class Browser:
    """A headless browser, driven with Chromium's protocol over file descriptors 3 and 4."""

    def __init__(self, program, folder):
        to_browser, self.to = os.pipe()
        self.of, of_browser = os.pipe()

        def descriptors():
            # Duplicates with higher numbers first, in case these overlap with 3 and 4, which the browser expects.
            read, write = os.dup2(to_browser, 30), os.dup2(of_browser, 31)
            os.dup2(read, 3)
            os.dup2(write, 4)

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        command = [program, *arguments, f"--user-data-dir={folder}", "--window-size=1400,1000", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, preexec_fn=descriptors, close_fds=False, stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(to_browser)
        os.close(of_browser)
        self.rest, self.number, self.session, self.errors = b"", 0, None, []

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.of, 1 << 20)
            assert part, "the browser ended"
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        self.note(message)
        return message

    def note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"].get("exception", parameters["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"])
        if message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(parameters["args"])

    def evaluate(self, code):
        result = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{code}: {result}"
        return result["result"].get("value")

    def until(self, code, what):
        end = time.monotonic() + TIMEOUT_S
        while not self.evaluate(code):
            state = self.evaluate("document.getElementById('state')?.textContent")
            assert time.monotonic() < end, f"{what}: not in time; the page says {state!r}, errors: {self.errors}"
            time.sleep(0.05)

    def press(self, key, code, shift=False):
        modifiers = 8 if shift else 0
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
            if key == "Enter" and kind == "keyDown":
                event["text"] = "\r"
            self.ask("Input.dispatchKeyEvent", **event)


def check_tables(browser):
    for name in TABLES:
        rows = f"document.querySelectorAll('#{name}-table tbody:first-of-type tr').length > 0"
        browser.until(rows, f"rows of the table `{name}`")
    bad = browser.evaluate(
        """[...document.querySelectorAll('table')].filter((table) => !table.caption?.textContent
            || [...table.tHead.rows[0].cells].some((cell) => cell.scope !== 'col' || !cell.textContent)
            || [...table.tBodies[0].rows].some((row) => row.cells[0].scope !== 'row' || !row.cells[0].textContent))
            .map((table) => table.id)"""
    )
    assert bad == [], f"tables without a caption or headings: {bad}"
    wrong = browser.evaluate(
        "[...document.querySelectorAll('td')].map((cell) => cell.textContent)"
        ".filter((text) => /NaN|undefined|null|Infinity|\\[object/.test(text))"
    )
    assert wrong == [], f"cells with no value: {wrong}"


def check_keyboard(browser):
    """Moves through the page with Tab: each control gets the focus once, in the order of the page."""
    wanted = browser.evaluate(
        """window.controls = [...document.querySelectorAll('a, button, select, input, [tabindex="0"]')]
            .filter((one) => one.checkVisibility()), controls.length"""
    )
    assert wanted > 10, wanted
    browser.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(wanted):
        browser.press("Tab", 9)
        reached.append(browser.evaluate("controls.indexOf(document.activeElement)"))
    assert reached == list(range(wanted)), f"Tab reaches {reached}"
    nameless = browser.evaluate(
        """controls.filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)
            || (one.tabIndex === 0 && one.matches('div') && !one.ariaLabel)).map((one) => one.outerHTML)"""
    )
    assert nameless == [], f"controls without a name: {nameless}"
    browser.evaluate("document.getElementById('pause').focus()")
    browser.press("Enter", 13)
    browser.until("document.getElementById('state').textContent === 'Paused'", "a pause with the keyboard")
    browser.press("Enter", 13)
    browser.until("document.getElementById('state').textContent.startsWith('Live')", "the end of the pause")


CONTRAST = """(() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
            .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = (one) => {
        for (; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (!/, 0\\)$|transparent/.test(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [...document.querySelectorAll('h1, h2, p, a, th, td, caption, button, select, .label')]
        .filter((one) => one.checkVisibility() && one.textContent.trim())
        .map((one) => {
            const style = getComputedStyle(one);
            const ink = one.namespaceURI.endsWith('svg') ? style.fill : style.color;
            return [one.tagName + ' ' + one.textContent.slice(0, 30), ratio(light(ink), light(back(one)))];
        })
        .filter(([, found]) => found < 4.5);
})()"""


def check_contrast(browser):
    for scheme in ("light", "dark"):
        browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        low = browser.evaluate(CONTRAST)
        assert low == [], f"contrast below 4.5 in {scheme}: {low}"


def check_calm(browser):
    """With reduced motion, nothing on the page is animated."""
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    moving = browser.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).transitionDuration !== '0s').length"
    )
    assert moving == 0, f"{moving} elements move"


def look(program, page, screenshot):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Runtime", "Log", "Page", "Network"):
                browser.ask(f"{domain}.enable")
            browser.ask("Page.navigate", url=page)
            browser.until("document.body && Number(document.body.dataset.rendered ?? 0) >= 8", "snapshots")
            check_tables(browser)
            check_keyboard(browser)
            check_contrast(browser)
            check_calm(browser)
            for scheme in ("light", "dark") if screenshot else ():
                browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                time.sleep(0.5)
                shot = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
                with open(screenshot.replace(".png", f"-{scheme}.png"), "wb") as file:
                    file.write(base64.b64decode(shot["data"]))
            assert browser.errors == [], f"the page reports errors: {browser.errors}"
        finally:
            browser.process.kill()
            browser.process.wait()


if __name__ == "__main__":
    look(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    print("the dashboard shows itself")
