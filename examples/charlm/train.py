"""A small transformer learns to write Python, from the standard library of the machine that it runs on.

python examples/charlm/train.py                       one process
rex run -f examples/charlm/rexjob.yaml                unlike workers on this machine
"""

import math
import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import rex_worker as rex

EPOCHS = int(os.environ.get("EPOCHS", "3"))
TEXT_BYTES = int(os.environ.get("TEXT_BYTES", str(1_000_000)))
WINDOW = 48
SYMBOLS = 128
"""ASCII; whatever else occurs is one symbol."""


def read_text(limit: int) -> Tensor:
    """Return ``limit`` characters of the standard library's own modules, in the order of their names."""
    pieces: list[bytes] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        pieces.append(path.read_bytes())
        if sum(map(len, pieces)) >= limit:
            break
    text = torch.frombuffer(bytearray(b"\n".join(pieces)[:limit]), dtype=torch.uint8)
    return torch.where(text < SYMBOLS, text, 0).long()


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of text, each with the same piece one character on."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // WINDOW

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * WINDOW
        return self.text[start : start + WINDOW], self.text[start + 1 : start + WINDOW + 1]


class Writer(nn.Module):
    """Predicts the next character at each place. Normalises by layer, so a worker's share does not matter."""

    def __init__(self, width: int = 48, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.place = nn.Parameter(torch.zeros(WINDOW, width))
        layer = nn.TransformerEncoderLayer(width, heads, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each symbol at each place: shape (samples, WINDOW, SYMBOLS)."""
        hidden = self.layers(self.symbol(x) + self.place, mask=self.mask, is_causal=True)
        logits: Tensor = self.out(hidden)
        return logits


def main() -> None:
    torch.manual_seed(0)
    text = read_text(TEXT_BYTES)
    cut = len(text) * 19 // 20
    dataset, held_out = Windows(text[:cut]), Windows(text[cut:])
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    def judge(batch: tuple[Tensor, Tensor]) -> list[float]:
        x, y = batch
        logits = model(x)
        nats = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        return [float(nats), float((logits.argmax(-1) == y).sum()), float(y.numel())]

    with rex.init() as session:
        model, optimizer = session.prepare(model, optimizer)
        loader = session.loader(dataset, batch_size=64)
        for epoch in session.epochs(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(x).flatten(0, 1), y.flatten())
                session.backward(loss)
                optimizer.step()
            nats, right, count = session.totals(held_out, judge)
            bits, accuracy = nats / count / math.log(2), right / count
            print(f"epoch {epoch}: {bits:.3f} bits per character held out, {accuracy:.3f} of them right")
            session.report(bits_per_character=bits, accuracy=accuracy)


if __name__ == "__main__":
    main()
