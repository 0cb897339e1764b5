import numpy as np
import pytest
import torch
from kann_experiments.sentiment import archive as archive_module
from kann_experiments.sentiment import corpus as corpus_module
from kann_experiments.sentiment import reproduce
from kann_experiments.sentiment.published import load_pieces, read_authors_network, read_pieces, with_reading
from kann_experiments.sentiment.task import CONFIGS, build
from torch import nn

from kann.errors import KannError
from tests.experiments.reviews import write_archive

PIECES, UNITS, EMBEDDING = 32_379, 256, 128
"""The sizes of the published GRU."""


class PublishedModel(nn.Module):
    """The published model: it steps a GRUCell and reads a sigmoid out after the last piece of each review."""

    def __init__(self, pieces, embedding, units):
        super().__init__()
        self.embedding = nn.Embedding(pieces, embedding)
        self.rnn = nn.GRUCell(embedding, units)
        self.linear = nn.Linear(units, 1)

    def forward(self, x, lengths):  # noqa: D102
        hidden, outputs = torch.zeros(len(x), self.rnn.hidden_size), []
        for step in torch.unbind(self.embedding(x), dim=1):
            hidden = self.rnn(step, hidden)
            outputs.append(self.linear(hidden))
        return torch.sigmoid(torch.stack([outputs[end - 1][i, 0] for i, end in enumerate(lengths)]))


def published(path, *, pieces=PIECES, embedding=EMBEDDING, units=UNITS):
    torch.manual_seed(0)
    model = PublishedModel(pieces, embedding, units)
    torch.save(model.state_dict(), path)
    return model


def write_pieces(path, pieces):
    path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())
    return path


def test_made_up_weights_of_the_published_shapes_answer_as_the_published_model(tmp_path):
    model = published(tmp_path / "gru.pt")
    network = read_authors_network(tmp_path / "gru.pt", words=PIECES)
    ids = torch.randint(0, PIECES, (3, 7))
    ids[1, 4:] = 0  # padding has a trained vector, as any other piece
    lengths = torch.tensor([7, 4, 6])
    with torch.no_grad():
        torch.testing.assert_close(torch.sigmoid(network(ids, lengths)), model(ids, lengths))
        torch.testing.assert_close(network.embedding(ids), model.embedding(ids))


def test_words_are_split_into_pieces_as_published(tmp_path):
    pieces = ["<unk>", "<cls>", "\x1c", "not", "bad", "k", "##q", "##ed,", "don't"]
    vocabulary = read_pieces(write_pieces(tmp_path / "imdb.vocab", pieces))
    assert vocabulary.words == tuple(pieces)
    found = vocabulary.encode(["Not  BAD Kqed, don't", "kqz not", "bad " + "k" * 101])
    assert [ids.tolist() for ids in found] == [[3, 4, 5, 6, 7, 8], [0, 3], [4, 0]]


@pytest.mark.parametrize("pieces", [["not", "<unk>"], ["<unk>", "not", "not"]])
def test_another_list_of_words_is_an_error(tmp_path, pieces):
    with pytest.raises(KannError, match="does not list <unk> first and each piece once"):
        read_pieces(write_pieces(tmp_path / "words.txt", pieces))


def test_weights_of_other_models_are_errors(tmp_path):
    path = tmp_path / "gru.pt"
    published(path, pieces=9, embedding=2, units=3)
    with pytest.raises(KannError, match="are for 9 word pieces and the list has 8"):
        read_authors_network(path, words=8)
    torch.save(nn.Linear(2, 1).state_dict(), path)
    with pytest.raises(KannError, match=r"holds weight, bias; the published model has embedding.weight"):
        read_authors_network(path, words=9)
    path.write_bytes(b"no weights")
    with pytest.raises(KannError, match="is no file of weights"):
        read_authors_network(path, words=9)


def test_weights_need_the_word_pieces():
    with pytest.raises(KannError, match="their word pieces as pieces="):
        reproduce("gru", weights="gru.pt")


def test_long_reviews_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "PER_FOLDER", 12)
    path = write_archive(tmp_path / "reviews.tar.gz", 12)
    pieces = write_pieces(tmp_path / "imdb.vocab", ["<unk>", "film", "good", "bad", ".", "##s"])
    every = load_pieces(pieces, archive=path)
    monkeypatch.setattr(corpus_module, "LONGEST", 20)
    short = load_pieces(pieces, archive=path)
    kept = every.test.lengths <= 20
    assert 0 < kept.sum() < len(kept) == 24
    np.testing.assert_array_equal(short.test.lengths, every.test.lengths[kept])
    np.testing.assert_array_equal(short.test.positive, every.test.positive[kept])
    assert (every.test.words == 0).any()  # unknown words have the number that pads


@pytest.mark.parametrize("pieces", [False, True])
def test_the_vector_that_pads_is_trained_if_reviews_are_pieces(pieces):
    config = with_reading(CONFIGS, pieces)["gru"]
    network = build(config, words=5, seed=0)
    network(torch.tensor([[0, 1]]), torch.tensor([2])).sum().backward()
    gradient = network.embedding.weight.grad
    assert gradient is not None
    assert bool(gradient[0].any()) == pieces
    assert bool(network.embedding.weight[0].any()) == pieces
