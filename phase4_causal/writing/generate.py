"""Writing: the model says how likely each next word is, a rule picks one, and the model reads on from there.

    temperature   logits / t before softmax: 0 always takes the likeliest word (greedy), 1 takes the model at its word,
                  more makes unlikely words likelier
    top-k         only the k likeliest words may be drawn
    top-p         only the nucleus: the fewest likely words that together have probability p (Holtzman et al. 2020)

They apply in this order. With a key-value cache the model reads each word once; without it, it reads everything again
for each new word. Both must give the same logits, and this script shows that they do.

    python phase4_causal/writing/generate.py
    python phase4_causal/writing/generate.py --prompt "these dogs" --temperature 1.5 --top-p 0.9
"""

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase4_causal.causal_attention import CausalSelfAttention, load_causal_model
from phase4_causal.key_value_cache import KeyValueCache
from shared import cli, training
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import END_ID, MAX_LENGTH, PAD_ID, START_ID, decode, encode, tokenize
from shared.toy_model import ToyTransformer
from shared.training import Trained

SAME = 1e-10  # float64: rounding stays far below, a wrong position or mask far above


@dataclass(frozen=True)
class Sampling:
    """How the next word is picked. None: no limit on the words. Raises ValueError for values without a meaning."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:  # NaN fails this as well
            raise ValueError(f"temperature must be 0 (always the likeliest word) or more: got {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must leave 1 word or more: got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must lie above 0 and at most at 1 (all words): got {self.top_p:g}")

    @property
    def label(self) -> str:
        values = {"temperature": self.temperature, "top-k": self.top_k, "top-p": self.top_p}
        return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) -> the probabilities (..., V) by which the next word is drawn; each row sums to 1."""
        if self.temperature == 0:
            return F.one_hot(logits.argmax(dim=-1), logits.size(-1)).to(logits.dtype)  # (..., V) -> (...) -> (..., V)
        logits = logits - logits.max(dim=-1, keepdim=True).values  # else a small temperature overflows
        ranked, order = (logits / self.temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            ranked[..., self.top_k :] = 0.0
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        if self.top_p is not None and self.top_p < 1:
            likelier = ranked.cumsum(dim=-1) - ranked  # what the words before it have: the one that reaches p is kept
            ranked = ranked.masked_fill(likelier >= self.top_p, 0.0)
            ranked = ranked / ranked.sum(dim=-1, keepdim=True)
        return torch.zeros_like(ranked).scatter(-1, order, ranked)  # back from ranks to word ids


GREEDY = Sampling(temperature=0.0)


@dataclass
class Written:
    """What was generated for B sentences that share the length of their prompt; S is the number of steps.

    tokens (B, T + S): <start>, prompt, new words, <end>, then padding. logits (B, S, V). attended[s][layer]
    (B, H, T + s): the weights of the newest token in step s, on itself and all tokens before.
    """

    tokens: Tensor
    logits: Tensor
    attended: list[list[Tensor]]

    def sentences(self) -> list[list[str]]:
        """The words of each sentence, between <start> and <end>."""
        rows = [row[1:] for row in self.tokens.tolist()]
        return [decode(row[: row.index(END_ID)] if END_ID in row else row) for row in rows]


def new_caches(model: ToyTransformer, max_length: int, batch: int = 1) -> list[KeyValueCache]:
    """An empty cache for each layer. Raises ValueError if the model has fewer than max_length positions."""
    limit, d_model = model.positions.shape
    if max_length > limit:
        raise ValueError(f"this model has {limit} positions: got max_length={max_length}")
    like = model.embedding.weight
    heads = [block.attention.num_heads for block in model.blocks]
    return [KeyValueCache(batch, h, max_length, d_model // h, dtype=like.dtype, device=like.device) for h in heads]


@torch.no_grad()
def next_logits(model: ToyTransformer, tokens: Tensor, caches: list[KeyValueCache]) -> tuple[Tensor, list[Tensor]]:
    """Read tokens (B, T_new) after what the caches hold -> logits (B, T_new, V), weights (B, H, T_new, T_k) by layer.

    ToyTransformer.forward with a cache for each layer; positions go on where the cache ends. The caches grow by T_new.
    Raises ValueError if they have no room for it.
    """
    past = caches[0].length
    caches[0].check_room(tokens.size(1))
    x = model.embedding(tokens) + model.positions[past : past + tokens.size(1)]  # (B, T_new) -> (B, T_new, d_model)
    all_weights = []
    for block, cache in zip(model.blocks, caches, strict=True):
        output, weights = block.attention(block.attention_norm(x), cache=cache)
        x = x + output
        x = x + block.feed_forward(block.feed_forward_norm(x))
        all_weights.append(weights)
    return model.output_norm(x) @ model.embedding.weight.T + model.output_bias, all_weights


@torch.no_grad()
def write(
    model: ToyTransformer,
    tokens: Tensor,
    sampling: Sampling = GREEDY,
    *,
    limit: int = MAX_LENGTH,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Written:
    """Go on from tokens (B, T), <start> and a prompt, until all sentences have ended or have `limit` words.

    generator: a CPU generator; the same seed draws the same words. Raises ValueError if the prompt fills the limit.
    """
    batch, length = tokens.shape
    if length > limit:
        raise ValueError(f"limit must leave room after the prompt of {length - 1} words: got {limit}")
    caches = new_caches(model, limit + 1, batch) if cached else []
    new, all_logits, attended = tokens, [], []
    ended = torch.zeros(batch, dtype=torch.bool, device=tokens.device)
    while tokens.size(1) <= limit and not ended.all():
        logits, layers = next_logits(model, new, caches) if cached else model(tokens)
        all_logits.append(logits[:, -1])  # (B, T, V) -> (B, V): the last position predicts what comes next
        attended.append([weights[:, :, -1] for weights in layers])  # (B, H, T, T_k) -> (B, H, T_k)
        chances = sampling.probabilities(all_logits[-1]).cpu()
        drawn = torch.multinomial(chances, 1, generator=generator).to(tokens.device)  # (B, V) -> (B, 1)
        new = drawn.masked_fill(ended[:, None], PAD_ID)
        ended |= new[:, 0] == END_ID
        tokens = torch.cat([tokens, new], dim=1)  # (B, T) -> (B, T + 1)
    return Written(tokens, torch.stack(all_logits, dim=1), attended)


def twin(trained: Trained, make_attention: type[MultiHeadAttention]) -> ToyTransformer:
    """The trained weights in a model with another attention, in float64 on the CPU."""
    model = training.new_model(trained.recipe, make_attention)
    model.load_state_dict(trained.model.state_dict())
    return model.double().eval()


def generation_differences(
    model: ToyTransformer, tokens: Tensor, sampling: Sampling, seed: int
) -> tuple[float, int, int]:
    """Largest difference of the logits, number of different words, number of words: cache against none, drawn."""
    runs = []
    for cached in (True, False):
        generator = torch.Generator().manual_seed(seed)
        runs.append(write(model, tokens.expand(20, -1), sampling, generator=generator, cached=cached))
    with_cache, without = runs
    if with_cache.tokens.shape != without.tokens.shape:
        return math.inf, without.tokens.numel(), without.tokens.numel()
    difference = (with_cache.logits - without.logits).abs().max().item()
    return difference, int((with_cache.tokens != without.tokens).sum()), without.tokens.numel()


def show_sentences(model: ToyTransformer, prompt: list[str], sampling: Sampling, options: argparse.Namespace) -> None:
    """The greedy sentence and three drawn ones, each with what the grammar says about it."""
    tokens = torch.tensor([[START_ID, *encode(prompt)]], device=model.positions.device)
    generator = torch.Generator().manual_seed(options.seed)
    drawn = write(model, tokens.expand(3, -1), sampling, limit=options.limit, generator=generator).sentences()
    greedy = write(model, tokens, GREEDY, limit=options.limit).sentences()
    for name, sentences in (("the likeliest word each time", greedy), (f"drawn, {sampling.label}", drawn)):
        print(f"   {name}")
        for words in sentences:
            log_probability = sentence_log_probability(words)
            verdict = "not in the grammar" if log_probability == -math.inf else f"ln P = {log_probability:.1f}"
            print(f"      {' '.join(prompt)} | {' '.join(words[len(prompt) :])}   ({verdict})")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", default="the cat", metavar="TEXT", help='what the model continues (default: "the cat")')
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy; default: 1")
    add("--top-k", type=int, metavar="K", help="draw among the K likeliest words (default: all)")
    add("--top-p", type=float, metavar="P", help="draw among the words that together have probability P (default: all)")
    add("--limit", type=int, default=MAX_LENGTH, metavar="N", help=f"words at most, prompt included ({MAX_LENGTH})")


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[str], Sampling]:
    """The prompt's words and the sampling rule; ends the program with one line if they make no sense."""
    try:
        prompt = tokenize(options.prompt)
        sampling = Sampling(options.temperature, options.top_k, options.top_p)
    except ValueError as error:
        parser.error(str(error))
    if not len(prompt) < options.limit <= MAX_LENGTH:
        parser.error(f"--limit must lie between {len(prompt) + 1} and {MAX_LENGTH} words: got {options.limit}")
    return prompt, sampling


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    add_options(parser)
    options = cli.parse(parser, argv)
    prompt, sampling = checked(parser, options)
    trained = load_causal_model(options)
    print(f"\n1. Sentences, {trained.label}")
    show_sentences(trained.model, prompt, sampling, options)
    exact = twin(trained, CausalSelfAttention)
    tokens = torch.tensor([[START_ID, *encode(prompt)]])
    difference, wrong, total = generation_differences(exact, tokens, sampling, options.seed)
    print("\n2. The cache changes nothing: 20 sentences drawn in this way, with it and without it, float64")
    print(f"   largest difference of the logits {difference:.1e}; {wrong} of {total} tokens differ")
    assert difference < SAME and wrong == 0


if __name__ == "__main__":
    cli.run(main)
