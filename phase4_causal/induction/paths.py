"""By which path does the answer reach the model's guess?

    clean       cat on RED swam big UP ... | cat on RED ?      swam: it came behind RED
    corrupted   cat on UP swam big RED ... | cat on RED ?      another: what came behind RED here

Patching (phase 3) puts what a part gave for the clean text into the reading of the corrupted one, path patching into
one receiver only (Wang et al. 2022; Goldowsky-Dill et al. 2023). How much of the clean answer's lead is back?
"""

import torch
from torch import Tensor, nn

from phase3_visualization.circuits.patching import Pairs, Patching, put_in
from phase4_causal.induction.induction_scores import repeated_sequences

TEXTS = 200


def sample_texts(draw: torch.Generator) -> Pairs:
    """Blocks of 12 words; two of the first copy are exchanged, and the second copy asks what follows one of them."""
    clean = repeated_sequences(TEXTS, draw, (12, 12), 16)
    corrupted = clean.clone()
    corrupted[:, [3, 8]] = clean[:, [8, 3]]
    return Pairs(clean, corrupted, torch.full((TEXTS,), 12 + 3), clean[:, [4, 9]])


def by_path(patching: Patching, senders: Tensor, receivers: Tensor) -> dict[str, float]:
    """Share of the lead that is back, by paths from some heads of layer 0 to some of layer 1, bool (H,) each."""
    receiver = patching.model.blocks[1].attention
    sent = patching.heads(0, patching.clean.outputs(0), senders[None, None])

    def through(part: nn.Linear) -> float:
        return patching.share((part, put_in(patching.given(part, sent), receivers[None, None]), False))

    return {
        "path by queries": through(receiver.w_q),
        "path by keys": through(receiver.w_k),
        "path by values": through(receiver.w_v),
        "path past layer 1": patching.share(sent, patching.heads(1, patching.corrupted.outputs(1))),
    }
