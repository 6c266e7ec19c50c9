"""The storage of a file's text, by its first bytes: encoding, compression, or what it is if it is no text."""

import codecs
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import error as DamagedStream  # noqa: N812  # an exception's name

HEAD_BYTES = 64  # enough of a file's beginning to recognize its form
BUFFER_BYTES = 2**16
ZEROS = "zeros in place of text, as a crash of the machine leaves them: take the file from a copy"
LFS_POINTER = "a Git LFS pointer, not the file: run `git lfs pull` in the folder"
LFS_POINTER_START = b"version https://git-lfs"
GZIP = b"\x1f\x8b"
# A mark of UTF-32 begins with a mark of UTF-16, so UTF-32 comes first.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The first bytes of files that are no text: what such a file is, and how to get at its text.
OTHER_FORMS = (
    (LFS_POINTER_START, LFS_POINTER),
    (b"/annex/objects/", "a git-annex pointer, not the file: run `git annex get` in the folder"),
    (b"\x00\x05\x16\x07", "what a Mac leaves beside a file (AppleDouble): name the file without `._`"),
    (b"PAR1", "a Parquet file, not text: --workload hf:FOLDER reads the Parquet files of a folder"),
    (b"ARROW1", "an Arrow file, not text: save it as JSON lines"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet, not text: unpack it, or save it as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it with `zstd -d`"),
    (b"BZh", "compressed by bzip2: unpack it with `bunzip2`"),
    (b"\xfd7zXZ\x00", "compressed by xz: unpack it with `unxz`"),
    (b"%PDF-", "a PDF, not text"),
    (b"SQLite format 3\x00", "a database (SQLite), not text"),
    (b"\x89HDF", "an HDF5 file, not text"),
    (b"\x93NUMPY", "a NumPy array, not text"),
)
# Errors of a stream that is cut short or damaged.
DAMAGED_STREAM = (EOFError, DamagedStream, gzip.BadGzipFile)


class NoTextError(ValueError):
    """A file that is no text, or is damaged. The message says what it is, and what to do."""


class TooLongError(ValueError):
    """A compressed file whose text is longer than any of its kind."""


class LimitedStream(io.RawIOBase):
    """The bytes of a compressed file, at most `most`: a kilobyte of it may stand for gigabytes."""

    def __init__(self, source: gzip.GzipFile, most: int) -> None:
        self.source, self.remaining_bytes = source, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with decompressed bytes, and return their number, which is 0 at the end.

        Raises TooLongError if more bytes came than the limit, NoTextError if the stream is damaged.
        """
        try:
            data = self.source.read(len(buffer))
        except DAMAGED_STREAM as error:
            raise NoTextError(f"a damaged gzip file ({str(error).rstrip('.')}): copy it again") from None
        self.remaining_bytes -= len(data)
        if self.remaining_bytes < 0:
            raise TooLongError
        buffer[: len(data)] = data
        return len(data)


class TextForm(NamedTuple):
    """The form in which a text is stored. The encoding of a compressed text is known only after decompression."""

    encoding: str
    is_gzip: bool = False


def text_form(head: bytes) -> TextForm:
    """Return the encoding of a text that begins with these bytes, and whether it is compressed by gzip.

    Raises NoTextError for a known form that is no text, and if all bytes are zeros.
    """
    for mark, description in OTHER_FORMS:
        if head.startswith(mark):
            raise NoTextError(description)
    if head and not head.strip(b"\0"):  # Read as a line, gigabytes of zeros would fill the memory.
        raise NoTextError(ZEROS)
    if head.startswith(GZIP):
        return TextForm("utf-8", is_gzip=True)  # The encoding of the text in it is not known yet.
    for mark, encoding in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return TextForm(encoding)
    # The first character of a text is nearly always ASCII, which UTF-16 stores as one byte and a zero.
    if len(head) > 1 and head[0] and not head[1]:
        return TextForm("utf-16-le")
    if len(head) > 1 and head[1] and not head[0]:
        return TextForm("utf-16-be")
    return TextForm("utf-8")


@contextmanager
def text_stream(file: BinaryIO, most: int, errors: str) -> Iterator[io.TextIOWrapper]:
    """Yield the text of a file of bytes, with its line ends unchanged.

    `most` limits the bytes of a compressed text once unpacked. `errors` is that of `open`. Raises NoTextError if the
    file is no text, and TooLongError if the text is too long.
    """
    stream: io.BufferedReader = file  # type: ignore[assignment]
    form = text_form(stream.peek(HEAD_BYTES)[:HEAD_BYTES])  # A peek may give more than it was asked for.
    if form.is_gzip:
        stream = io.BufferedReader(LimitedStream(gzip.GzipFile(fileobj=file), most), BUFFER_BYTES)
        form = text_form(stream.peek(HEAD_BYTES)[:HEAD_BYTES])
        if form.is_gzip:
            raise NoTextError("compressed twice: unpack it with `gunzip`")
    text = io.TextIOWrapper(stream, encoding=form.encoding, errors=errors, newline="")
    try:
        yield text
    except UnicodeDecodeError:
        raise NoTextError(f"not text in {form.encoding.upper().removesuffix('-SIG')}") from None
    finally:
        text.detach()  # so that the caller's file is not closed with it


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a pointer that Git LFS leaves if the file itself was not downloaded."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER_START)) == LFS_POINTER_START


def is_litter(path: Path) -> bool:
    """Return whether a Mac or Windows left this file in a folder that it copied. Such a file belongs to no data."""
    return path.name.startswith("._") or path.name in (".DS_Store", "Thumbs.db", "desktop.ini")


def data_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern, sorted by name, without litter."""
    return sorted(path for path in folder.glob(pattern) if not is_litter(path))
