"""Which sentences does the page show?

They were chosen once, for the model with seed 0, which is the same on every processor. The comments
say by which rules, and shared/tests/last_run.py asks whether the model still keeps them. With
another seed the page shows the same sentences, and the heads that this other model needs for them.
"""

from phase2_multi_head.heads.head_importance import (
    LayerAndHead,
    Sampled,
    language_model,
    over_examples,
    removal_importance,
)
from phase3_visualization.layers.readers import HiddenWord, hidden_loss
from shared.training.recipes import Trained

# The sentences of the story, and the positions of their hidden words: subjects, three words or more
# before their verb. Of the held-out sentences that fit a phone, with at most ten words, each is the
# one that suffers most without the head that finds the verb; there is one for each verb. The first
# three hidden words are the best guess at the end of the training, and before it not among the five
# best. The story begins with the one that a reader can work out: only vehicles stall.
OPENINGS = (
    ("some cars beside these big boxes stalled on these hills", 1),
    ("every coin beside that river fell in those red ponds", 1),
    ("the balls beside these houses rolled near the chairs", 1),
    ("those strange balls beside this garden lay on the beds", 2),
    ("those red cats beside many mats sat on the sofas", 2),
    ("many dogs beside a school quietly slept in many baskets", 1),
    ("some trucks beside the rivers often turned near many gardens", 1),
    ("the cats beside a lake ran near every field", 1),
    ("those trucks beside many rivers today stopped near those houses", 1),
    ("that farmer beside some hills stood on this new hill", 1),
    ("that strange farmer beside the hill worked in these houses", 2),
    ("every farmer beside that field swam in the red ponds", 1),
)
# A verb that loses most without the head that hidden verbs need most. Another verb goes with the
# same preposition and the same kind of place, so that only the subject can decide between them.
KNOCKED_OUT = ("that strange truck stalled on this strange dark bridge", 3)
# The hidden word whose thickest line misses most, in the mean over the heads of the last layer:
# without "ran", where it goes, the guess loses less than without "quietly", by more than a nat. A
# perfect reader, too, needs "quietly" most.
PRETTY_LINE = ("the dark dogs quietly ran near this park", 2)
# A short sentence, and for each word the one of the same part of speech that moves the guesses of
# the model with the mask most if it stands there instead.
WORDS = "the big teachers stood on that bridge"
OTHERS = "that small fields rolled in these farmer"


def with_gap(sentence: str, hidden: int) -> dict:
    """Returns what the page gets of a sentence and the position of its hidden word."""
    return {"words": sentence.split(), "hidden": hidden}


def costliest_head(trained: Trained, sentence: str, hidden: int) -> LayerAndHead:
    """Returns the head without which the hidden word of a sentence loses most."""
    case = HiddenWord(tuple(sentence.split()), hidden, related=frozenset())
    layers = [block.attention for block in trained.model.blocks]
    sampled = Sampled(layers, lambda: hidden_loss(trained.model, [case.tokens()], case))
    costs = removal_importance(sampled).flatten()  # (L, H, 1) -> (L * H,)
    return sampled.heads[int(costs.argmax())]


def landings(trained: Trained) -> list[dict]:
    """Returns the views of the story, each with the head that its hidden word needs most."""
    views = []
    for sentence, hidden in OPENINGS:
        layer, head = costliest_head(trained, sentence, hidden)
        views.append(with_gap(sentence, hidden) | {"layer": layer, "head": head})
    return views


def knocked_out(trained: Trained) -> dict:
    """Returns a sentence, the head that its verb needs most, and what each head costs."""
    needed = costliest_head(trained, *KNOCKED_OUT)
    return with_gap(*KNOCKED_OUT) | {"needed": needed, "heads": ablation_costs(trained)}


def ablation_costs(trained: Trained) -> list[dict]:
    """Returns what each head costs if it is removed, in nats a hidden word, and its 95 % interval.

    Its mean is over all hidden words of the held-out sentences.
    """
    sampled = language_model(trained)
    costs = removal_importance(sampled).flatten(0, 1)  # (L, H, N) -> (L * H, N)
    heads = []
    for head, of_head in zip(sampled.heads, costs, strict=True):
        interval = [round(end.item(), 4) for end in over_examples(of_head)]
        heads.append({"head": head, "cost": round(of_head.mean().item(), 4), "interval": interval})
    return heads
