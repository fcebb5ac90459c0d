"""Is the pattern of a head used?

A head may look at the right word, and nothing may depend on it. Here verbs of the toy language are hidden whose subject
alone decides between two (patching.py), and of each head three things are tried at the hidden place:

    output    the corrupted text is read with the output that the head has in the clean one
    pattern   ... with its weights alone: it looks where it looked in the clean text, at the words that stand there now
    blind     the clean text is read, and the head gets nothing from the subject

The head with the role, verb → subject, is chosen on other sentences, by where it looks when no word is hidden.

    python phase3_visualization/circuits/pattern_used.py

Writes pattern_used.png to visualizations/plots/phase3/.
"""

import math
from collections.abc import Sequence
from statistics import mean

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase3_visualization.circuits.patching import Pairs, Patching
from shared import cli, training
from shared.attention_utils import padding_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, Above, Claim, Numbers, measures
from shared.grammar.scores import DIRECTIONS, score_heads
from shared.toy_language import INDEX, MASK_ID, SUBJECTS, VERBS, Sentence, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double
from shared.training import Trained
from shared.visualization_utils import RED, headline, plot_cells, save_plot

# Verbs that differ in nothing but their subject: people swam in water, toys fell in water
RIVALS = {a: b for a, (_, *of_a) in VERBS.items() for b, (_, *of_b) in VERBS.items() if a != b and of_a == of_b}
LOOKS, CARRIES = 0.3, 0.1  # mean weight on the subject, share restored
COLUMNS = {
    "looks": "weight on\nthe subject",
    "output": "restored by\nits output",
    "pattern": "restored by\nits pattern",
    "blind": "lead lost\nif blind",
}
ROLE, OTHERS = "restored by the head with the role", "by the others, mean"
LEAST = "restored, least of the heads that look"


def pair(sentence: Sentence) -> tuple[list[int], list[int], int, int, list[int]]:
    """Of a sentence whose verb has a rival: clean and corrupted tokens, places of verb and subject, both answers."""
    ((verb, subject),) = sentence.relations["verb-subject"]
    answers = [sentence.words[verb], RIVALS[sentence.words[verb]]]
    own, other = ([form for noun in SUBJECTS[VERBS[word][0]] for form in noun] for word in answers)
    clean, corrupted = encode(sentence.words), encode(sentence.words)
    corrupted[subject] = INDEX[other[own.index(sentence.words[subject])]]  # as singular or plural as it was
    clean[verb] = corrupted[verb] = MASK_ID
    return clean, corrupted, verb, subject, encode(answers)


def pairs_of(sentences: Sequence[Sentence]) -> tuple[Pairs, Tensor]:
    """A pair of each sentence whose verb has a rival, and where the subjects stand (B,); ValueError if none has."""
    asked = [sentence for sentence in sentences if not RIVALS.keys().isdisjoint(sentence.words)]
    if not asked:
        raise ValueError(f"no verb of {len(sentences)} sentences has a rival: one needs {', '.join(sorted(RIVALS))}")
    clean, corrupted, verb, subject, answers = map(list, zip(*map(pair, asked), strict=True))
    (clean, lengths), (corrupted, _) = pad_batch(clean), pad_batch(corrupted)
    verb, subject, answers = map(torch.tensor, (verb, subject, answers))
    return Pairs(clean, corrupted, verb, answers, padding_mask(lengths, clean.size(1))), subject


def role_head(trained: Trained, sentences: list[Sentence]) -> int:
    """The head that looks from the verb to its subject most often; heads are counted through all layers."""
    layers, _ = training.attention_on(trained.model, sentences, trained.recipe.objective)
    accuracy = score_heads(layers, sentences)["verb-subject"][..., DIRECTIONS.index("forward")]
    return int(accuracy.argmax())  # (L, H) -> one number


def patched(model: ToyTransformer, pairs: Pairs, subject: Tensor) -> dict[str, list[float]]:
    """What COLUMNS says of each head, [layer 0 head 0, layer 0 head 1, ...]; subject (B,): where it stands."""
    patching, found, every = Patching(model, pairs), {name: [] for name in COLUMNS}, torch.arange(len(subject))
    for layer, weights in enumerate(patching.clean.weights):
        outputs, pattern = patching.clean.outputs(layer), patching.corrupted.outputs(layer, weights)
        blind = weights.clone()
        blind[every, :, pairs.asked, subject] = 0  # nothing takes the place of the subject
        blind = patching.clean.outputs(layer, blind)
        for head in range(weights.size(1)):
            here = torch.zeros(*pairs.clean.shape, weights.size(1), dtype=torch.bool)  # (B, T, H)
            here[every, pairs.asked, head] = True
            found["looks"].append(weights[every, head, pairs.asked, subject].mean().item())
            found["output"].append(patching.share(patching.heads(layer, outputs, here)))
            found["pattern"].append(patching.share(patching.heads(layer, pattern, here)))
            left = patching.lead(patching.heads(layer, blind, here), tokens=pairs.clean)
            found["blind"].append(1 - left / patching.clean_lead)
    return found


@measures(
    Claim(
        id="patching-role",
        text="The answer to a hidden verb goes through the head that looks from verbs to their subjects",
        kind=EXPERIMENT,
        source="Vig et al. 2020, the method; Clark et al. 2019 name heads by where they look",
        rule="its output restores at least 0.25 more of the clean answer than that of the other heads does on average",
        holds=Above(lambda n: n[ROLE] - n[OTHERS], 0.25),
        oracle={ROLE: 0.9, OTHERS: 0.01},
        null={ROLE: 0.125, OTHERS: 0.125},
        unit="share of the clean answer restored at the hidden verb; the head is chosen on other sentences",
        control="every other head of the model; the head's pattern without its values",
        shows=(ROLE, OTHERS, "pattern"),
    ),
    Claim(
        id="patching-lookers",
        text="A head that looks at a word hands on what it finds there",
        kind=EXPERIMENT,
        source="how patterns are read; against it Jain & Wallace 2019",
        rule=f"every head with {LOOKS} of its weight on the subject of a hidden verb restores {CARRIES} or more",
        holds=lambda n: n[LEAST] >= CARRIES,
        oracle={LEAST: 0.3},
        null={LEAST: 0.0},
        unit="share of the clean answer restored by the output of each head; mean weight on the subject",
        shows=(LEAST, "looks", "output"),
    ),
)
def used(trained: Trained, choosing: list[Sentence], asked: list[Sentence]) -> dict[str, float | list[float]]:
    """What each head of one model looks at and carries, and the head with the role against the others.

    NaN for the others if there are none, and for the heads that look if none does.
    """
    found, role = patched(in_double(trained.model), *pairs_of(asked)), role_head(trained, choosing)
    output, looks = found["output"], found["looks"]
    others = output[:role] + output[role + 1 :]
    looking = [share for share, weight in zip(output, looks, strict=True) if weight >= LOOKS]
    return found | {
        "head with the role": role,
        ROLE: output[role],
        OTHERS: mean(others) if others else math.nan,
        LEAST: min(looking, default=math.nan),
    }


def draw(trained: Trained, found: Numbers) -> tuple[Figure, str]:
    """A row for each head: where it looks, and what three ways of patching say. The head with the role is framed."""
    values = torch.tensor([found[name] for name in COLUMNS]).T  # (columns, L * H) -> (L * H, columns)
    fig, ax = plt.subplots(figsize=(7.4, 0.4 * len(values) + 1.6), layout="constrained")
    heads = [divmod(row, trained.recipe.num_heads) for row in range(len(values))]
    texts = [[f"{round(value, 2) + 0.0:.2f}" for value in row] for row in values.tolist()]  # not -0.00
    plot_cells(ax, values, texts, [f"layer {layer} head {head}" for layer, head in heads], list(COLUMNS.values()))
    ax.tick_params(pad=6)
    frame = {"fill": False, "edgecolor": RED, "linewidth": 3, "clip_on": False}
    ax.add_patch(plt.Rectangle((0, found["head with the role"]), len(COLUMNS), 1, **frame))
    look, carry = (sum(v >= least for v in found[name]) for name, least in (("looks", LOOKS), ("output", CARRIES)))
    of, looks = "1 head" if len(heads) == 1 else f"{len(heads)} heads", "looks" if look == 1 else "look"
    title = f"Of {of}, {look} {looks} at the subject; the answer comes through {carry}"
    note = f"{trained.label} · hidden verb · look: {LOOKS} or more · framed: has the role verb → subject elsewhere"
    headline(fig, title, note)
    return fig, f"{title}. For each head its weight on the subject, and what its output and its pattern restore."


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    sentences = training.corpus()[1][: 100 if options.quick else training.NUM_HELD_OUT]
    models = [load_multi_head_model(options, seed) for seed in cli.seeds(options)]
    found = [used(trained, sentences[::2], sentences[1::2]) for trained in models]
    save_plot(options, "phase3/pattern_used", *draw(models[0], found[0]))
    findings.record(options, *found)
    first = found[0]
    pattern = first["pattern"][first["head with the role"]]
    return (
        f"The head with the role restores {first[ROLE]:.2f} of the answer by its output, {pattern:.2f} by its pattern"
    )


if __name__ == "__main__":
    cli.run(main)
