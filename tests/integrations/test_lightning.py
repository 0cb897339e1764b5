# ruff: noqa: D101, D102  # models in tests say what they are by their names
"""The Lightning callback in a real trainer."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.readout = nn.Linear(6, 1)

    def forward(self, x):
        return self.readout(self.drop(self.rnn(x)[0]))

    def training_step(self, batch, _):
        loss = self(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Kept(lightning.loggers.logger.DummyLogger):
    """Keeps all that is logged, as it comes."""

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


def run(folder, callbacks):
    lightning.seed_everything(0)
    loader = DataLoader(TensorDataset(torch.randn(16, 8, 3)), batch_size=8)
    module, logger = Module(), Kept()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=logger,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader, loader)
    return module.state_dict(), logger.logged


def test_figures_are_logged_after_each_validation_and_training_is_the_same(tmp_path):
    from kann.integrations.lightning import KoopmanCallback

    callback = KoopmanCallback(torch.randn(20, 10, 3), loss="val_loss")
    watched, logged = run(tmp_path, [callback])
    alone, _ = run(tmp_path, [])
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    history = callback.monitor.history
    assert history.steps.tolist() == [2, 4, 6]
    radii = [metrics["koopman/radius"] for _, metrics in logged if "koopman/radius" in metrics]
    assert radii == pytest.approx(history.figure("radius").tolist(), rel=1e-6)
    assert (history.loss > 0).all()
