"""Is the pattern of a head used?

A head may look at the right word, and nothing may depend on it. Here verbs of the toy language are
hidden whose subject alone decides between two (patching.py), and of each head three things are
tried at the hidden place:

    output    the corrupted text is read with the output that the head has in the clean one
    pattern   ... with its weights alone: it looks where it looked in the clean text, at the words that stand there now
    blind     the clean text is read, and the head gets nothing from the subject
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase3_visualization.circuits.patching import Pairs, Patching
from shared import training
from shared.attention_utils import padding_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.toy_language import INDEX, MASK_ID, SUBJECTS, VERBS, Sentence, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double

# Verbs that differ in nothing but their subject: people swam in water, toys fell in water
RIVALS = {
    a: b
    for a, (_, *of_a) in VERBS.items()
    for b, (_, *of_b) in VERBS.items()
    if a != b and of_a == of_b
}
SENTENCES, QUICK_SENTENCES = 250, 50  # held-out; about half have a verb with a rival
LOOKS, CARRIES, NOTHING = (
    0.3,
    0.5,
    0.1,
)  # mean weight on the subject; shares restored: much, and next to nothing


def pair(sentence: Sentence) -> tuple[list[int], list[int], int, int, list[int]]:
    """Of a sentence whose verb has a rival: clean and corrupted tokens, places of verb and subject,
    both answers.
    """
    ((verb, subject),) = sentence.relations["verb-subject"]
    answers = [sentence.words[verb], RIVALS[sentence.words[verb]]]
    own, other = ([form for noun in SUBJECTS[VERBS[word][0]] for form in noun] for word in answers)
    clean, corrupted = encode(sentence.words), encode(sentence.words)
    corrupted[subject] = INDEX[
        other[own.index(sentence.words[subject])]
    ]  # as singular or plural as it was
    clean[verb] = corrupted[verb] = MASK_ID
    return clean, corrupted, verb, subject, encode(answers)


def pairs_of(sentences: Sequence[Sentence]) -> tuple[Pairs, Tensor]:
    """A pair of each sentence whose verb has a rival, and where the subjects stand (B,)."""
    asked = [
        pair(sentence) for sentence in sentences if not RIVALS.keys().isdisjoint(sentence.words)
    ]
    clean, corrupted, verb, subject, answers = map(list, zip(*asked, strict=True))
    (clean, lengths), (corrupted, _) = pad_batch(clean), pad_batch(corrupted)
    verb, subject, answers = map(torch.tensor, (verb, subject, answers))
    return Pairs(clean, corrupted, verb, answers, padding_mask(lengths, clean.size(1))), subject


def patched(model: ToyTransformer, pairs: Pairs, subject: Tensor) -> dict[str, list[float]]:
    """For each head, through all layers, its weight on the subject, and what the three ways restore
    or lose.

    subject (B,): where it stands.
    """
    patching, every = Patching(model, pairs), torch.arange(len(subject))
    found: dict[str, list[float]] = {"looks": [], "output": [], "pattern": [], "blind": []}
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


def measure(run: Run) -> Numbers:
    """Shares of the clean answer; a head looks that gives the subjects of hidden verbs 0.3 of its
    weight or more.

    The least is 1 if no head looks.
    """
    trained = load_multi_head_model(run.options, run.seed)
    sentences = training.corpus()[1][: QUICK_SENTENCES if run.options.quick else SENTENCES]
    found = patched(in_double(trained.model), *pairs_of(sentences))
    output = found["output"]
    carrier = max(range(len(output)), key=lambda head: output[head])
    run.shown["carrier"] = "head {}.{}".format(*divmod(carrier, trained.recipe.num_heads))
    looking = [
        share for share, weight in zip(output, found["looks"], strict=True) if weight >= LOOKS
    ]
    return {
        "heads that look": len(looking),
        "restored, least of the heads that look": min(looking, default=1.0),
        "restored, most of all heads": output[carrier],
        "lost by this head, blind": found["blind"][carrier],
        "restored by a pattern alone, most of all heads": max(found["pattern"]),
    }


CLAIM = Claim(
    id="patching-lookers",
    text="A head may look at a word and hand on next to nothing of it: in two layers of four heads one head carries "
    "the subject of a hidden verb to the guess, and another looks at it as well",
    source="against how patterns are read; Jain & Wallace 2019; the method is of Vig et al. 2020",
    rule=f"put into the corrupted text, the output of some head with {LOOKS} of its weight on the subject restores "
    f"{NOTHING} of the answer or less, and that of some head {CARRIES} or more",
    effect=lambda n: n["restored, least of the heads that look"],
    at_most=NOTHING,
    also=lambda n: n["restored, most of all heads"] >= CARRIES,
    oracle={"restored, least of the heads that look": 0.0, "restored, most of all heads": 0.9},
    null={"restored, *": 0.9},
    revised="was that every head that looks hands on a tenth; was undecided",
)

main = Experiment(
    measure,
    [CLAIM],
    answer="{shown[carrier]} brings back {n[restored, most of all heads]:.2f} of the answer; of "
    "{n[heads that look]:.0f} heads that look the least brings back {n[restored, least of the heads that look]:.2f}",
)

if __name__ == "__main__":
    main.run()
