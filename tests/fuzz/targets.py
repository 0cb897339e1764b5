"""Everything that reads a file: how to make a good one, how it may be damaged, and how to use what was read."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from kann_experiments.ecg.beats import read_beats, read_file
from kann_experiments.sentiment import archive, corpus
from kann_experiments.sentiment.corpus import train_vocabulary
from kann_experiments.training import Training, train
from safetensors.torch import save_file
from torch import nn

import kann
from kann.data import store
from kann.data.serialization import save_arrays
from kann.live.history import FIGURES
from kann.zoo import autoencoder, sentiment_network
from tests.experiments.beat_files import COUNTS, WRITERS, two_splits
from tests.experiments.reviews import texts, write_archive
from tests.fuzz import damage
from tests.fuzz.damage import RAW, Damage
from tests.reporting.histories import history
from tests.saved import Maker
from tests.systems import noisy_states

NO_CHECKSUM = "the format has no checksum for these bytes"
RESEALED = "it was written again as a well-formed file, with true checksums"

Knows = str | None
"""Why a result may differ from the original; None if the format can tell, so that it must not."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader of files."""

    name: str
    make: Callable[[Path], None]
    """Writes a good file or folder at this path."""
    use: Callable[[Path], Any]
    """Reads it, uses what was read, and returns what it holds."""
    suffix: str = ""
    damages: dict[str, tuple[tuple[Damage, ...], Knows]]
    """For the last letters of a file's name: what is done to it, and why the result may differ."""
    whole_folder: bool = False
    """Whether files of the folder are removed, swapped or replaced too."""


def fingerprint(value: Any) -> str:
    """A short text that differs where any number, dtype, shape or word in the value does."""
    digest, left = hashlib.sha256(), [value]
    while left:  # no recursion: damaged JSON may be nested thousands deep
        value = left.pop()
        if isinstance(value, torch.Tensor):
            value = value.detach().float().numpy()
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
        elif is_dataclass(value) and not isinstance(value, type):
            left.append({field.name: getattr(value, field.name) for field in fields(value)})
        elif isinstance(value, dict):
            left += [part for entry in value.items() for part in entry]
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)} ".encode())
            left += value
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def some_states() -> kann.States:
    rng = np.random.default_rng(0)
    values = noisy_states(rng, sequences=5, steps=9, d=4).astype(np.float32)
    return kann.States.from_padded(values, [9, 3, 9, 1, 6], inputs=rng.normal(size=(5, 9, 2)).astype(np.float32))


# Operators, moments and states


def make_koopman(path: Path) -> None:
    kann.fit(some_states(), rank=3).save(path)


def make_driven(path: Path) -> None:
    kann.fit(some_states(), rank=3, driven=True).save(path)


def use_koopman(path: Path) -> Any:
    koopman = kann.Koopman.load(path)
    repr(koopman), koopman._repr_html_(), [mode.horizon() for mode in koopman.modes]
    inputs = None if koopman.drive is None else np.ones((3, len(koopman.drive)))
    koopman.rollout(np.ones(koopman.dim), 3, inputs=inputs)
    kann.contributions(koopman, np.ones((2, koopman.dim)), np.ones((1, koopman.dim)))
    koopman.save(path.with_name("again.npz"))
    assert fingerprint(kann.Koopman.load(path.with_name("again.npz"))) == fingerprint(koopman)
    return koopman


def make_bilinear(path: Path) -> None:
    options = {"features": kann.features.Fourier(3), "lift": "squares"}
    kann.fit(some_states(), rank=2, driven="bilinear", **options).save(path)


def make_gated(path: Path) -> None:
    kann.fit(some_states(), rank=3, driven="bilinear", features="squares", ridge=1e-3).save(path)


def use_bilinear(path: Path) -> Any:
    koopman = kann.Bilinear.load(path)
    repr(koopman), koopman._repr_html_(), koopman.at(None).modes, koopman.at("mean")
    koopman.rollout(np.ones(koopman.dim), 3, inputs=np.ones((3, koopman.features.inputs)))
    koopman.save(path.with_name("again.npz"))
    assert fingerprint(kann.Bilinear.load(path.with_name("again.npz"))) == fingerprint(koopman)
    return koopman


def make_moments(path: Path) -> None:
    kann.Moments.of(some_states()).save(path)


def use_moments(path: Path) -> Any:
    moments = kann.Moments.load(path)
    repr(moments), moments + moments, moments - moments
    kann.fit(moments, driven=moments.input_dim > 0)
    moments.save(path.with_name("again.npz"))
    assert fingerprint(kann.Moments.load(path.with_name("again.npz"))) == fingerprint(moments)
    return moments


def make_history(path: Path) -> None:
    history(dead=2).save(path)


def use_history(path: Path) -> Any:
    found = kann.live.History.load(path)
    repr(found), found._repr_html_(), found.traces(), [found.figure(name) for name in FIGURES]
    if found.directions is not None:
        found.follow(kann.fit(noisy_states(np.random.default_rng(0), d=3)))
    found.save(path.with_name("again.npz"))
    again = kann.live.History.load(path.with_name("again.npz"))
    assert fingerprint([*again, again.directions]) == fingerprint([*found, found.directions])
    return [*found, found.directions]


RESULTS = (
    kann.Trust,
    kann.Effects,
    kann.Movers,
    kann.Comparison,
    kann.FixedPoints,
    kann.depth.StepMaps,
    kann.depth.StepTrust,
)


def result_maker(cls: Any) -> Callable[[Path], None]:
    """Writes a result whose fields hold random values of their types."""
    koopman = kann.fit(some_states(), rank=3)
    return lambda path: Maker(np.random.default_rng(0), {kann.Koopman: koopman}).instance(cls).save(path)


def result_user(cls: Any) -> Callable[[Path], Any]:
    """Reads a result, saves it and reads it again."""

    def use(path: Path) -> Any:
        found = cls.load(path)
        found.save(path.with_name("again.npz"))
        assert fingerprint(cls.load(path.with_name("again.npz"))) == fingerprint(found)
        return found

    return use


def make_explanation(path: Path) -> None:
    kann.Explanation.open(Path(__file__).parents[1] / "data" / "version02" / "explained").save(path)


def use_explanation(path: Path) -> Any:
    found = kann.Explanation.open(path)
    repr(found), str(found), found.numbers()
    return [
        found.sentences,
        found.koopman,
        found.trust,
        found.effects,
        found.movers,
        found.held_out,
        found.states.values,
    ]


def make_npy(path: Path) -> None:
    np.save(path, some_states().padded())


def make_npz(path: Path) -> None:
    states = some_states()
    np.savez(path, values=states.values, lengths=states.lengths, inputs=states.inputs)


def make_store(path: Path) -> None:
    before, store.PART_BYTES = store.PART_BYTES, 160
    try:
        some_states().save(path)
    finally:
        store.PART_BYTES = before


def make_foreign_group(path: Path) -> None:
    states = some_states()
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    for name in ("values", "lengths", "inputs"):
        group.create_array(name, data=np.asarray(getattr(states, name)))


def make_foreign_array(path: Path) -> None:
    zarr.create_array(str(path), data=some_states().padded(), chunks=(2, 9, 4), zarr_format=3)


def use_states(path: Path) -> Any:
    states = kann.States.open(path)
    repr(states), states._repr_html_(), states[0]
    kann.fit(states, driven=states.inputs is not None)
    states.save(path.with_name("again.zarr"))
    inputs = states.inputs
    if inputs is not None:
        inputs = np.asarray(inputs[:])
    return np.asarray(states.values[:]), states.lengths, inputs


# Networks


PLAN = Training(iterations=6, every=2)


def train_tiny(path: Path, *, iterations: int = 6) -> Any:
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=0.01)

    def loss(iteration: int) -> torch.Tensor:
        if iteration == iterations:
            raise InterruptedError
        x = torch.ones(4, 3) * (iteration + 1)
        return (network(x) - 1).square().mean()

    losses = train(network, optimizer, loss, plan=PLAN, path=path, made_by={"seed": 0, "sizes": [3, 1]})
    return losses, list(network.parameters())


def make_checkpoint(path: Path) -> None:
    try:
        train_tiny(path, iterations=4)
    except InterruptedError:
        return
    raise AssertionError("the training was to stop in the middle")


def make_autoencoder(path: Path) -> None:
    path.mkdir()
    config = {"arch": "gru", "units": 3, "decoder_units": 4, "clip": None}
    torch.manual_seed(0)
    network = autoencoder.Autoencoder(arch="gru", units=3, decoder_units=4)
    save_file(network.state_dict(), path / "weights.safetensors")
    (path / "provenance.json").write_text(json.dumps({"model": "made up", "seed": 0, "config": config}))


def use_autoencoder(path: Path) -> Any:
    found = autoencoder.pretrained(path)
    x = torch.linspace(-1, 1, 20).reshape(2, 10)
    with torch.no_grad():
        return found.network(x), dict(found.network.state_dict())


def make_sentiment(path: Path) -> None:
    path.mkdir()
    vocabulary = train_vocabulary([text for group in texts(3).values() for text in group], size=24)
    torch.manual_seed(0)
    network = sentiment_network.SentimentNetwork(words=len(vocabulary), arch="gru", units=4, embedding=3)
    save_file({name: weight.half() for name, weight in network.state_dict().items()}, path / "weights.safetensors")
    (path / "vocabulary.json").write_text(vocabulary.to_json())
    states = kann.States.from_padded(noisy_states(np.random.default_rng(0), d=4))
    koopman = kann.fit(states, rank=3)
    koopman.save(path / "koopman.npz")
    kann.trust(koopman, states).save(path / "trust.npz")
    (path / "provenance.json").write_text(json.dumps({"model": "made up", "seed": 0, "modes": [0, 1]}))


def use_sentiment(path: Path) -> Any:
    found = sentiment_network.pretrained(path)
    (ids,) = found.vocabulary.encode(["a good film , not bad ."])
    with torch.no_grad():
        logit = found.network(torch.from_numpy(np.asarray(ids, dtype=np.int64))[None])
    [found.koopman.modes[mode] for mode in found.modes]
    return ids, logit, found.koopman, found.trust, found.modes, dict(found.network.state_dict())


# The paper's data


def make_reviews(path: Path) -> None:
    write_archive(path, 3)


def use_reviews(path: Path) -> Any:
    return archive.read_archive(path, per_folder=3)


def make_corpus(path: Path) -> None:
    path.mkdir()
    write_archive(path / "reviews.tar.gz", 3)
    use_corpus(path)


def use_corpus(path: Path) -> Any:
    before, archive.PER_FOLDER = archive.PER_FOLDER, 3
    try:
        found = corpus.load_corpus(path / "reviews.tar.gz", words=40, cache=path / "cache")
    finally:
        archive.PER_FOLDER = before
    found.train.batch(range(len(found.train)))
    return found.train, found.test, found.vocabulary.to_json()


def make_beats_zip(path: Path) -> None:
    members = []
    for split, beats in two_splits().items():
        members += [(f"ECG5000_{split}{suffix}", write(beats).encode()) for suffix, write in WRITERS.items()]
    path.write_bytes(damage.write_zip(members, compression=8))


def use_beats_zip(path: Path) -> Any:
    return read_beats(path, counts=COUNTS)


def beats_maker(suffix: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(WRITERS[suffix](two_splits()["TRAIN"]))


def rewrite_tar(data: bytes, rng: np.random.Generator) -> bytes:
    """Edit a member, or add one that no archive should have, and pack the archive again."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as packed:
        members = [(member, packed.extractfile(member).read()) for member in packed]
    at = int(rng.integers(len(members)))
    kind = damage.chosen(rng, ("remove", "content", "huge", "name", "repeat", "raw", *STRANGE_MEMBERS))
    if kind == "raw":
        return gzip.compress(damage.chosen(rng, RAW)(gzip.decompress(data), rng), 1)
    if kind == "remove":
        members.pop(at)
    elif kind == "repeat":
        members.append(members[at])
    elif kind in STRANGE_MEMBERS:
        extra = tarfile.TarInfo(damage.chosen(rng, ("../x", "/etc/x", "aclImdb/train/neg/77_1.txt")))
        extra.type, extra.linkname = STRANGE_MEMBERS[kind], "/etc/passwd"
        members.insert(at, (extra, b""))
    else:
        members[at] = _edited_member(*members[at], kind, rng)
    return _packed(members)


STRANGE_MEMBERS = {
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "fifo": tarfile.FIFOTYPE,
}
LONG_NAME = "aclImdb/train/neg/" + "9" * 300 + "_1.txt"


def _edited_member(member: tarfile.TarInfo, content: bytes, kind: str, rng: np.random.Generator):
    if kind == "huge":
        member.size = damage.chosen(rng, (2**20 + 1, 2**33, 10**15))
    elif kind == "name":
        member.name = damage.chosen(rng, ("aclImdb/train/neg/0_99.txt", "x", LONG_NAME))
    else:
        content = damage.chosen(rng, RAW)(content, rng)
        member.size = len(content)
    return member, content


def _packed(members) -> bytes:
    """A tar.gz of these members. It ends in the middle of one that is not as long as it says."""
    file = io.BytesIO()
    packed = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115 - not closed where a member ends early
    for member, content in members:
        if member.size > len(content):
            file.write(member.tobuf() + content)
            return gzip.compress(file.getvalue(), 1)
        packed.addfile(member, io.BytesIO(content))
    packed.close()
    return gzip.compress(file.getvalue(), 1)


# Folders


def change_folder(folder: Path, rng: np.random.Generator) -> str:
    """Remove, swap, move or replace files of a folder; returns what was done."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path, other = damage.chosen(rng, paths), damage.chosen(rng, paths)
    kind = damage.chosen(
        rng, ("remove", "remove folder", "swap", "copy over", "file to folder", "stray", "fifo", "link")
    )
    name = f"{kind} {path.relative_to(folder)}"
    if kind == "remove":
        path.unlink()
    elif kind == "remove folder":
        shutil.rmtree(path.parent)
    elif kind == "swap":
        first, second = path.read_bytes(), other.read_bytes()
        path.write_bytes(second), other.write_bytes(first)
        name += f" and {other.relative_to(folder)}"
    elif kind == "copy over":
        path.write_bytes(other.read_bytes())
        name += f" with {other.relative_to(folder)}"
    elif kind == "stray":
        (path.parent / "stray.txt").write_text("not yours")
    else:
        path.unlink()
        if kind == "file to folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(path.name)
    return name


RAW_NPZ = ((*RAW, damage.edit_zip_header, damage.edit_zip_header), None)
"""A zip has a checksum of each member, and numpy reads nothing else."""


def edit_content(data: bytes, rng: np.random.Generator) -> bytes:
    """Edit the JSON of a saved result, and seal it with a true checksum."""
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    if "content" not in arrays:
        return data
    kind = json.loads(bytes(arrays.pop("header")))["kind"]
    arrays["content"] = np.frombuffer(damage.edit_json(bytes(arrays["content"]), rng), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        save_arrays(Path(folder, "sealed.npz"), kind=kind, arrays=arrays)
        return Path(folder, "sealed.npz").read_bytes()


SAVED = {
    ".npz": RAW_NPZ,
    "npz rewritten": ((damage.rewrite_zip,) * 12, None),
    "npz sealed": ((edit_content,) * 12, RESEALED),
}
"""Results have a checksum of all that they hold."""
NPZ = {".npz": RAW_NPZ, "npz rewritten": ((damage.rewrite_zip,) * 12, RESEALED)}
CHUNK = {"c/*": ((*RAW,), None)}
"""Chunks of a store that kann wrote have checksums."""
META = {"zarr.json": ((*RAW, *(damage.edit_json,) * 12), NO_CHECKSUM)}
SAFETENSORS = {".safetensors": ((*RAW, *(damage.edit_safetensors,) * 6), NO_CHECKSUM)}
JSON = {"provenance.json": ((*RAW, *(damage.edit_json,) * 8), NO_CHECKSUM)}
FOREIGN = {"c/*": (RAW, NO_CHECKSUM)} | META

TARGETS = (
    Target(name="koopman", make=make_koopman, use=use_koopman, suffix=".npz", damages=SAVED),
    Target(name="driven koopman", make=make_driven, use=use_koopman, suffix=".npz", damages=SAVED),
    Target(name="bilinear", make=make_bilinear, use=use_bilinear, suffix=".npz", damages=SAVED),
    Target(name="gated", make=make_gated, use=use_bilinear, suffix=".npz", damages=SAVED),
    Target(name="moments", make=make_moments, use=use_moments, suffix=".npz", damages=SAVED),
    Target(name="history", make=make_history, use=use_history, suffix=".npz", damages=SAVED),
    *(
        Target(name=cls.__name__, make=result_maker(cls), use=result_user(cls), suffix=".npz", damages=SAVED)
        for cls in RESULTS
    ),
    Target(name="explanation", make=make_explanation, use=use_explanation, damages=SAVED, whole_folder=True),
    Target(
        name="states npy",
        make=make_npy,
        use=use_states,
        suffix=".npy",
        damages={".npy": ((*RAW, *(damage.edit_npy_header,) * 8, *(damage.edit_npy_values,) * 4), NO_CHECKSUM)},
    ),
    Target(name="states npz", make=make_npz, use=use_states, suffix=".npz", damages=NPZ),
    Target(
        name="states store", make=make_store, use=use_states, suffix=".zarr", damages=CHUNK | META, whole_folder=True
    ),
    Target(
        name="foreign zarr group",
        make=make_foreign_group,
        use=use_states,
        suffix=".zarr",
        damages=FOREIGN,
        whole_folder=True,
    ),
    Target(
        name="foreign zarr array",
        make=make_foreign_array,
        use=use_states,
        suffix=".zarr",
        damages=FOREIGN,
        whole_folder=True,
    ),
    Target(
        name="checkpoint",
        make=make_checkpoint,
        use=train_tiny,
        suffix=".safetensors",
        damages=SAFETENSORS,
    ),
    Target(
        name="zoo autoencoder",
        make=make_autoencoder,
        use=use_autoencoder,
        damages=SAFETENSORS | JSON,
        whole_folder=True,
    ),
    Target(
        name="zoo sentiment",
        make=make_sentiment,
        use=use_sentiment,
        damages=SAFETENSORS | JSON | NPZ | {"vocabulary.json": ((*RAW, *(damage.edit_json,) * 8), NO_CHECKSUM)},
        whole_folder=True,
    ),
    Target(
        name="reviews",
        make=make_reviews,
        use=use_reviews,
        suffix=".tar.gz",
        damages={".gz": (RAW, None), "gz rewritten": ((rewrite_tar,) * 12, RESEALED)},
    ),
    Target(
        name="reviews' cache",
        make=make_corpus,
        use=use_corpus,
        damages={".npz": RAW_NPZ, "npz rewritten": NPZ["npz rewritten"]},
    ),
    Target(
        name="beats zip",
        make=make_beats_zip,
        use=use_beats_zip,
        suffix=".zip",
        damages={
            ".zip": ((*RAW, *(damage.edit_zip_header,) * 6), None),
            "zip rewritten": ((damage.rewrite_zip,) * 4, RESEALED),
        },
    ),
    *(
        Target(
            name=f"beats {suffix}",
            make=beats_maker(suffix),
            use=read_file,
            suffix=suffix,
            damages={suffix: (RAW, NO_CHECKSUM)},
        )
        for suffix in WRITERS
    ),
)
