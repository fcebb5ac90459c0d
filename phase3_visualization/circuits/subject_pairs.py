"""Which two sentences differ in their subject alone, and so in the hidden verb?

    clean       the farmer <mask> in a lake      swam, for people
    corrupted   the coin   <mask> in a lake      fell, for toys

Some verbs have a rival that wants the same preposition and the same kind of place. For these the
subject alone decides, and a second sentence is made with a subject of the rival.
"""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from phase3_visualization.circuits.patching import Pairs
from shared.attention_utils import padding_mask
from shared.toy_language import (
    MASK,
    SUBJECTS,
    VERBS,
    Sentence,
    decode,
    encode,
    pad_batch,
    sample_corpus,
)


def rival_of(verb: str) -> str | None:
    """The verb that differs in its subject alone: people swam in water, toys fell in water."""
    for other in VERBS:
        if other != verb and VERBS[other][1:] == VERBS[verb][1:]:
            return other
    return None


def subjects_of(verb: str) -> list[str]:
    """All nouns that may be its subject, singular and plural in turn."""
    return list(chain(*SUBJECTS[VERBS[verb][0]]))


def subject_pairs(sentences: Sequence[Sentence]) -> tuple[Pairs, Tensor]:
    """A pair of each sentence whose verb has a rival, and where the subjects stand (B,)."""
    clean, corrupted, verbs, subjects, answers = [], [], [], [], []
    for sentence in sentences:
        ((verb, subject),) = sentence.relations["verb-subject"]
        words = list(sentence.words)
        answer = words[verb]
        rival = rival_of(answer)
        if rival is None:
            continue
        verbs.append(verb)
        subjects.append(subject)
        answers.append(encode([answer, rival]))
        words[verb] = MASK
        clean.append(encode(words))
        noun = subjects_of(answer).index(words[subject])
        words[subject] = subjects_of(rival)[noun]  # as singular or plural as it was
        corrupted.append(encode(words))
    tokens, lengths = pad_batch(clean)
    mask = padding_mask(lengths, tokens.size(1))
    other_tokens, _ = pad_batch(corrupted)
    pairs = Pairs(tokens, other_tokens, torch.tensor(verbs), torch.tensor(answers), mask)
    return pairs, torch.tensor(subjects)


def main() -> None:
    pairs, subject = subject_pairs(sample_corpus(0, 10)[1])
    print("Pairs of sentences, with the place of the subject, and the verbs that are right:")
    for row, answers in enumerate(pairs.answers.tolist()):
        for text, answer in zip((pairs.clean, pairs.corrupted), answers, strict=True):
            words = " ".join(decode(text[row].tolist()))
            print(f"   {int(subject[row])}   {decode([answer])[0]:8} {words}")


if __name__ == "__main__":
    main()
