"""Documents for tests, written by hand: small ones, and hostile ones."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence

_DRAWINGML = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_P = f'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:r="{_OFFICE}" {_DRAWINGML}'
_S = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{_OFFICE}"'
_HIDDEN = ' state="hidden"'
_NOT_SHOWN = ' show="0"'
_SHAPE = (
    "<p:sp><p:nvSpPr><p:cNvPr id='2' name='t'/><p:cNvSpPr/><p:nvPr/></p:nvSpPr><p:spPr/>"
    "<p:txBody><a:bodyPr/><a:p><a:r><a:t>{}</a:t></a:r></a:p></p:txBody></p:sp>"
)
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def data_uri(file: bytes, media_type: str = "application/pdf") -> str:
    return f"data:{media_type};base64,{base64.b64encode(file).decode()}"


# --- PDF -------------------------------------------------------------------------------------------------------------


def pdf_of(objects: Sequence[bytes | str], trailer: str = "") -> bytes:
    """Return a file with these objects, which are numbered from 1; the first one is the catalog."""
    file, places = bytearray(b"%PDF-1.7\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(file))
        content = content.encode("latin-1") if isinstance(content, str) else content
        file += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % place for place in places)
    file += b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        trailer.encode(),
        start,
    )
    return bytes(file)


def stream(content: bytes, entries: str = "") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(content), entries.encode(), content)


def pdf(texts: Sequence[str], *, page: str = "", catalog: str = "", more: Sequence[bytes | str] = ()) -> bytes:
    """Return a file with a page for each text.

    Args:
        page: further entries of each page.
        catalog: further entries of the catalog.
        more: further objects; their numbers begin behind those of the pages, at 4 + 2 * len(texts).
    """
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(texts)))
    objects: list[bytes | str] = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(texts):
        box, fonts = "/MediaBox [0 0 595 842]", "/Resources << /Font << /F1 3 0 R >> >>"
        box = "" if "/MediaBox" in page else box
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} {fonts} /Contents {5 + 2 * index} 0 R {page} >>")
        lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
        objects.append(stream(f"BT /F1 12 Tf 14 TL 50 800 Td {lines} ET".encode() if text else b""))
    return pdf_of([*objects, *more])


def pdf_with_image(text: str, side: int = 200) -> bytes:
    """Return a file with one page that has a text and a red square."""
    image = stream(
        b"\xff\x00\x00" * 4,
        "/Type /XObject /Subtype /Image /Width 2 /Height 2 /ColorSpace /DeviceRGB /BitsPerComponent 8",
    )
    return pdf_of(
        [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 5 0 R "
            "/Resources << /Font << /F1 3 0 R >> /XObject << /I 6 0 R >> >> >>",
            stream(f"q {side} 0 0 {side} 50 50 cm /I Do Q BT /F1 12 Tf 50 800 Td ({text}) Tj ET".encode()),
            image,
        ]
    )


# --- Office ----------------------------------------------------------------------------------------------------------


def package(parts: Mapping[str, str | bytes]) -> bytes:
    """Return a ZIP file with these parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _typed(main: str, kind: str) -> dict[str, str]:
    types = "http://schemas.openxmlformats.org/package/2006"
    return {
        "[Content_Types].xml": f'<Types xmlns="{types}/content-types">'
        '<Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/{main}" '
        f'ContentType="application/vnd.openxmlformats-officedocument.{kind}.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{types}/relationships"><Relationship Id="rId1" '
        f'Type="{_OFFICE}/officeDocument" Target="{main}"/></Relationships>',
    }


def _relations(targets: Sequence[tuple[str, str]]) -> str:
    inner = "".join(
        f'<Relationship Id="rId{number}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets, 1)
    )
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{inner}</Relationships>'
    )


def docx(*paragraphs: str, body: str = "", **parts: str | bytes) -> bytes:
    """Return a file with these paragraphs, then `body` in WordprocessingML; further parts by name."""
    text = "".join(f"<w:p><w:r><w:t>{each}</w:t></w:r></w:p>" for each in paragraphs)
    return package(
        _typed("word/document.xml", "wordprocessingml.document")
        | {"word/document.xml": f"<w:document {_W}><w:body>{text}{body}</w:body></w:document>"}
        | parts
    )


def xlsx(sheets: Mapping[str, str], *, hidden: Sequence[str] = (), **parts: str | bytes) -> bytes:
    """Return a file with these sheets: by name, their rows in SpreadsheetML."""
    names = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"{_HIDDEN * (name in hidden)}/>'
        for number, name in enumerate(sheets, 1)
    )
    return package(
        _typed("xl/workbook.xml", "spreadsheetml.sheet")
        | {
            "xl/workbook.xml": f"<workbook {_S}><sheets>{names}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": _relations(
                [("worksheet", f"worksheets/sheet{number}.xml") for number in range(1, len(sheets) + 1)]
            ),
        }
        | {
            f"xl/worksheets/sheet{number}.xml": f"<worksheet {_S}><sheetData>{rows}</sheetData></worksheet>"
            for number, rows in enumerate(sheets.values(), 1)
        }
        | parts
    )


def row(*cells: str) -> str:
    """Return a first row with these texts."""
    inner = "".join(
        f'<c r="{chr(65 + index)}1" t="inlineStr"><is><t>{cell}</t></is></c>' for index, cell in enumerate(cells)
    )
    return f'<row r="1">{inner}</row>'


def pptx(*slides: str, hidden: Sequence[int] = (), **parts: str | bytes) -> bytes:
    """Return a file with a slide for each text."""
    ids = "".join(f'<p:sldId id="{255 + number}" r:id="rId{number}"/>' for number in range(1, len(slides) + 1))
    return package(
        _typed("ppt/presentation.xml", "presentationml.presentation")
        | {
            "ppt/presentation.xml": f"<p:presentation {_P}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": _relations(
                [("slide", f"slides/slide{number}.xml") for number in range(1, len(slides) + 1)]
            ),
        }
        | {
            f"ppt/slides/slide{number}.xml": f"<p:sld {_P}{_NOT_SHOWN * (number in hidden)}><p:cSld><p:spTree>"
            f"{_SHAPE.format(text)}</p:spTree></p:cSld></p:sld>"
            for number, text in enumerate(slides, 1)
        }
        | parts
    )


# --- hostile ---------------------------------------------------------------------------------------------------------

_MEBIBYTE = 1 << 20


def _zeros(num_mebibytes: int) -> bytes:
    """Return zeros, deflated: a thousandth of their size."""
    deflate = zlib.compressobj(9)
    return b"".join([*(deflate.compress(bytes(_MEBIBYTE)) for _ in range(num_mebibytes)), deflate.flush()])


def _lying_docx() -> bytes:
    """Return a docx with a main part of 512 MiB. The file declares 10 bytes for it."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = b"".join([*(raw.compress(b"<w:p/>" * (_MEBIBYTE // 6)) for _ in range(512)), raw.flush()])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in _typed("word/document.xml", "wordprocessingml.document").items():
            archive.writestr(name, part)
        archive.writestr("word/document.xml", content)
    made = bytearray(out.getvalue())
    for mark, method, sizes in ((b"PK\x03\x04", 8, 18), (b"PK\x01\x02", 10, 20)):
        place = made.rfind(mark)
        struct.pack_into("<H", made, place + method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<II", made, place + sizes, len(content), 10)
    return bytes(made)


def hostile_documents() -> dict[str, bytes]:
    """Return files that cannot be read within the bounds, by what is wrong with them."""
    return _hostile_pdfs() | _hostile_packages() | _hostile_texts()


def _hostile_pdfs() -> dict[str, bytes]:
    catalog, empty = "<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [] /Count 0 >>"
    one, page = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>", "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] {} >>"
    plain = pdf(["x"])
    hashes = f"/O <{'00' * 32}> /U <{'11' * 32}>"
    encryption = f"<< /Filter /Standard /V 2 /R 3 /Length 128 /P -4 {hashes} >>"
    references = "xref\n0 1\n0000000000 65535 f \ntrailer\n<< /Size 1 /Prev 9 >>\nstartxref\n9\n%%EOF\n"
    bomb = stream(_zeros(1024), "/Filter /FlateDecode")

    def repeated(number: int) -> bytes:
        return pdf_of([catalog, f"<< /Type /Pages /Kids [{'3 0 R ' * number}] /Count {number} >>", page.format("")])

    return {
        "garbage behind the mark": b"%PDF-1.7\n" + bytes(range(256)) * 100,
        "a cut file": plain[: len(plain) // 3],
        "no pages": pdf_of(["<< /Type /Catalog >>"]),
        "a loop of page trees": pdf_of([catalog, "<< /Type /Pages /Kids [2 0 R] /Count 1 /Parent 2 0 R >>"]),
        "encrypted": pdf_of([catalog, empty, encryption], "/Encrypt 3 0 R /ID [<00><00>]"),
        "an encryption of no kind": pdf_of([catalog, empty, "<< /Filter /Nobody >>"], "/Encrypt 3 0 R"),
        "1,000 pages": repeated(1000),
        "1,000,000 pages": repeated(1_000_000),
        "a page of a gibibyte of operators": pdf_of([catalog, one, page.format("/Contents 4 0 R"), bomb]),
        "a loop of cross-references": f"%PDF-1.7\n{references}".encode(),
        "1,000,000 objects without a page": pdf_of([catalog, empty, *["1"] * 1_000_000]),
        "arrays that nest 1,000,000 deep": pdf_of(["[" * 1_000_000 + "]" * 1_000_000]),
        "1,000,000 lines on a page": pdf(["\n".join(["x"] * 1_000_000)]),
        "200,000 forms inside each other": pdf_of(_forms(200_000)),
    }


def _hostile_packages() -> dict[str, bytes]:
    word = _typed("word/document.xml", "wordprocessingml.document")
    wide = (f'<row r="{each}"><c r="XFD{each}"><v>1</v></c></row>' for each in range(1, 60_000))
    shared = (f'<row r="{each}"><c r="A{each}" t="s"><v>0</v></c></row>' for each in range(1, 100_000))
    texts = {"xl/sharedStrings.xml": f"<sst {_S}><si><t>{'x' * 100_000}</t></si></sst>"}
    return {
        "a ZIP file of something else": package({"a.txt": "a"}),
        "an empty ZIP file": package({}),
        "a cut ZIP file": docx("x" * 1000)[:300],
        "an old or encrypted Office file": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000),
        "a part of 200 MiB": package({**word, "word/document.xml": bytes(200 * _MEBIBYTE)}),
        "a part that lies about its size": _lying_docx(),
        "100,000 parts": package({f"word/{number}": "" for number in range(100_000)}),
        "no main part": package({"word/document.xml.bak": "x", "[Content_Types].xml": "<Types/>"}),
        "a main part that is no XML": package({"word/document.xml": b"\xff\xfe\x00<"}),
        "60,000 rows of 16,384 cells": xlsx({"S": "".join(wide)}),
        "a text that 100,000 cells share": xlsx({"S": "".join(shared)}, **texts),
        "400 slides": pptx(*["x"] * 400),
    }


def _hostile_texts() -> dict[str, bytes]:
    attributes = b" ".join(b"a%d=1" % number for number in range(1_000_000))
    return {
        "HTML that nests 1,000,000 deep": b"<!doctype html>" + b"<div>" * 1_000_000,
        "HTML of 1,000,000 attributes": b"<!doctype html><p " + attributes + b">x",
        "UTF-16 that is cut": b"\xff\xfea",
        "a text with NUL characters": b"a\0b",
        "a program": b"\x7fELF" + bytes(100),
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }


def odd_documents() -> dict[str, bytes]:
    """Return files that are wrong in a way that does not matter, or costs nothing."""
    pages = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"]
    nested = "<w:p>" * 1_000_000 + "</w:p>" * 1_000_000
    entities = "".join(f'<!ENTITY e{number} "{f"&e{number - 1};" * 10}">' for number in range(1, 10))
    laughs = f"<w:document {_W}><w:body><w:p><w:r><w:t>&e9;</w:t></w:r></w:p></w:body></w:document>"
    far = '<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>x</t></is></c></row>'
    return {
        "a stream of 4 GB that is not there": pdf_of([*pages, "<< /Length 4294967296 >>\nstream\nx\nendstream"]),
        "a page that is its own content": pdf_of(
            [*pages, "<< /Type /Page /Contents 3 0 R /Annots 3 0 R /Resources 3 0 R >>"]
        ),
        "a page as large as a county": pdf([""], page="/MediaBox [0 0 1e9 1e9]"),
        "elements that nest 1,000,000 deep": docx(body=nested),
        "a billion laughs": docx(**{"word/document.xml": f'<!DOCTYPE w [<!ENTITY e0 "ha">{entities}]>{laughs}'}),
        "a cell at the far corner": xlsx({"S": far}),
    }


def _forms(number: int) -> list[bytes | str]:
    """Return the objects of a file with forms inside each other."""
    objects: list[bytes | str] = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /XObject << /F 5 0 R >> >> >>",
        stream(b"/F Do"),
    ]
    form = "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /F {} 0 R >> >>"
    return [*objects, *(stream(b"/F Do /F Do", form.format(5 + (each + 1) % number)) for each in range(number))]
