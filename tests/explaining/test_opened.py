"""A saved explanation is opened without the network, and says, draws and writes the same."""

import errno
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.data.archives import read_npz
from kann.data.serialization import Decoder, Encoder, save_arrays
from kann.errors import KannError
from kann.explaining.explanation import SavedReadout
from kann.explaining.readout_search import StateReadout, head_of
from kann.explaining.sentences import details_of, sentences_of
from tests.explaining import networks
from tests.explaining.networks import SEQUENCES, numbers, seeded, words
from tests.reporting.html_pages import content_of
from tests.saved import assert_same


def signal_explanation():
    data = numbers(torch.Generator().manual_seed(0))
    return kann.explain(
        seeded(networks.LinearNetwork), data, channels=["force", "gate"], step_seconds=0.5, progress=False
    )


def word_explanation():
    data = words(torch.Generator().manual_seed(0))
    tokens = [[f"w{number}" for number in row] for row in data.tolist()]
    labels = torch.arange(SEQUENCES)[:, None].repeat(1, data.shape[1]) % 3
    return kann.explain(seeded(networks.Tagger), data, tokens=tokens, labels=labels, progress=False)


@pytest.fixture(scope="module", params=[signal_explanation, word_explanation])
def found(request):
    return request.param()


def test_everything_comes_back(found, tmp_path):
    opened = kann.Explanation.open(found.save(tmp_path / "saved"))
    assert str(opened) == str(found)
    assert sentences_of(opened.facts) == opened.sentences  # the saved facts have all that they say
    assert set(details_of(opened.facts)) <= set(opened.choices)
    for field in fields(found):
        if field.name not in ("states", "page"):
            assert_same(getattr(found, field.name), getattr(opened, field.name))
    assert_same({**found.page, "readout": 0}, {**opened.page, "readout": 0})
    assert_same(found.states.values, np.asarray(opened.states.values[:]))
    assert opened.effects.koopman is opened.koopman
    assert opened.numbers() == found.numbers()
    assert str(opened.effects) == str(found.effects)
    assert str(opened.movers) == str(found.movers)


def test_the_page_is_the_same(found, tmp_path):
    opened = kann.Explanation.open(found.save(tmp_path / "saved"))
    before, after = (content_of(each.report(tmp_path / "r.html")) for each in (found, opened))
    assert json.dumps(before[1]["cards"], sort_keys=True) == json.dumps(after[1]["cards"], sort_keys=True)
    assert before[1] == after[1]
    assert before[0] == after[0]


def test_the_gated_operator_is_saved_too(tmp_path, rng):
    found = signal_explanation()
    states = kann.States.from_padded(rng.normal(size=(9, 20, 5)), inputs=rng.normal(size=(9, 20, 2)))
    gated = kann.fit(states, driven="bilinear", features="squares")
    place = replace(found, bilinear=gated).save(tmp_path / "saved")
    np.testing.assert_array_equal(kann.Explanation.open(place).bilinear.gates, gated.gates)
    np.testing.assert_array_equal(kann.Bilinear.load(place / "gated.npz").matrix, gated.matrix)
    found.save(place, overwrite=True)  # one without a gated operator leaves none behind
    assert kann.Explanation.open(place).bilinear is None


def test_a_readout_that_is_not_linear_is_passed_again(tmp_path):
    found = signal_explanation()

    def readout(h):
        return np.tanh(h[:, :1])

    place = replace(found, page={**found.page, "readout": readout}).save(tmp_path / "saved")
    opened = kann.Explanation.open(place)
    with pytest.raises(KannError, match=r"was not saved, since it is not linear; pass it to kann.Explanation.open"):
        opened.page["readout"](found.states.values)
    assert opened.choices[-1].startswith("It was opened without its readout, which is not linear")
    opened.report(tmp_path / "r.html")
    opened.save(place, overwrite=True)
    assert kann.Explanation.open(place).choices == opened.choices
    again = kann.Explanation.open(place, readout=readout)
    assert again.page["readout"] is readout
    assert again.choices == found.choices


def test_a_folder_is_replaced_only_on_request(tmp_path):
    found = signal_explanation()
    place = found.save(tmp_path / "saved")
    with pytest.raises(
        KannError, match=r"explanation.npz exists; pass overwrite=True to replace it, or another folder"
    ):
        found.save(place)
    opened = kann.Explanation.open(found.save(place, overwrite=True))
    opened.save(place, overwrite=True)  # also the one that was opened from it
    assert kann.Explanation.open(place).sentences == found.sentences
    (tmp_path / "file").write_text("")
    with pytest.raises(KannError, match="file is a file; pass the name of a folder"):
        found.save(tmp_path / "file")


def test_what_is_inside_a_folder_is_named(tmp_path):
    place = signal_explanation().save(tmp_path / "saved")
    kann.States.open(place / "states.npz").save(place / "states.zarr")
    with pytest.raises(KannError, match=r"is a folder of stores: pass .*saved/states\.zarr"):
        kann.States.open(place)
    with pytest.raises(
        KannError, match=r"is a folder; pass the name of a file, such as one of those in it: .*koopman\.npz"
    ):
        kann.Koopman.load(place)


def test_what_was_not_saved_cannot_be_opened(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        kann.Explanation.open(tmp_path / "absent")
    with pytest.raises(KannError, match=r"holds no explanation\.npz; pass a folder that Explanation\.save\(\) wrote"):
        kann.Explanation.open(tmp_path)
    (tmp_path / "explanation.npz").write_bytes(b"damaged")
    with pytest.raises(KannError, match=r"explanation\.npz is not a whole kann file"):
        kann.Explanation.open(tmp_path)


def test_values_of_all_kinds_come_back():
    curve = kann.fit(np.random.default_rng(0).normal(size=(5, 9, 2)))
    values = [None, True, 3, 0.1, float("inf"), float("-inf"), 1 + 2j, "a", (1, [2.5]), {0: (0.5, 1.0), "b": [1]}]
    values += [np.arange(3), np.ones((2, 0)), np.array([True]), np.float32(0.25), curve, curve]
    encoder = Encoder()
    plain = json.loads(json.dumps(encoder.plain(values, "values"), allow_nan=False))
    back = Decoder(encoder.arrays).value(plain)
    assert_same(values, back)
    assert back[-1] is back[-2]
    with pytest.raises(KeyError):
        Decoder({}).value({"result": "Path", "fields": {}})


def two_layers():
    """A head that no file can hold."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class BehindRelu(networks.Reader):
    """Its head reads rectified states."""

    def forward(self, x):
        """Two numbers for each sequence."""
        return self.head(torch.relu(self.rnn(x)[0][:, -1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: networks.Reader(nn.LSTM(2, 3, batch_first=True), two_layers()),
        lambda: BehindRelu(nn.GRU(2, 3, batch_first=True), two_layers()),
    ],
)
def test_a_head_is_passed_again_and_reads_what_it_read(make, tmp_path):
    """Of an LSTM it reads h, and not h and c; and behind ReLU, what is left of the states."""
    model = seeded(make)
    found = kann.explain(model, numbers(torch.Generator().manual_seed(0)), outputs="class", progress=False)
    assert head_of(found.page["readout"]) is model.head
    assert found.page["readout"] is not model.head
    place = found.save(tmp_path / "saved")
    before = (place / "report.html").read_bytes()
    without = kann.Explanation.open(place)
    _, page, tables = content_of(without.report(tmp_path / "r.html"))
    assert page["sequences"][0]["prediction"] in "01"  # what the network gave out is known
    assert "output" not in tables
    assert without.choices[-1].endswith(
        "the page shows no outputs at single steps. Pass kann.Explanation.open(folder, readout=...) to have them."
    )
    without.save(place, overwrite=True)  # also the one without it keeps what the head reads
    for passed in (model.head, found.page["readout"]):
        again = kann.Explanation.open(place, readout=passed)
        assert again.choices == found.choices
        assert again.report(tmp_path / "r.html").read_bytes() == before


def test_readouts_of_part_of_a_state_come_back_with_a_linear_head():
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    readout = StateReadout(head=nn.Linear(3, 2), units=3, is_rectified=True)
    np.testing.assert_array_equal(SavedReadout.of(readout).restored()(states), readout(states))
    head = nn.Linear(3, 2, bias=False)
    torch.testing.assert_close(SavedReadout.of(head).restored()(torch.ones(1, 3)), head(torch.ones(1, 3)))


def test_a_linear_layer_with_a_forward_of_its_own_is_not_taken_for_a_linear_one():
    class Doubled(nn.Linear):
        def forward(self, h):
            return 2 * super().forward(h)

    class Named(nn.Linear):
        pass

    assert isinstance(SavedReadout.of(Doubled(3, 2)), str)
    assert SavedReadout.of(Named(3, 2)).weight.shape == (2, 3)


def test_a_file_that_lacks_a_result_is_refused(tmp_path):
    place = signal_explanation().save(tmp_path / "saved")
    content = {"result": "Explanation", "fields": {"sentences": {"tuple": ["One."]}}}
    arrays = {"content": np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)}
    save_arrays(place / "explanation.npz", kind="kann.Explanation", arrays=arrays)
    with pytest.raises(KannError, match=r"explanation\.npz is not a whole kann file \(Explanation lacks \['accuracy'"):
        kann.Explanation.open(place)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_explanation_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, error):
    """Whichever of its files fails, as on a full disk or by Ctrl-C, the folder is as before, with no file more."""
    found = signal_explanation()
    place = found.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    other = replace(found, sentences=("Another.",))
    for name in ("kann.fitting.koopman.Koopman.save", "numpy.savez", "kann.explaining.explanation.save_npz"):

        def fail(*arguments, **named):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(name, fail)
            with pytest.raises(type(error)):
                other.save(place, overwrite=True)
            with pytest.raises(type(error)):
                other.save(tmp_path / "new")
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before
        assert not (tmp_path / "new").exists()
    other.save(place, overwrite=True)
    assert kann.Explanation.open(place).sentences == ("Another.",)


def test_while_two_writers_save_to_one_folder_it_opens_as_that_of_either(tmp_path):
    found = signal_explanation()
    other = replace(found, sentences=("Another.",), koopman=replace(found.koopman, mean=found.koopman.mean + 1))
    place = found.save(tmp_path / "saved")

    def save_often(own):
        for _ in range(6):
            own.save(place, overwrite=True)

    means = {each.sentences: each.koopman.mean for each in (found, other)}
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(save_often, own) for own in (found, other)]
        for _ in range(12):
            opened = kann.Explanation.open(place)
            np.testing.assert_array_equal(opened.koopman.mean, means[opened.sentences])
    for writer in writers:
        writer.result()


def test_an_explanation_needs_no_zarr(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    found = signal_explanation()
    opened = kann.Explanation.open(found.save(tmp_path / "saved"))
    assert_same(opened.states.values, found.states.values)
    assert_same(kann.States.open(tmp_path / "saved" / "states.npz").lengths, found.states.lengths)


def test_what_lies_in_a_folder_besides_is_left_alone_and_parts_of_others_do_not_mix(tmp_path):
    found = signal_explanation()
    place = found.save(tmp_path / "saved")
    (place / "notes.txt").write_text("mine")
    other = replace(found, sentences=("Another.",), koopman=replace(found.koopman, mean=found.koopman.mean + 1)).save(
        tmp_path / "other"
    )
    for name in ("koopman.npz", "states.npz"):  # files to use alone: `open` does not read them
        (place / name).write_bytes((other / name).read_bytes())
    assert_same(kann.Explanation.open(place).koopman, found.koopman)
    arrays, others = read_npz(place / "explanation.npz"), read_npz(other / "explanation.npz")
    np.savez(place / "explanation.npz", **arrays | {"content": others["content"]})
    with pytest.raises(KannError, match="checksum"):
        kann.Explanation.open(place)
    found.save(place, overwrite=True)
    assert (place / "notes.txt").read_text() == "mine"
