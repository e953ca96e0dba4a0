"""Documents to the parts of a prompt."""

from __future__ import annotations

import io
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from frontend.documents.document import Bounds, Picture, Unreadable, ranges
from frontend.documents.reading import read_document
from tests.documents import docx, pdf, pdf_of, pdf_with_image, pptx, row, stream, xlsx

needs_qpdf = pytest.mark.skipif(shutil.which("qpdf") is None, reason="needs the Debian package qpdf")

BOUNDS = Bounds(max_pages=10, max_chars=1000, reads_pictures=False, max_pictures=0)
WITH_PICTURES = Bounds(max_pages=10, max_chars=100_000, reads_pictures=True, max_pictures=1)


def read(file: bytes, name: str = "a", bounds: Bounds = BOUNDS) -> list[str | Picture]:
    """Return what is read, without the last line, which is always the same."""
    *parts, last = read_document(file, name, bounds)
    assert last == f"[End of file {name}]"
    return parts


def test_pages_of_a_pdf_have_marks() -> None:
    assert read(pdf(["one\ntwo", "three"])) == ["[File a: PDF, 2 pages.]", "[Page 1]", "one\ntwo", "[Page 2]", "three"]


def test_the_same_file_gives_the_same_parts() -> None:
    file = pdf_with_image("cap")
    assert read(file, bounds=WITH_PICTURES) == read(file, bounds=WITH_PICTURES)


def test_a_page_with_an_image_is_a_picture_too_for_a_model_that_reads_images() -> None:
    first, mark, text, picture = read(pdf_with_image("cap"), bounds=WITH_PICTURES)
    assert (first, mark, text) == ("[File a: PDF, 1 page.]", "[Page 1]", "cap")
    assert isinstance(picture, Picture)
    image = Image.open(io.BytesIO(picture.png))
    assert (image.format, image.height, image.getpixel((200, 1100))) == ("PNG", 1280, (255, 0, 0))


def test_a_page_without_text_is_a_picture_or_is_named() -> None:
    file = pdf(["", "", "", "x", ""])
    assert read(file)[0] == "[File a: PDF, 5 pages. Left out: pictures of pages (1-3, 5).]"
    parts = read(file, bounds=WITH_PICTURES)
    assert parts[0] == "[File a: PDF, 5 pages. Left out: pictures of pages (2-3, 5).]"
    assert [isinstance(each, Picture) for each in parts] == [False, False, True, *[False] * 5]


def test_a_picture_without_room_is_left_out() -> None:
    file = pdf_with_image("cap")
    for bounds in (replace(WITH_PICTURES, max_chars=1000), replace(WITH_PICTURES, max_pictures=0)):
        first, *parts = read(file, bounds=bounds)
        assert (first, parts) == ("[File a: PDF, 1 page. Left out: pictures of pages (1).]", ["[Page 1]", "cap"])


def test_a_logo_is_no_reason_for_a_picture() -> None:
    file = pdf_with_image("cap", side=60)
    assert read(file, bounds=WITH_PICTURES) == ["[File a: PDF, 1 page.]", "[Page 1]", "cap"]


def test_what_a_pdf_has_beside_its_text_is_named() -> None:
    script = "<< /Names [(a) << /S /JavaScript /JS (app.alert\\(1\\)) >>] >>"
    attached = "<< /Names [(b) << /Type /Filespec /F (b.txt) /EF << /F 7 0 R >> >>] >>"
    file = pdf(
        ["x"],
        page="/Annots [<< /Type /Annot /Subtype /Text /Rect [0 0 9 9] /Contents (no) >>]",
        catalog=f"/Names << /JavaScript {script} /EmbeddedFiles {attached} >>",
        more=["null", stream(b"secret")],
    )
    assert read(file) == [
        "[File a: PDF, 1 page. Left out: 1 comment, 1 script, 1 attachment.]",
        "[Page 1]",
        "x",
    ]


def test_a_form_has_what_is_filled_in() -> None:
    field = (
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (Ada) /Rect [50 700 300 720] /F 4 /DA (/F1 12 Tf 0 g) "
        "/AP << /N 6 0 R >> >>"
    )
    look = stream(
        b"/Tx BMC BT /F1 12 Tf 2 5 Td (Ada) Tj ET EMC",
        "/Type /XObject /Subtype /Form /BBox [0 0 250 20] /Resources << /Font << /F1 3 0 R >> >>",
    )
    file = pdf(["Name:"], page="/Annots [7 0 R]", catalog="/AcroForm << /Fields [7 0 R] >>", more=[look, field])
    assert read(file) == ["[File a: PDF, 1 page.]", "[Page 1]", "Name:\nAda"]


@needs_qpdf
@pytest.mark.parametrize(
    "options",
    [
        ["--linearize"],
        ["--object-streams=generate"],
        ["--encrypt", "", "owner", "256", "--"],  # opens without a password
        ["--encrypt", "", "owner", "128", "--use-aes=n", "--", "--allow-weak-crypto"],
    ],
)
def test_the_forms_of_a_pdf_that_qpdf_writes_are_read(tmp_path: Path, options: list[str]) -> None:
    assert read(_by_qpdf(tmp_path, options)) == read(pdf(["one", "two"]))


@needs_qpdf
@pytest.mark.parametrize("bits", ["40", "128", "256"])
def test_an_encrypted_pdf_is_refused_by_name(tmp_path: Path, bits: str) -> None:
    weak = [] if bits == "256" else ["--allow-weak-crypto"]
    with pytest.raises(Unreadable, match="an encrypted PDF: save it without a password"):
        read(_by_qpdf(tmp_path, ["--encrypt", "user", "owner", bits, "--", *weak]))


def _by_qpdf(tmp_path: Path, options: list[str]) -> bytes:
    (tmp_path / "a.pdf").write_bytes(pdf(["one", "two"]))
    subprocess.run(["qpdf", *options, "a.pdf", "b.pdf"], cwd=tmp_path, check=True)
    return (tmp_path / "b.pdf").read_bytes()


def test_a_word_file() -> None:
    table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>1</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    vanished = "<w:p><w:r><w:rPr><w:vanish/></w:rPr><w:t>unseen</w:t></w:r></w:p>"
    parts = {"word/vbaProject.bin": "x", "word/media/image1.png": "x", "word/embeddings/a.bin": "x"}
    assert read(docx("Hello", body=table + vanished, **parts)) == [
        "[File a: Word. Left out: macros, hidden text, 1 picture, 1 embedded file.]",
        "Hello\n\n| 1 |\n| --- |",
    ]


def test_an_excel_file_has_hidden_sheets_by_name_and_values_in_place_of_formulas() -> None:
    formula = '<row r="1"><c r="A1"><f>1+1</f><v>2</v></c></row>'
    name = "Bob's &lt;costs&gt;"
    assert read(xlsx({"Sales": row("a", "b"), name: formula}, hidden=[name])) == [
        "[File a: Excel, 2 sheets. Left out: 1 formula (their last values are here)."
        " Hidden in the original: sheet Bob's <costs>.]",
        "## Sales\n\n| a | b |\n| --- | --- |\n\n## Bob's <costs>\n\n| 2 |\n| --- |",
    ]


def test_names_of_hidden_sheets_are_bounded() -> None:
    names = [f"{number:03}" + "x" * 1000 for number in range(100)]
    [first] = read(xlsx(dict.fromkeys(names, ""), hidden=names))
    assert str(first).endswith(f"sheet {names[9][:64]}, 90 more sheets.]")


def test_a_powerpoint_file() -> None:
    assert read(pptx("one", "two", hidden=[2])) == [
        "[File a: PowerPoint, 2 slides. Hidden in the original: 1 slide.]",
        "## Slide 1\n\none\n\n## Slide 2\n\ntwo",
    ]


@pytest.mark.parametrize("name", ["a.HTML", "a"])
def test_a_web_page_is_the_text_that_a_browser_shows(name: str) -> None:
    page = (
        "<!doctype html><html><head><title>A  b</title><style>p {}</style></head><body>Hello <b>big</b><!-- -->\n world"
        "<p>x<pre>if a:\n    b\n</pre><ul><li>one<li>two</ul><table><tr><td>1<td>2</table><img alt='a cat'>"
        "<script>steal()</script><div style='color:red; display: none'>no</div><iframe></iframe></body>"
    )
    assert read(page.encode(), name) == [
        f"[File {name}: HTML. Left out: 1 script, 1 frame, 1 hidden element.]",
        "A b\nHello big world\nx\nif a:\n    b\n- one\n- two\n\t1\t2\n[a cat]",
    ]


@pytest.mark.parametrize("file", ["a,é\r\n1,2\r\n".encode(), "\ufeffa,é\n1,2".encode(), "a,é\n1,2".encode("utf-16")])
def test_any_other_text_stays_as_it_is(file: bytes) -> None:
    assert read(file, "a.csv") == ["[File a.csv: text.]", "a,é\n1,2"]


@pytest.mark.parametrize("text", ["PKCS notes", "A PDF begins with %PDF-1.7"])
def test_a_text_about_a_format_is_a_text(text: str) -> None:
    assert read(text.encode()) == ["[File a: text.]", text]


@pytest.mark.parametrize("file", [pdf(["x" * 500] * 3), docx("x" * 1001), b"x" * 1001, b"<html>" + b"x" * 1001])
def test_too_much_text_is_refused(file: bytes) -> None:
    with pytest.raises(Unreadable, match="more text than a request may have"):
        read(file)


@pytest.mark.parametrize(("file", "rule"), [(pdf(["x"] * 11), "11 pages"), (pptx(*["x"] * 11), "11 slides")])
def test_too_many_pages_are_refused(file: bytes, rule: str) -> None:
    with pytest.raises(Unreadable, match=rf"{rule}: a document may have 10 \(--max-document-pages\)"):
        read(file)


def test_an_unreadable_page_is_named() -> None:
    pages = "<< /Type /Pages /Kids [3 0 R 2 0 R] /Count 2 >>"
    file = pdf_of(["<< /Type /Catalog /Pages 2 0 R >>", pages, "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"])
    assert "unreadable pages (2)" in str(read(file)[0])


def test_ranges() -> None:
    assert [ranges([]), ranges([3]), ranges([1, 2, 3, 7, 9, 10])] == ["", "3", "1-3, 7, 9-10"]
