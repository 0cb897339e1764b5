"""A small archive of reviews that are easy to judge: some words are in good ones, some in bad ones, some in all."""

import io
import tarfile

import numpy as np

GOOD = ("great", "good", "amazing", "excellent", "wonderful", "perfect")
BAD = ("awful", "bad", "worst", "boring", "poor", "waste")
PLAIN = ("the", "film", "is", "and", "a", "plot", "acting", "was", "of", "it", ".", ",")
AMPLIFIERS = ("very", "extremely", "really", "so", "that", "not")


def review(rng, *, positive):
    """Ten to thirty words, two thirds of the telling ones on the review's side."""
    ours, theirs = (GOOD, BAD) if positive else (BAD, GOOD)
    words = []
    for _ in range(int(rng.integers(10, 30))):
        kind = rng.choice(4, p=[0.6, 0.2, 0.05, 0.15])
        words.append(str(rng.choice((PLAIN, ours, theirs, AMPLIFIERS)[kind])))
    if rng.random() < 0.4:
        words += ["not", "bad" if positive else "good"]
    return " ".join(words)


def texts(per_folder, *, seed=0):
    rng = np.random.default_rng(seed)
    return {
        (split, label): [review(rng, positive=label == "pos") for _ in range(per_folder)]
        for split in ("train", "test")
        for label in ("neg", "pos")
    }


def add(archive, name, content, **settings):
    """Put one member into an open archive."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in settings.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


def write_archive(path, per_folder, *, leave_out=(), extra=None):
    """An archive of the official layout; ``extra(archive)`` may put more into it."""
    with tarfile.open(path, "w:gz") as archive:
        add(archive, "aclImdb/README", b"about")
        add(archive, "aclImdb/train/unsup/0_0.txt", b"no label")
        for (split, label), reviews in texts(per_folder).items():
            if (split, label) in leave_out:
                continue
            for number, text in enumerate(reviews):
                stars = 9 if label == "pos" else 2
                add(archive, f"aclImdb/{split}/{label}/{number}_{stars}.txt", text.encode())
        if extra is not None:
            extra(archive)
    return path
