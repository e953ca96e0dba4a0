"""Word, Excel and PowerPoint files of the formats since 2007."""

from __future__ import annotations

import html
import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Literal

import office_oxide

from frontend.documents.document import Bounds, Document, Unreadable, counted, printable

_MAX_UNPACKED = 128 << 20  # bytes
_MAX_ENTRIES = 10_000
_ENCRYPTED = 0x1  # flag of an entry
type _Format = Literal["docx", "xlsx", "pptx"]
_KINDS: Mapping[_Format, tuple[str, str]] = {
    "docx": ("word/document.xml", "Word"),
    "xlsx": ("xl/workbook.xml", "Excel"),
    "pptx": ("ppt/presentation.xml", "PowerPoint"),
}
_SHEET = re.compile(rb"<(?:\w+:)?sheet\s[^>]*>")
_HIDDEN_SHEET = re.compile(rb"""\sstate=["'](?:hidden|veryHidden)["']""")
_NAME = re.compile(rb"""\sname=(["'])(.*?)\1""")
_FORMULA = re.compile(rb"<(?:\w+:)?f[\s>]")
_HIDDEN_TEXT = re.compile(rb"""<w:vanish(?:\s+w:val=["'](?:1|true|on)["'])?\s*/>""")
_MAX_NAMED = 10  # hidden sheets
_MAX_NAME = 64  # characters
_HIDDEN_SLIDE = re.compile(rb"""<(?:\w+:)?sld\s[^>]*\sshow=["'](?:0|false)["']""")


def read_office(file: bytes, bounds: Bounds) -> Document:
    """Return the text of a file in Markdown.

    Raises:
        Unreadable: the file is broken, encrypted, of another format, or too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            package = _Package(archive)
            markdown = office_oxide.Document.from_bytes(file, package.format).to_markdown().strip()
            bounds.check_pages(package.num_slides, "slides")
            return Document(package.kind, [markdown] if markdown else [], package.left_out(), package.hidden())
    except (
        zipfile.BadZipFile,
        office_oxide.OfficeOxideError,
        EOFError,
        NotImplementedError,
        ValueError,
        zlib.error,
    ) as exc:
        raise Unreadable("not a readable Office file (docx, xlsx, pptx)") from exc


class _Package:
    """The parts of a file.

    Raises:
        Unreadable: they are encrypted, too many or too large, or are no Office file.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        entries = archive.infolist()
        if len(entries) > _MAX_ENTRIES or sum(each.file_size for each in entries) > _MAX_UNPACKED:
            raise Unreadable(
                f"its {len(entries)} parts have more than {_MAX_UNPACKED >> 20} MiB when they are unpacked"
            )
        if any(each.flag_bits & _ENCRYPTED for each in entries):
            raise Unreadable("an encrypted file: save it without a password")
        self._archive = archive
        self._names = [each.filename for each in entries]
        found = next((each for each, (part, _) in _KINDS.items() if part in self._names), None)
        if found is None:
            raise Unreadable("a ZIP file, but not docx, xlsx or pptx")
        self.format = found
        self.num_slides = self._count(r"ppt/slides/slide\d+\.xml")
        num_sheets = self._count(r"xl/(work|chart)sheets/.*\.xml")
        self.kind = ", ".join([_KINDS[found][1], *counted(num_sheets, "sheet"), *counted(self.num_slides, "slide")])

    def left_out(self) -> list[str]:
        """Return what the text lacks."""
        num_formulas = sum(
            len(_FORMULA.findall(self._archive.read(each))) for each in self._all(r"xl/worksheets/.*\.xml")
        )
        formulas = [f"{each} (their last values are here)" for each in counted(num_formulas, "formula")]
        has_hidden_text = self.format == "docx" and _HIDDEN_TEXT.search(self._archive.read(_KINDS["docx"][0]))
        return [
            *["macros"] * (self._count(r".*/vbaProject\.bin") > 0),
            *formulas,
            *["hidden text"] * bool(has_hidden_text),
            *counted(self._count(r"\w+/media/.*"), "picture"),
            *counted(self._count(r"\w+/charts/chart\d*\.xml"), "chart"),
            *counted(self._count(r"\w+/embeddings/.*"), "embedded file"),
        ]

    def hidden(self) -> list[str]:
        """Return the parts that Office does not show and the text has."""
        if self.format == "xlsx":
            sheets = _SHEET.findall(self._archive.read(_KINDS["xlsx"][0]))
            found = [_NAME.search(sheet) for sheet in sheets if _HIDDEN_SHEET.search(sheet)]
            names = [printable(html.unescape(name[2].decode(errors="replace")), _MAX_NAME) for name in found if name]
            more = counted(len(names[_MAX_NAMED:]), "more sheet")
            return [f"sheet {name}" for name in names[:_MAX_NAMED]] + more
        slides = self._all(r"ppt/slides/slide\d+\.xml")
        return counted(sum(bool(_HIDDEN_SLIDE.search(self._archive.read(each))) for each in slides), "slide")

    def _all(self, pattern: str) -> list[str]:
        return [each for each in self._names if re.fullmatch(pattern, each)]

    def _count(self, pattern: str) -> int:
        return len(self._all(pattern))
