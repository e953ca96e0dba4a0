"""PDF files: the text of their pages, and pages as pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pypdfium2
import pypdfium2.raw as pdfium

from frontend.documents.document import Bounds, Document, Picture, Unreadable, counted, ranges

_MAX_SIDE = 1280  # pixels of a picture: text of 10 points on a page of A4 can be read
_MAX_SCALE = 4  # of a small page
_MIN_SHARE = 0.05  # of a page, for an image that is worth a picture
_NO_COMMENTS = (pdfium.FPDF_ANNOT_LINK, pdfium.FPDF_ANNOT_POPUP, pdfium.FPDF_ANNOT_WIDGET)


def read_pdf(file: bytes, bounds: Bounds) -> Document:
    """Return the text of a file with a mark before each page, and pictures of pages that may say more than their text.

    Raises:
        Unreadable: the file is broken or encrypted, or has too many pages or characters.
    """
    with _opened(file) as pdf:
        num_pages = len(pdf)
        bounds.check_pages(num_pages, "pages")
        pages = _Pages(pdf, bounds)
        parts = [part for index in range(num_pages) for part in pages.read(index)]
        if len(pages.unreadable) == num_pages:
            raise Unreadable("a PDF without a readable page")
        left_out = [*pages.left_out(), *_parts_without_text(pdf)]
    return Document(", ".join(["PDF", *counted(num_pages, "page")]), parts, left_out)


@contextmanager
def _opened(file: bytes) -> Iterator[pypdfium2.PdfDocument]:
    try:
        pdf = pypdfium2.PdfDocument(file)
    except pypdfium2.PdfiumError as exc:
        if exc.err_code == pdfium.FPDF_ERR_PASSWORD:
            raise Unreadable("an encrypted PDF: save it without a password") from exc
        raise Unreadable("not a readable PDF") from exc
    try:
        if pdf.get_formtype() != pdfium.FORMTYPE_NONE:
            pdf.init_forms()  # what people have filled in is drawn, and flattened into the page's text
        yield pdf
    except pypdfium2.PdfiumError as exc:
        raise Unreadable("not a readable PDF") from exc
    finally:
        pdf.close()


class _Pages:
    """Reads the pages of a file, in their order."""

    def __init__(self, pdf: pypdfium2.PdfDocument, bounds: Bounds) -> None:
        self._pdf = pdf
        self._num_chars, self._num_pictures = bounds.max_chars, bounds.max_pictures  # room that is left
        self._reads_pictures = bounds.reads_pictures
        self._num_comments = 0
        self.unreadable: list[int] = []  # pages
        self._without_picture: list[int] = []

    def read(self, index: int) -> Iterator[str | Picture]:
        """Yield the mark of a page, its text, and its picture if it has images or no text."""
        yield f"[Page {index + 1}]"
        try:
            text, is_picture = self._text(index)
        except pypdfium2.PdfiumError:
            self.unreadable.append(index + 1)
            return
        self._num_chars -= len(text)
        if self._num_chars < 0:
            raise Unreadable("more text than a request may have (--max-body-bytes)")
        if text:
            yield text
        if is_picture and self._num_pictures and (picture := self._picture(index)) is not None:
            yield picture
        elif is_picture and (self._reads_pictures or not text):
            self._without_picture.append(index + 1)

    def left_out(self) -> Iterator[str]:
        """Yield what the parts of the pages lack."""
        if self.unreadable:
            yield f"unreadable pages ({ranges(self.unreadable)})"
        if self._without_picture:
            yield f"pictures of pages ({ranges(self._without_picture)})"
        yield from counted(self._num_comments, "comment")

    def _text(self, index: int) -> tuple[str, bool]:
        page = self._pdf[index]
        try:
            if self._pdf.formenv is not None:
                pdfium.FPDFPage_Flatten(page.raw, pdfium.FLAT_NORMALDISPLAY)
                page.close()
                page = self._pdf[index]
            self._num_comments += self._comments(page)
            textpage = page.get_textpage()
            text = textpage.get_text_range().replace("\r\n", "\n").replace("\0", "").strip()
            textpage.close()
            return text, not text or _has_large_image(page)
        finally:
            page.close()

    def _comments(self, page: pypdfium2.PdfPage) -> int:
        num_comments = 0
        for index in range(pdfium.FPDFPage_GetAnnotCount(page.raw)):
            annotation = pdfium.FPDFPage_GetAnnot(page.raw, index)
            num_comments += pdfium.FPDFAnnot_GetSubtype(annotation) not in _NO_COMMENTS
            pdfium.FPDFPage_CloseAnnot(annotation)
        return num_comments

    def _picture(self, index: int) -> Picture | None:
        """Return a page as a picture; None: it cannot be drawn, or needs more room in base64 than is left."""
        file = io.BytesIO()
        try:
            with closing(self._pdf[index]) as page:
                scale = min(_MAX_SIDE / max(*page.get_size(), 1), _MAX_SCALE)
                page.render(scale=scale, may_draw_forms=False).to_pil().save(file, "PNG")
        except pypdfium2.PdfiumError:
            return None
        num_chars = len(file.getbuffer()) * 4 // 3
        if num_chars > self._num_chars:
            return None
        self._num_chars -= num_chars
        self._num_pictures -= 1
        return Picture(file.getvalue())


def _has_large_image(page: pypdfium2.PdfPage) -> bool:
    """Whether a page has an image that is more than a logo or a line."""
    width, height = page.get_size()
    for image in page.get_objects(filter=(pdfium.FPDF_PAGEOBJ_IMAGE,), max_depth=2):
        left, bottom, right, top = image.get_bounds()
        if (right - left) * (top - bottom) > _MIN_SHARE * width * height:
            return True
    return False


def _parts_without_text(pdf: pypdfium2.PdfDocument) -> list[str]:
    return [
        *counted(pdfium.FPDFDoc_GetJavaScriptActionCount(pdf.raw), "script"),
        *counted(pdfium.FPDFDoc_GetAttachmentCount(pdf.raw), "attachment"),
    ]
