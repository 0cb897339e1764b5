"""What each input does to the state."""

import numpy as np
import pytest
import torch
from torch import nn

from kann.explaining.input_effects import find_input_cases
from kann.explaining.options import Options
from kann.explaining.setup import look, record_states
from tests.explaining.networks import seeded


class BothWays(nn.Module):
    """A bidirectional layer that is nearly linear, since its inputs are small."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(2, 1), nn.Linear(6, 2)
        self.embedding.weight = nn.Parameter(torch.tensor([[-0.1], [0.1]]))
        self.rnn = nn.RNN(1, 3, batch_first=True, bidirectional=True)

    def forward(self, words):
        """Scores at every step."""
        return self.head(self.rnn(self.embedding(words))[0])


@pytest.mark.parametrize("layer", ["rnn.l0", "rnn.l0_reverse"])
def test_tokens_belong_to_the_states_that_read_them_in_both_directions(layer, generator):
    data = torch.randint(2, (40, 12), generator=generator)
    tokens = [["ab"[word] for word in own] for own in data.tolist()]
    setup = look(seeded(BothWays), data, Options(tokens=tokens, layer=layer))
    found = find_input_cases(setup, record_states(setup), np.eye(3))
    assert found is not None
    assert found.missed < 0.01  # tanh of small numbers; maps for the wrong inputs miss what each input adds
