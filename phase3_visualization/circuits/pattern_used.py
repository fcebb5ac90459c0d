"""Is the pattern of a head used?

A head may look at the right word, and nothing may depend on it. Here verbs of the toy language are
hidden whose subject alone decides between two (subject_pairs.py). At the hidden place three things
are tried with each head:

    output    reading the corrupted text, the head gives what it gave for the clean one
    pattern   the same with its weights alone: it looks where it looked, at the words there now
    blind     reading the clean text, the head gets nothing from the subject
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from phase2_multi_head.models import load_multi_head_model
from phase3_visualization.circuits.patching import Pairs, Patching
from phase3_visualization.circuits.subject_pairs import subject_pairs
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Run
from shared.toy_model import ToyTransformer
from shared.training.objectives import corpus

SENTENCES = 250  # held-out; about half have a verb with a rival
LOOKS = 0.3  # mean weight on the subject
CARRIES, NOTHING = 0.5, 0.1  # shares restored: much, and next to nothing


@dataclass(frozen=True)
class Use:
    """A head, its mean weight on the subject, and what each of the three trials says of it.

    output and pattern: shares restored; blind: share lost.
    """

    name: str
    looks: float
    output: float
    pattern: float
    blind: float


def uses_of_heads(model: ToyTransformer, pairs: Pairs, subject: Tensor) -> list[Use]:
    """Returns the heads of all layers; subject (B,): where it stands."""
    patching = Patching(model, pairs)
    every = torch.arange(len(subject))
    uses = []
    for layer, weights in enumerate(patching.clean.weights):
        blind_weights = weights.clone()
        blind_weights[every, :, pairs.position, subject] = 0  # nothing takes the subject's place
        outputs = patching.clean.outputs(layer)
        by_pattern = patching.corrupted.outputs(layer, weights)
        blind = patching.clean.outputs(layer, blind_weights)
        for head in range(weights.size(1)):
            patch_blind = patching.patch_at_question(layer, head, blind)
            left = patching.logit_difference(patch_blind, tokens=pairs.clean)
            patch = patching.patch_at_question(layer, head, outputs)
            patch_pattern = patching.patch_at_question(layer, head, by_pattern)
            use = Use(
                name=f"layer {layer} head {head}",
                looks=weights[every, head, pairs.position, subject].mean().item(),
                output=patching.restored(patch),
                pattern=patching.restored(patch_pattern),
                blind=1 - left / patching.clean_difference,
            )
            uses.append(use)
    return uses


def measure(run: Run) -> Numbers:
    """Returns shares of the clean answer. The least is 1 if no head looks."""
    trained = load_multi_head_model(run.options, run.seed)
    _, held_out = corpus()
    pairs, subject = subject_pairs(held_out[:SENTENCES])
    uses = uses_of_heads(trained.model.cpu(), pairs, subject)
    carrier = max(uses, key=lambda use: use.output)
    looking = [use.output for use in uses if use.looks >= LOOKS]
    run.shown["carrier"] = carrier.name
    run.shown["looks most"] = max(uses, key=lambda use: use.looks).name
    return {
        "heads that look": len(looking),
        "restored, least of the heads that look": min(looking, default=1.0),
        "restored, most of all heads": carrier.output,
        "lost by this head, blind": carrier.blind,
        "restored by a pattern alone, most of all heads": max(use.pattern for use in uses),
    }


CLAIM = Claim(
    id="patching-lookers",
    text="A head may look at a word and hand on next to nothing of it. When a verb is hidden, one "
    "head carries its subject to the guess, and another one looks at the subject as well, but "
    "hands on next to nothing. The rule does not ask which of them looks more. We asked it of two "
    "layers of four heads.",
    source="it goes against how patterns are read, as Jain & Wallace 2019 do; the method is that "
    "of Vig et al. 2020",
    rule=f"some head with {LOOKS} of its weight on the subject restores {NOTHING} of the answer "
    f"or less when its output is put into the corrupted text, and some head restores {CARRIES} or "
    "more",
    effect=lambda n: n["restored, least of the heads that look"],
    at_most=NOTHING,
    also=lambda n: n["restored, most of all heads"] >= CARRIES,
    explored=9,
    oracle={"restored, least of the heads that look": 0.0, "restored, most of all heads": 0.9},
    null={"restored, *": 0.9},
    revised="at first the claim was that every head that looks hands on a tenth, which came out "
    "undecided",
)

main = Experiment(
    measure,
    [CLAIM],
    answer="{n[heads that look]:.0f} heads look at the subject. Of these, the weakest restores "
    "{n[restored, least of the heads that look]:.0%} of the answer, and of all heads "
    "{shown[carrier]} restores most, {n[restored, most of all heads]:.0%}. The head that looks "
    "at the subject most is {shown[looks most]}",
    uses="--seed --seeds --quick --device --retrain --d-model --heads --layers",
)

if __name__ == "__main__":
    main.run()
