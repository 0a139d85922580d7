#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the drill's page in a headless Chromium and looks at what came of it.

page_check.py PAGE.html REPORT.json PICTURE.png: the faults of the report are in the page's document, every drawing has a
size, nothing is fetched, the console is silent, and the picture is not one colour. 77: no Chromium here.
"""
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from html.parser import HTMLParser


def fail(text):
    print("page_check: " + text, file=sys.stderr)
    sys.exit(1)


class Page(HTMLParser):
    """Ids, texts and attributes that would fetch something."""

    def __init__(self):
        super().__init__()
        self.ids, self.text, self.fetches, self.drawings, self.scripts = set(), [], [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.drawings += tag == "svg"
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            if name in ("src", "srcset", "data", "action", "href") and not re.match(r"(#|data:,$)", value or "#"):
                self.fetches.append(f"{tag} {name}={value}")

    def handle_data(self, data):
        self.text.append(data)


def chromium(program, *arguments):
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--enable-logging=stderr", "--user-data-dir=" + profile, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def colours(path):
    """How many different rows of pixels a PNG has."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        fail(f"{path} is no PNG")
    at, packed = 8, b""
    width = height = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    rows = zlib.decompress(packed)
    stride = len(rows) // height
    return width, height, len({rows[i * stride:(i + 1) * stride] for i in range(height)})


def main():
    page_path, report_path, picture_path = sys.argv[1:4]
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("skipped: no chromium", file=sys.stderr)
        sys.exit(77)
    with open(report_path, encoding="utf-8") as file:
        report = json.load(file)
    with open(page_path, encoding="utf-8") as file:
        source = file.read()
    if re.search(r"(?i)(https?:|url\(|@import|<script|<iframe)", source):
        fail("the page fetches something, or has a script")

    run = chromium(program, "--dump-dom", "file://" + page_path)
    if run.returncode != 0 or "</html>" not in run.stdout:
        if "snap" in run.stderr:  # Ubuntu's package is a pointer to a snap
            print("skipped: " + run.stderr.strip()[:200], file=sys.stderr)
            sys.exit(77)
        fail(f"chromium: status {run.returncode}: {run.stderr[-400:]}")
    noise = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    if noise:
        fail("the console says: " + noise[0])
    page = Page()
    page.feed(run.stdout)
    text = re.sub(r"\s+", " ", "".join(page.text))
    if page.fetches or page.scripts:
        fail(f"the document fetches: {page.fetches}, scripts: {page.scripts}")
    for wanted in ["verdict", "faults", "environment", "distribution", "breakdown"]:
        if wanted not in page.ids:
            fail(f"the document has no part '{wanted}'")
    for number, one in enumerate(report["rounds"], 1):
        if one["fault"] not in text or one["done"] not in text:
            fail(f"the document does not tell of {one['fault']}")
        if one["verdict"] == "passed" and f"round{number}" not in page.ids and "failovers" in one:
            fail(f"the document has no details of round {number}")
    # What a failover's details consist of.
    details = ["fault noticed", "engine condemned by all ranks", "its processes proven ended", "its memory sorted",
               "successor chosen", "blocks checked and taken over", "successor serving", "first token at a client",
               "a new request complete", "rank 0, old", "rank 1, new", "fence after ms", "finished (sealed)",
               "kept (adopted)", "in quarantine", "came back (reclaimed)", "Waking, by tag", "pause ms"]
    for wanted in details:
        if wanted not in text:
            fail(f"the document does not say '{wanted}'")
    passed = sum(one["verdict"] == "passed" for one in report["rounds"])
    if f"{passed} of " not in text or report["environment"]["program"] not in text:
        fail("the document's totals are not the report's")
    if page.drawings < 2 + passed:
        fail(f"{page.drawings} drawings for {passed} rounds that passed")

    for scheme, value in (("light", 1), ("dark", 0)):
        path = picture_path.replace(".png", f".{scheme}.png")
        run = chromium(program, "--hide-scrollbars", f"--blink-settings=preferredColorScheme={value}",
                       "--window-size=1200,3000", "--screenshot=" + path, "file://" + page_path)
        if run.returncode != 0:
            fail(f"no picture: {run.stderr[-400:]}")
        width, height, rows = colours(path)
        print(f"{path}: {width} x {height}, {rows} different rows of pixels")
        if (width, height) != (1200, 3000) or rows < 300:
            fail(f"{path} shows next to nothing")
    print(f"{len(report['rounds'])} rounds, {page.drawings} drawings, console silent, nothing fetched")


main()
