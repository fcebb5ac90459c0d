"""Cross-attention: the queries come from one sequence, the keys and values from another.

    CrossAttention(x, context) = softmax(x W_q (context W_k)ᵀ / √d_k) context W_v W_o

A decoder reads a source text this way. The lengths differ, so the weights are a rectangle, and the mask hides the
padding of the context. Here the context is a list of facts in random order, "cat: red", "mat: soft", and the questions
are nouns: which adjective belongs to "mat"? The right alignment is known, the fact with the same noun, so that every
weight is right or wrong.

    python phase1_single_head/parts/cross_attention.py

Writes cross_attention.png to visualizations/plots/phase1/.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from shared import cli, paths, training
from shared.attention_utils import normalized_entropy, padding_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import ADJECTIVES, PLACES, SUBJECTS
from shared.visualization_utils import model_note, plot_attention, save_figure, weight_colorbar

NOUNS = [singular for group in (SUBJECTS, PLACES) for pairs in group.values() for singular, _ in pairs]
D_MODEL, MOST_FACTS, NUM_QUESTIONS, STEPS, BATCH = 32, 9, 5, 200, 64


class CrossAttention(nn.Module):
    """One head whose queries come from x and whose keys and values come from context.

    d_k is the size of queries and keys, d_v of values; both are d_model unless given. W_o brings the output back to
    d_model, so that it can be added to x: 4 d_model² weights in all (Vaswani et al. 2017, section 3.2.3).
    """

    def __init__(self, d_model: int, d_k: int | None = None, d_v: int | None = None) -> None:
        super().__init__()
        d_k = d_model if d_k is None else d_k
        d_v = d_model if d_v is None else d_v
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_v, bias=False)
        self.w_o = nn.Linear(d_v, d_model, bias=False)

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

    def __init__(self, attention: nn.Module, d_model: int = D_MODEL) -> None:
        super().__init__()
        self.noun = nn.Embedding(len(NOUNS), d_model)
        self.adjective = nn.Embedding(len(ADJECTIVES), d_model)
        self.attention = attention
        self.to_logits = nn.Linear(d_model, len(ADJECTIVES))

    def forward(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """-> logits (B, T_q, adjectives), weights (B, 1, T_q, M)."""
        memory = self.noun(facts.nouns) + self.adjective(facts.adjectives)  # (B, M, d_model)
        output, weights = self.attention(self.noun(facts.questions), memory, facts.mask)
        return self.to_logits(output), weights


@dataclass
class Trained:
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


def train_lookup(
    make_attention: Callable[[int], nn.Module], seed: int, *, shift: int = 0, steps: int = STEPS
) -> Trained:
    """Train a lookup with the attention that make_attention(d_model) builds; score it on lists it has not seen."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    unseen = draw_facts(500, torch.Generator().manual_seed(10**6 + seed), shift)
    model = Lookup(make_attention(D_MODEL))
    _, before = score(model, unseen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        facts = draw_facts(BATCH, generator, shift)
        logits, _ = model(facts)
        loss = F.cross_entropy(logits.flatten(0, 1), facts.answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Trained(model, *score(model, unseen), before)


def fact_labels(facts: Facts, item: int = 0) -> list[str]:
    """["cat: red", ..., "(padding)"] for one list."""
    pairs = zip(facts.nouns[item].tolist(), facts.adjectives[item].tolist(), strict=True)
    names = [f"{NOUNS[noun]}: {ADJECTIVES[adjective]}" for noun, adjective in pairs]
    length = int(facts.lengths[item])
    return names[:length] + ["(padding)"] * (len(names) - length)


def draw(trained: Trained, facts: Facts, chance: float, steps: int) -> tuple[Figure, str]:
    """The weights of one list, a row for each question; the right fact is marked."""
    with torch.no_grad():
        _, weights = trained.model(facts)
    questions = [f"{NOUNS[noun]}?" for noun in facts.questions[0].tolist()]
    fig, ax = plt.subplots(figsize=(7.6, 5), layout="constrained")
    plot_attention(weights[0, 0], questions, fact_labels(facts), mask=facts.mask[0, 0], ax=ax)
    for row, column in enumerate(facts.aligned[0].tolist()):
        ax.plot(column + 0.88, row + 0.14, marker="*", markersize=7, color="#f2b705", markeredgecolor="none")
    weight_colorbar(fig, ax, shrink=0.7)
    title = f"Each question finds its fact: {trained.aligned:.0%} of alignments right, {chance:.0%} by chance"
    fig.suptitle(title, fontsize=12.5)
    entropy = normalized_entropy(weights, facts.mask).nanmean().item()
    model_note(fig, f"trained {steps} steps · star: the right fact · normalised entropy {entropy:.2f}")
    return fig, f"{title}. Questions down, facts across, padding hatched."


@torch.no_grad()
def replace_padding(model: Lookup, facts: Facts) -> dict[str, float]:
    """How far the outputs move when what stands behind the end of each list is replaced, with the mask and without."""
    other = draw_facts(len(facts.lengths), torch.Generator().manual_seed(1))
    questions = model.noun(facts.questions)
    memory, other_memory = (model.noun(f.nouns) + model.adjective(f.adjectives) for f in (facts, other))
    real = facts.mask[:, 0, 0, :, None]  # (B, 1, 1, M) -> (B, M, 1)
    repadded = torch.where(real, memory, other_memory)
    return {
        name: (model.attention(questions, memory, mask)[0] - model.attention(questions, repadded, mask)[0])
        .abs()
        .max()
        .item()
        for name, mask in (("with the mask", facts.mask), ("without a mask", None))
    }


@torch.no_grad()
def lengths_read(model: Lookup, facts: Facts) -> dict[str, int]:
    """How long the sequence is that each projection reads: that of the questions or that of the facts."""
    lengths: dict[str, int] = {}
    for name in ("query", "key", "value"):
        projection = getattr(model.attention, f"w_{name[0]}")
        with projection.register_forward_pre_hook(lambda _, read, name=name: lengths.update({name: read[0].size(1)})):
            model(facts)
    return lengths


def record_findings(runs: list[Trained], facts: Facts, chance: float, options: argparse.Namespace) -> None:
    padding, lengths = replace_padding(runs[0].model, facts), lengths_read(runs[0].model, facts)
    rows, columns = runs[0].model(facts)[1].shape[-2:]
    findings.record(
        "phase1_single_head/parts/cross_attention.py",
        [
            Finding(
                "I142",
                "Cross-attention finds the right place in the other sequence",
                "Bahdanau et al. 2014, who saw it in translation",
                {
                    "right alignments": [run.aligned for run in runs],
                    "untrained": [run.aligned_untrained for run in runs],
                    "by chance": chance,
                },
                "share of questions, largest weight on the right fact, 500 lists not trained on",
                "at least 0.95, and 0.5 above the untrained model, with every seed",
                findings.verdict(all(r.aligned >= max(0.95, r.aligned_untrained + 0.5) for r in runs)),
                control="the same model before training",
                seeds=list(cli.seeds(options)),
            ),
            Finding(
                "C162",
                "The matrix of scores is square, length by length",
                "course notes",
                {"queries": rows, "keys": columns},
                "size of the weights of one head",
                "as many queries as keys",
                **findings.conditional(
                    rows == columns, True, "queries and keys come from one sequence, as in self-attention"
                ),
            ),
            Finding(
                "C151",
                "In cross-attention queries, keys and values come from different sequences",
                "course notes",
                lengths,
                "length of the sequence that it is made from",
                "three different lengths, of three sequences",
                **findings.conditional(
                    len(set(lengths.values())) == 3,
                    lengths["query"] != lengths["key"] == lengths["value"],
                    "the queries differ from the rest: keys and values come from one sequence",
                ),
            ),
            Finding(
                "C153",
                "Cross-attention needs a mask for the padding of the other sequence",
                "course notes",
                padding,
                "largest change of an output when nothing but padding is replaced",
                "exactly 0 with the mask, more than 0.01 without",
                findings.verdict(padding["with the mask"] == 0 and padding["without a mask"] > 0.01),
                control="the same replacement without the mask",
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    facts = draw_facts(500, torch.Generator().manual_seed(10**6 - 1))
    chance = (1 / facts.lengths).mean().item()
    length, questions = int(facts.lengths[0]), [NOUNS[noun] for noun in facts.questions[0].tolist()]
    print(f"\nFacts, {length} and {MOST_FACTS - length} of padding: {', '.join(fact_labels(facts)[:length])}")
    print(f"Questions: {', '.join(questions)}")

    steps = training.QUICK_STEPS if options.quick else STEPS
    runs = [train_lookup(CrossAttention, seed, steps=steps) for seed in cli.seeds(options)]
    model = runs[0].model
    logits, weights = model(facts)
    print(f"\nWeights {tuple(weights.shape)}: lists, 1 head, {NUM_QUESTIONS} queries, {MOST_FACTS} keys")
    for row, (noun, answer) in enumerate(zip(questions, logits[0].argmax(dim=-1).tolist(), strict=True)):
        looks_at = fact_labels(facts)[int(weights[0, 0, row].argmax())]
        print(f"   {noun + '?':8} looks at {looks_at:16} {weights[0, 0, row].max():.2f}   answers {ADJECTIVES[answer]}")
    for run, seed in zip(runs, cli.seeds(options), strict=True):
        print(
            f"   seed {seed}: {run.answered:.1%} of the answers right, {run.aligned:.1%} of the alignments "
            f"(before training {run.aligned_untrained:.1%}, by chance {chance:.1%})"
        )
    figure, caption = draw(runs[0], facts, chance, steps)
    path = options.output_dir / paths.PLOTS / "phase1" / f"cross_attention.{options.format}"
    save_figure(figure, path, caption=caption)
    record_findings(runs, facts, chance, options)


if __name__ == "__main__":
    cli.run(main)
