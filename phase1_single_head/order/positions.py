"""Experiment: what can be learned without positions, and with which?

Two tasks that are nothing but order, for one block with one head, with each encoding of position_encodings.py and with
none. All places see each other:

    reverse              place i of 16 is to say the symbol at place 15 - i: it must know where it stands
    copy 3 to the left   place i is to say the symbol at place i - 3: knowing distances is enough

Then strings up to 16 times as long as in training, and the question whether words or places decide the weights.

    python phase1_single_head/order/positions.py
    python phase1_single_head/order/positions.py --seeds 3

Writes positions.png to visualizations/plots/phase1/.
"""

import argparse
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
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import encode, sample_corpus
from shared.toy_model import Block, ToyTransformer, sinusoidal_positions
from shared.visualization_utils import QUIET, head_color, model_note, save_figure

ENCODINGS = ("none", "sinusoidal", "learned", "rotary")
REVERSE, COPY = "reverse", "copy 3 to the left"
FIRST_PLACE = {REVERSE: 0, COPY: 3}  # the first that has an answer
SYMBOLS, LENGTH, D_MODEL, BATCH, STEPS, LEARNING_RATE = 10, 16, 32, 32, 300, 1e-2
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
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator)
        logits, wanted = model(symbols)[0][:, FIRST_PLACE[task] :], answers(task, symbols)[:, FIRST_PLACE[task] :]
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


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
Shares = dict[tuple[str, str, int], list[float]]  # (encoding, task, length) -> share of right answers for each seed
Moves = dict[str, dict[str, float]]  # model -> what weight_moved says of it


def measure(models: Models) -> Shares:
    """Both tasks at the length of training, copying on longer strings too."""
    return {
        (encoding, task, length): [right(model, task, length) for model in runs]
        for (encoding, task), runs in models.items()
        for length in (TEST_LENGTHS if task == COPY else (LENGTH,))
    }


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


def compare_moves(language: ToyTransformer, reverser: SymbolMover, seed: int) -> Moves:
    """weight_moved for the trained head of this phase, without its positions and with them, and for a reverser."""
    blind = copy.deepcopy(language)
    blind.positions.zero_()
    eight = torch.tensor([encode(s.words) for s in sample_corpus(0, 500)[1] if len(s.words) == 8])  # (B, 8)
    return {
        "words alone": weight_moved(lambda tokens: blind(tokens)[1][0][:, 0], eight, seed),
        "words and positions": weight_moved(lambda tokens: language(tokens)[1][0][:, 0], eight, seed),
        "a model that reverses": weight_moved(lambda s: reverser(s)[1][:, 0], new_strings(LENGTH), seed),
    }


@torch.no_grad()
def draw(models: Models, shares: Shares, steps: int) -> tuple[Figure, str]:
    """The sinusoidal encoding and its similarity; right answers by encoding and task, and on longer strings."""
    mean = {run: statistics.mean(values) for run, values in shares.items()}
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
    for e, name in enumerate(ENCODINGS):
        for t, task in enumerate((REVERSE, COPY)):
            value = mean[name, task, LENGTH]
            bars.bar(5 * t + e, value, 0.85, color=COLORS[name], label=name if t == 0 else None)
            bars.text(5 * t + e, value + 0.02, f"{value:.2f}", ha="center", fontsize=9)
        on_longer = [mean[name, COPY, length] for length in TEST_LENGTHS]
        longer.plot(TEST_LENGTHS, on_longer, "o-", color=COLORS[name], markersize=4, label=name)
    bars.axhline(most_frequent(), color="black", linewidth=0.8, linestyle=":")
    bars.text(10.6, most_frequent() + 0.02, "most\nfrequent\nsymbol", ha="right", fontsize=8.5)
    bars.set(xlim=(-0.7, 10.7), ylabel="places right", title=f"strings of {LENGTH}, as in training")
    bars.set_xticks((1.5, 6.5), (REVERSE, COPY))
    longer.set_xscale("log", base=2)
    longer.set_xticks(TEST_LENGTHS, TEST_LENGTHS)
    longer.set(xlabel=f"length; from 32 on, only the places beyond {LENGTH}", title=f"{COPY}, longer strings")
    for ax in (bars, longer):
        ax.set(ylim=(0, 1.25), yticks=(0, 0.5, 1))
        ax.legend(frameon=False, fontsize=9, ncols=4, loc="upper center", columnspacing=1.2, handlelength=1)
    none, sinusoidal, _, rotary = (f"{mean[name, REVERSE, LENGTH]:.0%}" for name in ENCODINGS)
    title = f"Reversing a string: {none} right without positions, {sinusoidal} with sinusoidal, {rotary} with rotary"
    fig.suptitle(title, fontsize=13)
    weights = {name: models[name, REVERSE][0](new_strings(LENGTH))[1] for name in ENCODINGS}
    entropy = ", ".join(f"{name} {normalized_entropy(weights[name]).mean():.2f}" for name in ENCODINGS)
    model_note(
        fig, f"trained {steps} steps, seeds: {len(models['none', REVERSE])}; normalised entropy, reverse: {entropy}"
    )
    return fig, f"{title}. The sinusoidal encoding, its similarity by distance, right answers by encoding and length."


def record_findings(models: Models, shares: Shares, moves: Moves, options: argparse.Namespace) -> None:
    seeds = list(cli.seeds(options))
    reverse = {name: shares[name, REVERSE, LENGTH] for name in ENCODINGS}
    added = reverse["sinusoidal"] + reverse["learned"]
    copied, twice, *_, longest = ({name: shares[name, COPY, n] for name in ENCODINGS} for n in TEST_LENGTHS)
    ends = [right_by_place(model, REVERSE)[[0, -1]].mean().item() for model in models["rotary", REVERSE]]
    alone, *others = (by_kind["same words, other places"] for by_kind in moves.values())
    findings.record(
        "phase1_single_head/order/positions.py",
        [
            Finding(
                "positions-reversal",
                "Without positions a transformer cannot make use of order",
                "Vaswani et al. 2017, section 3.5",
                reverse | {"most frequent symbol": most_frequent()},
                f"share of places right, strings of {LENGTH} reversed, not trained on",
                "none at most 0.05 above naming the most frequent symbol; sinusoidal and learned at least 0.95",
                findings.verdict(max(reverse["none"]) <= most_frequent() + 0.05 and min(added) >= 0.95),
                control="the same model, strings and steps with positions",
                seeds=seeds,
            ),
            Finding(
                "positions-rotary",
                "Rotary positions can stand in for added ones",
                "models that have rotary positions only, such as LLaMA (Touvron et al. 2023)",
                {COPY: copied["rotary"], REVERSE: reverse["rotary"], "reverse, first and last place": ends},
                f"share of places right, strings of {LENGTH}",
                "at least 0.95 on both tasks; for distances: on copying alone",
                **findings.conditional(
                    min(copied["rotary"] + reverse["rotary"]) >= 0.95,
                    min(copied["rotary"]) >= 0.95,
                    "distances are enough: one layer without a mask does not learn from them where it stands",
                ),
                control=f"sinusoidal and learned: at least {min(added + copied['sinusoidal'] + copied['learned']):.2f}",
                seeds=seeds,
            ),
            Finding(
                "positions-longer",
                "Sinusoidal positions may let a model go on to longer sequences than in training",
                "Vaswani et al. 2017, section 3.5",
                {name: twice[name] for name in ("sinusoidal", "learned", "rotary")},
                f"share right, {COPY}, strings of 32, places beyond the {LENGTH} of training",
                "sinusoidal at least 0.95",
                findings.verdict(min(twice["sinusoidal"]) >= 0.95),
                control=f"all three at least {min(min(copied[name]) for name in ENCODINGS[1:]):.2f} at length {LENGTH}",
                seeds=seeds,
            ),
            Finding(
                "rotary-longer",
                "Rotary positions leave the length of the sequence open",
                "Su et al. 2021, abstract: flexibility of sequence length",
                {"strings of 32": twice["rotary"], f"strings of {TEST_LENGTHS[-1]}": longest["rotary"]},
                f"share right, {COPY}, places beyond the {LENGTH} of training",
                "at least 0.95 at both lengths",
                **findings.conditional(
                    min(twice["rotary"] + longest["rotary"]) >= 0.95,
                    min(twice["rotary"]) >= 0.95,
                    "the strings are not much longer: with the length come distances that no training has seen",
                ),
                seeds=seeds,
            ),
            Finding(
                "C119",
                "Content decides what attends to what, not position",
                "course notes",
                {f"{name}, {kind}": value for name, by_kind in moves.items() for kind, value in by_kind.items()},
                "share of a row of weights that moves, mean",
                "the same words at other places: at most 0.05 moves",
                **findings.conditional(max(alone, *others) <= 0.05, alone <= 0.05, "there are no positions"),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    language = load_single_head_model(options).model.cpu()
    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [(encoding, task) for task in (REVERSE, COPY) for encoding in ENCODINGS]
    models = {
        run: [train(*run, seed, steps) for seed in cli.seeds(options)]
        for run in tqdm(runs, desc="training with and without positions", leave=False)
    }
    shares = measure(models)
    print(f"\nPlaces right, {NUM_TEST} strings not trained on; by the most frequent symbol {most_frequent():.2f}")
    print(f"   of strings longer than {LENGTH}, only the places that no training has seen; seed {options.seed}")
    print(f"   {'':12}{REVERSE:>10}{COPY:>22}" + "".join(f"{f'of {length}':>8}" for length in TEST_LENGTHS[1:]))
    for name in ENCODINGS:
        reverse, copied, *longer = (values[0] for (encoding, *_), values in shares.items() if encoding == name)
        print(f"   {name:12}{reverse:>10.2f}{copied:>22.2f}" + "".join(f"{share:>8.2f}" for share in longer))
    print("\nReverse with rotary, place by place: at both ends the answer is the symbol farthest away")
    print("   " + " ".join(f"{share:.2f}" for share in right_by_place(models["rotary", REVERSE][0], REVERSE).tolist()))
    print("\nShare of a row of weights that moves")
    moves = compare_moves(language, models["sinusoidal", REVERSE][0], options.seed)
    for name, by_kind in moves.items():
        print(f"   {name:24}" + "   ".join(f"{kind} {value:.2f}" for kind, value in by_kind.items()))
    figure, caption = draw(models, shares, steps)
    save_figure(figure, options.output_dir / paths.PLOTS / "phase1" / f"positions.{options.format}", caption=caption)
    record_findings(models, shares, moves, options)


if __name__ == "__main__":
    cli.run(main)
