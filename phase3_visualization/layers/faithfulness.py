"""Which method finds the words that a guess depends on?

A noun or a determiner is hidden, and the trained model of phase 2 guesses it. The relations of the grammar say where
the information about it is: for a determiner in its noun (number), for a noun in its verb (kind of thing) and in its
determiner (number; "the" goes with every noun and says nothing). Together these words say all that the rest of the
sentence says. They are "the words that matter" here. Verbs are not hidden (three other words nearly give a verb
away), nor is "the" (as likely before any noun: no word helps to guess it).

Each method gives every other word a number, read in the row of the hidden word:

    raw weights        last layer, heads averaged                   raw product   of the layers, see rollout.py
    norm-weighted      last layer, || sum_h a_ij^h v_j^h W_O^h ||   rollout, flow see rollout.py (Abnar & Zuidema 2020)
    gradient           length of dL / d embedding of word j         gradient x input   |gradient . embedding|
    leave-one-out      hide word j as well: by how many nats does the loss rise?
    nearest word       minus its distance: reads neither weights nor words

and is asked two things. Is your largest number on a word that matters? And do your numbers rank the words as
leave-one-out does? That looks like the truth itself, and is not: what stands in the sentence twice is not missed once.
If "sat" is hidden, "on the mat" still says that an animal did it. What a perfect reader would lose is computed from the
probabilities of the grammar, and printed beside it for one sentence.

    python phase3_visualization/layers/faithfulness.py
    python phase3_visualization/layers/faithfulness.py --sentence "these dogs slept in a soft bed" --hidden 1

Writes rollout.png to visualizations/plots/phase3/.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.heads.output_projection import added_by_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, split_heads
from phase2_multi_head.pruning.head_importance import rank_correlation, ranks
from phase3_visualization.layers.rollout import maximum_flow, raw_product
from shared import cli, training
from shared.attention_utils import attention_rollout
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.grammar.entropy import KIND, hidden_word_distribution, sentence_log_probability
from shared.toy_language import (
    EITHER_DETERMINERS,
    INDEX,
    MASK,
    MASK_ID,
    TOY_SENTENCE,
    VOCABULARY,
    Sentence,
    encode,
)
from shared.toy_model import ToyTransformer, watch_embedding
from shared.training import Trained
from shared.visualization_utils import INK, QUIET, head_color, headline, plot_attention, save_plot

TRIED_ON = 120  # held-out sentences that this comparison was developed on; the numbers come from the others
SENTENCES, QUICK_SENTENCES = 200, 8
SHUFFLES = 200
MARGIN = 0.05  # a method is better than another one only by more than this
RAW, PRODUCT, ROLLOUT, FLOW, NORMS = "raw weights", "raw product", "rollout", "flow", "norm-weighted"
GRADIENT, INPUT, NEAREST, TRUTH = "gradient", "gradient x input", "nearest word", "leave-one-out"
OF_WEIGHTS = (RAW, PRODUCT, ROLLOUT, FLOW, NORMS)


@dataclass(frozen=True)
class Case:
    """A sentence with a hidden word: its words, the hidden position and the positions that carry information on it."""

    words: tuple[str, ...]
    hidden: int
    relevant: frozenset[int]

    @property
    def others(self) -> list[int]:
        return [j for j in range(len(self.words)) if j != self.hidden]

    @property
    def chance(self) -> float:
        """How likely a guess among the other words is one that matters."""
        return len(self.relevant) / len(self.others)


def related_words(sentence: Sentence, hidden: int) -> frozenset[int]:
    """Positions of the words that carry information about a hidden noun or determiner, from the gold relations."""
    related = set()
    for name in ("determiner-noun", "verb-subject", "verb-place"):
        for i, j in sentence.relations[name]:
            if j == hidden and sentence.words[i] not in EITHER_DETERMINERS:  # its verb, its determiner
                related.add(i)
            if i == hidden and name == "determiner-noun":  # the noun of a hidden determiner
                related.add(j)
    return frozenset(related)


def make_case(sentence: Sentence, kind: int) -> Case:
    """Hide the determiner (0) or the noun (1) of the subject, or of the place (2, 3); instead of "the" the noun."""
    ((_, noun),) = sentence.relations["verb-subject" if kind < 2 else "verb-place"]
    (determiner,) = [i for i, j in sentence.relations["determiner-noun"] if j == noun]
    hidden = noun if kind % 2 or sentence.words[determiner] in EITHER_DETERMINERS else determiner
    return Case(sentence.words, hidden, related_words(sentence, hidden))


def make_cases(sentences: Sequence[Sentence]) -> list[Case]:
    """One hidden word for each sentence, the four kinds in turn."""
    return [make_case(sentence, number % 4) for number, sentence in enumerate(sentences)]


def hide(words: Sequence[str], *positions: int) -> list[int]:
    """Token ids with <mask> at these positions."""
    return [MASK_ID if j in positions else token for j, token in enumerate(encode(tuple(words)))]


def hidden_loss(model: ToyTransformer, tokens: Tensor, case: Case) -> Tensor:
    """-ln p(the hidden word) in nats for each row of tokens (B, T) -> (B,)."""
    logits, _ = model(tokens)
    answer = tokens.new_tensor(encode(case.words)[case.hidden]).expand(len(tokens))
    return F.cross_entropy(logits[:, case.hidden], answer, reduction="none")  # (B, V) -> (B,)


@torch.no_grad()
def leave_one_out(model: ToyTransformer, case: Case) -> Tensor:
    """By how many nats the loss on the hidden word rises when word j is hidden, too -> (T,); 0 for its own position."""
    rows = [hide(case.words, case.hidden, j) for j in range(len(case.words))]
    losses = hidden_loss(model, torch.tensor(rows, device=model.positions.device), case)
    return (losses - losses[case.hidden]).double().cpu()


def grammar_rise(words: Sequence[str], hidden: int, left_out: int) -> float:
    """By how many nats the loss of a perfect reader on the hidden word rises if word left_out is hidden, too.

    ln p(word | all others) - ln p(word | all others but one), the second summed over all words of the language that may
    stand in the other gap. Below 0 where the missing word spoke against the hidden one. ValueError as
    hidden_word_distribution raises it, for a sentence that the grammar cannot make.
    """
    if left_out == hidden:
        return 0.0
    with_word = hidden_word_distribution(words, hidden)[INDEX[words[hidden]]].item()
    joint = torch.zeros(len(VOCABULARY), dtype=torch.float64)
    filled = list(words)
    for other in VOCABULARY:
        filled[left_out] = other
        for number, word in enumerate(VOCABULARY):
            filled[hidden] = word
            joint[number] += math.exp(sentence_log_probability(tuple(filled)))
    without = (joint[INDEX[words[hidden]]] / joint.sum()).item()
    return math.log(with_word / without)


@torch.enable_grad()
def gradients(model: ToyTransformer, case: Case) -> tuple[Tensor, Tensor]:
    """Length of the gradient of the loss at each word's embedding, and |gradient . embedding| -> (T,) each."""
    with watch_embedding(model) as seen:
        loss = hidden_loss(model, torch.tensor([hide(case.words, case.hidden)], device=model.positions.device), case)
    (gradient,) = torch.autograd.grad(loss.sum(), seen)
    product = (gradient * seen[0]).sum(dim=-1)  # (1, T, d_model) -> (1, T)
    return gradient[0].norm(dim=-1).double().cpu(), product[0].abs().detach().double().cpu()


def last_layer_norms(model: ToyTransformer, tokens: Tensor, hidden: int) -> Tensor:
    """|| sum_h a_ij^h v_j^h W_O^h || of the last layer, for the row of the hidden word -> (T,) (Kobayashi et al. 2020).

    The length of what word j adds to the hidden position, all heads together. tokens: (1, T).
    """
    x = model.embed(tokens)
    for block in model.blocks[:-1]:
        x, _ = block(x)
    attention: MultiHeadAttention = model.blocks[-1].attention
    normed = model.blocks[-1].attention_norm(x)
    _, weights = attention(normed)
    value = split_heads(attention.w_v(normed), attention.num_heads)  # (1, T, d_model) -> (1, H, T, d_v)
    weighted = weights[0, :, hidden, :, None] * value[0]  # (H, T, d_v): one row of weights for each head
    return added_by_heads(attention, weighted).sum(dim=0).norm(dim=-1)  # (H, T, d_model) -> (T, d_model) -> (T,)


@torch.no_grad()
def combined(model: ToyTransformer, tokens: Tensor, rows: Sequence[int]) -> dict[str, Tensor]:
    """These rows of the weights of all layers as one matrix, in four ways: (len(rows), T) each. tokens: (1, T)."""
    layers = [weights[0].double().cpu() for weights in model(tokens)[1]]
    whole = {RAW: layers[-1].mean(dim=0), PRODUCT: raw_product(layers), ROLLOUT: attention_rollout(layers)}
    return {name: matrix[rows] for name, matrix in whole.items()} | {FLOW: maximum_flow(layers, rows)}


@torch.no_grad()
def scores(model: ToyTransformer, case: Case) -> dict[str, Tensor]:
    """Method -> a number for each word (T,); that of the hidden word itself is not looked at."""
    tokens = torch.tensor([hide(case.words, case.hidden)], device=model.positions.device)
    gradient, times_input = gradients(model, case)
    return {name: rows[0] for name, rows in combined(model, tokens, [case.hidden]).items()} | {
        NORMS: last_layer_norms(model, tokens, case.hidden).double().cpu(),
        GRADIENT: gradient,
        INPUT: times_input,
        NEAREST: -(torch.arange(len(case.words)) - case.hidden).abs().double(),
        TRUTH: leave_one_out(model, case),
    }


def finds(values: Tensor, case: Case) -> float:
    """1 if the largest number among the other words is on a relevant one; with a tie, the share of those that are."""
    others = values[case.others]
    first = [j for j, value in zip(case.others, others.tolist(), strict=True) if value == others.max().item()]
    return sum(j in case.relevant for j in first) / len(first)


def chance_band(cases: Sequence[Case], generator: torch.Generator) -> float:
    """95th percentile of the mean rank correlation of random rankings with a fixed one."""
    means = torch.zeros(SHUFFLES, dtype=torch.float64)
    for case in cases:
        place = ranks(torch.arange(len(case.others)))
        place = F.normalize(place - place.mean(), dim=0)  # so that a product of two is their correlation
        order = torch.rand(SHUFFLES, len(place), generator=generator).argsort(dim=-1)
        means += place[order] @ place / len(cases)  # (SHUFFLES, n - 1) -> (SHUFFLES,)
    return means.quantile(0.95).item()


FOUND, AGREES, DETERMINER = "found", "correlation", "determiner hidden"
CHANCE, BAND = "chance: found", "random rankings: correlation"
UNIT = f"share of {SENTENCES} sentences with a word that matters first; mean rank correlation with leave-one-out"


def both_measures(*names: str) -> tuple[str, ...]:
    return (CHANCE, *(f"{name}: {part}" for name in names for part in (FOUND, AGREES)))


def better(numbers: dict[str, float], name: str) -> bool:
    """Better than the raw weights in both measures, by more than MARGIN."""
    return all(numbers[f"{name}: {part}"] > numbers[f"{RAW}: {part}"] + MARGIN for part in (FOUND, AGREES))


@measures(
    Claim(
        id="faithful-weights",
        text="Attention weights show which words mattered",
        kind=EXPERIMENT,
        rule="raw weights of the last layer: found in 0.9 or more, correlation 0.5 or more",
        holds=lambda n: n[f"{RAW}: {FOUND}"] >= 0.9 and n[f"{RAW}: {AGREES}"] >= 0.5,
        unit=UNIT,
        control="the nearest word; the gradient, which reads no weights",
        shows=both_measures(RAW, GRADIENT, NEAREST),
    ),
    *(
        Claim(
            id=f"faithful-{name}",
            text=f"Attention {name} shows better than raw attention which words mattered",
            kind=EXPERIMENT,
            source="Abnar & Zuidema 2020",
            rule=f"higher than the raw weights of the last layer by more than {MARGIN} in both measures",
            holds=lambda n, name=name: better(n, name),
            unit=UNIT,
            control="raw weights of the last layer",
            shows=both_measures(name, RAW),
        )
        for name in (ROLLOUT, FLOW)
    ),
    Claim(
        id="leave-one-out",
        text="Leave a word out, and you see whether it mattered",
        kind=EXPERIMENT,
        rule="0.95 or more",
        holds=lambda n: n[f"{TRUTH}: {FOUND}"] >= 0.95,
        only_if=lambda n: n[f"{TRUTH}: {DETERMINER}"] >= 0.95,
        condition="what it says stands nowhere else in the sentence, like the number of a noun for its determiner",
        unit=f"share of {SENTENCES} sentences in which the loss rises most without a word that matters",
        shows=(f"{TRUTH}: {FOUND}", f"{TRUTH}: {DETERMINER}"),
    ),
)
def score_methods(model: ToyTransformer, cases: Sequence[Case], generator: torch.Generator) -> dict[str, float]:
    """Ask every method about every case: "method: found", the same for hidden determiners alone, "method: correlation".

    And what guessing gives: the share found by chance, and what 95 of 100 random rankings stay below.
    """
    right: dict[str, list[float]] = {}
    agreement: dict[str, list[float]] = {}
    for case in tqdm(cases, desc="sentences", leave=False, disable=None):
        answers = scores(model, case)
        for name, values in answers.items():
            right.setdefault(name, []).append(finds(values, case))
            rho = rank_correlation(values[case.others], answers[TRUTH][case.others])
            agreement.setdefault(name, []).append(0.0 if math.isnan(rho) else rho)  # all alike: no order, no agreement
    determiner = [KIND[case.words[case.hidden]] == "d" for case in cases]
    board = {CHANCE: mean(case.chance for case in cases), BAND: chance_band(cases, generator)}
    for name, values in right.items():
        board[f"{name}: {FOUND}"] = mean(values)
        board[f"{name}: {DETERMINER}"] = mean(compress(values, determiner))
        board[f"{name}: {AGREES}"] = mean(agreement[name])
    return board


def by_success(board: dict[str, float]) -> list[str]:
    """The methods, the worst first."""
    return sorted((*OF_WEIGHTS, GRADIENT, INPUT, NEAREST, TRUTH), key=lambda name: board[f"{name}: {FOUND}"])


def summary(board: dict[str, float]) -> str:
    """How often the raw weights, rollout and the best method but leave-one-out find a word that matters."""
    best = next(name for name in reversed(by_success(board)) if name != TRUTH)
    parts = [f"{name} {board[f'{name}: {FOUND}']:.0%}" for name in dict.fromkeys((RAW, ROLLOUT, best))]
    return f"A word that matters comes first: {', '.join(parts)} of the time; by chance {board[CHANCE]:.0%}"


def draw(trained: Trained, board: dict[str, float], count: int) -> tuple[Figure, str]:
    """Left: one sentence, its weights combined in four ways. Right: how often each method is right."""
    words, hidden = TOY_SENTENCE.split(), 1
    shown = [MASK if j == hidden else word for j, word in enumerate(words)]
    tokens = torch.tensor([hide(words, hidden)], device=trained.model.positions.device)
    fig = plt.figure(figsize=(11.2, 6.0), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=(1.05, 1))
    matrices = combined(trained.model, tokens, range(len(words)))
    for ax, (name, matrix) in zip(left.subplots(2, 2).flat, matrices.items(), strict=True):
        plot_attention(matrix, shown, ax=ax, labels=False, annotate=False)
        ax.set_title(f"{name}, last layer" if name == RAW else name, fontsize=10, color=QUIET, pad=4)
        ax.add_patch(plt.Rectangle((0, hidden), len(words), 1, fill=False, edgecolor="#d55e00", linewidth=1.6))
    draw_scoreboard(right.subplots(), board)
    title = summary(board)
    note = f"{trained.label}; {count} held-out sentences, one hidden word each · boxed row: the hidden word"
    headline(fig, title, note, size=12.5)
    return fig, title + ". Left: where the hidden word looks, combined over layers. Right: all methods."


def draw_scoreboard(ax: Axes, board: dict[str, float]) -> None:
    names = by_success(board)
    for row, name in enumerate(names):
        found, color = board[f"{name}: {FOUND}"], INK if name == TRUTH else "#aab2bb"
        ax.barh(row, found, 0.68, color=head_color(0) if name in OF_WEIGHTS else color)
        ax.text(found + 0.015, row, f"{found:.2f}   ρ {board[f'{name}: {AGREES}']:+.2f}", va="center", fontsize=9)
    ax.axvline(board[CHANCE], color="black", linewidth=1.4, linestyle=":")
    ax.text(board[CHANCE] + 0.015, len(names) - 0.45, "chance", fontsize=8.5)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0)
    ax.set(xlim=(0, 1.32), xticks=(0, 0.5, 1), ylim=(-0.6, len(names) - 0.1))
    label = (
        "share of sentences with a word that matters first\n"
        f"ρ: rank correlation with leave-one-out (by chance below {board[BAND]:.2f})\n"
        "blue: made of attention weights"
    )
    ax.set_xlabel(label, color=QUIET, fontsize=9)


def show_sentence(trained: Trained, case: Case) -> None:
    """Print for one sentence what a perfect reader and the model lose with each word."""
    try:
        exact = [grammar_rise(case.words, case.hidden, j) for j in range(len(case.words))]
    except ValueError as error:
        print(f"\nno perfect reader: {error}")
        exact = [math.nan] * len(case.words)
    rises, (lengths, _) = leave_one_out(trained.model, case), gradients(trained.model, case)
    print(f'\n"{case.words[case.hidden]}" is hidden in "{" ".join(case.words)}", and one more word; {trained.label}')
    print("                 rise of the loss in nats          gradient at")
    print("   also hidden   perfect reader   the model   its embedding")
    for j in case.others:
        print(f"   {j:2} {case.words[j]:10} {exact[j]:>14.2f} {rises[j]:>11.2f} {lengths[j]:>15.3f}")


def show_board(board: dict[str, float], count: int) -> None:
    print(f"\n{count} sentences with one hidden word: a word that matters comes first, and rank correlation")
    print("                      all   determiner hidden   with leave-one-out")
    for name in reversed(by_success(board)):
        found, determiner, agrees = (board[f"{name}: {part}"] for part in (FOUND, DETERMINER, AGREES))
        print(f"   {name:16} {found:>7.2f} {determiner:>12.2f} {agrees:>+18.2f}")
    print(f"   {'chance':16} {board[CHANCE]:>7.2f}     95 of 100 below {board[BAND]:>+11.2f}")


def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--hidden", type=int, metavar="I", help="position of the hidden word (default: 1)")
    options = cli.parse(parser, argv)
    last = len(options.words) - 1
    hidden = min(1, last) if options.hidden is None else options.hidden
    if not 0 <= hidden <= last:
        parser.error(f"--hidden must lie between 0 and {last}: got {hidden}")
    trained = load_multi_head_model(options)
    show_sentence(trained, Case(tuple(options.words), hidden, frozenset()))
    fresh = training.corpus()[1][TRIED_ON:]
    cases = make_cases(fresh[: QUICK_SENTENCES if options.quick else SENTENCES])
    board = score_methods(trained.model, cases, torch.Generator().manual_seed(options.seed))
    show_board(board, len(cases))
    save_plot(options, "phase3/rollout", *draw(trained, board, len(cases)))
    findings.record(options, board, show_numbers=False)
    return summary(board)


if __name__ == "__main__":
    cli.run(main)
