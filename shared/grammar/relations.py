"""Who belongs to whom in a sentence that a reader types? The grammar's order of words says it.

Generated sentences carry their relations (shared/toy_language.py); here they are read off the kinds of the words.
"""

from collections.abc import Sequence

from shared.grammar.entropy import KIND, ORDER
from shared.toy_language import Sentence


def with_relations(words: Sequence[str]) -> Sentence:
    """The sentence with its gold relations; without any if the grammar never puts words in this order."""
    match = ORDER.fullmatch("".join(KIND[word] for word in words))
    if not match:
        return Sentence(tuple(words), {})
    phrases = [match.span(part) for part in ("subject", "attractor", "place") if match[part]]
    verb, subject, place = match.start("verb"), match.end("subject") - 1, match.end("place") - 1
    relations = {
        "determiner-noun": tuple((start, end - 1) for start, end in phrases),
        "verb-subject": ((verb, subject),),
        "verb-place": ((verb, place),),
        "adjective-noun": tuple((i, end - 1) for start, end in phrases for i in range(start + 1, end - 1)),
    }
    return Sentence(tuple(words), relations)
