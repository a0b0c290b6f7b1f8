"""The models of the zoo in plain PyTorch: the same layers with the same sizes as in `zoo_models`, in channels_last.

Those of `keras.applications` are torchvision's; `python -m benchmarks zoo` leaves them out where it is not installed.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NEEDS_TORCHVISION = ("ResNet50", "EfficientNetV2-B0", "ConvNeXt-Tiny", "MobileNetV3")


class Scaled(nn.Module):
    """Scales images of bytes, and changes their layout: of an array with channels last, that copies nothing."""

    def __init__(self, body: nn.Module, scale: float, offset: float = 0.0) -> None:
        super().__init__()
        self.body, self.scale, self.offset = body, scale, offset

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images.permute(0, 3, 1, 2).float() * self.scale + self.offset)


def _resnet50(small: bool) -> nn.Module:
    from torchvision.models import resnet50

    return Scaled(resnet50(num_classes=100), 1 / 127.5, -1)


def _efficientnet(small: bool) -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

    fused = [(1, 3, 1, 32, 16, 1), (4, 3, 2, 16, 32, 2), (4, 3, 2, 32, 48, 2)]
    squeezed = [(4, 3, 2, 48, 96, 3), (6, 3, 1, 96, 112, 5), (6, 3, 2, 112, 192, 8)]
    blocks = [*(FusedMBConvConfig(*one) for one in fused), *(MBConvConfig(*one) for one in squeezed)]
    return Scaled(EfficientNet(blocks, 0.2, 0.0, num_classes=100, last_channel=1280), 1 / 127.5, -1)


def _convnext(small: bool) -> nn.Module:
    from torchvision.models import convnext_tiny

    return Scaled(convnext_tiny(num_classes=100, stochastic_depth_prob=0.0), 1 / 127.5, -1)


def _mobilenet(small: bool) -> nn.Module:
    from torchvision.models import mobilenet_v3_large

    return Scaled(mobilenet_v3_large(num_classes=100), 1 / 127.5, -1)


def _normalized(inputs: int, filters: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU())


class UNet(nn.Module):
    """Three levels, transposed convolutions on the way up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.down = nn.ModuleList(
            nn.Sequential(_normalized(before, after), _normalized(after, after))
            for before, after in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * one, one, 2, stride=2) for one in reversed(widths[:3]))
        self.joined = nn.ModuleList(
            nn.Sequential(_normalized(2 * one, one), _normalized(one, one)) for one in reversed(widths[:3])
        )
        self.classes = nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skipped.append(x)
        for up, block, other in zip(self.up, self.joined, reversed(skipped[:3]), strict=True):
            x = block(torch.cat([up(x), other], 1))
        return self.classes(x).permute(0, 2, 3, 1)


class Attention(nn.Module):
    """Self-attention over positions."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.inputs(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """A block of a transformer that normalizes first."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.attention = Attention(width, heads, causal)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.first(x)))
        return x + self.dropout(self.narrow(F.gelu(self.wide(self.second(x)))))


def _encoder(depth: int, width: int, heads: int, dropout: float = 0.0, causal: bool = False) -> nn.Module:
    return nn.Sequential(*(Block(width, heads, dropout, causal) for _ in range(depth)), nn.LayerNorm(width, 1e-6))


class Positions(nn.Module):
    """Adds a trained vector to each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.05 * torch.randn(1, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.vectors


class ViT(nn.Module):
    """ViT-S/16 without a class token."""

    def __init__(self, side: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, width, 16, stride=16), Positions((side // 16) ** 2, width)
        self.encoder, self.classes = _encoder(depth, width, heads), nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.positions(self.patches(x).flatten(2).transpose(1, 2))
        return self.classes(self.encoder(x).mean(1))


class Bert(nn.Module):
    """An encoder that classifies texts."""

    def __init__(self, length: int, width: int, depth: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        embedded = nn.Embedding(vocabulary, width), Positions(length, width), nn.LayerNorm(width, 1e-3)
        self.encoder = nn.Sequential(*embedded, nn.Dropout(0.1), _encoder(depth, width, heads, 0.1))
        self.pooled, self.classes = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classes(torch.tanh(self.pooled(self.encoder(tokens)[:, 0])))


class LSTM(nn.Module):
    """A language model of two LSTMs."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(vocabulary, width), nn.LSTM(width, width, 2, batch_first=True)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits(self.layers(self.table(tokens))[0])


class GPT2(nn.Module):
    """A causal transformer whose logits are products with its embedding."""

    def __init__(self, length: int, width: int, depth: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, width), Positions(length, width)
        nn.init.uniform_(self.table.weight, -0.05, 0.05)  # as Keras does
        self.encoder = _encoder(depth, width, heads, causal=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.encoder(self.positions(self.table(tokens))), self.table.weight)


class Residual(nn.Module):
    """Two convolutions that know the time."""

    def __init__(self, inputs: int, filters: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, inputs, 1e-3), nn.GroupNorm(8, filters, 1e-3)
        self.convolutions = nn.ModuleList(nn.Conv2d(n, filters, 3, padding=1) for n in (inputs, filters))
        self.time = nn.Linear(time, filters)
        self.skip = nn.Identity() if inputs == filters else nn.Conv2d(inputs, filters, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.convolutions[0](F.silu(self.first(x))) + self.time(time)[:, :, None, None]
        return self.convolutions[1](F.silu(self.second(y))) + self.skip(x)


class Attended(nn.Module):
    """Self-attention over the places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(8, width, 1e-3), Attention(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention(self.norm(x).flatten(2).transpose(1, 2))
        return x + y.transpose(1, 2).reshape(x.shape)


class Diffusion(nn.Module):
    """A U-Net that predicts the noise of an image, with attention at two resolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide, time = [width << level for level in range(3)], 4 * width
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, time), nn.SiLU())
        self.begin, self.end = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        before = [wide[0], wide[0], wide[1]]
        self.down = nn.ModuleList(Residual(one, filters, time) for one, filters in zip(before, wide, strict=True))
        self.strided = nn.ModuleList(nn.Conv2d(filters, filters, 3, 2, 1) for filters in wide)
        self.middle = nn.ModuleList(Residual(wide[2], wide[2], time) for _ in range(2))
        joined = [wide[1] + wide[0], wide[2] + wide[1], wide[2] + wide[2]]
        self.up = nn.ModuleList(Residual(one, filters, time) for one, filters in zip(joined, wide, strict=True))
        self.attended_down = nn.ModuleList([nn.Identity(), Attended(wide[1]), Attended(wide[2])])
        self.attended_up = nn.ModuleList([nn.Identity(), Attended(wide[1]), Attended(wide[2])])
        self.attended = Attended(wide[2])

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        time, x, skipped = self.time(times), self.begin(images.permute(0, 3, 1, 2)), []
        for residual, attended, strided in zip(self.down, self.attended_down, self.strided, strict=True):
            skipped.append(attended(residual(x, time)))
            x = strided(skipped[-1])
        x = self.middle[1](self.attended(self.middle[0](x, time)), time)
        for level in reversed(range(3)):
            x = torch.cat([F.interpolate(x, scale_factor=2.0), skipped[level]], 1)
            x = self.attended_up[level](self.up[level](x, time))
        return self.end(x).permute(0, 2, 3, 1)


class Tabular(nn.Module):
    """Embeddings of columns beside numbers."""

    def __init__(self, columns: int, values: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(values, width) for _ in range(columns))
        self.numbers = nn.Linear(13, width)
        sizes = [(columns + 1) * width, 1024, 512, 256]
        layers = [
            nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.BatchNorm1d(after))
            for before, after in zip(sizes, sizes[1:], strict=False)
        ]
        self.body = nn.Sequential(*layers, nn.Linear(256, 1))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        vectors = [table(categories[:, column]) for column, table in enumerate(self.tables)]
        return self.body(torch.cat([*vectors, F.relu(self.numbers(numbers))], 1))


def _mlp(small: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "ResNet50": _resnet50,
    "EfficientNetV2-B0": _efficientnet,
    "ConvNeXt-Tiny": _convnext,
    "MobileNetV3": _mobilenet,
    "U-Net": lambda small: Scaled(UNet(8 if small else 32), 1 / 255),
    "ViT-S/16": lambda small: Scaled(ViT(*((32, 64, 2, 2) if small else (224, 384, 12, 6))), 1 / 127.5, -1),
    "BERT-base": lambda small: Bert(*((32, 64, 2, 2, 100) if small else (512, 768, 12, 12, 30522))),
    "LSTM": lambda small: LSTM(*((16, 100) if small else (512, 10_000))),
    "diffusion U-Net": lambda small: Diffusion(16 if small else 64),
    "tabular": lambda small: Tabular(*((3, 50, 4) if small else (26, 100_000, 16))),
    "GPT-2 124M": lambda small: GPT2(*((32, 64, 2, 2, 100) if small else (1024, 768, 12, 12, 50257))),
    "MLP": _mlp,
}
"""The functions that build the models, by the names of `zoo_models.MODELS`."""


def _loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns cross-entropy for classes, binary cross-entropy for one logit, else the mean squared error."""
    outputs = outputs.float()
    if not labels.is_floating_point():
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1).long())
    if outputs.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(outputs, labels)
    return F.mse_loss(outputs, labels)


def _correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the sum for the metric that the Keras model has."""
    if not labels.is_floating_point():
        return (outputs.argmax(-1) == labels).sum()
    return ((outputs > 0) == labels).sum() if outputs.shape[-1] == 1 else outputs.new_zeros(())


class Loop:
    """Trains as people write it: shuffled batches from pinned memory, autocast, fused Adam, a metric.

    Args:
      model: The model.
      x: Its inputs on the host, an array or a list of them.
      y: The labels.
      batch: The size of a batch.
      half: Whether to compute in bfloat16.
      compiled: Whether to compile the model.
    """

    def __init__(self, model: nn.Module, x: Any, y: np.ndarray, batch: int, half: bool, compiled: bool) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        arrays = [*(x if isinstance(x, list) else [x]), y]
        self._data = [torch.from_numpy(np.ascontiguousarray(one)) for one in arrays]
        self._batch, self._half = batch, half
        self.model = model.to(self._device, memory_format=torch.channels_last)
        self._step = torch.compile(self.model) if compiled else self.model
        self._optimizer = torch.optim.Adam(self.model.parameters(), 1e-4, fused=self._device.type == "cuda")

    def epoch(self) -> float:
        """Trains on all samples once; returns the mean loss."""
        order = torch.randperm(len(self._data[0]))
        total, correct = torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        steps = len(order) // self._batch
        for rows in order[: steps * self._batch].split(self._batch):
            *inputs, labels = (self._placed(one[rows]) for one in self._data)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
                outputs = self._step(*inputs)
                loss = _loss(outputs, labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
            total += loss.detach()
            correct += _correct(outputs.detach(), labels)
        return total.item() / steps

    def _placed(self, rows: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":
            return rows
        return rows.pin_memory().to(self._device, non_blocking=True)


def trained(name: str, contender: str, small: bool, steps: int, epochs: int) -> list[float]:
    """Trains a model with one of the contenders; returns the seconds of each epoch, the first with all that it builds.

    Args:
      name: A key of `MODELS`.
      contender: `torch`, `torch-deterministic` or `torch-compiled`.
      small: Whether to build it in a size for tests.
      steps: The steps of an epoch.
      epochs: How many of them.
    """
    from benchmarks import zoo_models

    data = zoo_models.build(name, small, steps)  # for its arrays; its model is dropped
    x, y, batch = data.x, data.y, data.batch
    del data
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    exact = contender == "torch-deterministic"
    torch.use_deterministic_algorithms(exact)
    torch.backends.cudnn.benchmark = not exact
    torch.manual_seed(0)
    half = name not in zoo_models.FLOAT32
    begin = time.perf_counter()
    loop = Loop(MODELS[name](small), x, y, batch, half, contender == "torch-compiled")
    stamps = [begin]
    for _ in range(epochs):
        if not math.isfinite(loop.epoch()):
            raise ArithmeticError("the loss is not finite")
        stamps.append(time.perf_counter())
    return [after - before for before, after in zip(stamps, stamps[1:], strict=False)]
