"""Read texts with a published model: every weight and state is kept, and every token named.

Texts to read are forty pairs of sentences in which one word decides what "it" means (Levesque et
al. 2012). shared/published.py loads the model.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import paths
from shared.claims import Numbers
from shared.experiment import Run
from shared.published import SMOLLM2, LanguageModel

TEXT = "The animal didn't cross the street because it was too tired"


@dataclass
class Reading:
    """What a model did with a batch of B texts of up to T tokens; padding stands at the end.

    weights (B, L, H, T, T); states (L + 1, B, T, d_model), the first is the input of the first
    layer; real (B, T), False for padding; special (B, T), True for tokens that are in no text;
    spans (B, T, 2), first and last character.
    """

    tokens: list[list[str]]
    weights: Tensor
    states: Tensor
    real: Tensor
    special: Tensor
    spans: Tensor


# ---- read texts with it


def check_weights(model: nn.Module, attentions: tuple[Tensor, ...], length: int) -> None:
    """ValueError, one line with a way out, unless all layers' weights are (B, H, T, T)."""
    config = model.config
    whole = [weights for weights in attentions if weights.shape[-2:] == (length, length)]
    if not len(attentions) == len(whole) == config.num_hidden_layers:
        raise ValueError(
            "weights of every query and key in every layer are needed, and a model of kind "
            f"{config.model_type} hands them out in {len(whole)} of {config.num_hidden_layers} "
            "layers: it has no attention there, or computes only some weights; "
            f"try {SMOLLM2}"
        )


def shown_tokens(
    tokenizer: Any, ids: list[int], text: str, spans: list[tuple[int, int]]
) -> list[str]:
    """Returns token ids of a text as strings to show, alike where the ids are, and only there.

    A space is shown as ␣ and a line break as ↵. Of several tokens that would look alike, such as
    "cat" with and without a space before it, or the bytes of one letter, the later ones have
    primes: cat, cat′. spans: first and last character of each.
    """
    names: dict[int, str] = {}
    for token, (start, end) in zip(ids, spans, strict=True):
        if token in names:
            continue
        piece = tokenizer.decode(token)
        if "\N{REPLACEMENT CHARACTER}" in piece:  # some bytes of a letter
            piece = text[start:end]
        name = piece.strip() or piece.replace(" ", "␣").replace("\n", "↵") or "∅"
        while name in names.values():
            name += "′"
        names[token] = name
    return [names[token] for token in ids]


@torch.no_grad()
def read_texts(language_model: LanguageModel, texts: list[str]) -> Reading:
    """Runs a batch of texts through the model.

    Raises ValueError for a text that is empty, holds bytes that are no UTF-8 or has too many
    tokens, and for a model without weights for every pair of tokens in every layer: one without
    attention, a hybrid, or one with attention in blocks.
    """
    for text in texts:
        if not text.strip() or re.search(r"[\ud800-\udfff]", text):
            raise ValueError(f"a text needs letters, and all in Unicode: got {text!a:.60}")
    model, tokenizer = language_model.model, language_model.tokenizer
    batch = tokenizer(
        texts,
        padding=True,
        return_tensors="pt",
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    spans = batch.pop("offset_mapping")
    special = batch.pop("special_tokens_mask").bool()
    real = batch["attention_mask"].bool()
    length = batch["input_ids"].size(1)
    # An XLNet says -1, since it has no limit.
    longest = getattr(model.config, "max_position_embeddings", -1)
    if 0 < longest < length:
        raise ValueError(
            f"a text must have at most {longest} tokens with the model's own: got {length}; "
            "shorten it"
        )
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    attentions = output.get("attentions") or ()
    check_weights(model, attentions, length)
    tokens = []
    for number, text in enumerate(texts):
        mine = real[number]
        ids = batch["input_ids"][number, mine].tolist()
        tokens.append(shown_tokens(tokenizer, ids, text, spans[number, mine].tolist()))
    weights = torch.stack(attentions, dim=1)  # L x (B, H, T, T) -> (B, L, H, T, T)
    return Reading(tokens, weights, torch.stack(output.hidden_states), real, special, spans)


def is_decoder(reading: Reading) -> bool:
    """Whether no real token sees a later one."""
    of_real = reading.weights * reading.real[:, None, None, :, None]
    return not of_real.triu(1).any()


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    start, end = re.search(rf"\b{word}\b", text).span()
    first, last = reading.spans[index].unbind(dim=-1)  # (T, 2) -> (T,), (T,)
    return (first < end) & (last > start) & ~reading.special[index]


# ---- our module, with the weights of a published layer

# Kinds of encoders whose layers name their parts alike.
BERTS = ("bert", "roberta", "xlm-roberta", "electra", "big_bird")


def modules_of(language_model: LanguageModel) -> list[MultiHeadAttention]:
    """Our MultiHeadAttention for each layer of a BERT, with the layer's own four matrices.

    Raises ValueError for a model of another kind.
    """
    model, config = language_model.model, language_model.model.config
    if config.model_type not in BERTS:
        raise ValueError(
            f"{language_model.name} is of kind {config.model_type}, and our module takes its "
            f"matrices from {', '.join(BERTS)}; try it without --model"
        )
    modules = []
    for layer in model.encoder.layer:
        projections, output = layer.attention.self, layer.attention.output
        module = MultiHeadAttention(output.dense.out_features, config.num_attention_heads)
        module.w_q = projections.query
        module.w_k = projections.key
        module.w_v = projections.value
        module.w_o = output.dense
        modules.append(module.eval())
    return modules


# ---- pairs of sentences, Winograd schemas


@dataclass(frozen=True)
class WinogradPair:
    """Two sentences of one frame, and the two nouns that "it" may mean.

    The frame has a gap. The first of two words, put into it, makes "it" mean the first noun.
    """

    frame: str
    nouns: list[str]
    words: list[str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


@cache
def winograd_pairs() -> list[WinogradPair]:
    """The famous pair first, and 39 of our own, a line each in a file.

    A line: The cat ate the fish because it was _ | cat fish | hungry tasty
    """
    pairs = []
    for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines():
        frame, nouns, words = line.split(" | ")
        pairs.append(WinogradPair(frame, nouns.split(), words.split()))
    return pairs


def sentences_of(pairs: list[WinogradPair]) -> list[str]:
    """All sentences, the members of a pair side by side."""
    sentences = []
    for pair in pairs:
        sentences += [pair.sentence(0), pair.sentence(1)]
    return sentences


# ---- what scripts on a model have in common


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the option --model. Each script says which model it looks at without it."""
    help_text = f"a model on this machine, or {SMOLLM2}, instead of the script's own"
    parser.add_argument("--model", metavar="NAME_OR_FOLDER", help=help_text)


def is_default(options: argparse.Namespace) -> bool:
    """Whether the options ask for the model that the findings are about."""
    return options.model is None


def refuses(measure: Callable[[Run], Numbers]) -> Callable[[Run], Numbers]:
    """Decorates measure(): what is wrong with a model or a text is one line, and exit code 2."""

    @wraps(measure)
    def in_one_line(run: Run) -> Numbers:
        try:
            return measure(run)
        except ValueError as error:
            run.refuse(str(error))

    return in_one_line
