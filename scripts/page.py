#!/usr/bin/env python3
"""The checks of scripts/page.sh.

    page.py URL
"""
import json
import shutil
import sys
import urllib.request

from playwright.sync_api import sync_playwright

# How long a browser may take to start, and to do one thing.
MILLISECONDS_MAX = 120_000


def main():
    base = sys.argv[1]
    description = json.load(urllib.request.urlopen(f"{base}/openapi.json"))
    operations = {operation["operationId"] for methods in description["paths"].values() for operation in methods.values()}
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments, timeout=MILLISECONDS_MAX)
        page = browser.new_page()
        page.set_default_timeout(MILLISECONDS_MAX)
        asked, complaints = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(base)
        page.wait_for_selector("#app:not([hidden])")
        shown = set(page.eval_on_selector_all("details", "all => all.map((one) => one.id)"))
        assert shown == operations, f"not shown: {operations - shown}; unknown: {shown - operations}"

        def send(operation, **values):
            """Opens an operation, fills its fields, sends it, and returns its command and its answer."""
            view = page.locator(f"details#{operation}")
            if view.get_attribute("open") is None:
                view.locator("summary").click()
            for name, value in values.items():
                view.locator(f'[name="{name.replace("_", "-") if name.startswith("If_") else name}"]').fill(value)
            view.get_by_role("button", name="Send").click()
            view.locator("button:has-text('Send'):enabled").wait_for()
            return view.locator("pre").first.inner_text(), view.locator("pre.answer").inner_text()

        odd = "<b>it's</b> grün"
        command, answer = send("writeFile", path="memories/a b.md", body=odd)
        assert answer.startswith("201"), answer
        assert "/v1/fs/memories/a%20b.md" in command and "-X PUT" in command and "it'\\''s" in command, command
        _, answer = send("readFile", path="memories/a b.md")
        # Content is shown as text, whatever markup is in it.
        assert answer.startswith("200") and odd in answer, answer
        assert page.locator("pre.answer b").count() == 0
        _, answer = send("writeFile", path="memories/a b.md", body="x", If_Match='"wrong"')
        assert '"code"' in answer and answer.startswith(("400", "412")), answer
        _, answer = send("grep", pattern="grün")
        assert "/memories/a b.md" in answer, answer

        page.fill("#find", "grep")
        visible = page.locator("details:visible")
        assert 0 < visible.count() < len(operations), visible.count()
        elsewhere = [url for url in asked if not url.startswith(base)]
        assert not elsewhere, elsewhere
        refused = [text for text in complaints if "status of 4" not in text]
        assert not refused, refused
        print(f"page: {len(operations)} operations, requests sent and answers shown")
        browser.close()


main()
