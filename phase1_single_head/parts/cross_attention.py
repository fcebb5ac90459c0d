"""Can attention look into another sequence, and find the right place?

Cross-attention: the queries come from one sequence, the keys and values from another.

    CrossAttention(x, context) = softmax(x W_q (context W_k)ᵀ / √d_k) context W_v W_o

A decoder reads a source text this way. The lengths differ, so the weights are a rectangle, and the mask hides the
padding of the context. Here the context is a list of facts in random order, "cat: red", "mat: soft", and the questions
are nouns: which adjective belongs to "mat"? The right alignment is known, the fact with the same noun, so that every
weight is right or wrong.

    python phase1_single_head/parts/cross_attention.py

Writes cross_attention.png to visualizations/plots/phase1/.
"""

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from phase1_single_head.self_attention import SelfAttention, scaled_dot_product_attention
from shared import cli, training
from shared.attention_utils import normalized_entropy, padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.toy_language import ADJECTIVES, PLACES, SUBJECTS
from shared.visualization_utils import RED, headline, plot_attention, save_plot

NOUNS = [singular for group in (SUBJECTS, PLACES) for pairs in group.values() for singular, _ in pairs]
D_MODEL, MOST_FACTS, NUM_QUESTIONS, STEPS, BATCH = 32, 9, 5, 120, 64


class CrossAttention(SelfAttention):
    """One head whose queries come from x and whose keys and values come from context (Vaswani et al. 2017, 3.2.3).

    It has the four matrices of SelfAttention with its output projection, and reads from two places.
    """

    def __init__(self, d_model: int, d_k: int | None = None, d_v: int | None = None) -> None:
        super().__init__(d_model, d_k, d_v, output_projection=True)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T_q, d_model), context (B, T_k, d_model) -> output (B, T_q, d_model), weights (B, 1, T_q, T_k).

        mask: bool, True = may attend, usually the padding of the context, (B, 1, 1, T_k). Raises ValueError for sizes
        or masks that do not fit.
        """
        for name, tensor in (("x", x), ("context", context)):
            if tensor.dim() != 3 or tensor.size(-1) != self.w_q.in_features:
                raise ValueError(
                    f"{name} must have shape (B, T, d_model={self.w_q.in_features}): got {tuple(tensor.shape)}"
                )
        query = self.w_q(x).unsqueeze(1)  # (B, T_q, d_k) -> (B, 1, T_q, d_k): one head
        key, value = self.w_k(context).unsqueeze(1), self.w_v(context).unsqueeze(1)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return self.w_o(output.squeeze(1)), weights  # (B, 1, T_q, d_v) -> (B, T_q, d_v) -> (B, T_q, d_model)


@dataclass
class Facts:
    """A batch of lookups: which adjective goes with which noun, and questions about some of the nouns."""

    nouns: Tensor  # (B, M) positions in NOUNS; beyond a list's length they are padding
    adjectives: Tensor  # (B, M) positions in ADJECTIVES
    lengths: Tensor  # (B,) number of facts in each list
    aligned: Tensor  # (B, T_q) the fact that answers each question
    questions: Tensor  # (B, T_q) positions in NOUNS

    @property
    def answers(self) -> Tensor:
        return self.adjectives.gather(1, self.aligned)

    @property
    def mask(self) -> Tensor:
        return padding_mask(self.lengths, self.nouns.size(1))


def draw_facts(batch: int, generator: torch.Generator, shift: int = 0) -> Facts:
    """Lists of 5 to 9 facts, no noun twice, with NUM_QUESTIONS questions each.

    shift: 0, a question is answered by the fact with its own noun; 1, by that of the noun that follows it in NOUNS, so
    that what is looked for and what it is found by are different words.
    """
    nouns = torch.rand(batch, len(NOUNS), generator=generator).argsort(dim=1)[:, :MOST_FACTS]  # random, no repeats
    adjectives = torch.randint(len(ADJECTIVES), (batch, MOST_FACTS), generator=generator)
    lengths = torch.randint((MOST_FACTS + 1) // 2, MOST_FACTS + 1, (batch,), generator=generator)
    aligned = (torch.rand(batch, NUM_QUESTIONS, generator=generator) * lengths[:, None]).long()
    return Facts(nouns, adjectives, lengths, aligned, (nouns.gather(1, aligned) - shift) % len(NOUNS))


class Lookup(nn.Module):
    """Embeds questions and facts, attends from each question to all facts, and names an adjective."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.noun = nn.Embedding(len(NOUNS), D_MODEL)
        self.adjective = nn.Embedding(len(ADJECTIVES), D_MODEL)
        self.attention = attention
        self.to_logits = nn.Linear(D_MODEL, len(ADJECTIVES))

    def forward(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """-> logits (B, T_q, adjectives), weights (B, 1, T_q, M)."""
        memory = self.noun(facts.nouns) + self.adjective(facts.adjectives)  # (B, M, D_MODEL)
        output, weights = self.attention(self.noun(facts.questions), memory, facts.mask)
        return self.to_logits(output), weights


@dataclass
class Learned:
    """A lookup model, its share of right answers, and its share of right alignments after and before training."""

    model: Lookup
    answered: float
    aligned: float
    aligned_untrained: float


def score(model: Lookup, facts: Facts) -> tuple[float, float]:
    """Share of right answers, and of questions whose largest weight lies on the right fact."""
    with torch.no_grad():
        logits, weights = model(facts)
    right = (logits.argmax(dim=-1) == facts.answers).float().mean().item()
    return right, (weights[:, 0].argmax(dim=-1) == facts.aligned).float().mean().item()


def train_lookup(make_attention: Callable[[int], nn.Module], seed: int, *, steps: int, shift: int = 0) -> Learned:
    """Train a lookup with the attention that make_attention(D_MODEL) builds; score it on lists it has not seen."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    unseen = draw_facts(500, torch.Generator().manual_seed(10**6 + seed), shift)
    model = Lookup(make_attention(D_MODEL))
    _, before = score(model, unseen)

    def loss_of_step(_: int) -> Tensor:
        facts = draw_facts(BATCH, generator, shift)
        return F.cross_entropy(model(facts)[0].flatten(0, 1), facts.answers.flatten())

    training.fit(model, loss_of_step, steps, matrix_rate=None)
    return Learned(model, *score(model, unseen), before)


def fact_labels(facts: Facts) -> list[str]:
    """["cat: red", ..., "(padding)"] for the first list."""
    pairs = zip(facts.nouns[0].tolist(), facts.adjectives[0].tolist(), strict=True)
    names = [f"{NOUNS[noun]}: {ADJECTIVES[adjective]}" for noun, adjective in pairs]
    length = int(facts.lengths[0])
    return names[:length] + ["(padding)"] * (len(names) - length)


def draw(learned: Learned, facts: Facts, steps: int) -> tuple[Figure, str]:
    """The weights of the first list, a row for each question; the right fact is outlined."""
    with torch.no_grad():
        _, weights = learned.model(facts)
    questions = [f"{NOUNS[noun]}?" for noun in facts.questions[0].tolist()]
    fig, ax = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
    plot_attention(weights[0, 0], questions, fact_labels(facts), mask=facts.mask[0, 0], ax=ax, annotate=False)
    for row, column in enumerate(facts.aligned[0].tolist()):
        ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=RED, linewidth=2.5))
    ax.set(xlabel="facts (keys)", ylabel="questions (queries)")
    title = "Each question finds its fact in another sequence"
    if learned.aligned < 0.95:
        title = f"{steps} steps are too few: not every question finds its fact yet"
    entropy = normalized_entropy(weights, facts.mask).nanmean().item()
    found = f"right facts found in 500 lists: {learned.aligned:.0%}"
    note = f"trained {steps} steps · {found} · normalised entropy {entropy:.2f}\n"
    note += "darker: more weight · outlined: the right fact · hatched: hidden"
    headline(fig, title, note, 12.5)
    return fig, f"{title}. Questions down, facts across, padding hatched."


@measures(
    Claim(
        id="I142",
        text="Cross-attention finds the right place in the other sequence",
        kind=EXPERIMENT,
        source="Bahdanau et al. 2014, who saw it in translation",
        rule="at least 0.95, and 0.5 above the untrained model",
        holds=lambda n: n["right alignments"] >= max(0.95, n["before training"] + 0.5),
        oracle={"right alignments": 1.0, "before training": 0.15},
        null={"right alignments": 0.15, "before training": 0.15},
        unit="share of questions, largest weight on the right fact, 500 lists not trained on",
        control="the same model before training",
    )
)
def alignments(run: Learned, facts: Facts) -> dict[str, float]:
    """How often the largest weight lies on the right fact, and how often it would by chance."""
    return {
        "right alignments": run.aligned,
        "before training": run.aligned_untrained,
        "right answers": run.answered,
        "by chance": (1 / facts.lengths).mean().item(),
    }


@torch.no_grad()
def replace_padding(model: Lookup, facts: Facts) -> dict[str, float]:
    """How far the outputs move when what stands behind the end of each list is replaced, with the mask and without."""
    other = draw_facts(len(facts.lengths), torch.Generator().manual_seed(1))
    questions = model.noun(facts.questions)
    memory, other_memory = (model.noun(f.nouns) + model.adjective(f.adjectives) for f in (facts, other))
    repadded = torch.where(facts.mask[:, 0, 0, :, None], memory, other_memory)  # (B, 1, 1, M) -> (B, M, 1)
    moved = {}
    for name, mask in (("with the mask", facts.mask), ("without a mask", None)):
        before, after = (model.attention(questions, context, mask)[0] for context in (memory, repadded))
        moved[name] = (after - before).abs().max().item()
    return moved


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    facts = draw_facts(500, torch.Generator().manual_seed(10**6 - 1))
    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [train_lookup(CrossAttention, seed, steps=steps) for seed in cli.seeds(options)]
    model, labels = runs[0].model, fact_labels(facts)
    logits, weights = model(facts)
    print(f"\nFacts: {', '.join(labels)}\nWeights {tuple(weights.shape)}: lists, 1 head, queries, keys")
    for row, (noun, answer) in enumerate(zip(facts.questions[0], logits[0].argmax(dim=-1), strict=True)):
        weight, fact = weights[0, 0, row].max(dim=-1)
        print(f"   {NOUNS[noun] + '?':8} looks at {labels[fact]:16} {weight:.2f}   answers {ADJECTIVES[answer]}")
    found = [alignments(run, facts) for run in runs]
    with_mask, without = replace_padding(model, facts).values()
    print(f"Padding replaced: with the mask an output moves by {with_mask:.0f}, without by {without:.1f}")
    save_plot(options, "phase1/cross_attention", *draw(runs[0], facts, steps))
    findings.record(options, *found)
    right, before = (found[0][name] for name in ("right alignments", "before training"))
    return f"{right:.0%} of the questions look at their fact, {before:.0%} before training"


if __name__ == "__main__":
    cli.run(main)
