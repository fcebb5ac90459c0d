"""Which method finds the words that a guess depends on?

A noun or a determiner is hidden, and the trained model of phase 2 guesses it. Which other word mattered most? A method
that explains the guess gives every word a number, read in the row of the hidden word, and we look where the largest is:

    raw weights        last layer, heads averaged                   raw product   of the layers, see rollout.py
    norm-weighted      last layer, || sum_h a_ij^h v_j^h W_O^h ||   rollout, flow see rollout.py (Abnar & Zuidema 2020)
    gradient           length of dL / d embedding of word j         gradient x input   |gradient . embedding|
    nearest word       minus its distance: reads neither weights nor words

Two readers say what mattered. Hide one word more, and see by how many nats the loss on the hidden word rises:

    perfect reader     knows the grammar and nothing else: computed from its probabilities, not learned
    leave-one-out      the model itself

Neither is the whole truth. The model may not use what the language offers; and it misses a word whose message stands
in the sentence twice, where a perfect reader shrugs: without "sat", "on the mat" still says that an animal did it. So
the word that mattered is the one that costs both of them most, and sentences in which they disagree, or in which no
word costs the perfect reader anything, are not asked. Both readers find that word by definition: this is the ceiling,
and it can be reached.

That is faithfulness: does the method tell what the guess rests on? Whether its answer looks right, here: whether it
lies on a word that the grammar relates to the hidden one, is plausibility, another question (Jacovi & Goldberg 2020).
Jain & Wallace 2019 ("Attention is not Explanation") found that weights agree little with leave-one-out and gradients;
Wiegreffe & Pinter 2019 ("Attention is not not Explanation") answered that it depends on what is asked, and with which
baseline. So chance and the ceiling stand beside every number.

    python phase3_visualization/layers/faithfulness.py
    python phase3_visualization/layers/faithfulness.py --sentence "these dogs slept in a soft bed" --hidden 1

Writes rollout.png to visualizations/plots/phase3/.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean as mean

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor
from tqdm import tqdm

from phase2_multi_head.models import load_multi_head_model
from phase2_multi_head.multi_head_attention import MultiHeadAttention, split_heads
from phase3_visualization.layers.rollout import maximum_flow, raw_product
from shared import cli, training
from shared.attention_utils import attention_rollout
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Numbers, measures
from shared.evidence.intervals import bootstrap_interval
from shared.grammar.entropy import KIND, ORDER, hidden_word_distribution, sentence_log_probability
from shared.head_statistics import added_by_heads
from shared.toy_language import (
    ADVERBS,
    EITHER_DETERMINERS,
    INDEX,
    MASK_ID,
    PLACES,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    SUBJECTS,
    Sentence,
    encode,
)
from shared.toy_model import ToyTransformer, watch_embedding
from shared.training import Trained
from shared.visualization_utils import BLUE, GREY, INK, QUIET, headline, save_plot

TRIED_ON = 120  # held-out sentences that this comparison was developed on; the numbers come from the others
SENTENCES, QUICK_SENTENCES = 300, 32
RELIABLE = 0.9  # of the sentences: more is asked of weights that show what a guess depends on
COSTS = 0.02  # nats: a word that costs the perfect reader less does not matter
RAW, PRODUCT, ROLLOUT, FLOW, NORMS = "raw weights", "raw product", "rollout", "flow", "norm-weighted"
GRADIENT, INPUT, NEAREST = "gradient", "gradient x input", "nearest word"
OWN, PERFECT, CHANCE = "leave-one-out", "perfect reader", "chance"
OF_WEIGHTS = (RAW, PRODUCT, ROLLOUT, FLOW, NORMS)
METHODS = (*OF_WEIGHTS, GRADIENT, INPUT, NEAREST)

# Words that the grammar treats alike: exchanged for each other, they leave the probability of every sentence as it is.
ALIKE = (
    *(SINGULAR_DETERMINERS, PLURAL_DETERMINERS, EITHER_DETERMINERS, ADVERBS),
    *(forms for nouns in (*SUBJECTS.values(), *PLACES.values()) for forms in zip(*nouns, strict=True)),
    *((word,) for word in KIND if KIND[word] in "jbvp"),  # no adjective comes twice in a phrase; a verb has its place
)


@dataclass(frozen=True)
class Case:
    """The words of a sentence, the hidden position, and the positions of words that the grammar relates to it."""

    words: tuple[str, ...]
    hidden: int
    related: frozenset[int]

    @property
    def others(self) -> list[int]:
        return [j for j in range(len(self.words)) if j != self.hidden]


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
    """Hide the determiner (0) or the noun (1) of the subject, or of the place (2, 3); instead of "the" the noun.

    Verbs are not hidden (three other words nearly give a verb away), nor is "the": no word helps to guess it.
    """
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
    kinds, filled = [KIND[word] for word in words], list(words)
    right = total = 0.0
    fit: dict[tuple[str, str], bool] = {}
    for group, other in product(ALIKE, ALIKE):  # one word stands for its group
        pair = kinds[hidden], kinds[left_out] = KIND[group[0]], KIND[other[0]]
        if pair not in fit:
            fit[pair] = ORDER.fullmatch("".join(kinds)) is not None
        if fit[pair]:
            filled[hidden], filled[left_out] = group[0], other[0]
            probability = math.exp(sentence_log_probability(filled)) * len(other)
            total += probability * len(group)
            right += probability * (words[hidden] in group)
    return math.log(with_word * total / right)


def perfect_reader(case: Case) -> Tensor:
    """grammar_rise of every word -> (T,)."""
    return torch.tensor([grammar_rise(case.words, case.hidden, j) for j in range(len(case.words))]).double()


@torch.enable_grad()
def gradients(model: ToyTransformer, case: Case) -> tuple[Tensor, Tensor]:
    """Length of the gradient of the loss at each word's embedding, and |gradient . embedding| -> (T,) each."""
    with watch_embedding(model) as seen:
        loss = hidden_loss(model, torch.tensor([hide(case.words, case.hidden)], device=model.positions.device), case)
    (gradient,) = torch.autograd.grad(loss.sum(), seen)
    times_input = (gradient * seen[0]).sum(dim=-1)  # (1, T, d_model) -> (1, T)
    return gradient[0].norm(dim=-1).double().cpu(), times_input[0].abs().detach().double().cpu()


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
    }


def first(values: Tensor, case: Case) -> frozenset[int]:
    """Where the largest number among the other words stands; several positions if they tie."""
    largest = values[case.others].max().item()
    return frozenset(j for j in case.others if values[j].item() > largest - 1e-9)


def share(chosen: frozenset[int], wanted: frozenset[int]) -> float:
    """How much of a choice is right: with a tie, the share of its positions that are wanted."""
    return len(chosen & wanted) / len(chosen)


def over_sentences(values: Sequence[float], generator: torch.Generator) -> list[float]:
    """95 % interval of the mean of one value a sentence, by bootstrap."""
    return [end.item() for end in bootstrap_interval(torch.tensor(values, dtype=torch.float64), generator)]


FOUND, LANGUAGE, PLAUSIBLE, BETWEEN = "found", "perfect reader's word", "plausible", "95 % of sentences"
MEASURES = (FOUND, LANGUAGE, PLAUSIBLE)
ASKED = (
    f"share of those of {SENTENCES} held-out sentences in which a word costs the perfect reader {COSTS} nats or more"
)


def gain(numbers: Numbers) -> float:
    """How much more often the better of rollout and flow finds the perfect reader's word than the raw weights."""
    return max(numbers[f"{name}: {LANGUAGE}"] for name in (ROLLOUT, FLOW)) - numbers[f"{RAW}: {LANGUAGE}"]


def world(measure: str, values: dict[str, float]) -> Numbers:
    """Numbers of some methods by one measure, for the two worlds that a rule must tell apart."""
    return {f"{name}: {measure}": value for name, value in values.items()}


@measures(
    Claim(
        id="faithful-weights",
        text="Attention weights show which words influence a guess",
        kind=EXPERIMENT,
        source="course notes, Why Visualization Matters; Jain & Wallace 2019 against, Wiegreffe & Pinter 2019 for it",
        rule="the largest raw weight of the last layer, heads averaged, lies on the word that mattered most in more "
        "than 0.9 of the sentences",
        holds=Above(lambda n: n[f"{RAW}: {FOUND}"], RELIABLE),
        oracle=world(FOUND, {RAW: 1.0}),
        null=world(FOUND, {RAW: 0.16}),
        unit=f"share of those of {SENTENCES} held-out sentences in which the model and a perfect reader miss the same "
        "word most",
        control="chance; the nearest word; leaving words out and the perfect reader find it always, by definition",
        headline=True,
        shows=(
            f"{CHANCE}: {FOUND}",
            *(f"{name}: {part}" for name in (RAW, NORMS, NEAREST) for part in (FOUND, BETWEEN)),
        ),
    ),
    Claim(
        id="faithful-rollout",
        text="Rollout or flow show better than raw weights which words an output comes from",
        kind=EXPERIMENT,
        source="Abnar & Zuidema 2020, of models with more layers than the two here",
        rule="the better of them finds the word that a perfect reader misses most more often than raw weights do",
        holds=Above(gain, 0.0),
        oracle=world(LANGUAGE, {RAW: 0.7, ROLLOUT: 1.0, FLOW: 1.0}),
        null=world(LANGUAGE, {RAW: 0.15, ROLLOUT: 0.15, FLOW: 0.15}),
        unit=ASKED,
        control="raw weights of the last layer on the same sentences",
        shows=(f"*minus {RAW}*", *(f"{name}: {LANGUAGE}" for name in (RAW, ROLLOUT, FLOW))),
    ),
    Claim(
        id="leave-one-out",
        text="Leave a word out, and you see what the sentence loses",
        kind=EXPERIMENT,
        source="Li et al. 2016; the reference of Jain & Wallace 2019",
        rule="in more than 0.9 the word that the model misses most is one that a perfect reader misses most",
        holds=Above(lambda n: n[f"{OWN}: {LANGUAGE}"], 0.9),
        oracle=world(LANGUAGE, {OWN: 1.0}),
        null=world(LANGUAGE, {OWN: 0.15}),
        unit=ASKED,
        control="chance",
        shows=tuple(f"{name}: {LANGUAGE}" for name in (OWN, CHANCE)),
    ),
    Claim(
        id="plausible-weights",
        text="Patterns of attention often align with relations of the language",
        kind=EXPERIMENT,
        source="course notes, Why Visualization Matters; called plausibility by Jacovi & Goldberg 2020",
        rule="the largest raw weight of the last layer, heads averaged, lies on a related word in 0.15 more of the "
        "sentences than the nearest word is one",
        holds=Above(lambda n: n[f"{RAW}: {PLAUSIBLE}"] - n[f"{NEAREST}: {PLAUSIBLE}"], 0.15),
        oracle=world(PLAUSIBLE, {RAW: 1.0, NEAREST: 0.4}),
        null=world(PLAUSIBLE, {RAW: 0.4, NEAREST: 0.4}),
        unit=ASKED,
        control="the nearest word; chance",
        shows=tuple(f"{name}: {PLAUSIBLE}" for name in (RAW, NEAREST, PERFECT, CHANCE)),
    ),
)
def score_methods(model: ToyTransformer, cases: Sequence[Case], generator: torch.Generator) -> Numbers:
    """How often each method's largest number is right, by three measures, as "method: measure".

    found: on the word that mattered, where both readers agree; with its interval over sentences. perfect reader's word:
    on that of the perfect reader alone, agreed or not. plausible: on a word that the grammar relates to the hidden one.
    """
    right: dict[str, dict[str, list[float]]] = {measure: {} for measure in MEASURES}
    for case in tqdm(cases, desc="sentences", leave=False, disable=None):
        costs = perfect_reader(case)
        if costs.max() < COSTS:
            continue
        answers = scores(model, case) | {OWN: leave_one_out(model, case), PERFECT: costs}
        chosen = {name: first(values, case) for name, values in answers.items()} | {CHANCE: frozenset(case.others)}
        wanted = {LANGUAGE: chosen[PERFECT], PLAUSIBLE: case.related}
        if chosen[OWN] <= chosen[PERFECT]:
            wanted[FOUND] = chosen[PERFECT]
        for measure, words in wanted.items():
            for name, guess in chosen.items():
                right[measure].setdefault(name, []).append(share(guess, words))
    if not right[FOUND]:
        raise ValueError(f"none of {len(cases)} sentences can be asked: the model and the grammar agree on no word")
    board = {f"{name}: {measure}": mean(values) for measure in MEASURES for name, values in right[measure].items()}
    board |= {f"{name}: {BETWEEN}": over_sentences(values, generator) for name, values in right[FOUND].items()}
    for name in (ROLLOUT, FLOW):
        apart = [a - b for a, b in zip(right[LANGUAGE][name], right[LANGUAGE][RAW], strict=True)]
        board[f"{name} minus {RAW}"] = mean(apart)
        board[f"{name} minus {RAW}: {BETWEEN}"] = over_sentences(apart, generator)
    return board | {"sentences asked": len(right[LANGUAGE][RAW]), "both readers agree": len(right[FOUND][RAW])}


def by_success(board: Numbers) -> list[str]:
    """The methods, the worst first."""
    return sorted(METHODS, key=lambda name: board[f"{name}: {FOUND}"])


def summary(board: Numbers) -> str:
    """How often the raw weights, rollout and the best method find the word that mattered."""
    names = dict.fromkeys((RAW, ROLLOUT, by_success(board)[-1]))
    parts = ", ".join(f"{name} {board[f'{name}: {FOUND}']:.0%}" for name in names)
    return f"The word that mattered comes first: {parts} of the time; by chance {board[f'{CHANCE}: {FOUND}']:.0%}"


SAID = {  # what a method does, in the picture
    RAW: "last layer's weights",
    NORMS: "last layer, weight ×\nlength of the value",
    ROLLOUT: "rollout: layers multiplied,\nwith residual",
    PRODUCT: "layers multiplied,\nno residual",
    FLOW: "flow: layers as pipes",
    GRADIENT: "gradient of the loss",
    INPUT: "gradient × embedding",
}


def draw(trained: Trained, board: Numbers) -> tuple[Figure, str]:
    """A dot for each method with its interval over sentences, between chance and what the rule asks for."""
    names = by_success(board)
    fig, ax = plt.subplots(figsize=(8.6, 5.2), layout="constrained")
    for row, name in enumerate(names):
        found, interval = board[f"{name}: {FOUND}"], board[f"{name}: {BETWEEN}"]
        color = BLUE if name in OF_WEIGHTS else GREY
        ax.plot(interval, [row, row], color=color, linewidth=4, alpha=0.4, solid_capstyle="round")
        ax.plot(found, row, "o", color=color, markersize=10)
        ax.annotate(f"{found:.0%}", (found, row), (0, 6), textcoords="offset points", ha="center", va="bottom")
    for place, text in ((board[f"{CHANCE}: {FOUND}"], "by chance"), (RELIABLE, f"reliable: {RELIABLE:.0%}")):
        ax.axvline(place, color=INK, linewidth=1.2, linestyle=":", zorder=0)
        ax.text(place, len(names) - 0.2, text, ha="center", va="bottom", fontsize=9)
    ax.set_yticks(range(len(names)), [SAID.get(name, name) for name in names])
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set_color(BLUE if name in OF_WEIGHTS else QUIET)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 1.02), ylim=(-0.6, len(names) - 0.25))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel("sentences in which the word that mattered comes first", color=QUIET)
    best = max(board[f"{name}: {FOUND}"] for name in OF_WEIGHTS)
    title = f"Attention weights often find the word that mattered, {'some' if best > RELIABLE else 'but not'} reliably"
    if best < 0.5:
        title = "Attention weights seldom find the word that mattered"
    note = (
        f"{trained.label} · {board['both readers agree']} held-out sentences, on whose word the model and a perfect "
        "reader agree\nblue: made of attention weights; grey: of something else · lines: 95% intervals over sentences"
    )
    headline(fig, title, note)
    return fig, f"{title}. A dot for each method, beside chance."


def show_sentence(trained: Trained, case: Case) -> None:
    """Print for one sentence what a perfect reader and the model lose with each word."""
    try:
        exact = perfect_reader(case).tolist()
    except ValueError as error:
        print(f"\nno perfect reader: {error}")
        exact = [math.nan] * len(case.words)
    rises, (lengths, _) = leave_one_out(trained.model, case), gradients(trained.model, case)
    print(f'\n"{case.words[case.hidden]}" is hidden in "{" ".join(case.words)}", and one more word; {trained.label}')
    print("                 rise of the loss in nats          gradient at")
    print("   also hidden   perfect reader   the model   its embedding")
    for j in case.others:
        print(f"   {j:2} {case.words[j]:10} {round(exact[j], 2) + 0.0:>14.2f} {rises[j]:>11.2f} {lengths[j]:>15.3f}")


def show_board(board: Numbers) -> None:
    print("\nThe largest number is on ...    the word that mattered      the perfect    a related word")
    print("                                (both readers agree)        reader's word  (plausibility)")
    for name in (PERFECT, OWN, *reversed(by_success(board)), CHANCE):
        found, language, plausible = (board[f"{name}: {measure}"] for measure in MEASURES)
        low, high = board[f"{name}: {BETWEEN}"]
        print(f"   {name:16} {found:>16.2f}  [{low:.2f}, {high:.2f}] {language:>18.2f} {plausible:>14.2f}")
    asked, agreed = board["sentences asked"], board["both readers agree"]
    print(f"   {agreed} of {asked} sentences in the first column; in brackets 95 % intervals over sentences")
    for name in (ROLLOUT, FLOW):
        low, high = board[f"{name} minus {RAW}: {BETWEEN}"]
        print(f"   {name} minus {RAW}: {board[f'{name} minus {RAW}']:+.2f} [{low:+.2f}, {high:+.2f}]")


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = cli.parser(__doc__)
    parser.add_argument("--hidden", type=int, metavar="I", help="position of the hidden word (default: 1)")
    options = cli.parse(parser, argv)
    last = len(options.words) - 1
    hidden = min(1, last) if options.hidden is None else options.hidden
    if not 0 <= hidden <= last:
        parser.error(f"--hidden must lie between 0 and {last}: got {hidden}")
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    show_sentence(models[0], Case(tuple(options.words), hidden, frozenset()))
    cases = make_cases(training.corpus()[1][TRIED_ON:][: QUICK_SENTENCES if options.quick else SENTENCES])
    generator = torch.Generator().manual_seed(options.seed)
    boards = [score_methods(trained.model, cases, generator) for trained in models]
    show_board(boards[0])
    save_plot(options, "phase3/rollout", *draw(models[0], boards[0]))
    findings.record(options, *boards, show_numbers=False)
    return summary(boards[0])


if __name__ == "__main__":
    cli.run(main)
