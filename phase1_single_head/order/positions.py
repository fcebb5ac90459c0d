"""What can be learned without positions, and with which?

Two tasks that are nothing but order, for one block with one head, with each encoding of position_encodings.py and with
none. All places see each other:

    reverse              place i of 16 is to say the symbol at place 15 - i: it must know where it stands
    copy 3 to the left   place i is to say the symbol at place i - 3: knowing distances is enough

Then strings up to 16 times as long as in training, and the question whether words or places decide the weights.

    python phase1_single_head/order/positions.py
    python phase1_single_head/order/positions.py --seeds 3

Writes positions.png to visualizations/plots/phase1/.
"""

import copy
import statistics
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from phase1_single_head.order.position_encodings import RotarySelfAttention, against_the_fall, similarity_by_distance
from phase1_single_head.self_attention import SelfAttention, load_single_head_model
from shared import cli, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Measured, measures
from shared.toy_language import encode, sample_corpus
from shared.toy_model import Block, ToyTransformer, sinusoidal_positions
from shared.visualization_utils import QUIET, grouped_bars, head_color, headline, save_plot

ENCODINGS = ("none", "sinusoidal", "learned", "rotary")
REVERSE, COPY = "reverse", "copy 3 to the left"
FIRST_PLACE = {REVERSE: 0, COPY: 3}  # the first that has an answer
SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 10, 16, 32, 32, 150, 1.5e-2
TEST_LENGTHS, NUM_TEST = (LENGTH, 32, 64, 128, 256), 100
COLORS = {"none": QUIET} | {name: head_color(index) for index, name in enumerate(ENCODINGS[1:])}


class SymbolMover(nn.Module):
    """Embedding, one block with one head, linear. Everything but the encoding starts with the same numbers."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        attention_class = RotarySelfAttention if encoding == "rotary" else SelfAttention
        longest = max(TEST_LENGTHS)  # training stops at 16: a learned table is not trained beyond
        tables = {"sinusoidal": sinusoidal_positions(longest, D_MODEL), "learned": torch.randn(longest, D_MODEL)}
        table = tables.get(encoding, torch.zeros(longest, D_MODEL))
        self.embedding = nn.Embedding(SYMBOLS, D_MODEL)
        self.positions = nn.Parameter(table, requires_grad=encoding == "learned")
        self.block = Block(D_MODEL, attention_class(D_MODEL, output_projection=True))
        self.to_logits = nn.Linear(D_MODEL, SYMBOLS)

    def forward(self, symbols: Tensor) -> tuple[Tensor, Tensor]:
        """symbols (B, T) -> logits (B, T, SYMBOLS), weights (B, 1, T, T)."""
        x, weights = self.block(self.embedding(symbols) + self.positions[: symbols.size(1)])
        return self.to_logits(x), weights


def answers(task: str, symbols: Tensor) -> Tensor:
    """symbols (B, T) -> what each place is to say, (B, T); meaningless before FIRST_PLACE[task]."""
    return symbols.flip(dims=[1]) if task == REVERSE else symbols.roll(FIRST_PLACE[COPY], dims=1)


def train(encoding: str, task: str, seed: int, steps: int) -> SymbolMover:
    """Train one model on random strings of 16 symbols, the same strings for every encoding."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = SymbolMover(encoding)
    first = FIRST_PLACE[task]

    def loss_of_step(_: int) -> Tensor:
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, wanted = model(symbols)[0][:, first:], answers(task, symbols)[:, first:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    training.fit(model, loss_of_step, steps, matrix_rate=None, rate=LEARNING_RATE)
    return model


def new_strings(length: int) -> Tensor:
    return torch.randint(SYMBOLS, (NUM_TEST, length), generator=torch.Generator().manual_seed(10**6 + length))


@torch.no_grad()
def right_by_place(model: SymbolMover, task: str, length: int = LENGTH) -> Tensor:
    """Share of right answers on strings not trained on, (length,)."""
    symbols = new_strings(length)
    return (model(symbols)[0].argmax(dim=-1) == answers(task, symbols)).double().mean(dim=0)


def right(model: SymbolMover, task: str, length: int = LENGTH) -> float:
    """Share of right answers; of longer strings than in training, at the places beyond, which no training has seen."""
    return right_by_place(model, task, length)[FIRST_PLACE[task] if length == LENGTH else LENGTH :].mean().item()


def most_frequent() -> float:
    """Share of places that hold the most frequent symbol of their string: what a bag of symbols lets one guess."""
    counts = F.one_hot(new_strings(LENGTH), SYMBOLS).sum(dim=1)  # (B, T, SYMBOLS) -> (B, SYMBOLS)
    return (counts.max(dim=-1).values / LENGTH).mean().item()


Models = dict[tuple[str, str], list[SymbolMover]]  # (encoding, task) -> one for each seed
GUESS, ENDS = "the most frequent symbol", "reverse with rotary, first and last place"


def made(none: float = 0.24, rotary: float = 1.0, longer: float = 0.1) -> dict[str, float | list[float]]:
    """Made numbers: right at both tasks with these encodings, the others 1, and on strings longer than in training."""
    shares = {"none": none, "sinusoidal": 1.0, "learned": 1.0, "rotary": rotary}
    numbers = {f"{name}, {task}": [share] for name, share in shares.items() for task in FIRST_PLACE}
    numbers |= {f"{name}, {COPY}, of {n}": [longer] for name in ENCODINGS for n in TEST_LENGTHS[1:]}
    return numbers | {GUESS: 0.24}


@measures(
    Claim(
        id="positions-reversal",
        text="Without positions a transformer cannot make use of order",
        kind=EXPERIMENT,
        source="Vaswani et al. 2017, section 3.5",
        rule="none at most 0.05 above naming the most frequent symbol; sinusoidal and learned at least 0.95",
        holds=lambda n: (
            max(n[f"none, {REVERSE}"]) <= n[GUESS] + 0.05
            and min(n[f"sinusoidal, {REVERSE}"] + n[f"learned, {REVERSE}"]) >= 0.95
        ),
        oracle=made(),
        null=made(none=1.0),
        unit=f"share of places right, strings of {LENGTH} reversed, not trained on",
        control="the same model, strings and steps with positions",
        shows=(f"*, {REVERSE}", GUESS),
    ),
    Claim(
        id="positions-rotary",
        text="Rotary positions can stand in for added ones",
        kind=EXPERIMENT,
        source="models that have rotary positions only, such as LLaMA (Touvron et al. 2023)",
        rule="at least 0.95 on both tasks; for distances: on copying alone",
        holds=lambda n: min(n[f"rotary, {COPY}"] + n[f"rotary, {REVERSE}"]) >= 0.95,
        only_if=lambda n: min(n[f"rotary, {COPY}"]) >= 0.95,
        condition="distances are enough: one layer without a mask does not learn from them where it stands",
        oracle=made(),
        null=made(rotary=0.24),
        unit=f"share of places right, strings of {LENGTH}",
        control="sinusoidal and learned ones, on both tasks",
        shows=(f"*, {COPY}", f"rotary, {REVERSE}", ENDS),
    ),
    Claim(
        id="positions-longer",
        text="Sinusoidal positions may let a model go on to longer sequences than in training",
        kind=EXPERIMENT,
        source="Vaswani et al. 2017, section 3.5",
        rule="sinusoidal at least 0.95",
        holds=lambda n: min(n[f"sinusoidal, {COPY}, of 32"]) >= 0.95,
        oracle=made(longer=1.0),
        null=made(longer=0.1),
        unit=f"share right, {COPY}, strings of 32, places beyond the {LENGTH} of training",
        control="all three on strings as long as in training",
        shows=(f"*, {COPY}, of 32",),
    ),
    Claim(
        id="rotary-longer",
        text="Rotary positions leave the length of the sequence open",
        kind=EXPERIMENT,
        source="Su et al. 2021, abstract: flexibility of sequence length",
        rule="at least 0.95 at both lengths",
        holds=lambda n: min(n[f"rotary, {COPY}, of 32"] + n[f"rotary, {COPY}, of 256"]) >= 0.95,
        only_if=lambda n: min(n[f"rotary, {COPY}, of 32"]) >= 0.95,
        condition="the strings are not much longer: with the length come distances that no training has seen",
        oracle=made(longer=1.0),
        null=made(longer=0.1),
        unit=f"share right, {COPY}, places beyond the {LENGTH} of training",
        shows=(f"rotary, {COPY}, of *",),
    ),
)
def places_right(models: Models) -> dict[str, float | list[float]]:
    """Both tasks at the length of training, copying on longer strings too, a number for each seed."""
    found: dict[str, float | list[float]] = {
        f"{encoding}, {task}": [right(model, task) for model in runs] for (encoding, task), runs in models.items()
    }
    for encoding in ENCODINGS:
        for n in TEST_LENGTHS[1:]:
            found[f"{encoding}, {COPY}, of {n}"] = [right(model, COPY, n) for model in models[encoding, COPY]]
    ends = [right_by_place(model, REVERSE)[[0, -1]].mean().item() for model in models["rotary", REVERSE]]
    return found | {ENDS: ends, GUESS: most_frequent()}


@torch.no_grad()
def weight_moved(weights_of: Callable[[Tensor], Tensor], tokens: Tensor, seed: int) -> dict[str, float]:
    """How much of a row of weights moves, 0 to 1, when words change places and when places change words.

    tokens (B, T), weights_of: (B, T) -> (B, T, T). A shuffled pair of words is compared with the same pair before.
    """
    order = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    weights, shuffled = weights_of(tokens), weights_of(tokens.gather(1, order))
    item, back = torch.arange(len(tokens))[:, None, None], order.argsort(dim=1)
    same_words = shuffled[item, back[:, :, None], back[:, None, :]]  # row and column of each pair of words, as before
    others = {"same words, other places": same_words, "other words, same places": weights_of(tokens.roll(1, dims=0))}
    return {name: ((weights - other).abs().sum(dim=-1) / 2).mean().item() for name, other in others.items()}


SAME_WORDS = "same words, other places"
MOVERS = ("words alone", "words and positions", "a model that reverses")


@measures(
    Claim(
        id="C119",
        text="Content decides what attends to what, not position",
        kind=EXPERIMENT,
        rule="the same words at other places: at most 0.05 moves",
        holds=lambda n: max(n[f"{name}: {SAME_WORDS}"] for name in MOVERS) <= 0.05,
        only_if=lambda n: n[f"words alone: {SAME_WORDS}"] <= 0.05,
        condition="there are no positions",
        oracle={f"{name}: {SAME_WORDS}": 0.0 for name in MOVERS},
        null={f"{name}: {SAME_WORDS}": 0.9 for name in MOVERS},
        unit="share of a row of weights that moves, mean",
    )
)
def compare_moves(language: ToyTransformer, reverser: SymbolMover, seed: int) -> dict[str, float]:
    """weight_moved for the trained head of this phase, without its positions and with them, and for a reverser."""
    blind = copy.deepcopy(language)
    blind.positions.zero_()
    eight = torch.tensor([encode(s.words) for s in sample_corpus(0, 500)[1] if len(s.words) == 8])  # (B, 8)
    found = (
        weight_moved(lambda tokens: blind(tokens)[1][0][:, 0], eight, seed),
        weight_moved(lambda tokens: language(tokens)[1][0][:, 0], eight, seed),
        weight_moved(lambda symbols: reverser(symbols)[1][:, 0], new_strings(LENGTH), seed),
    )
    return {f"{name}: {kind}": v for name, kinds in zip(MOVERS, found, strict=True) for kind, v in kinds.items()}


@torch.no_grad()
def draw(models: Models, found: Measured, steps: int) -> tuple[Figure, str]:
    """The sinusoidal encoding and its similarity; right answers by encoding and task, and on longer strings."""
    fig, ((waves, near), (bars, longer)) = plt.subplots(2, 2, figsize=(9.6, 7.6), layout="constrained")
    encoding = sinusoidal_positions(64, 64)
    image = waves.imshow(encoding.numpy(), cmap="vlag", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    fig.colorbar(image, ax=waves, ticks=(-1, 0, 1)).outline.set_visible(False)
    waves.set(xlabel="feature", ylabel="position", xticks=(0, 16, 32, 48, 63), yticks=(0, 16, 32, 48, 63))
    waves.set_title("sinusoidal: every position its own row")
    similarity, _ = similarity_by_distance(encoding.double())
    near.plot(similarity.tolist(), color=COLORS["sinusoidal"])
    near.set(xlabel="distance of two positions", ylabel="their similarity (dot product)", ylim=(0, 33), xlim=(0, 63))
    near.set_title(f"falls in waves: grows at {against_the_fall(similarity)[0]:.0%} of the steps")
    shares = {name: [statistics.mean(found[f"{name}, {task}"]) for task in (REVERSE, COPY)] for name in ENCODINGS}
    grouped_bars(bars, (REVERSE, COPY), shares, COLORS)
    bars.axhline(found[GUESS], color="black", linewidth=0.8, linestyle=":")
    bars.text(1.93, found[GUESS] + 0.02, "most\nfrequent\nsymbol", ha="right", fontsize=8.5)
    bars.set(xlim=(-0.5, 1.95), ylabel="places right", title=f"strings of {LENGTH}, as in training")
    for name in ENCODINGS:
        beyond = [statistics.mean(found[f"{name}, {COPY}, of {length}"]) for length in TEST_LENGTHS[1:]]
        longer.plot(TEST_LENGTHS, [shares[name][1], *beyond], "o-", color=COLORS[name], markersize=4, label=name)
    longer.set_xscale("log", base=2)
    longer.set_xticks(TEST_LENGTHS, TEST_LENGTHS)
    longer.set(xlabel=f"length; from 32 on, only the places beyond {LENGTH}", title=f"{COPY}, longer strings")
    for ax in (bars, longer):
        ax.set(ylim=(0, 1.25), yticks=(0, 0.5, 1))
        ax.legend(frameon=False, fontsize=9, ncols=4, loc="upper center", columnspacing=1.2, handlelength=1)
    none, sinusoidal, _, rotary = (f"{shares[name][0]:.0%}" for name in ENCODINGS)
    title = f"Reversing a string: {none} right without positions, {sinusoidal} with sinusoidal, {rotary} with rotary"
    weights = {name: models[name, REVERSE][0](new_strings(LENGTH))[1] for name in ENCODINGS}
    entropy = ", ".join(f"{name} {normalized_entropy(weights[name]).mean():.2f}" for name in ENCODINGS)
    seeds = len(models["none", REVERSE])
    headline(fig, title, f"trained {steps} steps, seeds: {seeds}; normalised entropy, reverse: {entropy}")
    return fig, f"{title}. The sinusoidal encoding, its similarity by distance, right answers by encoding and length."


def show(found: Measured) -> None:
    print(f"\nPlaces right, {NUM_TEST} strings not trained on; by the most frequent symbol {found[GUESS]:.2f}")
    print(f"   of strings longer than {LENGTH}, only the places that no training has seen")
    print(f"   {'':12}{REVERSE:>10}{COPY:>22}" + "".join(f"{f'of {length}':>8}" for length in TEST_LENGTHS[1:]))
    for name in ENCODINGS:
        reverse, copied, *longer = (shares[0] for key, shares in found.items() if key.startswith(f"{name}, "))
        print(f"   {name:12}{reverse:>10.2f}{copied:>22.2f}" + "".join(f"{share:>8.2f}" for share in longer))


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    language = load_single_head_model(options).model.cpu()
    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [(encoding, task) for task in (REVERSE, COPY) for encoding in ENCODINGS]
    models = {
        run: [train(*run, seed, steps) for seed in cli.seeds(options)]
        for run in tqdm(runs, desc="training with and without positions", leave=False)
    }
    found = places_right(models)
    show(found)
    print("\nReverse with rotary, place by place: at both ends the answer is the symbol farthest away")
    print("   " + " ".join(f"{share:.2f}" for share in right_by_place(models["rotary", REVERSE][0], REVERSE).tolist()))
    moves = compare_moves(language, models["sinusoidal", REVERSE][0], options.seed)
    print(f"\nShare of a row of weights that moves: {findings.measured_text({'measured': moves, 'unit': 'mean'})}")
    save_plot(options, "phase1/positions", *draw(models, found, steps))
    findings.record(options, found, moves, show_numbers=False)
    none, added, rotary = (f"{found[f'{name}, {REVERSE}'][0]:.0%}" for name in ("none", "sinusoidal", "rotary"))
    return f"A reversed string is {none} right without positions, {added} with sinusoidal, {rotary} with rotary"


if __name__ == "__main__":
    cli.run(main)
