"""Which files a source stands for, of which kind each is, in which encoding its text is, and what its tables are called.

The first bytes say what a file is where they tell, its name where they do not. UTF-8 and UTF-16 show themselves. Of the older
encodings the one is taken in which the file's letters make words: of one script, no capitals within, and common letters rather
than rare ones. A detector made for web pages is no help with the few letters beyond ASCII that a table has: of eight small
files it named two right.
"""

import codecs
import gzip
import io
import re
import sqlite3
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import mkstemp
from typing import Literal, TextIO
from urllib.parse import quote

from tools.result import OpenError


class TableNames:
    """Remembers the names given out in one database."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names, first given first."""
        return tuple(self._taken.values())

    def take(self, wanted: str, otherwise: str = "") -> str:
        """`wanted` as an identifier that needs no quotes; if taken, `otherwise`; if that is taken too, with a number."""
        names = [plain(wanted), *([plain(otherwise)] if otherwise else [])]
        name = next((name for name in names if name.lower() not in self._taken), None)
        number = 2
        while name is None:
            numbered = f"{names[-1]}_{number}"
            name = numbered if numbered.lower() not in self._taken else None
            number += 1
        self._taken[name.lower()] = name
        return name

    def keep(self, wanted: str, otherwise: str) -> str:
        """`wanted` as it stands, the name that a database gave its table; `otherwise` only if it is taken."""
        if wanted.lower() in self._taken:
            return self.take(otherwise)
        self._taken[wanted.lower()] = wanted
        return wanted


def plain(text: str) -> str:
    """Letters, digits and underscores, not beginning with a digit, never empty."""
    name = re.sub(r"\W+", "_", text.strip()).strip("_") or "table"
    return f"t_{name}" if name[0].isdigit() else name


def distinct(names: list[str]) -> list[str]:
    """Column names with blanks named by position and repetitions (case ignored) numbered."""
    taken: set[str] = set()
    result = []
    for position, name in enumerate(names, 1):
        base = name.strip() or f"column{position}"
        number, candidate = 2, base
        while candidate.lower() in taken:
            candidate, number = f"{base}_{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return result


FileKind = Literal["duckdb", "sqlite", "csv", "parquet", "json", "excel"]

_BY_SUFFIX: dict[str, FileKind] = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".parquet": "parquet", ".pq": "parquet",
    ".xlsx": "excel", ".xlsm": "excel", ".xlsb": "excel", ".xls": "excel", ".ods": "excel",
}  # fmt: skip
_DATABASES = {".duckdb": "DuckDB", ".ddb": "DuckDB", ".sqlite": "SQLite", ".sqlite3": "SQLite", ".db3": "SQLite"}
READABLE = "DuckDB, SQLite, CSV, TSV, Parquet, JSON and Excel files"


class LeftOut(UserWarning):
    """A file of a folder cannot be read, and the others are opened without it; the message names it and says why."""


class ReadOtherwise(UserWarning):
    """Something in a file was read in one of several ways, or stays text, or is no row; the message names it and says why."""


_FILE_URL = re.compile(r"(?:sqlite|duckdb)(?:\+\w+)?://(?:/(?:file:)?([^?]*))?(?:\?.*)?")


def is_url(source: str) -> bool:
    """Whether a source is a URL and no path."""
    return re.match(r"[A-Za-z][A-Za-z0-9_+.-]*://", source) is not None


def names_a_file(source: str) -> bool:
    """Whether a source is a sqlite:/// or duckdb:/// URL; such a file is opened under its engine's own locks."""
    return _FILE_URL.fullmatch(source) is not None


def path_of(source: str) -> Path:
    """The file or folder that a path or the URL of a file names. Raises OpenError for a URL without a file."""
    match = _FILE_URL.fullmatch(source)
    if match is None:
        return Path(source)
    if match[1] in (None, "", ":memory:"):
        raise OpenError(f"{source} names no file: a database in memory has nothing in it to ask")
    return Path(match[1])


def name_of(given: Sequence[str]) -> str:
    """What a person calls these sources together: by the first one's stem."""
    names = [stem(path_of(source).expanduser().absolute()) for source in given]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def files_of(given: Sequence[str]) -> list[tuple[Path, "FileKind"]]:
    """All files that sources stand for. Raises OpenError where there is nothing to read."""
    return [file for source in given for file in sources(path_of(source).expanduser())]


def stem(path: Path) -> str:
    """The file's name without its suffix, and without both of .csv.gz."""
    name = path.name.removesuffix(".gz")
    return Path(name).stem or name


def file_kind(path: Path) -> FileKind | None:
    """The kind of an existing file, None when it is none of ours. Raises OpenError for one that is empty or unreadable."""
    try:
        if not path.is_file():
            raise OpenError(f"{path} is a pipe or a device; write what comes from it to a file, and name that")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise OpenError(f"cannot read {path}: {error.strerror or error}") from error
    if head[8:12] == b"DUCK":
        return "duckdb"
    if head == b"SQLite format 3\0":
        return "sqlite"
    if head[:4] == b"PAR1":
        return "parquet"
    kind = _BY_SUFFIX.get(Path(path.name.removesuffix(".gz")).suffix.lower())
    if kind is not None and not head:
        raise OpenError(f"{path} is empty")
    return kind


MANY_TABLES = 250  # of a SQLite file; copying takes about 15 ms of processor time for each


def has_many_tables(given: Sequence[str]) -> bool:
    """Whether the sources are one SQLite file with so many tables that it is read where it is, instead of copied."""
    if len(given) != 1 or is_url(given[0]):
        return False
    path = Path(given[0]).expanduser()
    try:
        if not path.is_file() or file_kind(path) != "sqlite":
            return False
        place = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"  # which leaves nothing next to the file
        with closing(sqlite3.connect(place, uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
    except (OSError, OpenError, sqlite3.Error):
        return False
    return int(count) > MANY_TABLES


def sources(path: Path) -> list[tuple[Path, FileKind]]:
    """The files that `path` stands for: itself, or what a folder holds (not its subfolders), by name.

    Raises OpenError when there is nothing to read.
    """
    try:
        if not path.exists():
            raise OpenError(f"no such file or folder: {path}")
        entries = sorted(path.iterdir()) if path.is_dir() else None
    except OSError as error:
        raise OpenError(f"cannot read {path}: {error.strerror or error}") from error
    if entries is not None:
        files = [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        found = [(file, kind) for file in files if (kind := _kind_in_folder(file))]
        if not found:
            folder = next((entry.name for entry in entries if entry.is_dir()), "")
            within = f"; folders in it are not read: name the files, as in '{path / folder}/*.csv'" if folder else ""
            raise OpenError(f"nothing to read in {path}: put {READABLE} there, or name a file{within}")
        return found
    kind = file_kind(path)
    if kind is None:
        raise OpenError(_unknown(path))
    return [(path, kind)]


def _kind_in_folder(file: Path) -> FileKind | None:
    """As `file_kind`; for a file that cannot be read a `LeftOut` warning, and None."""
    try:
        return file_kind(file)
    except OpenError as error:
        leave_out(file, error)
        return None


def leave_out(file: Path, reason: object) -> None:
    """Warn that a file of a folder is not among the tables."""
    warnings.warn(LeftOut(f"{file.name} is left out: {reason}"), stacklevel=2)


def tell(lines: Sequence[str]) -> None:
    """Warn of how files were read, where that may not be what their owner thinks."""
    for line in lines:
        warnings.warn(ReadOtherwise(line), stacklevel=2)


def _unknown(path: Path) -> str:
    if path.stat().st_size == 0:
        return f"{path} is empty"
    database = _DATABASES.get(path.suffix.lower())
    if database:
        return f"{path} is not a {database} database, though its name says so; is it damaged?"
    return f"cannot tell what {path} is; {READABLE} can be read"


_CHUNK = 1 << 20
_SAMPLE = 64 << 10  # bytes of lines with letters beyond ASCII that are looked at
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_OLD = (
    "cp1252", "gb18030", "cp932", "cp949", "big5", "euc_jp", "cp1251", "koi8_r", "cp1250", "mac_roman", "cp850", "cp1253",
    "cp1254", "cp1255", "cp1256", "cp874", "cp866",
)  # fmt: skip
_NAMES = {
    "cp1252": "Windows-1252", "cp1251": "Windows-1251", "cp1250": "Windows-1250", "cp1253": "Windows-1253",
    "cp1254": "Windows-1254", "cp1255": "Windows-1255", "cp1256": "Windows-1256", "cp932": "Shift-JIS",
    "cp949": "Korean (CP949)", "gb18030": "GB18030", "big5": "Big5", "euc_jp": "EUC-JP", "koi8_r": "KOI8-R",
    "mac_roman": "Mac Roman", "cp850": "DOS (CP850)", "cp874": "Thai (CP874)", "cp866": "DOS (CP866)",
    "utf-16-le": "UTF-16", "utf-16-be": "UTF-16",
}  # fmt: skip
_WESTERN, _RARER = frozenset("äöüßéèêáàâåçñóôúíæøëïÄÖÜÉÅÇÑØÆ"), frozenset("îìòùõûãœÿÁÀÂÃÈÊÍÎÓÒÔÕÚÙÛ")
_EASTERN = frozenset("ąćęłńśźżčďěňřšťůžýőűăşţșțŁŚŻŹĆŃČŠŽŘĎŤŮŐŰğıİĞŞ")
_SIGNS = frozenset("–—‘’“”„…€£°«»·•²³½¼¾®©™§±×¿¡µºª′″")
_EAST_SIGNS = frozenset("。、「」・：（），％￥　；！？《》")
_CYRILLIC = {
    letter: worth
    for letters, worth in (("оеаинтсрвлкм", 1.0), ("дпуяыьгзбчй", 0.8), ("хжшюцщэфъ", 0.5))
    for letter in letters
}
_FINAL_HEBREW, _OTHER_HEBREW = "ךםןףץ", "כמנפצ"  # the first at the end of a word, the others anywhere else
_HAN = frozenset(
    "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日"
    "于起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月明其"
    "种声全工己话儿者向情部正名定女问力机给等几很业最间新什打便位因重被走电四第门相次东政海口使教西再平真听世气信北少关并内加化由却代"
    "军产入先山五太水万市眼体别处总才场师书比住员九通目华报立马命张活难神数件安表原车白应路期叫常提感金何更反合放做系计或司利受光王果"
    "亲界及今京务制解各任至清物台象记边共风战干接它许八特觉望直服林题建南度统色字请交爱让认算论百吃义科怎元社术结六功指思非流每青管夫连"
    "远资队花快条院变联言权往展该领传近留红治决周保达办运武半候七必城父强步完革深区求品士转量空众技轻程江语英基派满式李识极黄德收钱党设"
    "始版双历史商千片容研像友站广改议形早房音火际首单据导影失拿网香似石弟谁校读飞观争究包组造视济喜离兴切消销售价额店客户类型编号省县镇"
    "個來國們為說時會對學後過發當開現經頭動兩長樣將與進實點種聲話問機給幾業間電門東氣關並內產場師書員體處總數車應樂覺邊戰題讓認論術結連"
    "遠資隊帶條變聯權傳決辦運達區眾輕語滿寫識極錢設雙歷單據導網專觀爭組視濟離興價額類號縣鎮"
    "舗渋谷宿阪屋県町村売格円駅島川田藤井橋岡森野崎沢浜松福広熊佐鈴高橋男女性別住所氏都道府郵便番注文支部課長"
)
_HANGUL = frozenset(
    "이가다는을의에하고지한기로사도자리어아서인나대시정해스그부수장라일전으보제상주구들만원성여조게세진과신동국공소경관비유와선우미무"
    "학있생분회연개안재치마방단오실용물중적계발행화통산교체모양요현금년월천서울산구광인대부품명수량매출가격점남북동강역김박최정"
)
_VALUE = {
    "han": 0.5,
    "kana": 1.0,
    "half": 0.1,
    "hangul": 0.35,
    "greek": 0.85,
    "hebrew": 0.85,
    "arabic": 0.85,
    "thai": 0.75,
}
_SCRIPTS = (
    (0x370, 0x3FF, "greek"), (0x400, 0x4FF, "cyrillic"), (0x590, 0x5FF, "hebrew"), (0x600, 0x6FF, "arabic"),
    (0xE00, 0xE7F, "thai"), (0x3040, 0x30FF, "kana"), (0x4E00, 0x9FFF, "han"), (0xAC00, 0xD7A3, "hangul"),
    (0xFF61, 0xFF9F, "half"),
)  # fmt: skip


@contextmanager
def as_utf8(path: Path, folder: Path | None = None) -> Iterator[tuple[Path, str]]:
    """The file itself where it is UTF-8 with one kind of line ends, else a copy in `folder` that is (gone afterwards); and what
    a person should know of its encoding. Raises OpenError where it is no text."""
    encoding, said = _encoding(path)
    if not encoding:
        yield path, ""
        return
    descriptor, name = mkstemp(suffix=".txt", dir=folder)
    copy = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            _copy_to(file, path, encoding)
        yield copy, said
    except (EOFError, UnicodeError) as error:
        raise OpenError(f"cannot read {path}: {error}") from error
    finally:
        copy.unlink()


def _copy_to(file: TextIO, path: Path, encoding: str) -> None:
    """In UTF-8, with line feeds: spreadsheets end rows in another way than lines within a cell, which DuckDB refuses."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(errors=_BYTE_BY_BYTE), translate=True)
    for chunk in _chunks(path):
        file.write(decoder.decode(chunk))
    file.write(decoder.decode(b"", True))


def _chunks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _encoding(path: Path) -> tuple[str, str]:
    """The encoding, and what is to be said of it; empty where the file can be read as it is. One that cannot be
    unpacked is left to its reader."""
    try:
        head = next(_chunks(path), b"")
        for mark, encoding in _MARKS:
            if head.startswith(mark):
                return encoding, ""
        if wide := _wide(head):
            return wide, f"is read as {_NAMES[wide]}"
        if 100 * head.count(0) > len(head):
            raise OpenError(f"cannot read {path}: it is no text")
        good, bad, sample, is_mixed = _as_utf8(path)
    except (OSError, EOFError):
        return "", ""
    if not bad:
        return "utf-8" if is_mixed else "", ""
    if _is_binary(head):
        raise OpenError(f"cannot read {path}: it is no text")
    if 2 * bad <= good:
        what = "1 byte that is" if bad == 1 else f"{bad:,} bytes that are"
        return "utf-8", f"is UTF-8 but for {what} read as Windows-1252"
    encoding = best_encoding(sample)
    return encoding, f"is read as {_NAMES[encoding]}; save it as UTF-8 if its letters look wrong"


def _wide(head: bytes) -> str:
    """UTF-16 without a mark, where every other byte of what is mostly ASCII is zero."""
    if len(head) < 4 or head.count(0) < len(head) / 5:
        return ""
    odd, even = head[1::2].count(0), head[::2].count(0)
    if 10 * even < odd:
        return "utf-16-le"
    return "utf-16-be" if 10 * odd < even else ""


def _is_binary(head: bytes) -> bool:
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\f\r\x1a\x1b")
    return 100 * controls > len(head)


def _as_utf8(path: Path) -> tuple[int, int, bytes, bool]:
    """How many characters beyond ASCII are well written in UTF-8, how many bytes are not, lines with such bytes, and whether
    lines end in several ways."""
    decoder, good, bad, sample = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape"), 0, 0, bytearray()
    feeds, pairs = 0, 0
    for chunk in _chunks(path):
        feeds, pairs = feeds + chunk.count(b"\n"), pairs + chunk.count(b"\r\n")
        if chunk.isascii() and not decoder.getstate()[0]:
            continue
        text = decoder.decode(chunk)
        lost = len(_ESCAPED.findall(text))
        bad += lost
        good += len(_BEYOND.findall(text)) - lost
        if lost and len(sample) < _SAMPLE:
            sample += b"\n".join(line for line in chunk.splitlines() if not line.isascii())[:_SAMPLE]
    bad += len(_ESCAPED.findall(decoder.decode(b"", True)))
    return good, bad, bytes(sample), 0 < pairs < feeds


_ESCAPED, _BEYOND = re.compile("[\udc80-\udcff]"), re.compile(r"[^\x00-\x7f]")


def best_encoding(sample: bytes) -> str:
    """The old encoding in which the bytes beyond ASCII read best.

    >>> best_encoding("город,Москва".encode("cp1251")), best_encoding("4,50 €".encode("cp1252"))
    ('cp1251', 'cp1252')
    """
    scores = {encoding: _score(sample, encoding) for encoding in _OLD}
    return max(_OLD, key=lambda encoding: scores[encoding])  # the first of equals


_WORDS = re.compile(r"[^\W\d_ªº²³¹¼½¾]+|[^\x00-\x7f]")


def _score(sample: bytes, encoding: str) -> float:
    """How well the characters beyond ASCII read, from below zero to one."""
    text = sample.decode(encoding, errors="replace")
    worth, count = 0.0, 0
    for found in _WORDS.finditer(text):
        word = found[0]
        if not word.isascii():
            is_word = all(map(str.isalpha, word)) and word not in _SIGNS
            around = text[max(found.start() - 1, 0) : found.end() + 1]
            worth += (
                _word_worth(word) if is_word else sum(_sign_worth(sign, around) for sign in word if not sign.isascii())
            )
            count += sum(not sign.isascii() for sign in word)
    return worth / count if count else 0.0


def _word_worth(word: str) -> float:
    """The sum over its characters beyond ASCII."""
    beyond = [letter for letter in word if not letter.isascii()]
    scripts = {_script(letter) for letter in word}
    if len(scripts - {"han", "kana"}) > (0 if scripts & {"han", "kana"} else 1) or _has_capital_within(word):
        return -1.0 * len(beyond)
    if scripts == {"latin"} and len(word) > 2 and len(beyond) > 0.75 * len(word):
        return -0.5 * len(beyond)
    if scripts == {"latin"} and len(word) == 1:
        return 0.4
    if scripts == {"hebrew"} and (any(each in word[:-1] for each in _FINAL_HEBREW) or word[-1] in _OTHER_HEBREW):
        return -0.5 * len(beyond)
    return sum(
        _letter_worth(letter, after)
        for letter, after in zip(word, [*word[1:], ""], strict=True)
        if not letter.isascii()
    )


def _has_capital_within(word: str) -> bool:
    mixed = any(letter.islower() for letter in word)
    return mixed and any(
        letter.isupper() and (before.islower() or not letter.isascii()) for before, letter in pairwise(word)
    )


def _script(letter: str) -> str:
    return next((name for first, last, name in _SCRIPTS if first <= ord(letter) <= last), "latin")


def _letter_worth(letter: str, after: str) -> float:
    script = _script(letter)
    if script == "latin":
        if letter in "ãõ":  # Portuguese: -ão, -ões; elsewhere they are rather ă and ő
            return 1.0 if after in ("o", "e", "s", "") else 0.6
        return 1.0 if letter in _WESTERN else 0.8 if letter in _EASTERN else 0.7 if letter in _RARER else 0.2
    if script == "cyrillic":
        return (1.0 if letter.islower() else 0.7) * _CYRILLIC.get(letter.lower(), 0.4)
    if letter in _HAN or letter in _HANGUL:
        return 1.0
    return _VALUE.get(script, 0.2) * (0.7 if letter.isupper() else 1.0)


def _sign_worth(sign: str, around: str) -> float:
    """`around`: the sign with what stands before and after it."""
    if sign in _SIGNS:
        within = len(around) == 3 and around[0].isalpha() and around[2].isalpha()
        return -0.5 if within and sign not in "–—‘’·ºª" else 0.85
    if sign in _EAST_SIGNS:
        return 0.9
    return -3.0 if unicodedata.category(sign) in ("Cc", "Co", "Cn") or sign == "\ufffd" else -0.5


_BYTE_BY_BYTE = "sqlagent.byte_by_byte"


def _old_byte(error: UnicodeError) -> tuple[str, int]:
    """What cannot be decoded, as Windows-1252 has it, or Latin-1 where that has nothing."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in wrong), error.end


codecs.register_error(_BYTE_BY_BYTE, _old_byte)
