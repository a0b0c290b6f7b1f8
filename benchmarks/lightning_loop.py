"""Lightning's `Trainer` on PyTorch, in an environment of its own (`environments.py`).

It logs to CSV every 100 steps, and saves nothing; the data are tensors in memory, cut into batches by a sampler, which
is faster than collecting single samples.
"""

import tempfile
import time
from typing import Any

from benchmarks.contenders import serve

BLOCK = 100


def train(batch: int, hidden: int, steps: int) -> float:
    """Trains a dense network 784-hidden-10; returns steps per second."""
    import lightning
    import torch
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    torch.manual_seed(0)
    x, y = torch.rand(batch * BLOCK, 784), torch.randint(0, 10, (batch * BLOCK,))
    marks: dict[int, float] = {}
    warm, total = 2 * BLOCK, max(steps // BLOCK, 1) * BLOCK

    class Batches(Dataset):
        """Batches by their indices."""

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, indices: Any) -> Any:
            return x[indices], y[indices]

    class Dense(lightning.LightningModule):
        """The network, its optimizer and its logs."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))

        def training_step(self, pair: Any, number: int) -> Any:
            features, labels = pair
            logits = self.net(features)
            value = torch.nn.functional.cross_entropy(logits, labels)
            accuracy = (logits.argmax(-1) == labels).float().mean()
            self.log_dict({"loss": value, "accuracy": accuracy})
            return value

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step in (warm, warm + total):
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                marks[self.global_step] = time.perf_counter()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3)

    sampler = BatchSampler(RandomSampler(x), batch, drop_last=True)
    loader = DataLoader(Batches(), sampler=sampler, batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=warm + total,
            max_epochs=-1,
            logger=CSVLogger(folder),
            log_every_n_steps=BLOCK,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            deterministic=True,
        )
        trainer.fit(Dense(), loader)
    return total / (marks[warm + total] - marks[warm])


if __name__ == "__main__":
    serve({"train": train})
