"""The toy language: about 100 words and a grammar, so that who belongs to whom is known.

Every sentence has a subject, a verb and a place; adjectives, adverbs and a second noun come and go:

    the cat sat on the mat
    those small dogs beside the dark barn slept quietly in a bed

What makes it worth learning is that words carry information about each other:

    determiner -> noun       "these" needs a plural noun, "every" a singular one, "the" takes both
    verb       -> subject    each verb picks a class: "swam" is said of people, "slept" of animals
    verb       -> place      each verb picks a kind: "swam" happens in water, "slept" in beds
    adjective  -> noun       every adjective fits every noun: no information, kept as a control

and that the distance between related words varies, so that no fixed offset ("one word to the left")
is a good guess. Each generated sentence carries these relations as index pairs: the gold against
which attention heads are scored.
"""

import difflib
import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from shared import paths

TOY_SENTENCE = "the cat sat on the mat"
MAX_LENGTH = 32  # words in one sentence; the grammar itself never needs more than 18

PAD, MASK, START, END = SPECIAL = ("<pad>", "<mask>", "<start>", "<end>")

SINGULAR_DETERMINERS = ("a", "this", "that", "every")
PLURAL_DETERMINERS = ("these", "those", "some", "many")
EITHER_DETERMINERS = ("the",)
ADJECTIVES = ("big", "small", "dark", "new", "red", "soft", "strange")
ADVERBS = ("quietly", "slowly", "often", "again", "today")
# "the cat beside the barn slept": a noun that is not the subject stands nearer to the verb.
ATTRACTOR_PREPOSITION = "beside"


def with_plurals(singulars: str) -> tuple[tuple[str, str], ...]:
    """ "cat fox" -> (("cat", "cats"), ("fox", "foxes"))."""
    pairs = []
    for noun in singulars.split():
        ending = "es" if noun.endswith(("s", "x")) else "s"
        pairs.append((noun, noun + ending))
    return tuple(pairs)


# class -> (singular, plural) nouns
SUBJECTS = {
    "animal": with_plurals("cat dog fox"),
    "person": with_plurals("girl farmer teacher"),
    "vehicle": with_plurals("car bus truck"),
    "toy": with_plurals("ball coin kite"),
}
PLACES = {
    "seat": with_plurals("mat sofa chair"),
    "bed": with_plurals("bed basket box"),
    "land": with_plurals("field park garden"),
    "water": with_plurals("lake river pond"),
    "road": with_plurals("street bridge hill"),
    "building": with_plurals("barn house school"),
}
# verb -> (class of its subject, its preposition, class of its place)
VERBS = {
    "sat": ("animal", "on", "seat"),
    "slept": ("animal", "in", "bed"),
    "ran": ("animal", "near", "land"),
    "swam": ("person", "in", "water"),
    "worked": ("person", "in", "building"),
    "stood": ("person", "on", "road"),
    "stalled": ("vehicle", "on", "road"),
    "stopped": ("vehicle", "near", "building"),
    "turned": ("vehicle", "near", "land"),
    "rolled": ("toy", "near", "seat"),
    "fell": ("toy", "in", "water"),
    "lay": ("toy", "on", "bed"),
}

NOUN_PAIRS = tuple(itertools.chain(*SUBJECTS.values(), *PLACES.values()))
PREPOSITIONS = sorted({preposition for _, preposition, _ in VERBS.values()})

# How likely the choices of sample_sentence are; those not named here are even.
ADVERB_CHANCE = 0.2  # at each place for an adverb
ATTRACTOR_CHANCE = 0.3  # in a sentence
PLURAL_CHANCE = 0.5  # of a noun
ADJECTIVE_COUNTS = (5, 3, 2)  # weights of no, one and two adjectives before a noun

RELATIONS = ("determiner-noun", "verb-subject", "verb-place", "adjective-noun")


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, and its gold relations: name -> pairs of word indices (from, to)."""

    words: tuple[str, ...]
    relations: dict[str, list[tuple[int, int]]]

    def __str__(self) -> str:
        return " ".join(self.words)


def sample_sentence(rng: random.Random) -> Sentence:
    """Draw one sentence from the grammar.

    sentence    -> [adverb] noun-phrase [beside noun-phrase]
                   [adverb] verb [adverb] preposition noun-phrase
    noun-phrase -> determiner [adjective [adjective]] noun
    """
    words = []
    relations = {name: [] for name in RELATIONS}

    def maybe_adverb() -> None:
        if rng.random() < ADVERB_CHANCE:
            words.append(rng.choice(ADVERBS))

    def noun_phrase(nouns: tuple[tuple[str, str], ...]) -> int:
        """Append a noun phrase; return the index of its noun."""
        plural = rng.random() < PLURAL_CHANCE
        determiners = PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS
        determiner = len(words)
        words.append(rng.choice(determiners + EITHER_DETERMINERS))
        (adjectives,) = rng.choices((0, 1, 2), weights=ADJECTIVE_COUNTS)
        words.extend(rng.sample(ADJECTIVES, adjectives))
        noun = len(words)
        words.append(rng.choice(nouns)[plural])
        relations["determiner-noun"].append((determiner, noun))
        relations["adjective-noun"].extend((i, noun) for i in range(determiner + 1, noun))
        return noun

    verb_word = rng.choice(tuple(VERBS))
    subject_class, preposition, place_class = VERBS[verb_word]

    maybe_adverb()
    subject = noun_phrase(SUBJECTS[subject_class])
    if rng.random() < ATTRACTOR_CHANCE:
        words.append(ATTRACTOR_PREPOSITION)
        noun_phrase(PLACES[rng.choice(tuple(PLACES))])
    maybe_adverb()
    verb = len(words)
    words.append(verb_word)
    maybe_adverb()
    words.append(preposition)
    place = noun_phrase(PLACES[place_class])

    relations["verb-subject"].append((verb, subject))
    relations["verb-place"].append((verb, place))
    return Sentence(tuple(words), relations)


def sample_corpus(
    num_train: int, num_held_out: int, seed: int = 0
) -> tuple[list[Sentence], list[Sentence]]:
    """Draw (train, held-out) sentences, all different; the toy sentence is never among them."""
    rng = random.Random(seed)
    sentences = {}  # by their words
    while len(sentences) < num_train + num_held_out:
        sentence = sample_sentence(rng)
        if str(sentence) != TOY_SENTENCE:
            sentences[sentence.words] = sentence
    drawn = list(sentences.values())
    return drawn[:num_train], drawn[num_train:]


WORDS_BY_KIND = {
    "determiner": (*EITHER_DETERMINERS, *SINGULAR_DETERMINERS, *PLURAL_DETERMINERS),
    "adjective": ADJECTIVES,
    "adverb": ADVERBS,
    "noun": tuple(itertools.chain(*NOUN_PAIRS)),
    "verb": tuple(VERBS),
    "preposition": tuple(sorted([*PREPOSITIONS, ATTRACTOR_PREPOSITION])),
}
VOCABULARY = (*SPECIAL, *itertools.chain(*WORDS_BY_KIND.values()))
INDEX = {word: index for index, word in enumerate(VOCABULARY)}
PAD_ID, MASK_ID, START_ID, END_ID = range(len(SPECIAL))


def all_words() -> str:
    """Returns every word of the language, a line for each kind."""
    return "\n".join(f"{kind}s: {' '.join(words)}" for kind, words in WORDS_BY_KIND.items())


def words_instead(words: list[str], at: int) -> str:
    """Returns what could stand there: the nearest words by their letters, or some of a kind.

    After a noun these are verbs, because it is the place of a verb; elsewhere they are nouns.
    """
    near = difflib.get_close_matches(words[at], VOCABULARY[len(SPECIAL) :], n=3, cutoff=0.65)
    if near:
        return f"nearest known words: {', '.join(near)}"
    nouns, verbs = WORDS_BY_KIND["noun"], WORDS_BY_KIND["verb"]
    if at > 0 and words[at - 1] in nouns:
        return f"verbs that it knows: {', '.join(verbs[::2])}"
    return f"nouns that it knows: {', '.join(nouns[::10])}"


def tokenize(text: str) -> list[str]:
    """Split a sentence into words of the vocabulary.

    Raises ValueError, naming the rule and the way out, for an empty sentence, one of more than 32
    words, and a word that the language does not have (with words that it has).
    """
    words = text.lower().replace(".", " ").replace(",", " ").split()
    if not words:
        raise ValueError(f'the sentence is empty: give at least one word, e.g. "{TOY_SENTENCE}"')
    if len(words) > MAX_LENGTH:
        raise ValueError(f"the sentence has {len(words)} words: the limit is {MAX_LENGTH}")
    known = VOCABULARY[len(SPECIAL) :]
    for at, word in enumerate(words):
        if word not in known:
            rule = f'"{word}" is not among the {len(known)} words of the toy language'
            raise ValueError(f"{rule}; {words_instead(words, at)}; --words prints all")
    return words


def encode(words: list[str] | tuple[str, ...]) -> list[int]:
    """Words -> token ids."""
    return [INDEX[word] for word in words]


def decode(ids: list[int]) -> list[str]:
    """Token ids -> words."""
    return [VOCABULARY[index] for index in ids]


def pad_batch(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows of token ids -> tokens (B, T), padded at the end with <pad>, and lengths (B,)."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = [row + [PAD_ID] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long), torch.tensor(lengths)


def read_sentences(path: str) -> list[str]:
    """Sentences of a file, one a line; empty lines and lines that begin with # are skipped.

    Raises ValueError with file and line number for a sentence that the language does not have, and
    for what paths.text_of refuses.
    """
    text = paths.text_of(path)
    sentences = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            tokenize(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        sentences.append(line)
    if not sentences:
        raise ValueError(f"{path} holds no sentence: write one a line")
    return sentences
