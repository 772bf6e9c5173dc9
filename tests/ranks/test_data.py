"""Training data: the same global batch for everybody."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_harness import TINY

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.rank import data as data_module
from pytest_clusterqual.rank.data import ByteData, digest, standard_corpus

CPU = torch.device("cpu")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(bytes(i * i % 251 for i in range(5000)))
    return path


def samples(data: ByteData, step: int, world_size: int) -> list[bytes]:
    """All input rows of the global batch, sorted."""
    rows = []
    for rank in range(world_size):
        for inputs, _targets in data.batches(step, rank=rank, world_size=world_size):
            rows += [bytes(row.tolist()) for row in inputs]
    return sorted(rows)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("microbatch", [1, 2])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(file: Path, world_size: int, microbatch: int) -> None:
    alone = samples(ByteData(file, TINY, CPU), 7, 1)
    spread = samples(ByteData(file, replace(TINY, microbatch=microbatch), CPU), 7, world_size)
    assert len(alone) == TINY.global_batch
    assert spread == alone


def test_steps_and_seeds_differ(file: Path) -> None:
    data = ByteData(file, TINY, CPU)
    assert samples(data, 1, 1) != samples(data, 2, 1)
    assert samples(data, 1, 1) != samples(ByteData(file, replace(TINY, seed=4), CPU), 1, 1)


def test_targets_are_the_next_bytes_of_the_file(file: Path) -> None:
    inputs, targets = ByteData(file, TINY, CPU).batch(1, first=0, count=3)
    assert inputs.shape == targets.shape == (3, TINY.sequence_length)
    assert inputs.dtype == targets.dtype == torch.int64
    for row, following in zip(inputs, targets, strict=True):
        assert bytes(row.tolist()) + bytes(following[-1:].tolist()) in file.read_bytes()
        assert torch.equal(row[1:], following[:-1])


def test_the_last_byte_of_the_file_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "exact"
    path.write_bytes(bytes(range(TINY.sequence_length + 1)))
    _inputs, targets = ByteData(path, TINY, CPU).batch(1, first=0, count=1)
    assert targets[0, -1] == TINY.sequence_length


def test_digest_sees_every_byte_of_a_small_file(file: Path) -> None:
    before = digest(file)
    content = bytearray(file.read_bytes())
    content[2500] ^= 1
    file.write_bytes(content)
    assert re.fullmatch("[0-9a-f]{16}", before)
    assert digest(file) != before


def test_digest_of_a_large_file_sees_size_head_and_tail(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "WHOLE_DIGEST_LIMIT", 100)
    monkeypatch.setattr(data_module, "DIGEST_SAMPLE", 10)
    content = file.read_bytes()
    seen = {digest(file)}
    for changed in (b"x" + content[1:], content[:-1] + b"x", content + content[-10:]):
        file.write_bytes(changed)
        seen.add(digest(file))
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "cannot read the training data (No such file or directory); give a readable file"),
        ("short", "16 bytes are too short for one sample of 17; give a readable file"),
        (".", "cannot read the training data (Is a directory); give a readable file"),
    ],
)
def test_unusable_files_are_named_with_the_remedy(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "short").write_bytes(bytes(16))
    with pytest.raises(ClusterQualError, match=re.escape(f"{tmp_path / path}: {message}")):
        ByteData(tmp_path / path, replace(TINY, sequence_length=16), CPU)


def test_a_vocabulary_below_256_is_refused(file: Path) -> None:
    with pytest.raises(ClusterQualError, match=r"workload\.model\.vocab: got 255, want at least 256"):
        ByteData(file, replace(TINY, model=replace(TINY.model, vocab=255)), CPU)


def test_ranks_may_race_for_the_standard_corpus(tmp_path: Path) -> None:
    found: list[Path] = []
    racers = [threading.Thread(target=lambda: found.append(standard_corpus(tmp_path))) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert found == [found[0]] * 4
    assert list(tmp_path.iterdir()) == [found[0]]
    assert found[0].stat().st_size > 2**20
    assert b"import" in found[0].read_bytes()


def test_a_scratch_that_cannot_be_written_is_named(file: Path) -> None:
    with pytest.raises(ClusterQualError, match=f"{file}/.*: cannot write the training data"):
        standard_corpus(file)


def test_a_file_that_is_cut_while_it_is_read_is_told(file: Path) -> None:
    data = ByteData(file, TINY, CPU)
    file.write_bytes(b"")
    with pytest.raises(ClusterQualError, match=f"{file}: the training data became shorter while they were read"):
        data.batch(1, first=0, count=1)


def test_the_file_is_closed_with_the_data(file: Path) -> None:
    def there() -> list[str]:
        return [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]

    data = ByteData(file, TINY, CPU)
    assert str(file.resolve()) in there()
    del data
    assert str(file.resolve()) not in there()
