"""Can a model read texts longer than any it was trained on?

Rotary positions turn pair i of d features by 10000^(-2i / d) radians a place (phase 1). In training fast pairs went
round many times. Slow ones never did, and in a longer text they come to angles that no query and key has met. So, for a
text s times as long, turns are slowed when the model is used:

    interpolated   all pairs s times slower                          Chen et al. 2023, who then train a little more
    NTK-aware      base 10000 · s^(d / (d - 2)): the first pair as before, the last s times slower, between them less
    by parts       s times slower where a pair went round less than once in training, as before where twice or more,
                   and scores times (1 + ln(s) / 10)²                YaRN; Peng et al. 2023, sections 3.1 to 3.4

Beside them ALiBi, which takes from each score a penalty on distance and turns nothing (Press et al. 2022). Two tasks,
trained on 32 words: to copy the word 3 places back, with one layer; and to continue a block that is repeated, with two
(induction/induction.py). Nothing is trained on longer texts. Trains four models for each seed, in 10 s or more:

    python phase4_causal/serving/longer.py

Writes longer.png to visualizations/plots/phase4/.
"""

import math
from functools import partial
from itertools import pairwise, product

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from phase1_single_head.order.position_encodings import rotary
from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.alibi_attention import AlibiAttention
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from phase4_causal.causal_attention import CausalSelfAttention, also_causal
from phase4_causal.induction.induction_scores import SYMBOLS, predictable, repeated_sequences
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.toy_language import SPECIAL
from shared.toy_model import MakeAttention, ToyTransformer
from shared.training import Recipe
from shared.visualization_utils import BLUE, GREEN, GREY, ORANGE, RED, headline, label_ends, save_plot

TRAINED, STRETCHES = 32, (1, 2, 4, 8)  # words of a text in training; how many times as many when the model is used
ONCE, TWICE = 1, 2  # the paper's α and β, which is 32 there: its models were trained on texts of 4,096
HEADS, BATCH, STEPS, NUM_TEST, BASE, BACK = 4, 32, 300, 50, 10000.0, 3
AS_TRAINED, INTERPOLATED, NTK, PARTS, ALIBI = "as trained", "interpolated", "NTK-aware", "by parts (YaRN)", "ALiBi"
ROTARY = (INTERPOLATED, AS_TRAINED, NTK, PARTS)  # as they are expected to do, from worst to best
COLORS = dict(zip((*ROTARY, ALIBI), (RED, GREY, ORANGE, BLUE, GREEN), strict=True))


def frequencies(size: int, way: str = AS_TRAINED, stretch: float = 1.0) -> Tensor:
    """Radians that each pair of `size` features turns a place -> (size / 2,). ValueError for one pair, NTK-aware."""
    if way == NTK and size < 4:
        raise ValueError(f"NTK-aware keeps the first pair and slows the last: needs 4 features or more: got {size}")
    base = BASE * stretch ** (size / (size - 2)) if way == NTK else BASE
    plain = base ** (-torch.arange(0, size, 2) / size)
    if way == PARTS:
        rounds = TRAINED * plain / (2 * math.pi)  # that a pair went in training
        kept = ((rounds - ONCE) / (TWICE - ONCE)).clamp(0, 1)
        return kept * plain + (1 - kept) * plain / stretch
    return plain / stretch if way == INTERPOLATED else plain


class RotaryHeads(CausalSelfAttention):
    """CausalSelfAttention with rotary positions; `way` and `stretch` may be set when it is trained."""

    way, stretch = AS_TRAINED, 1

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T)."""
        query, key, value = (split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v))
        turns = torch.arange(x.size(1), device=x.device), frequencies(key.size(-1), self.way, self.stretch).to(x)
        if self.way == PARTS:
            query = query * (1 + math.log(self.stretch) / 10) ** 2
        mask = also_causal(x, mask)
        heads, weights = scaled_dot_product_attention(rotary(query, *turns), rotary(key, *turns), value, mask)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


class CausalAlibi(AlibiAttention):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(x, also_causal(x, mask))


def copies(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random words, what to say at each place (the word BACK before), whether that can be known -> (N, T) each."""
    words = torch.randint(SYMBOLS, (count, length), generator=generator) + len(SPECIAL)
    return words, words.roll(BACK, dims=1), (torch.arange(length) >= BACK).expand(count, -1)


def blocks(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The same of blocks of 8 to 16 words, repeated to the end, and the next word: the task of induction.py."""
    words = repeated_sequences(count, generator, length=length + 1)
    return words[:, :-1], words[:, 1:], predictable(words[:, :-1])


COPY, BLOCK = f"copy the word {BACK} places back", "continue a repeated block"
TASKS = {COPY: (copies, 1), BLOCK: (blocks, 2)}  # texts, and layers of the model


def train(task: str, make_attention: MakeAttention, seed: int, steps: int) -> ToyTransformer:
    """A model that knows places by its attention alone, trained on texts of TRAINED words."""
    (texts, layers), generator = TASKS[task], torch.Generator().manual_seed(seed)
    model = training.new_model(Recipe("longer", "next word", HEADS, layers, steps, seed=seed), make_attention)
    model.positions = model.positions.new_zeros(TRAINED * STRETCHES[-1], model.positions.size(1))

    def loss_of_step(_: int) -> Tensor:
        words, wanted, known = texts(BATCH, TRAINED, generator)
        return F.cross_entropy(model(words)[0][known], wanted[known])  # (B, T, V) -> (known places, V)

    rates = {"matrix_rate": 0.02, "rate": 0.01, "matrix_decay": 0.0, "decay": 0.01}
    training.fit(model, loss_of_step, steps, **rates, share=lambda step: min(1, (step + 1) / 40), progress=task)
    return model


@torch.no_grad()
def right(model: ToyTransformer, task: str, stretch: int, seed: int) -> float:
    """Share of right answers in new texts, `stretch` times as long; of longer texts only at the places beyond."""
    length = stretch * TRAINED
    words, wanted, known = TASKS[task][0](NUM_TEST, length, torch.Generator().manual_seed(10**6 + seed))
    known = known & (torch.arange(length) >= TRAINED * (stretch > 1))
    return (model(words)[0].argmax(dim=-1) == wanted)[known].double().mean().item()  # (N, T, V) -> (N, T)


def in_this_order(n: Numbers, task: str) -> bool:
    ends = [n[f"{way}: {task}"][-1] for way in ROTARY]
    return all(better >= worse + 0.05 for worse, better in pairwise(ends))


@measures(
    *(
        Claim(
            id=f"rotary-stretched-{name}",
            text=f"Without more training, rotary positions go further if fast turns stay as they are: to {task}",
            kind=EXPERIMENT,
            source="Peng et al. 2023, sections 3.1 and 3.2",
            rule="8 times the length: interpolated, as trained, NTK-aware, by parts, each 0.05 above the one before",
            holds=partial(in_this_order, task=task),
            oracle={f"{way}: {task}": [1.0, 0.3 * i] for i, way in enumerate(ROTARY)},
            null={f"{way}: {task}": [1.0, 0.5] for way in ROTARY},
            unit="share right at places beyond the 32 words of training; 1, 2, 4 and 8 times as many",
            control="the same trained model, as it was trained; ALiBi, trained alike",
            shows=(f"*: {task}",),
        )
        for name, task in (("copies", COPY), ("blocks", BLOCK))
    )
)
def beyond(seed: int, steps: int = STEPS) -> dict[str, list[float]]:
    """Share right of each way, in each task, at each length."""
    found: dict[str, list[float]] = {}
    for task in TASKS:
        turning, alibi = (train(task, attention, seed, steps) for attention in (RotaryHeads, CausalAlibi))
        for way, stretch in product(COLORS, STRETCHES):
            for block in turning.blocks:
                block.attention.way, block.attention.stretch = way, stretch
            model = alibi if way == ALIBI else turning
            found.setdefault(f"{way}: {task}", []).append(right(model, task, stretch, seed))
    return found


def draw(found: Numbers, note: str) -> tuple[Figure, str]:
    """For each task the share right against the length, a line for each way."""
    fig, axes = plt.subplots(1, 2, figsize=(9.4, 4.6), layout="constrained", sharey=True)
    lengths = [TRAINED * stretch for stretch in STRETCHES]
    for ax, task in zip(axes, TASKS, strict=True):
        shares = {way: found[f"{way}: {task}"] for way in COLORS}
        for way, color in COLORS.items():
            ax.plot(lengths, shares[way], "o-", color=color, linewidth=2.5, ms=6, clip_on=False)
        ax.set(xscale="log", xlabel=f"words (trained on {TRAINED})", ylabel="answers right", ylim=(0, 1.05), title=task)
        ax.set_xticks(lengths, lengths)
        ax.minorticks_off()
        label_ends(ax, {way: (lengths[-1], shares[way][-1], color) for way, color in COLORS.items()}, size=10)
    good = "Slow all turns, and copying ends; slow the slow ones only, and it goes on"
    title = good if in_this_order(found, COPY) else "Rotary positions in longer texts than in training"
    headline(fig, title, f"{note}; at {TRAINED} words all places count")
    return fig, f"{title}. Right answers against the length of the text, for two tasks, a line for each way."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    found = [beyond(seed, steps) for seed in cli.seeds(options)]
    save_plot(options, "phase4/longer", *draw(found[0], f"trained {steps} steps, seed {options.seed}"))
    findings.record(options, *found)
    plain, parts = (found[0][f"{way}: {COPY}"][-1] for way in (AS_TRAINED, PARTS))
    return f"Copied in texts 8 times as long: {plain:.0%} right as trained, {parts:.0%} with slow turns slowed"


if __name__ == "__main__":
    cli.run(main)
