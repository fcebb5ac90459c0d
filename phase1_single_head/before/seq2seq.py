"""How did one network translate what another has read, before attention and with it?

A recurrent reader takes in a text, a recurrent writer writes another. y is what was written last, s
the writer's state, memory the reader's states, c what attention brings:

    none      s = GRU(y, s)            all it knows of the text is where s starts
    Bahdanau  c = attention(s, memory), and then
              s = GRU([y; c], s)       (Bahdanau et al. 2014)
    Luong     the same s as with none, and then
              c = attention(s, memory), and y comes from tanh(W [c; s])   (Luong et al. 2015)
"""

import torch
from torch import Tensor, nn

from phase1_single_head.before.additive import AdditiveAttention, LuongAttention

SIZE = 64  # of embeddings and states


class Seq2Seq(nn.Module):
    """A GRU that reads and a GRU that writes; between them one vector, the reader's last state.

    letters: how many there are to read and write. The writer's first input is one more, number
    `letters`.
    """

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters + 1, SIZE)
        self.encoder = nn.GRU(SIZE, SIZE, batch_first=True)
        self.decoder = nn.GRU(SIZE, SIZE, batch_first=True)
        self.to_logits = nn.Linear(SIZE, letters)

    def read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source (B, T) -> every state of the encoder (B, T, SIZE), and the last one (B, SIZE)."""
        memory, last = self.encoder(self.embedding(source))  # last (1, B, SIZE)
        return memory, last[0]

    def forward(self, source: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns logits (B, T, letters), and the weights if there is attention.

        source (B, T_k): what is read. previous (B, T): the letter before each to be written.
        """
        _, last = self.read(source)
        states, _ = self.decoder(self.embedding(previous), last[None])  # last -> (1, B, SIZE)
        return self.to_logits(states), None


def bahdanau_step(
    attention: AdditiveAttention, cell: nn.GRUCell, state: Tensor, letter: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of a writer whose state asks before it reads the last letter.

    state (B, SIZE), letter (B, SIZE): the embedding of what was written last, memory (B, T_k,
    SIZE). Returns the new state (B, SIZE), from which comes the next letter, and the weights (B, 1,
    T_k).
    """
    scores = attention.score(state[:, None], memory)  # -> (B, 1, T_k)
    weights = torch.softmax(scores, dim=-1)  # sum to 1
    context = (weights @ memory).squeeze(1)  # -> (B, SIZE): what was found
    new_state = cell(torch.cat([letter, context], dim=-1), state)  # -> (B, SIZE)
    return new_state, weights


class LuongSeq2Seq(Seq2Seq):
    """The decoder steps first, then its new state asks; so that all states can ask at once."""

    def __init__(self, letters: int) -> None:
        super().__init__(letters)
        self.attention = LuongAttention(SIZE)
        self.combine = nn.Linear(2 * SIZE, SIZE)

    def forward(self, source: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        memory, last = self.read(source)
        states, _ = self.decoder(self.embedding(previous), last[None])
        context, weights = self.attention(states, memory)  # (B, T, SIZE), (B, 1, T, T_k)
        both = torch.cat([context, states], dim=-1)  # -> (B, T, 2 SIZE)
        return self.to_logits(torch.tanh(self.combine(both))), weights
