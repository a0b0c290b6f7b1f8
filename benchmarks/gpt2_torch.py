"""The architecture of GPT-2 in plain PyTorch, compiled, with fused AdamW and bfloat16 autocast."""

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and feed-forward, both added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_output = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.feed_forward = nn.Linear(width, 4 * width, bias=False)
        self.feed_forward_output = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        query, key, value = (part.view(batch, context, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_output(mixed.transpose(1, 2).reshape(batch, context, width))
        hidden = functional.gelu(self.feed_forward(self.feed_forward_norm(x)), approximate="tanh")
        return x + self.feed_forward_output(hidden)


class GPT2(nn.Module):
    """Tokens to the mean cross-entropy of the next ones; embeddings are tied."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList([Block(shape.width, shape.heads) for _ in range(shape.layers)])
        self.final_norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Compiled:
    """Trains on random tokens, as nanoGPT's script does: compiled model, fused AdamW, clipping at a norm of 1."""

    def __init__(self, shape: Any) -> None:
        self._shape, self._device = shape, "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self._model = GPT2(shape).to(self._device)
        self._step = self._model if shape.small else torch.compile(self._model)
        decayed = [p for p in self._model.parameters() if p.dim() >= 2]
        others = [p for p in self._model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=self._device == "cuda")
        rows = torch.randint(shape.vocabulary, (8, shape.batch, shape.context + 1))
        self._rows = rows.pin_memory() if self._device == "cuda" else rows

    def run(self, steps: int) -> float:
        """Returns the seconds per step."""
        self._wait()
        begin = time.perf_counter()
        for step in range(steps):
            rows = self._rows[step % len(self._rows)].to(self._device, non_blocking=True)
            with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
                loss = self._step(rows[:, :-1], rows[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        self._wait()
        return (time.perf_counter() - begin) / steps

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def memory(self) -> dict[str, float]:
        """Returns the largest memory so far in GB."""
        return {"peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)} if self._device == "cuda" else {}
