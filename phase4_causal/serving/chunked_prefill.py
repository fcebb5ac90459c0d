"""How long do users wait for a long prompt, and does any text change?

SmolLM2, a published model, writes for four users when a fifth brings a prompt of some hundred
tokens. The prompt is read in one pass, or in chunks (chunked prefill; Agrawal et al. 2023). Waiting
is counted in passes and in the tokens that they compute, since seconds differ from machine to
machine: time to first token, from asking to the first token of the answer, and time per token, from
one token to the next. Every text is compared with the library's own.

    python phase4_causal/serving/chunked_prefill.py
"""

import random
from dataclasses import dataclass

import torch

from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    library,
    load_language_model,
    refuses,
    sentences_of,
    winograd_pairs,
)
from phase4_causal.serving.any_decoder import Decoder
from phase4_causal.serving.engine import Engine
from shared.claims import Numbers
from shared.experiment import Experiment, Run

PROMPTS = (
    "The capital of France is",
    "Water",
    "Once upon a time there was a small dragon who lived in",
    "def fibonacci(n):",
)
SENTENCES = 24  # of the long prompt
WRITTEN = 16  # tokens of an answer
BEFORE = 5  # passes before the fifth user asks
BLOCK_SIZE = 16
CHUNK_SIZES = {"whole": None, "in chunks": 32}


@dataclass
class Served:
    """What all users got, and how long they waited for it.

    texts: all tokens of each user, the fifth one last. passes_to_first, tokens_to_first: the fifth
    user's time to first token, and the tokens that all users' passes computed in it. per_token: of
    each pass that gave the others a token, how many tokens it computed.
    """

    texts: list[list[int]]
    passes_to_first: int
    tokens_to_first: int
    per_token: list[int]


def smollm2_decoder() -> Decoder:
    """SmolLM2 with its output matrix, which is that of its words and so is there already."""
    published = load_language_model(SMOLLM2)
    with torch.device("meta"):  # it needs no numbers of its own
        network = library().LlamaForCausalLM(published.model.config)
    network.model = published.model
    network.lm_head.weight = published.model.embed_tokens.weight
    return Decoder(network.eval(), published.tokenizer)


def serve(model: Decoder, prompts: list[str], limits: list[int], chunk: int | None) -> Served:
    """Writes for all users; the last of them asks when the others' answers have begun.

    There are blocks for all, so that nobody waits for room.
    """
    num_blocks = sum(limits) // BLOCK_SIZE + len(limits)
    engine = Engine(model, num_blocks, BLOCK_SIZE, chunk_size=chunk)
    users = []
    for prompt, limit in zip(prompts[:-1], limits[:-1], strict=True):
        users.append(engine.add(prompt, limit))
    for _ in range(BEFORE):
        engine.step()
    fifth = engine.add(prompts[-1], limits[-1])
    length = len(fifth.tokens)
    passes_to_first = tokens_to_first = 0
    per_token = []
    while engine.waiting or engine.running:
        fifth_waits = len(fifth.tokens) == length  # for its first token, which this pass may give
        others_write = engine.running != [fifth]
        computed = engine.step()
        if fifth_waits:
            passes_to_first += 1
            tokens_to_first += computed
        if others_write:
            per_token.append(computed)
    texts = [user.tokens for user in (*users, fifth)]
    return Served(texts, passes_to_first, tokens_to_first, per_token)


@refuses
def measure(run: Run) -> Numbers:
    """Returns counts of both ways, and how many of the texts are the library's, word for word."""
    model = smollm2_decoder()
    sentences = sentences_of(winograd_pairs())
    random.Random(run.seed).shuffle(sentences)
    prompts = [*PROMPTS, ". ".join(sentences[:SENTENCES])]
    limits = [len(model.encode(prompt)) + WRITTEN for prompt in prompts]
    expected = []
    for prompt, limit in zip(prompts, limits, strict=True):
        expected.append(model.by_library(prompt, limit))
    numbers = {"long prompt, tokens": limits[-1] - WRITTEN}
    for name, chunk in CHUNK_SIZES.items():
        served = serve(model, prompts, limits, chunk)
        same = 0
        for text, reference in zip(served.texts, expected, strict=True):
            same += text == reference
        numbers[f"{name}, texts as the library's"] = same
        numbers[f"{name}, longest time per token"] = max(served.per_token)
        numbers[f"{name}, passes to first token"] = served.passes_to_first
        numbers[f"{name}, tokens to first token"] = served.tokens_to_first
    return numbers


main = Experiment(
    measure,
    answer="While a long prompt is read in one pass, the others wait for "
    "{n[whole, longest time per token]:.0f} tokens to be computed before their next one, and in "
    "chunks for {n[in chunks, longest time per token]:.0f} at most. Word for word as the library "
    "writes them are {n[whole, texts as the library's]:.0f} of 5 texts in one pass, and "
    "{n[in chunks, texts as the library's]:.0f} in chunks",
)

if __name__ == "__main__":
    main.run()
