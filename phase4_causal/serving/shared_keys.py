"""With a quarter of the cache, does attention lose anything?

A model that writes keeps numbers of every word it has seen. With H = 4 heads of d_k = 16 these are, for each layer:

    multi-head     2 H d_k      every head has keys and values of its own
    grouped        2 G d_k      G = 2 sets, two heads share one (Ainslie et al. 2023)
    multi-query    2 d_k        all share one (Shazeer 2019)
    latent         d_c + d_r    one vector, from which every head makes its own (DeepSeek-AI 2024; latent_attention.py)

Two tasks for one layer, all four trained alike. One is the next word of the toy language. In the other there are eight
cards, each with a letter in each of four colours and a digit. A question shows a letter in each colour, from any cards,
and asks for the digits of all four: four look-ups at once, one for each head if it has keys of its own.

Fewer numbers are also fewer weights, and only latent attention turns queries and keys by their positions.

    python phase4_causal/serving/shared_keys.py --seeds 5

Writes shared_keys.png to visualizations/plots/phase4/. With LETTERS = 8 the look-ups are easier: try what that changes.
"""

import math
from functools import partial
from itertools import product

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase2_multi_head.grouped_query_attention import GroupedQueryAttention
from phase4_causal.causal_attention import also_causal
from phase4_causal.serving.latent_attention import LatentAttention
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Measured, Numbers, measures
from shared.toy_model import Block, MakeAttention
from shared.training import LITTLE_DECAY, Recipe
from shared.visualization_utils import BLUE, GREY, RED, headline, label_ends, save_plot

D_MODEL, HEADS, BATCH = 64, 4, 32
D_LATENT, D_ROTARY = 28, 4
CARDS, COLOURS, LETTERS, DIGITS = 8, 4, 16, 10  # as many questions as cards
RATE, MATRIX_RATE, NUM_TEST = 0.02, 0.04, 500
LANGUAGE, LOOK_UPS = "toy language", "four look-ups"


class CausalGroupedAttention(GroupedQueryAttention):
    """Phase 2's GroupedQueryAttention in which position i attends to positions 0 to i."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        return super().forward(x, mask=also_causal(x, mask))


GROUPS = {"multi-head": 4, "grouped": 2, "multi-query": 1}
MULTI_HEAD, GROUPED, MULTI_QUERY, LATENT = WAYS = (*GROUPS, "latent")
MAKE: dict[str, MakeAttention] = {
    name: partial(CausalGroupedAttention, num_kv_heads=groups, bias=False) for name, groups in GROUPS.items()
} | {LATENT: partial(LatentAttention, d_latent=D_LATENT, d_rotary=D_ROTARY)}
KEPT = {name: 2 * groups * D_MODEL // HEADS for name, groups in GROUPS.items()} | {LATENT: D_LATENT + D_ROTARY}


def cards(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cards and, behind them, questions -> symbols (count, 2 CARDS, COLOURS + 1), digits (count, CARDS, COLOURS)."""
    letters = torch.rand(count, COLOURS, LETTERS, generator=generator).argsort(dim=-1)  # no two alike in a colour
    letters = letters[..., :CARDS].mT  # (B, COLOURS, LETTERS) -> (B, CARDS, COLOURS)
    digits = torch.randint(DIGITS, (count, CARDS, 1), generator=generator)
    asked = torch.randint(CARDS, letters.shape, generator=generator)  # the card for each colour of each question
    symbols = torch.cat([letters, letters.gather(1, asked)], dim=1) + LETTERS * torch.arange(COLOURS)
    shown = F.pad(digits, (0, 0, 0, CARDS), value=DIGITS)  # (B, CARDS, 1) -> (B, 2 CARDS, 1): questions show no digit
    answers = digits.expand_as(asked).gather(1, asked)
    return torch.cat([symbols, shown + COLOURS * LETTERS], dim=-1), answers  # -> (B, 2 CARDS, COLOURS + 1)


class CardReader(nn.Module):
    """What stands on a card is added up; then one block, and at each question a guess for each colour."""

    def __init__(self, make_attention: MakeAttention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(COLOURS * LETTERS + DIGITS + 1, D_MODEL)
        nn.init.normal_(self.embedding.weight, std=0.2)
        self.blocks = nn.ModuleList([Block(D_MODEL, make_attention(D_MODEL, HEADS))])
        self.to_logits = nn.Sequential(nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, COLOURS * DIGITS))

    def loss(self, symbols: Tensor, answers: Tensor) -> Tensor:
        """cards -> mean cross-entropy of an answer, in nats."""
        x, _ = self.blocks[0](self.embedding(symbols).sum(dim=-2))  # (B, T, COLOURS + 1, d_model) -> (B, T, d_model)
        logits = self.to_logits(x[:, CARDS:]).unflatten(-1, (COLOURS, DIGITS))  # -> (B, CARDS, COLOURS, DIGITS)
        return F.cross_entropy(logits.flatten(0, 2), answers.flatten())  # (B, CARDS, COLOURS, DIGITS) -> (N, DIGITS)


def look_up_loss(make_attention: MakeAttention, seed: int, steps: int) -> float:
    """Train one model on cards; its loss on others. With one seed all models see the same cards."""
    torch.manual_seed(seed)
    model, generator = CardReader(make_attention), torch.Generator().manual_seed(seed)

    def loss_of_step(_: int) -> Tensor:
        return model.loss(*cards(BATCH, generator))

    training.fit(model, loss_of_step, steps, rate=RATE, matrix_rate=MATRIX_RATE, matrix_decay=0.0)
    with torch.no_grad():
        return model.loss(*cards(NUM_TEST, torch.Generator().manual_seed(10**6 + seed))).item()


def language_loss(make_attention: MakeAttention, seed: int, steps: int) -> float:
    """Train one model on the toy language; its loss on held-out sentences."""
    sizes = {"num_heads": HEADS, "num_layers": 1, "d_model": D_MODEL, "batch_size": BATCH}
    recipe = Recipe("shared_keys", "next word", steps=steps, seed=seed, matrix_decay=LITTLE_DECAY, **sizes)
    return training.held_out_loss(training.train(recipe, make_attention))


TASKS = {LANGUAGE: (language_loss, 150), LOOK_UPS: (look_up_loss, 300)}  # and steps


def cost(n: Numbers, task: str, way: str) -> float:
    """How much more a way of keeping less loses than multi-head attention, in nats."""
    return n[f"{task}, {way}"] - n[f"{task}, {MULTI_HEAD}"]


def depends_on_the_task(n: Numbers) -> float:
    """By how much the rule is met: the smaller of both margins, for the worse and for the better way with a quarter."""
    language, look_ups = ([cost(n, task, way) for way in (MULTI_QUERY, LATENT)] for task in TASKS)
    return min(0.05 - max(language), min(look_ups) - 0.1)


@measures(
    Claim(
        id="shared-keys",
        text="What a quarter of the numbers costs depends on the task: hardly anything in the toy language, much where "
        "every head has something else to look up, whether the quarter is one set for all or a latent vector",
        kind=EXPERIMENT,
        source="our question; Shazeer 2019, section 4, and DeepSeek-AI 2024, section 2.1, report little or no loss",
        rule="multi-query and latent attention both lose at most 0.05 nats more than multi-head attention on the next "
        "word, and both at least 0.1 nats more in look-ups",
        holds=Above(depends_on_the_task, 0),
        oracle={f"{task}, {way}": 0.5 * (task == LOOK_UPS and KEPT[way] == 32) for task in TASKS for way in WAYS},
        null={f"{task}, {way}": 0.0 for task in TASKS for way in WAYS},
        unit=f"nats, on new sentences and new cards; a guess among {DIGITS} digits: {math.log(DIGITS):.2f}",
        control="multi-head attention: the same seed, batches and steps, but more parameters",
    )
)
def losses(seed: int, quick: bool = False) -> dict[str, float]:
    """Train eight models: the loss of each task with each way."""
    found = {}
    for (task, (measure, steps)), (way, make) in product(TASKS.items(), MAKE.items()):
        found[f"{task}, {way}"] = measure(make, seed, training.QUICK_STEPS if quick else steps)
    return found


def finding(runs: list[Measured]) -> str:
    """What half of the numbers costs at most, and how many models lose 0.1 nats or more with a quarter."""
    half = max(cost(n, task, GROUPED) for n in runs for task in TASKS)
    wrong = [cost(n, LOOK_UPS, way) >= 0.1 for n in runs for way in (MULTI_QUERY, LATENT)]
    quarter = f"with a quarter {sum(wrong)} of {len(wrong)} models get look-ups wrong"
    return f"Half the cache costs {half:.2f} nats at most; {quarter}"


def draw(runs: list[Measured]) -> tuple[Figure, str]:
    """What each way costs against multi-head attention: for both tasks a dot for each seed."""
    fig, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    ends = {}
    for task, color, aside in ((LANGUAGE, BLUE, -0.08), (LOOK_UPS, RED, 0.08)):
        for place, way in enumerate(WAYS):
            costs = [cost(n, task, way) for n in runs]
            ax.plot([place + aside] * len(runs), costs, "o", color=color, ms=9, alpha=0.5, markeredgewidth=0)
        ends[task] = (place + 0.15, max(costs), color)
    ax.axhline(0, color=GREY, linewidth=1, linestyle=":", zorder=0)
    ax.set_xticks(range(len(WAYS)), [f"{way}\n{KEPT[way]}" for way in WAYS])
    ax.set(xlabel="numbers kept of each word", ylabel="loss above that of multi-head, nats", xlim=(-0.3, 3.15))
    note = f"one layer, {HEADS} heads, d = {D_MODEL}, trained {TASKS[LANGUAGE][1]} and {TASKS[LOOK_UPS][1]} steps"
    headline(fig, finding(runs), f"{note} · a dot for each seed: {len(runs)}", 12)
    label_ends(ax, ends, size=11)
    return fig, f"{finding(runs)}. Loss above that of multi-head attention, for four ways to keep keys and values."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    runs = [losses(seed, options.quick) for seed in cli.seeds(options)]
    print(f"\n{'loss in nats':16}{'numbers kept':>14}{'parameters':>12}" + "".join(f"{task:>16}" for task in TASKS))
    for way, make in MAKE.items():
        parameters = sum(each.numel() for each in make(D_MODEL, HEADS).parameters())
        shown = "".join(f"{runs[0][f'{task}, {way}']:16.3f}" for task in TASKS)
        print(f"   {way:13}{KEPT[way]:14}{parameters:12,}{shown}")
    save_plot(options, "phase4/shared_keys", *draw(runs))
    findings.record(options, *runs, show_numbers=False)
    return finding(runs)


if __name__ == "__main__":
    cli.run(main)
