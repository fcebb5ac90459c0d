"""Is the pattern of a head used?

A head may look at the right word, and nothing may depend on it. Here verbs of the toy language are hidden whose subject
alone decides between two (patching.py), and of each head three things are tried at the hidden place:

    output    the corrupted text is read with the output that the head has in the clean one
    pattern   ... with its weights alone: it looks where it looked in the clean text, at the words that stand there now
    blind     the clean text is read, and the head gets nothing from the subject
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase3_visualization.circuits.patching import Pairs, Patching
from shared import training
from shared.attention_utils import padding_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.grammar.scores import DIRECTIONS, score_heads
from shared.toy_language import INDEX, MASK_ID, SUBJECTS, VERBS, Sentence, encode, pad_batch
from shared.toy_model import ToyTransformer, in_double
from shared.training import Trained

# Verbs that differ in nothing but their subject: people swam in water, toys fell in water
RIVALS = {a: b for a, (_, *of_a) in VERBS.items() for b, (_, *of_b) in VERBS.items() if a != b and of_a == of_b}
LOOKS, CARRIES = 0.3, 0.1  # mean weight on the subject, share restored


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
    """A pair of each sentence whose verb has a rival, and where the subjects stand (B,)."""
    asked = [pair(sentence) for sentence in sentences if not RIVALS.keys().isdisjoint(sentence.words)]
    clean, corrupted, verb, subject, answers = map(list, zip(*asked, strict=True))
    (clean, lengths), (corrupted, _) = pad_batch(clean), pad_batch(corrupted)
    verb, subject, answers = map(torch.tensor, (verb, subject, answers))
    return Pairs(clean, corrupted, verb, answers, padding_mask(lengths, clean.size(1))), subject


def role_head(trained: Trained, sentences: list[Sentence]) -> int:
    """The head that looks from the verb to its subject most often; heads are counted through all layers."""
    layers, _ = training.attention_on(trained.model, sentences, trained.recipe.objective)
    accuracy = score_heads(layers, sentences)["verb-subject"][..., DIRECTIONS.index("forward")]
    return int(accuracy.argmax())  # (L, H) -> one number


def patched(model: ToyTransformer, pairs: Pairs, subject: Tensor) -> dict[str, list[float]]:
    """For each head, through all layers, its weight on the subject, and what the three ways restore or lose.

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
    """Of each head its mean weight on the subject of hidden verbs, and shares of the clean answer.

    The head with the role is chosen on other sentences. NaN if no head looks.
    """
    trained = load_multi_head_model(run.options, run.seed)
    sentences = training.corpus()[1][: 100 if run.options.quick else training.NUM_HELD_OUT]
    found, num_heads = patched(in_double(trained.model), *pairs_of(sentences[1::2])), trained.recipe.num_heads
    heads = ["head {}.{}".format(*divmod(head, num_heads)) for head in range(len(found["looks"]))]
    role, looks, output = role_head(trained, sentences[::2]), found["looks"], found["output"]
    carrier = max(range(len(heads)), key=lambda head: output[head])
    run.shown.update(role=heads[role], carrier=heads[carrier])
    looking = [share for share, weight in zip(output, looks, strict=True) if weight >= LOOKS]
    by_head = {f"{head}, {way}": share for way in found for head, share in zip(heads, found[way], strict=True)}
    return by_head | {
        "heads that look": len(looking),
        "restored, least of the heads that look": min(looking, default=math.nan),
        "restored, most of all heads": output[carrier],
        "restored by the head with the role": output[role],
    }


CLAIM = Claim(
    id="patching-lookers",
    text="A head that looks at a word hands on what it finds there",
    source="how patterns are read; against it Jain & Wallace 2019; the method is of Vig et al. 2020",
    rule=f"every head with {LOOKS} of its weight on the subject of a hidden verb restores {CARRIES} or more",
    holds=lambda n: n["restored, least of the heads that look"] >= CARRIES,
    oracle={"restored, least of the heads that look": 0.3},
    null={"restored, least of the heads that look": 0.0},
)

main = Experiment(
    measure,
    [CLAIM],
    answer="The answer comes through {shown[carrier]} ({n[restored, most of all heads]:.2f}); the head with the "
    "role is {shown[role]} ({n[restored by the head with the role]:.2f})",
)

if __name__ == "__main__":
    main.run()
