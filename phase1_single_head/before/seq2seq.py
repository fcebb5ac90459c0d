"""Recurrent sequence-to-sequence models, without attention and with the two attentions that came first.

One GRU reads a string, one GRU writes another. y is the letter written last, s the writer's state, memory the reader's
states, c what attention brings:

    none        s = GRU(y, s)                                    all it knows of the string is where s starts
    Luong       s = GRU(y, s), then c = attention(s, memory)     predicts from tanh(W [c; s])   (Luong et al. 2015)
    Bahdanau    c = attention(s, memory), then s = GRU([c; y], s)        predicts from [c; s]   (Bahdanau et al. 2014)

Luong asks with the state after it has read y, so that all states of a known text can ask at once; Bahdanau asks with
the state before, and must go step by step. Run it to see the shapes; what the models learn is in bottleneck.py:

    python phase1_single_head/before/seq2seq.py
"""

import string

import torch
from torch import Tensor, nn

from phase1_single_head.before.scoring import AdditiveAttention, LuongAttention
from shared import cli

LETTERS = string.ascii_lowercase[:12]
START = len(LETTERS)  # what the writer reads before it has written anything
SIZE = 64  # of embeddings and states


class Seq2Seq(nn.Module):
    """A GRU that reads, in both directions, and a GRU that writes; the way between is one vector, the last states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, SIZE)
        self.encoder = nn.GRU(SIZE, SIZE // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(SIZE, SIZE, batch_first=True)
        self.to_logits = nn.Linear(SIZE, len(LETTERS))

    def read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source (B, T) -> every state of the encoder, both directions (B, T, SIZE), and the last of each (B, SIZE)."""
        memory, last = self.encoder(self.embedding(source))  # last (2, B, SIZE / 2)
        return memory, torch.cat([last[0], last[1]], dim=-1)

    def forward(self, source: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """source (B, T), previous (B, T), the letter before each to be written -> logits (B, T, letters), weights."""
        _, last = self.read(source)
        states, _ = self.decoder(self.embedding(previous), last[None])  # (B, SIZE) -> (1, B, SIZE), as nn.GRU takes it
        return self.to_logits(states), None


class LuongSeq2Seq(Seq2Seq):
    """The decoder steps first, then its new state asks; so that all states can ask at once."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = LuongAttention(SIZE)
        self.combine = nn.Linear(2 * SIZE, SIZE)

    def forward(self, source: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        memory, last = self.read(source)
        states, _ = self.decoder(self.embedding(previous), last[None])
        context, weights = self.attention(states, memory)  # (B, T, SIZE), (B, 1, T, T)
        return self.to_logits(torch.tanh(self.combine(torch.cat([context, states], dim=-1)))), weights


class BahdanauSeq2Seq(Seq2Seq):
    """The old state asks, and the answer goes into the step; so that steps must be taken one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = AdditiveAttention(SIZE)
        self.decoder = nn.GRUCell(2 * SIZE, SIZE)
        self.to_logits = nn.Linear(2 * SIZE, len(LETTERS))

    def forward(self, source: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        memory, state = self.read(source)
        outputs, rows = [], []
        for letter in self.embedding(previous).unbind(dim=1):  # (B, SIZE), one position after the other
            context, weights = self.attention(state[:, None], memory)  # (B, 1, SIZE), (B, 1, 1, T)
            state = self.decoder(torch.cat([letter, context[:, 0]], dim=-1), state)
            outputs.append(self.to_logits(torch.cat([context[:, 0], state], dim=-1)))
            rows.append(weights)
        return torch.stack(outputs, dim=1), torch.cat(rows, dim=2)


MODELS = {"none": Seq2Seq, "Luong": LuongSeq2Seq, "Bahdanau": BahdanauSeq2Seq}


def main(argv: list[str] | None = None) -> None:
    cli.parse(cli.parser(__doc__), argv)
    torch.manual_seed(0)
    source = torch.randint(len(LETTERS), (1, 7))  # (B, T): seven letters are read
    previous = torch.randint(len(LETTERS), (1, 5))  # five are written
    print(f"\n7 letters read, 5 written, states of {SIZE} numbers, untrained")
    for name, build in MODELS.items():
        model = build()
        logits, weights = model(source, previous)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        shape = "none" if weights is None else tuple(weights.shape)
        print(f"   {name:9} {parameters:>7,} parameters, logits {tuple(logits.shape)}, weights {shape}")


if __name__ == "__main__":
    cli.run(main)
