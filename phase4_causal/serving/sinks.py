"""What does a window lose without the first token?

A head with nothing to find may rest on the first token, an attention sink, and a cache that keeps the last words alone
takes that from it (Xiao et al. 2023). Texts of toy words have both cases: after a verb its subject is said again, the
last noun of its class, or <mask> if there was none for long. One head is trained on 24 words, then reads 240.
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving.rolling_cache import RollingCache
from phase4_causal.serving.rotary_attention import RotaryHeads
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run
from shared.optimization import fit
from shared.toy_language import MASK, PLACES, START, SUBJECTS, VERBS, encode
from shared.toy_model import ToyTransformer

LENGTH, LONG, SLOTS, NEAR = 24, 240, 12, 6  # words: trained on, read, kept; a verb's subject was said so near
D_MODEL, STEPS, BATCH = 32, 400, 16
CLASS = {noun: name for name, pairs in SUBJECTS.items() for pair in pairs for noun in pair}
OTHERS = [noun for pairs in PLACES.values() for pair in pairs for noun in pair]
CACHES = {"all words": (LONG, 0), "12 last words": (SLOTS, 0), "first + 11 last words": (SLOTS, 1)}  # slots, sinks


def text(length: int, rng: random.Random) -> list[int]:
    """Token ids of <start> and `length` words: after a verb comes the last noun of its class, or <mask>."""
    words = [START]
    while len(words) <= length:
        near, kept = ({CLASS[word]: word for word in words[-n:] if word in CLASS} for n in (NEAR, SLOTS))
        verbs = [verb for verb, (name, _, _) in VERBS.items() if name in near or name not in kept]
        kind = rng.choices(("verb", "subject", "other"), (5, 3, 12))[0]
        if kind == "verb" and verbs:
            verb = rng.choice(verbs)
            words += [verb, near.get(VERBS[verb][0], MASK)]
        else:
            words.append(rng.choice(list(CLASS) if kind == "subject" else OTHERS))
    return encode(words[: length + 1])


def texts(count: int, length: int, seed: int) -> Tensor:
    """New texts -> tokens (count, length + 1)."""
    rng = random.Random(seed)
    return torch.tensor([text(length, rng) for _ in range(count)])


def train(seed: int, steps: int) -> ToyTransformer:
    """One layer, one head with rotary positions; no text is read twice."""
    batches = texts(steps * BATCH, LENGTH, seed).view(steps, BATCH, -1)
    torch.manual_seed(seed)
    model = ToyTransformer(D_MODEL, 1, 1, make_attention=RotaryHeads)
    model.positions = torch.zeros(LONG, D_MODEL)  # nothing is added to words: the head turns queries and keys

    def loss_of_step(step: int) -> Tensor:
        return F.cross_entropy(model(batches[step, :, :-1])[0].mT, batches[step, :, 1:])

    fit(model, loss_of_step, steps, matrix_rate=0.02, rate=0.01, matrix_decay=0.0)
    return model


@torch.no_grad()
def read(model: ToyTransformer, tokens: Tensor, slots: int, sinks: int) -> float:
    """Loss in nats a word beyond the trained length, read word by word through a rolling cache: tokens (N, T + 1)."""
    cache = RollingCache(KeyValueCache(len(tokens), 1, slots, D_MODEL), sinks)
    logits = torch.cat([model(word, caches=[cache])[0] for word in tokens[:, :-1].split(1, dim=1)], dim=1)
    return F.cross_entropy(logits[:, LENGTH:].mT, tokens[:, LENGTH + 1 :]).item()  # (N, T, V) -> (N, V, T)


@torch.no_grad()
def weight_on_first(model: ToyTransformer, tokens: Tensor) -> float:
    """What the first token gets in texts as in training where nothing is asked, from place SLOTS on."""
    _, (weights,) = model(tokens[:, :-1])
    verbs = torch.isin(tokens[:, SLOTS:-1], torch.tensor(encode(list(VERBS))))
    return weights[:, 0, SLOTS:, 0][~verbs].mean().item()  # (N, 1, T, T) -> (places that count,)


def measure(run: Run) -> Numbers:
    """Loss in nats a word in long texts, by cache; and whether the head rests."""
    model, tokens = train(run.seed, run.steps(STEPS)), texts(100, LONG, 2 * 10**6 + run.seed)
    numbers = {name: read(model, tokens, slots, sinks) for name, (slots, sinks) in CACHES.items()}
    return numbers | {"weight on the first": weight_on_first(model, texts(1000, LENGTH, 10**6 + run.seed))}


main = Experiment(
    measure,
    answer="{n[12 last words]:.2f} nats a word without the first, {n[first + 11 last words]:.2f} with it; weight on "
    "it: {n[weight on the first]:.2f}",
)

if __name__ == "__main__":
    main.run()
