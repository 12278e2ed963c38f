"""The user's own files and packages go along, and an experiment finds them where they lie now."""

from __future__ import annotations

import io
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from small_runs import small

from ludus.config import ConfigError, encode
from ludus.data.addresses import load_address
from ludus.runtime.ray import user_code
from ludus.runtime.ray.user_code import CodeArchive, Mirror, ludus_digest, moved, pack_code, sees, unpack_code
from ludus.store.run_folder import RunFolder

MIDDLEWARE = """
from neighbour import HELLO
from package.inner import WORLD

def greet(worker, step):
    print(HELLO, WORLD, flush=True)
    return step()
"""


def written(folder: Path) -> Path:
    """An experiment's file with a neighbour and a package."""
    (folder / "package").mkdir(parents=True)
    (folder / "mine.py").write_text(MIDDLEWARE)
    (folder / "neighbour.py").write_text("HELLO = 'hello'\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner.py").write_text("WORLD = 'world'\n")
    (folder / "large.bin").write_bytes(b"0" * 1000)
    return folder / "mine.py"


def test_a_file_goes_along_with_its_neighbours(tmp_path: Path) -> None:
    file = written(tmp_path / "home")
    experiment = {"middleware": [{"$ref": f"{file}:greet"}], "game": {"$type": "ludus.games.game:X"}}
    luggage = pack_code(experiment)
    assert [one.folder for one in luggage] == [str(file.parent)]
    shutil.rmtree(file.parent)
    places = unpack_code(luggage, tmp_path / "node")
    here = moved(experiment, places)["middleware"][0]["$ref"]
    assert here.startswith(str(tmp_path / "node"))
    assert not (Path(here.partition(":")[0]).parent / "large.bin").exists()
    program = f"from ludus.data.addresses import load_address; load_address({here!r})(None, lambda: None)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "hello world\n"


def test_an_archive_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("../up.py", "../../up.py", f"{tmp_path}/absolute.py", "fine.py"):
            archive.writestr(name, "HELLO = 1")
        link = zipfile.ZipInfo("link.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/hostname")
    [target] = map(Path, unpack_code([CodeArchive("/home", packed.getvalue())], tmp_path / "node").values())
    assert (target / "fine.py").is_file()
    written = [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()]
    assert all(path.is_relative_to(target) and not path.is_symlink() for path in written), written


def test_installed_code_stays_where_it_is() -> None:
    assert pack_code(encode(small())) == []
    assert pack_code({"$type": "numpy:ndarray", "text": "a: b", "path": "/no/such/file.py:X"}) == []


def test_too_much_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "home")
    monkeypatch.setattr(user_code, "MOST_BYTES", 10)
    with pytest.raises(ConfigError, match=r"home has 0 MiB, more than the 0 MiB .* folder of its own"):
        pack_code({"$ref": f"{file}:greet"})


def test_a_mirror_is_a_run_folder_with_the_code_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the node that has the run folder itself uses it for all but the experiment."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = written(tmp_path / "home")
    described = replace(small(), middleware=(load_address(f"{file}:greet"),))
    run = RunFolder.create(tmp_path / "run", encode(described), seed=0, command=())
    facts = (run.path / "run.json").read_bytes()
    assert sees(str(run.path), facts)
    assert not sees(str(tmp_path / "elsewhere"), facts)
    luggage = pack_code(msgspec.json.decode(run.facts.experiment))
    for shared in (True, False):
        mirror = Mirror(str(run.path), facts, luggage, shared=shared)
        address = msgspec.json.decode(mirror.folder.facts.experiment)["middleware"][0]["$ref"]
        assert address.startswith(str(mirror.path))
        assert (mirror.path / "models").is_symlink() == shared
        mirror.close()
        assert not mirror.path.exists()
        assert run.path.exists()


def test_the_digest_is_of_our_own_code() -> None:
    assert ludus_digest() == ludus_digest()
    assert len(ludus_digest()) == 16
