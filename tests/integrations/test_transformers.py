"""The callback in a real Trainer of transformers."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def run(folder, callbacks):
    transformers.set_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    words = torch.randint(20, (24, 12))
    data = [{"input_ids": row, "labels": row} for row in words]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=4,
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data[:8], callbacks=callbacks
    )
    for callback in callbacks:
        callback.attach(trainer)
    trainer.train()
    return model.state_dict(), trainer.state.log_history, words


def test_figures_are_logged_at_each_evaluation_and_training_is_the_same(tmp_path):
    from kann.integrations.transformers import KoopmanCallback

    probe = {"input_ids": torch.randint(20, (24, 12), generator=torch.Generator().manual_seed(1))}
    callback = KoopmanCallback(probe, layer="transformer.h.1")
    watched, logged, _ = run(tmp_path, [callback])
    alone, _, _ = run(tmp_path, [])
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    history = callback.monitor.history
    assert history.steps.tolist() == [2, 4, 6]
    assert (history.loss > 0).all()
    radii = [entry["koopman/radius"] for entry in logged if "koopman/radius" in entry]
    assert radii == history.figure("radius").tolist()
