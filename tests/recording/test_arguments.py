# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""Arguments and data of other kinds work, or are refused in one line with a remedy."""

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import kann
from kann import KannError
from tests.recording.models import same

pytestmark = pytest.mark.usefixtures("untyped")


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.inner = nn.Identity()

    def forward(self, x):
        return self.inner(torch.fft.fft(self.rnn(x)[0]))


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def x():
    return torch.randn(5, 6, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": "3"}, "batch_size='3' is not a whole number; pass batch_size>=1"),
        ({"batch_size": 1.5}, "batch_size=1.5 is not a whole number"),
        ({"batch_size": True}, "batch_size=True is not a whole number"),
        ({"max_sequences": 1.5}, "max_sequences=1.5 is not a whole number; pass max_sequences>=1"),
        ({"max_sequences": "3"}, "max_sequences='3' is not a whole number"),
        ({"max_sequences": 0}, "max_sequences=0 is too small; pass max_sequences>=1"),
        ({"state": ["h"]}, "is unknown; pass 'h' or 'c' or 'hc'"),
        ({"state": np.ones((2, 2))}, r"state=ndarray of float64, shape \(2, 2\) is unknown"),
        ({"axis": None}, "axis=None is unknown; pass 'time' or 'depth'"),
        ({"axis": torch.eye(4)}, r"axis=Tensor of torch.float32, shape \(4, 4\) is unknown"),
        ({"layer": scipy.sparse.eye(4)}, "a sparse dia_matrix was passed"),
        ({"lengths": [[1], [1, 2]]}, "cannot be read as an array"),
        ({"lengths": torch.ones(5, dtype=torch.int64, device="meta")}, "on the meta device"),
        ({"lengths": np.ma.masked_array([6] * 5, mask=[1, 0, 0, 0, 0])}, "a masked array was passed"),
        (
            {"inputs": torch.ones(5, 6, 3)},
            r"inputs=Tensor of torch.float32, shape \(5, 6, 3\) is neither True nor False",
        ),
        (
            {"initial": np.zeros(4)},
            r"initial=ndarray of float64, shape \(4,\) is neither True nor False; pass one of them",
        ),
        ({"into": b"x.zarr"}, "into=b'x.zarr' is no path; pass one such as x.zarr"),
        ({"into": "moments"}, "into='moments' is now a function: call kann.recording.record_moments"),
        ({"into": kann.Moments()}, "to add to moments call kann.recording.record_moments"),
        ({"groups": 20}, "groups are for moments; pass them to kann.recording.record_grouped_moments"),
        ({"layer": ["rnn", "inner"]}, r"several layers .*\(rnn, inner\); .* with kann.recording.record_layers"),
        ({"layer": "rnn.*"}, "with kann.recording.record_layers"),
        ({"forward": "f"}, "forward='f' is not a function; pass one, or leave it out"),
        ({"collate": 5}, "collate=5 is not a function"),
        ({"device": "nonsense"}, r"device='nonsense' is no device of torch \(.*\); pass one, such as 'cpu'"),
        ({"device": object()}, "is no device of torch"),
        ({"progress": np.ones(2)}, "progress=ndarray .* is neither True nor False"),
        ({"embedding": torch.ones(2), "axis": "depth"}, "embedding=Tensor .* is neither True nor False"),
        ({"lengths": np.ones((0, 0))}, r"lengths are a mask of shape \(0, 0\), without a step"),
        ({"lengths": nn.Linear(7, 2)}, r"lengths= failed on the batch Tensor .* \(RuntimeError: .*\); pass one that"),
        ({"collate": lambda samples: samples[9]}, r"collate= failed on 5 samples \(IndexError: .*\); pass one that"),
        ({"layer": [5]}, "5 is no name of a layer; pass one of model.named_modules"),
        ({"layer": b"rnn"}, "114 is no name of a layer"),
    ],
)
def test_options_of_other_types_are_refused(reader, x, options, message):
    with pytest.raises(KannError, match=message) as caught:
        kann.record(reader, x, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (scipy.sparse.eye(4), {}, "a sparse dia_matrix was passed"),
        (scipy.sparse.eye(4), {"collate": torch.stack}, "a sparse dia_matrix was passed"),
        (None, {"collate": torch.stack}, "data is NoneType; pass an iterable of samples, or a dataset"),
        (np.array(1.0), {"collate": torch.stack}, "data is ndarray; pass an iterable of samples"),
        ({"x": torch.ones(5, 6, 3)}, {"collate": torch.stack}, "data is dict, and collate= takes samples"),
    ],
)
def test_data_without_samples_are_refused(reader, data, options, message):
    with pytest.raises(KannError, match=message):
        kann.record(reader, data, **options)


@pytest.mark.parametrize("kind", [">f4", ">f8", np.longdouble, np.float16])
def test_numbers_of_numpy_in_any_order_of_bytes_and_precision(reader, x, kind):
    data = x.numpy().astype(kind)
    expected = kann.record(reader, torch.from_numpy(data.astype(np.float32)))
    for given in (data, list(data), {"x": data}, iter([data])):
        same(kann.record(reader, given), expected)


def test_arrays_that_run_backwards(reader, x):
    data = x.numpy()[:, ::-1]
    same(kann.record(reader, data), kann.record(reader, torch.from_numpy(data.copy())))


def test_a_single_number_in_a_mapping_goes_with_every_batch(reader, x):
    class Scaled(Reader):
        def forward(self, x, scale):
            return super().forward(x * scale)

    model = Scaled()
    data = {"x": x, "scale": torch.tensor(2.0)}
    same(kann.record(model, data, batch_size=2), kann.record(model, {"x": 2 * x, "scale": torch.tensor(1.0)}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.long(), r"different types of numbers \(.*int64.*\); pass data of the model's type"),
        (lambda x: x.numpy().astype(int), "whole numbers only to an embedding"),
        (lambda x: x.double(), "such as data.float()"),
        (lambda x: x + 0j, "complex64"),
        (lambda x: x.to_sparse(), r"layout torch.sparse_coo was passed; pass a dense one"),
        (lambda x: [x[0].to_sparse()], r"layout torch.sparse_coo was passed; pass a dense one"),
        (
            lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged),
            "nested tensor was passed; pass the list of its parts",
        ),
        (lambda x: x.to("meta"), "on the meta device"),
        (lambda x: np.ma.masked_array(x.numpy(), mask=x.numpy() > 0), "a masked array was passed"),
        (lambda x: {"x": np.ma.masked_array(x.numpy(), mask=x.numpy() > 0)}, "a masked array was passed"),
        (lambda x: iter([np.ma.masked_array(x.numpy(), mask=x.numpy() > 0)]), "a masked array was passed"),
        (lambda x: x.numpy().astype(object), "data are object; pass numbers"),
        (lambda x: np.array(["a"]), "data are <U1; pass numbers"),
        (lambda x: x.numpy().astype("datetime64[s]"), r"data are datetime64\[s\]; pass numbers"),
        (lambda x: x[..., :2], r"cannot read a batch of shape \(\d+, \d+, 2\) .*as wide as the model reads"),
        (lambda x: x[:, :0], r"cannot read a batch of shape \(\d+, 0, 3\) .*at least one step"),
        (lambda x: x[..., 0], r"cannot read a batch of shape \(\d+, \d+\) .*data\[\.\.\., None\] if each row holds"),
        (lambda x: x.swapaxes(1, 2), r"here data.swapaxes\(1, 2\), since the model reads 3 channels"),
        (lambda x: "reviews.txt", "data is str; pass a tensor"),
        (lambda x: ["a", "b"], "cannot read the batch 'a', which holds no tensor .*pass tensors, or forward="),
        (lambda x: {"x": torch.tensor(1.0)}, "do not hold equally many sequences"),
    ],
)
def test_data_that_the_model_cannot_read_are_refused(reader, x, make, message):
    with pytest.raises(KannError, match=message) as caught:
        kann.record(reader, make(x))
    assert "\n" not in str(caught.value)


def test_a_model_of_two_arguments_needs_forward(x):
    class Two(Reader):
        def forward(self, x, age):
            return super().forward(x) * age

    with pytest.raises(KannError, match=r"missing 1 required positional argument: 'age'.*pass forward=lambda"):
        kann.record(Two(), x)


def test_words_as_floats_are_refused():
    words = torch.randint(5, (6, 4)).float()
    with pytest.raises(KannError, match=r"embedding .* reads whole numbers, and the data are .*float32.*data.long"):
        kann.record(nn.Sequential(nn.Embedding(5, 3), nn.GRU(3, 4, batch_first=True)), words)


@pytest.mark.parametrize("record", [kann.record, kann.recording.record_moments])
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda y: y.real.long(), "are int64; pass floating-point numbers"),
        (lambda y: y.real.to_sparse(), "layout torch.sparse_coo was passed"),
        (lambda y: y.real.to("meta"), "on the meta device"),
        (lambda y: y.real[:, :, :0], r"gave \(5, 6, 0\), which holds no numbers"),
        (lambda y: y.real[:, :0], r"gave \(5, 0, 4\), which holds no numbers"),
    ],
)
def test_outputs_that_are_no_states_are_refused(reader, x, record, layer, message):
    with pytest.raises(KannError, match=message):
        record(reader, x, layer=layer)


def test_steps_from_what_is_not_real_numbers_are_refused(reader):
    step = kann.recording.step_of(reader)
    with pytest.raises(KannError, match=r"h is ndarray of float64, shape \(2, 4\); pass a torch tensor"):
        step(np.zeros((2, 4)), np.zeros((2, 3)))
    with pytest.raises(KannError, match=r"x is None; pass a torch tensor"):
        step(torch.zeros(2, 4), None)
    with pytest.raises(KannError, match=r"takes states of real numbers; got torch.int64; pass h.float"):
        step(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 3))


@pytest.mark.parametrize("name", [5, ["rnn"]])
def test_names_that_are_no_strings_are_refused(reader, name):
    for options in ({"layer": name}, {"name": name}):
        with pytest.raises(KannError, match="is no name of a layer"):
            kann.recording.readout_of(reader, **options)


def test_names_of_layers_stay_what_they_are(x):
    """Also those that look like a path; where a store of theirs is written is another matter."""
    model = nn.ModuleDict({"/tmp/a": nn.GRU(3, 4, batch_first=True), "b c": nn.Linear(4, 2)})  # noqa: S108

    def forward(model, x):
        return model["b c"](model["/tmp/a"](x)[0])  # noqa: S108

    recorded = kann.recording.record_layers(model, x, layer=["/tmp/a", "b c"], forward=forward)  # noqa: S108
    assert list(recorded) == ["/tmp/a", "b c"]  # noqa: S108
