"""What does a window lose without the first token, and can a head rest otherwise?

The weights of a head sum to 1, also where it has nothing to find. Then it may rest on the first token, an attention
sink, and a cache that keeps the last words alone takes that from it (Xiao et al. 2023). Texts of toy words have both
cases: after a verb its subject is said again, the last noun of its class, or <mask> if there was none for long. All
other words are drawn by chance, and nothing is to be found:

    <start> dog lakes swam <mask> park slept dog hill ...

One layer with one head and rotary positions is trained on 24 words, each text read once. Then it reads 240, through

    all words                a cache that forgets nothing
    12 last words            a rolling cache (rolling_cache.py)
    first + 11 last words    the same number of slots, but the first word keeps its own

And heads that are given another place to rest (resting_heads.py) are trained on the same texts. Whether a head rests
depends on the seed, and so does what a window loses. About 8 s for a seed:

    python phase4_causal/serving/sinks.py

Writes sinks.png to visualizations/plots/phase4/.
"""

import random

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.serving.resting_heads import KINDS
from phase4_causal.serving.rolling_cache import RollingCache
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import MASK, PLACES, START, SUBJECTS, VERBS, encode
from shared.toy_model import ToyTransformer
from shared.visualization_utils import BLUE, GREY, RED, headline, label_ends, save_plot

LENGTH, LONG, SLOTS, NEAR = 24, 240, 12, 6  # words: trained on, read, kept; a verb's subject was said so near
D_MODEL, STEPS, BATCH, NUM_TEST, NUM_SHORT = 32, 400, 16, 100, 1000
LOSES = 0.005  # nats a word, from which on it counts
RATES = {"matrix_rate": 0.02, "rate": 0.01, "matrix_decay": 0.0}
CLASS = {noun: name for name, pairs in SUBJECTS.items() for pair in pairs for noun in pair}
OTHERS = [noun for pairs in PLACES.values() for pair in pairs for noun in pair]
FULL, WINDOW, KEPT = "all words", f"{SLOTS} last words", f"first + {SLOTS - 1} last words"
CACHES = {FULL: (LONG, 0), WINDOW: (SLOTS, 0), KEPT: (SLOTS, 1)}  # slots, and how many of them do not roll


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


def train(kind: str, tokens: Tensor, seed: int) -> ToyTransformer:
    """One layer, one head of this kind; tokens (steps, BATCH, LENGTH + 1): no text is read twice."""
    torch.manual_seed(seed)
    model = ToyTransformer(D_MODEL, 1, 1, make_attention=KINDS[kind])
    model.positions = torch.zeros(LONG, D_MODEL)  # nothing is added to words: the head turns queries and keys

    def loss_of_step(step: int) -> Tensor:
        return losses(model, tokens[step])[0].mean()

    training.fit(model, loss_of_step, len(tokens), **RATES, progress=f"sinks, {kind}")
    return model


def losses(model: ToyTransformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """tokens (N, T + 1) -> loss in nats of each next word (N, T), weights (N, H, T, T)."""
    logits, (weights,) = model(tokens[:, :-1])
    return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none"), weights  # (N, T, V) -> (N, V, T) -> (N, T)


@torch.no_grad()
def read(model: ToyTransformer, tokens: Tensor, slots: int, sinks: int) -> Tensor:
    """losses, read word by word through a rolling cache."""
    cache = RollingCache(KeyValueCache(len(tokens), 1, slots, D_MODEL), sinks)
    logits = torch.cat([model(word, caches=[cache])[0] for word in tokens[:, :-1].split(1, dim=1)], dim=1)
    return F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")


@torch.no_grad()
def at_rest(model: ToyTransformer, tokens: Tensor) -> tuple[float, float]:
    """As trained: the loss, and the weight on the first token where nothing is asked, from place SLOTS on."""
    loss, weights = losses(model, tokens)
    verbs = torch.isin(tokens[:, SLOTS:-1], torch.tensor(encode(list(VERBS))))
    return loss[:, SLOTS:].mean().item(), weights[:, 0, SLOTS:, 0][~verbs].mean().item()


TRAINED, ON_FIRST, EVEN = "as trained", "on the first token", "even share"
MADE = {f"{ON_FIRST}, {kind}": 0.8 for kind in KINDS} | {FULL: 3.6, WINDOW: 3.4, KEPT: 3.4, f"{TRAINED}, plain": 3.4}


@measures(
    Claim(
        id="sink-window",
        text="A window that the first token leaves loses by it, on texts ten times as long as those of training; with "
        "one of its slots kept for that token it reads on as it was trained to",
        kind=EXPERIMENT,
        source="Xiao et al. 2023, sections 3.1 and 3.2",
        rule="beyond the trained length the window alone loses more than 0.005 nats a word more than with a slot kept, "
        "and this at most 0.1 more than at the trained length",
        holds=lambda n: n[WINDOW] - n[KEPT] > LOSES and n[KEPT] - n[f"{TRAINED}, plain"] <= 0.1,
        oracle=MADE | {WINDOW: 3.8},
        null=MADE,
        unit="nats a word",
        control="the same number of slots; a cache of all words",
        shows=(FULL, WINDOW, KEPT, f"{TRAINED}, plain"),
    ),
    Claim(
        id="sink-remedies",
        text="A head with a learned logit in its softmax, or a gate on its output, has no attention sink",
        kind=EXPERIMENT,
        source="Miller 2023 and gpt-oss (OpenAI 2025) for the logit; Qiu et al. 2025 for the gate",
        rule="where nothing is asked the first token gets at most half of what the plain head gives it, with either",
        holds=lambda n: 2 * max(n[f"{ON_FIRST}, {kind}"] for kind in ("logit", "gate")) <= n[f"{ON_FIRST}, plain"],
        oracle=MADE | {f"{ON_FIRST}, {kind}": 0.05 for kind in ("logit", "gate")},
        null=MADE,
        unit="mean weight on the first token where nothing is asked; loss as trained, nats a word",
        control="the plain head, on the same texts; an even share. A logit adds 1 parameter to 11,941, a gate 33",
        shows=(f"{ON_FIRST}, *", EVEN, f"{TRAINED}, *"),
    ),
)
def resting(models: dict[str, ToyTransformer], by_place: dict[str, Tensor], seed: int) -> dict[str, float]:
    """Losses of the plain model beyond LENGTH by cache; of every kind the loss as trained and what the first gets."""
    found = {name: loss[LENGTH:].mean().item() for name, loss in by_place.items()}
    short = texts(NUM_SHORT, LENGTH, 10**6 + seed)
    for kind, model in models.items():
        found[f"{TRAINED}, {kind}"], found[f"{ON_FIRST}, {kind}"] = at_rest(model, short)
    return found | {EVEN: torch.arange(SLOTS + 1, LENGTH + 1).reciprocal().mean().item()}


def show(n: Numbers) -> None:
    print(f"\nTrained on {LENGTH} words, read {LONG}: loss in nats a word, from word {LENGTH} on")
    for name in CACHES:
        print(f"   {name:22} {n[name]:.3f}")
    print(f"\nAs trained: loss, weight on {START} where nothing is asked (even share {n[EVEN]:.2f})")
    for kind in KINDS:
        print(f"   {kind:8} {n[f'{TRAINED}, {kind}']:.3f}  {n[f'{ON_FIRST}, {kind}']:.2f}")


def draw(by_place: dict[str, Tensor], n: Numbers, note: str) -> tuple[Figure, str]:
    """How much each cache loses beside the one that keeps the first word; a point is the mean of SLOTS words."""
    fig, ax = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    ends, places = {}, torch.arange(SLOTS, LONG + 1, SLOTS)
    for name, color in zip(CACHES, (GREY, RED, BLUE), strict=True):
        more = (by_place[name] - by_place[KEPT]).view(-1, SLOTS).mean(dim=1)  # (LONG,) -> (LONG / SLOTS,)
        ax.plot(places, more, "o-", color=color, linewidth=2.5, ms=5)
        ends[name] = (LONG, more[-1].item(), color)
    ax.axvspan(0, LENGTH, color=GREY, alpha=0.15, linewidth=0)
    ax.text(0, 1.02, f"shaded: {LENGTH} words, as in training", transform=ax.get_xaxis_transform())
    ax.set(xlabel="words read", ylabel="nats a word more than\nwith the first word kept", xlim=(0, LONG))
    lost = n[WINDOW] - n[KEPT]
    loses = f"{lost:.2g} nats a word" if lost > LOSES else "hardly anything"
    title = f"Without the first word a window of {SLOTS} loses {loses}"
    headline(fig, title, note)
    label_ends(ax, ends, size=12)
    return fig, f"{title}. Loss against the place in a long text, with three caches."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    found = []
    for seed in cli.seeds(options):
        batches = texts(steps * BATCH, LENGTH, seed).view(steps, BATCH, -1)
        models = {kind: train(kind, batches, seed) for kind in KINDS}
        tokens = texts(NUM_TEST, LONG, 2 * 10**6 + seed)
        by_place = {name: read(models["plain"], tokens, *sizes).mean(dim=0) for name, sizes in CACHES.items()}
        found.append(resting(models, by_place, seed))
        if seed == options.seed:
            show(found[0])
            note = f"1 layer, 1 head, trained {steps} steps, seed {seed} · {NUM_TEST} texts, means of {SLOTS} words"
            save_plot(options, "phase4/sinks", *draw(by_place, found[0], note))
    findings.record(options, *found, show_numbers=False)
    rests = ", ".join(f"{kind} {found[0][f'{ON_FIRST}, {kind}']:.2f}" for kind in KINDS)
    return f"{found[0][WINDOW] - found[0][KEPT]:.2g} nats a word without the first; weight on it: {rests}"


if __name__ == "__main__":
    cli.run(main)
