"""What `kann.explain` finds by itself."""

import numpy as np
import torch
from torch import nn

from kann.explaining.layer_search import evenly_spaced, module_with_memory
from kann.explaining.options import Options
from kann.explaining.sequences import Sequences
from kann.zoo.copy_task import OrthogonalRNN
from tests.explaining import networks
from tests.explaining.networks import seeded


class Copier(nn.Module):
    """A layer of one's own with a module that every state passes."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.readout = OrthogonalRNN(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        """Scores at every step."""
        return self.readout(self.recurrent(x)[0])


def memory(network, x):
    return module_with_memory(Sequences(network, x, Options()), evenly_spaced(len(x), 4))


def test_a_memory_is_found_though_all_read_the_same_at_most_steps(generator):
    x = torch.zeros(20, 12, 3)
    x[:, :3] = torch.randn(20, 3, 3, generator=generator)
    found = memory(seeded(Copier), x)
    assert found == ("recurrent", "recurrent.state")


def test_a_layer_that_runs_all_steps_by_itself_has_no_module_for_a_step(generator):
    found = memory(seeded(networks.LinearNetwork), torch.randn(20, 12, 2, generator=generator))
    assert found == ("unit", None)


def test_a_layer_without_memory_is_not_taken_for_one(generator):
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    assert memory(network, torch.randn(20, 12, 2, generator=generator)) is None


def test_lengths_go_with_their_sequences_in_batches():
    lengths = np.arange(1, 25)
    x = (torch.arange(24) < torch.from_numpy(lengths)[:, None]).float()[..., None]
    sequences = Sequences(nn.Linear(1, 1), list(x.split(5)), Options(lengths=lengths))
    data, run = sequences.part(sequences.sorted_by_length(np.arange(3, 20)))
    np.testing.assert_array_equal(torch.cat(list(data)).sum((1, 2)), run["lengths"])
