"""The bytes of a document to the parts of a prompt, by what the bytes are."""

from __future__ import annotations

import re

from frontend.documents.document import Bounds, Document, Picture, Unreadable

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_PDF_START = 1024  # bytes: viewers look for the mark of a PDF in them
_PDF_MARK = re.compile(rb"(?:^|[\r\n\0])%PDF-\d")
_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HTML_STARTS = ("<!doctype html", "<html")


def read_document(file: bytes, name: str, bounds: Bounds) -> list[str | Picture]:
    """Return the texts and pictures of a document, between a first line and a last line.

    Args:
        file: PDF, docx, xlsx, pptx, HTML or another text. Its content decides, and for HTML also the name.

    Raises:
        Unreadable: none of these, or a rule of the format is broken.
    """
    document = _read(file, name, bounds)
    if sum(len(part) for part in document.parts if isinstance(part, str)) > bounds.max_chars:
        raise Unreadable("more text than a request may have (--max-body-bytes)")
    return document.framed(name)


def _read(file: bytes, name: str, bounds: Bounds) -> Document:
    # Each reader is imported where its format is met: a process reads one document.
    if _PDF_MARK.search(file[:_PDF_START]):
        from frontend.documents.pdf import read_pdf

        return read_pdf(file, bounds)
    if file.startswith(_ZIP_MARKS):
        from frontend.documents.office import read_office

        return read_office(file, bounds)
    if file.startswith(_OLE):
        raise Unreadable("an encrypted or old Office file: save it as docx, xlsx or pptx, without a password")
    text = _text(file)
    if name.lower().endswith((".html", ".htm", ".xhtml")) or text[:_PDF_START].lstrip().lower().startswith(
        _HTML_STARTS
    ):
        from frontend.documents.web_page import read_web_page

        return read_web_page(text)
    return Document("text", [text])


def _text(file: bytes) -> str:
    """Return the text of a file, in UTF-8, or in UTF-16 with a mark."""
    try:
        text = file.decode("utf-16" if file.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as exc:
        raise Unreadable("expected PDF, docx, xlsx, pptx, HTML, or a text in UTF-8") from exc
    if "\0" in text:
        raise Unreadable("expected PDF, docx, xlsx, pptx, HTML, or a text without NUL characters")
    return text.replace("\r\n", "\n").strip()
