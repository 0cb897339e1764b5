"""Interventions in the shipped sentiment GRU: what they cost, and what one to eight coordinates keep of its decisions.

    python benchmarks/live.py --speed                     # times a forward pass with and without an intervention
    python benchmarks/live.py --reviews 2000              # agreement on test reviews; needs the IMDB archive

Balanced coordinates and operators are fitted to training reviews, and judged on test reviews. "readout" is the
direction of the network's own readout, "pca" the principal components, "random" three draws of random directions with
the variance of the balanced coordinate; all are filled in the same way.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

import kann
from kann import zoo
from kann.analysis.modes import mode_directions
from kann.data.moments import mean_and_covariance
from kann.live._effects import principal_components, random_like
from kann.live._intervene import only_target, replaced, replacement
from kann.live.completion import fit_fills, orthonormal_axes


def fastest(function, repeats):
    """The least seconds of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def speed(options):
    """Print how much longer a forward pass takes with one mode kept, than by itself and than a loop over cells."""
    device = torch.device(options.device)
    rnn = nn.GRU(128, 256, batch_first=True).to(device).eval()
    cell = nn.GRUCell(128, 256).to(device)
    x = torch.randn(options.batch, 200, 128, device=device)
    states = kann.record(rnn, x, progress=False)
    koopman = kann.fit(states, basis="pca", rank=16)

    def loop():
        h = x.new_zeros(len(x), 256)
        for t in range(x.shape[1]):
            h = cell(x[:, t], h)

    with torch.no_grad():
        rnn(x)
        bare, cells = fastest(lambda: rnn(x), options.repeats), fastest(loop, options.repeats)
        print(
            f"batch {options.batch} on {device}: forward pass {1e3 * bare:.0f} ms, loop over cells {1e3 * cells:.0f} ms"
        )
        for fill, modes in (("curve", [0]), ("linear", range(8)), ("curve", range(8))):
            with kann.intervene(rnn, koopman, states, keep=modes, fill=fill):
                rnn(x)
                took = fastest(lambda: rnn(x), options.repeats)
            print(
                f"  {fill:9}{len(modes)} modes kept: {1e3 * took:6.0f} ms, {took / bare:.2f} times the forward pass, "
                f"{took / cells:.2f} times the loop"
            )


class Trial:
    """The network's decisions on test reviews, by itself and with its states replaced."""

    def __init__(self, options):
        from kann_experiments.sentiment.corpus import batches_by_length, load_corpus
        from kann_experiments.sentiment.operators import fitted_reviews

        self.network = zoo.load("sentiment").network.to(options.device)
        corpus, self.device = load_corpus(), options.device
        train = fitted_reviews(corpus, 0).take(np.arange(options.training))
        order = np.argsort(train.lengths, kind="stable")
        words = [torch.from_numpy(train[i]) for i in order]
        self.words = words
        self.states = kann.record(self.network, words, layer="recurrent", inputs=True, batch_size=64)
        chosen = np.random.default_rng(1).permutation(len(corpus.test))[: options.reviews]
        self.test = corpus.test.take(chosen)
        self.batches = batches_by_length(self.test.lengths, tokens=2**15)
        self.spread = mean_and_covariance(self.states)
        self.own = self.decisions()

    @torch.no_grad()
    def decisions(self):
        """Which reviews the network calls positive."""
        decided = np.empty(len(self.test), dtype=bool)
        for batch in self.batches:
            ids, lengths = (each.to(self.device) for each in self.test.batch(batch))
            decided[batch] = (self.network(ids, lengths) > 0).cpu().numpy()
        return decided

    def balance(self):
        """Balanced coordinates of the training reviews."""
        return kann.balance(self.network, self.words, layer="recurrent", batch_size=64)

    def agreement(self, directions, fill):
        """The fraction of reviews decided as before if only these coordinates are kept after every word."""
        (fitted,) = fit_fills([directions], self.states, fill, spread=self.spread)
        target = only_target(self.network, "recurrent", "h")
        with replaced(self.network, target, replacement(fitted, keep=True), state="h", width=self.spread.dim):
            return float((self.decisions() == self.own).mean())


def quality(options):
    """Print what one to eight coordinates keep."""
    trial = Trial(options)
    accuracy = float((trial.own == trial.test.positive).mean())
    print(f"{options.reviews} test reviews, states of {len(trial.states)} training reviews, accuracy {accuracy:.3f}")
    moments = kann.Moments.of(trial.states)
    components = principal_components(trial.spread)
    rows = {
        f"{kind} rank {rank}, slowest": mode_directions(
            kann.fit(moments, basis="pca", rank=rank, driven=kind == "driven"), range(8)
        )
        for kind, rank in (("driven", 200), ("autonomous", 200), ("driven", 16))
    }
    rows["balanced"] = trial.balance().directions
    rows["pca"] = components
    for name, directions in rows.items():
        for count, fill in ((1, "curve"), (1, "linear"), (2, "auto"), (4, "auto"), (8, "curve"), (8, "linear")):
            kept = trial.agreement(directions[:, :count], fill)
            print(f"  {name:30} {count} {fill:7} {kept:.3f}", flush=True)
    weight = trial.network.readout.weight.detach().cpu().double().numpy()
    print(f"  {'readout':30} 1 curve   {trial.agreement(weight.T, 'curve'):.3f}", flush=True)
    axis = orthonormal_axes(rows["balanced"][:, :1], trial.spread)
    rng = np.random.default_rng(0)
    for _ in range(3):
        drawn = random_like(axis, trial.spread, rng)
        print(f"  {'random':30} 1 curve   {trial.agreement(drawn, 'curve'):.3f}", flush=True)


def main():
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="measure the speed alone")
    parser.add_argument("--reviews", type=int, default=2000, help="test reviews (default: %(default)s)")
    parser.add_argument("--training", type=int, default=5000, help="training reviews (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="sequences in a batch (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs of which the fastest counts (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.speed:
        speed(options)
    else:
        quality(options)


if __name__ == "__main__":
    main()
