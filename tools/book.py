#!/usr/bin/env python3
"""`make docs`: builds the pages of the repository as a book in target/book, with mdBook.

The book has the pages of docs and those of the repository's root. They are copied with the folders
that they have in the repository, so that links between them also work in the book. Fails if mdBook
prints a warning, or if a link of the book is broken.
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "target/book-source"
BOOK = ROOT / "target/book"

# Pages that mdBook generates: one contains all chapters, the others have no content.
GENERATED = {"print.html", "toc.html", "404.html"}

# What mdBook calls the first page of a folder.
FIRST = "index" + ".md"


def copy_pages():
    """Copies the pages to where mdBook reads them."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = SOURCE / "pages"
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=shutil.ignore_patterns("book.toml"))
    for page in ROOT.glob("*.md"):
        shutil.copy(page, pages)
    shutil.copy(ROOT / "docs/book.toml", SOURCE)
    # The links of the table of contents begin in docs.
    contents = pages / "docs/SUMMARY.md"
    text = re.sub(r"\]\((?!\.\./)", "](docs/", contents.read_text()).replace("](../", "](")
    contents.unlink()
    (pages / "SUMMARY.md").write_text(text)
    for page in pages.rglob("*.md"):
        # The book shows its table of contents beside every page.
        text = page.read_text().replace("](docs/SUMMARY.md)", "](docs/README.md)")
        # mdBook calls the first page of a folder index, but does not change links to it.
        page.write_text(re.sub(r"(\]\([^)#\s]*)\bREADME\.md", rf"\1{FIRST}", text))
    for page in pages.rglob("README.md"):
        page.rename(page.with_name(FIRST))


class Links(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        self.links.update(attributes[name] for name in ("href", "src") if attributes.get(name))


def broken_links():
    """The links of the book that lead to no page, file or heading of it."""
    pages = {page: Links(page) for page in BOOK.rglob("*.html")}
    for page, found in sorted(pages.items()):
        if page.name in GENERATED:
            continue
        for link in sorted(found.links):
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            path = urllib.parse.unquote(address.path)
            target = (page.parent / path).resolve() if path else page
            anchor = urllib.parse.unquote(address.fragment)
            if not target.is_relative_to(BOOK) or not target.is_file():
                yield f"{page.relative_to(BOOK)}: {link}: the book has no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{page.relative_to(BOOK)}: {link}: the page has no such heading"


def main():
    copy_pages()
    shutil.rmtree(BOOK, ignore_errors=True)
    command = ["mdbook", "build", "--dest-dir", str(BOOK), str(SOURCE)]
    build = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(build.stderr)
    if build.returncode != 0 or re.search(r"\b(WARN|ERROR)\b", build.stderr):
        return "mdBook failed, or warned"
    broken = list(broken_links())
    print(f"the book is {BOOK / 'index.html'}")
    return "\n".join(["links of the book that lead nowhere:", *broken]) if broken else 0


if __name__ == "__main__":
    sys.exit(main())
