"""Why was attention invented?

A recurrent reader takes in a string of random letters, a recurrent writer writes it backwards. y is the letter written
last, s the writer's state, memory the reader's states, c what attention brings:

    none        s = GRU(y, s)                                    all it knows of the string is where s starts
    Luong       s = GRU(y, s), then c = attention(s, memory)     predicts from tanh(W [c; s])   (Luong et al. 2015)
    Bahdanau    c = attention(s, memory), then s = GRU([c; y], s)        predicts from [c; s]   (Bahdanau et al. 2014)

Without attention all that the writer knows of the string is one vector of 64 numbers, whatever the length: the
bottleneck. With attention it also looks back at every state of the reader: Luong's after it has read y, Bahdanau's
before. All three are trained alike on strings of 4 to 24 letters, and tested on longer ones too.

    python phase1_single_head/before/bottleneck.py
    python phase1_single_head/before/bottleneck.py --seeds 3

Writes bottleneck.png and alignment.png to visualizations/plots/phase1/.
"""

import string
from statistics import mean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.before.scoring import AdditiveAttention, LuongAttention, attend, parameters
from phase1_single_head.parts.queries_and_keys import share_on_diagonal
from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, Claim, Measured, Numbers, measures
from shared.visualization_utils import (
    INK,
    QUIET,
    head_color,
    headline,
    model_note,
    plot_attention,
    save_plot,
    weight_colorbar,
)

LETTERS = string.ascii_lowercase[:12]
START = len(LETTERS)  # what the writer reads before it has written anything
SIZE = 64  # of embeddings and states
SHORTEST, LONGEST = 4, 24  # in training
TEST_LENGTHS = (4, 8, 12, 16, 20, 24, 32, 40)
ALONE_LENGTHS = (4, 12, 24)  # writing alone is slow: every letter runs the model once more
BATCH, STEPS, LEARNING_RATE, NUM_TEST = 64, 300, 2e-2, 100
COLORS = {"none": QUIET, "Luong": head_color(0), "Bahdanau": head_color(1)}


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
        keys, states, rows = self.attention.w_k(memory), [], []  # the keys are the same for every letter
        for letter in self.embedding(previous).unbind(dim=1):  # (B, SIZE), one position after the other
            scores = self.attention.score(self.attention.w_q(state)[:, None], keys)  # (B, 1, T)
            context, weights = attend(scores, memory, None)  # (B, 1, SIZE), (B, 1, 1, T)
            state = self.decoder(torch.cat([letter, context[:, 0]], dim=-1), state)
            states.append(torch.cat([context[:, 0], state], dim=-1))
            rows.append(weights)
        return self.to_logits(torch.stack(states, dim=1)), torch.cat(rows, dim=2)


MODELS = {"none": Seq2Seq, "Luong": LuongSeq2Seq, "Bahdanau": BahdanauSeq2Seq}


def draw_strings(number: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random strings, what the decoder reads, what it is to write; each (number, length)."""
    source = torch.randint(len(LETTERS), (number, length), generator=generator)
    target = source.flip(dims=[1])
    start = torch.full((number, 1), START)
    return source, torch.cat([start, target[:, :-1]], dim=1), target


def train(name: str, seed: int, steps: int) -> Seq2Seq:
    """Train one model on strings of random length, the same strings for every model."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name]()

    def loss_of_step(_: int) -> Tensor:
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        source, previous, target = draw_strings(BATCH, length, generator)
        return F.cross_entropy(model(source, previous)[0].flatten(0, 1), target.flatten())

    name = f"reversing strings, attention: {name}"
    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE, progress=name)
    return model


@torch.no_grad()
def accuracy_by_place(model: Seq2Seq, length: int = LONGEST) -> Tensor:
    """Share of letters right by their place in the string that was read, each after the right letters -> (length,)."""
    source, previous, target = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6 + length))
    logits, _ = model(source, previous)
    return (logits.argmax(dim=-1) == target).float().mean(dim=0).flip(dims=[0])  # as written -> as read


@torch.no_grad()
def accuracy_alone(model: Seq2Seq, length: int) -> float:
    """Share of letters right when the model reads its own letters, so that one mistake can lead to the next."""
    source, previous, target = draw_strings(NUM_TEST, length, torch.Generator().manual_seed(10**6 + length))
    written = previous[:, :1]
    for _ in range(length):
        logits, _ = model(source, written)
        written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    return (written[:, 1:] == target).float().mean().item()


ON, AFTER, SAME, OWN = "on the letter", "one after it", "on the same place", ", after its own"


@torch.no_grad()
def alignment(model: Seq2Seq) -> dict[str, float]:
    """Where the largest weight lies while letters are written (shares), and the smallest weight of all."""
    source, previous, _ = draw_strings(NUM_TEST, LONGEST, torch.Generator().manual_seed(10**6))
    _, weights = model(source, previous)
    copied = torch.arange(LONGEST).flip(dims=[0])  # step 0 copies the last letter
    offset = weights[:, 0].argmax(dim=-1) - copied  # (B, T)
    found = {name: (offset == by).float().mean().item() for name, by in ((ON, 0), (AFTER, 1))}
    return found | {SAME: share_on_diagonal(weights), "smallest weight": weights.min().item()}


def bare_diagonal() -> float:
    """Share of rows with the largest weight on themselves, in self-attention among random vectors, Q = K = V = X."""
    x = torch.randn(NUM_TEST, LONGEST, SIZE, generator=torch.Generator().manual_seed(0))
    return share_on_diagonal(scaled_dot_product_attention(x, x, x)[1])


def letters_right(**shares: float) -> dict[str, list[float]]:
    """Made numbers: each model's share at the longest length of training; all are right at the shortest."""
    return {f"{name}, {LONGEST} letters": [share] for name, share in shares.items()} | {
        f"{name}, {SHORTEST} letters": [1.0] for name in shares
    }


@measures(
    Claim(
        id="I134",
        text="A vector of fixed size is a bottleneck for long strings; attention opens it",
        kind=EXPERIMENT,
        source="Bahdanau et al. 2014; Cho et al. 2014",
        rule=f"at {LONGEST} letters at least 0.93 with attention, at most 0.55 without; at {SHORTEST} all above 0.9",
        holds=lambda n: (
            min(n["Luong, 24 letters"] + n["Bahdanau, 24 letters"]) >= 0.93
            and max(n["none, 24 letters"]) <= 0.55
            and min(n["none, 4 letters"]) >= 0.9
        ),
        oracle=letters_right(Luong=1.0, Bahdanau=1.0, none=0.4),
        null=letters_right(Luong=0.4, Bahdanau=0.4, none=0.4),
        unit="share of letters right, strings not trained on",
        control="the same strings, sizes and steps without attention",
        shows=("*letters",),
    ),
    Claim(
        id="C174",
        text="Without attention the letters read first are forgotten",
        kind=EXPERIMENT,
        rule="the first quarter at least 0.2 below the last, with every seed",
        holds=lambda n: all(a <= b - 0.2 for a, b in zip(n["first quarter"], n["last quarter"], strict=True)),
        oracle={"first quarter": [0.1], "last quarter": [1.0]},
        null={"first quarter": [0.5], "last quarter": [0.5]},
        unit=f"share of letters right without attention, by place in a string of {LONGEST} letters",
        shows=("* quarter",),
    ),
)
def letters_that_pass(models: dict[str, list[Seq2Seq]]) -> dict[str, list[float]]:
    """Share of letters right by model and length, and without attention by place, a number for each seed."""
    found = {
        f"{name}, {length} letters": [accuracy_by_place(model, length).mean().item() for model in runs]
        for name, runs in models.items()
        for length in TEST_LENGTHS
    }
    for name, runs in models.items():
        for length in ALONE_LENGTHS:
            found[f"{name}, {length} letters{OWN}"] = [accuracy_alone(runs[0], length)]
    places, quarter = [accuracy_by_place(model) for model in models["none"]], LONGEST // 4
    return found | {
        "first quarter": [place[:quarter].mean().item() for place in places],
        "last quarter": [place[-quarter:].mean().item() for place in places],
    }


def lowest(numbers: Numbers, *places: str) -> float:
    """Of both attentions and all seeds: the least share of letters with the largest weight on one of the places."""
    return min(
        sum(shares)
        for name in ("Luong", "Bahdanau")
        for shares in zip(*(numbers[f"{name}, {place}"] for place in places), strict=True)
    )


def looking(on: float, same: float) -> dict[str, float | list[float]]:
    """Made numbers: the shares on the letter and on the same place, both attentions alike."""
    shares = {ON: [on], AFTER: [0.0], SAME: [same]}
    return {f"{name}, {place}": share for name in ("Luong", "Bahdanau") for place, share in shares.items()}


@measures(
    Claim(
        id="C172",
        text="The decoder attends to all states of the encoder",
        kind=IDENTITY,
        source="Bahdanau et al. 2014",
        rule="above 0: every state contributes to every letter",
        holds=lambda n: min(n["Luong, smallest weight"] + n["Bahdanau, smallest weight"]) > 0,
        unit=f"smallest of all weights on strings of {LONGEST} letters",
        shows=("*smallest weight",),
    ),
    Claim(
        id="C146",
        text="A line of large weights across the picture means that words attend to themselves",
        kind=EXPERIMENT,
        rule="where more than 0.6 lie on a line, more than 0.6 lie on the same place as well",
        holds=lambda n: min(n[f"Luong, {ON}"] + n[f"Luong, {SAME}"]) > 0.6,
        only_if=lambda n: n["same place, self-attention, Q = K"] > 0.6,
        condition="it is the diagonal of self-attention; across two sequences a line is their common order",
        oracle=looking(on=1.0, same=1.0),
        null=looking(on=1.0, same=0.0) | {"same place, self-attention, Q = K": 1.0},
        unit=f"share of {LONGEST} rows by where the largest weight lies",
        shows=(f"Luong, {ON}", f"Luong, {SAME}", "same place*"),
    ),
    Claim(
        id="bottleneck-alignment",
        text="The weights of Luong and of Bahdanau follow the letter that is being copied",
        kind=EXPERIMENT,
        source="Luong et al. 2015; Bahdanau et al. 2014",
        rule="at least 0.8 on the letter itself, with both",
        holds=lambda n: lowest(n, ON) >= 0.8,
        only_if=lambda n: lowest(n, ON, AFTER) >= 0.8,
        condition="one place is allowed: Bahdanau's query is the state before it has read the letter written last",
        oracle=looking(on=1.0, same=0.0),
        null=looking(on=1 / LONGEST, same=1 / LONGEST),
        unit="share of letters with the largest weight there",
        shows=(f"*, {ON}", f"*, {AFTER}"),
    ),
)
def where_they_look(models: dict[str, list[Seq2Seq]]) -> dict[str, float | list[float]]:
    """The alignment of both attentions, a number for each seed, and a diagonal to compare with."""
    runs = {name: [alignment(model) for model in models[name]] for name in ("Luong", "Bahdanau")}
    found = {f"{name}, {place}": [run[place] for run in runs[name]] for name in runs for place in runs[name][0]}
    return found | {"same place, self-attention, Q = K": bare_diagonal()}


def draw_accuracy(right: Measured, steps: int) -> tuple[Figure, str]:
    """Letters right against length, a line for each model; beyond the longest training string on grey ground."""
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    ax.axvspan(LONGEST, TEST_LENGTHS[-1] + 1, color="#f1f2f4", zorder=0)
    ax.text(LONGEST + 0.5, 0.02, "longer than in training", fontsize=8.5, color=QUIET)
    heights = {"none": "center", "Luong": "bottom", "Bahdanau": "top"}  # of labels at ends that lie close together
    for name, color in COLORS.items():
        for lengths, style, ending in ((TEST_LENGTHS, "-", ""), (ALONE_LENGTHS, "--", OWN)):
            values = [mean(right[f"{name}, {length} letters{ending}"]) for length in lengths]
            ax.plot(lengths, values, style, color=color, marker="o", markersize=4)
        end = mean(right[f"{name}, {TEST_LENGTHS[-1]} letters"])
        label = "no attention" if name == "none" else name
        ax.text(TEST_LENGTHS[-1] + 1.5, end, label, color=color, va=heights[name], fontsize=9.5)
    ax.axhline(1 / len(LETTERS), color=INK, linewidth=0.8, linestyle=":")
    ax.text(SHORTEST, 1 / len(LETTERS) + 0.01, "by chance", fontsize=8.5, va="bottom")
    ax.set(xlim=(3, 47), ylim=(0, 1.03), yticks=(0, 0.5, 1), xticks=TEST_LENGTHS)
    ax.set(xlabel="letters to reverse", ylabel="letters right")
    without, *with_it = (min(right[f"{name}, {LONGEST} letters"]) for name in COLORS)
    title = f"Of {LONGEST} letters {without:.0%} pass the bottleneck, {min(with_it):.0%} with attention"
    ax.set_title(title, pad=12)
    model_note(fig, f"trained {steps} steps · full line: after the right letters, dashed: after its own")
    return fig, title + ": share of letters right when a recurrent model writes a string backwards."


@torch.no_grad()
def draw_alignment(models: dict[str, list[Seq2Seq]], looks: Measured, steps: int) -> tuple[Figure, str]:
    """The weights of both attentions while the same string is written backwards."""
    source, previous, target = draw_strings(1, 12, torch.Generator().manual_seed(12))
    read, wrote = ([LETTERS[i] for i in row[0].tolist()] for row in (source, target))
    fig, axes = plt.subplots(1, 2, figsize=(10, 5.4), layout="compressed")
    entropy = []
    for ax, name in zip(axes, ("Luong", "Bahdanau"), strict=True):
        _, weights = models[name][0](source, previous)
        entropy.append(normalized_entropy(weights).mean().item())
        plot_attention(weights[0, 0], wrote, read, ax=ax, annotate=False)
        ax.set(xlabel="letter read (key)", ylabel="letter written (query)" if name == "Luong" else "")
        on, after = (looks[f"{name}, {place}"][0] for place in (ON, AFTER))
        ax.set_title(f"{name}: {on:.0%} {ON}, {after:.0%} {AFTER}", pad=10)
    weight_colorbar(fig, list(axes), shrink=0.6)
    title = "Nobody told them where to look: the weights run backwards through the string"
    if lowest(looks, ON, AFTER) < 0.8:
        title = f"{steps} steps are too few: the weights do not follow the letters yet"
    headline(fig, title, f"trained {steps} steps · normalised entropy {entropy[0]:.2f} and {entropy[1]:.2f}")
    return fig, title + ". Letters written down, letters read across; attention of Luong and of Bahdanau."


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    models = {name: [train(name, seed, steps) for seed in cli.seeds(options)] for name in MODELS}
    right, aligned = letters_that_pass(models), where_they_look(models)
    print(f"\nLetters right, {NUM_TEST} strings not trained on (by chance {1 / len(LETTERS):.2f}), seed {options.seed}")
    print(f"   {'letters to reverse':25}" + "".join(f"{length:>6}" for length in TEST_LENGTHS))
    for name, (model, *_) in models.items():
        for label, ending in ((f"{name}, {parameters(model):,} weights", ""), ("  after its own letters", OWN)):
            shares = [right.get(f"{name}, {length} letters{ending}") for length in TEST_LENGTHS]
            print(f"   {label:25}" + "".join(" " * 6 if share is None else f"{share[0]:>6.2f}" for share in shares))
    for name in ("Luong", "Bahdanau"):
        looks = ", ".join(f"{aligned[f'{name}, {place}'][0]:.2f} {place}" for place in (ON, AFTER, SAME))
        print(f"   where {name}'s largest weight lies: {looks}")
    save_plot(options, "phase1/bottleneck", *draw_accuracy(right, steps))
    save_plot(options, "phase1/alignment", *draw_alignment(models, aligned, steps))
    findings.record(options, right, aligned, show_numbers=False)
    without, with_it = (right[f"{name}, {LONGEST} letters"][0] for name in ("none", "Luong"))
    return f"Of {LONGEST} letters {without:.0%} pass one vector of {SIZE} numbers, {with_it:.0%} pass with attention"


if __name__ == "__main__":
    cli.run(main)
