"""Can attention be kept from looking ahead, completely?

Then the next word must be predicted, and a model learns to write. Causal self-attention is phase 2's module with a
mask: every word sees itself and what came before. Run it to see the mask, a trained model writing sentences, why hidden
scores are -inf and not 0, and the proof that nothing leaks from the future:

    python phase4_causal/causal_attention.py
    python phase4_causal/causal_attention.py --prompt "every small girl"
"""

import argparse
import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import (
    MultiHeadAttention,
    check_sequences,
    load_multi_head_model,
    merge_heads,
    split_heads,
)
from phase4_causal.key_value_cache import KeyValueCache
from shared import cli, training
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.claims import PROBE, Claim, measures
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, decode, encode, tokenize
from shared.toy_model import MakeAttention, ToyTransformer, watch_embedding
from shared.training import CAUSAL_RECIPE, Trained

RECIPE = CAUSAL_RECIPE
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def also_causal(x: Tensor, mask: Tensor | None) -> Tensor:
    """The causal mask of x (B, T, d_model), and a further one, which may be None: both must allow a key."""
    causal = causal_mask(x.size(1), device=x.device)
    return causal if mask is None else causal & mask


class CausalSelfAttention(MultiHeadAttention):
    """MultiHeadAttention over one sequence in which position i attends to positions 0 to i, whatever else is masked."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T_k), zero for every key after the query.

        cache: keys and values of the positions before x; those of x are added to it, so T_k = cache.length afterwards.
        Without a cache T_k = T. mask: a further mask over the T_k keys, such as that of padding, as MultiHeadAttention
        takes it; both must allow a key. Raises ValueError if the cache has no room for T more positions.
        """
        past = 0 if cache is None else cache.length
        causal = causal_mask(x.size(1), past + x.size(1), device=x.device)  # the last query stands at the last key
        return self.attend(x, causal if mask is None else causal & mask, cache)

    def attend(self, x: Tensor, mask: Tensor | None, cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
        """forward with exactly this mask, (T, T_k) or (B, H, T, T_k) with 1 where all share it."""
        if cache is None:
            return super().forward(x, mask=mask)
        check_sequences(self.w_q.in_features, x, x, x)
        query, key, value = (split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v))  # of x alone
        key, value = cache.append(key, value)  # (B, H, T, d_k) -> (B, H, T_k, d_k): the past comes from the cache
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four causal heads, trained to predict the next word."""
    return cli.trained_model(RECIPE, CausalSelfAttention, options, seed)


def with_attention(trained: Trained, make_attention: MakeAttention) -> ToyTransformer:
    """The trained weights in a model with another attention, such as one without the mask: a mask has no parameters."""
    model = training.new_model(trained.recipe, make_attention)
    model.load_state_dict(trained.model.state_dict())
    return model.eval()


@torch.no_grad()
def generate(model: ToyTransformer, prompt: list[str], limit: int = MAX_LENGTH) -> list[str]:
    """Continue the prompt with the likeliest word, one at a time, until <end> or `limit` words; returns all words.

    The plainest way: everything is computed again for each word. writing/sampling.py draws words and keeps a cache.
    """
    device = model.positions.device
    tokens = [START_ID, *encode(prompt)]
    while len(tokens) <= limit:
        logits, _ = model(torch.tensor([tokens], device=device))
        likeliest = int(logits[0, -1].argmax())  # (1, T, V) -> (V,): the last position predicts what comes next
        if likeliest == END_ID:
            break
        tokens.append(likeliest)
    return decode(tokens[1:])


@measures(
    Claim(
        id="C005",
        text="In practice -1e9 is close enough to -inf",
        kind=PROBE,
        source="course notes, the causal mask",
        rule="0 in every dtype, also when every key is hidden",
        holds=lambda n: max(n.values()) == 0,
        only_if=lambda n: max(weight for name, weight in n.items() if "one key" in name) == 0,
        condition="the dtype can hold it (not float16) and no row hides all keys: it would see all",
        unit="weight of a hidden key (refused: 1 = yes)",
        control="-inf with rows that see nothing set to 0: exactly 0 in every dtype",
    )
)
def weight_under(fill: float) -> dict[str, float]:
    """Filling hidden scores with `fill`: weight on a hidden key, and on hidden keys when all are hidden, by dtype."""
    found = {}
    for dtype in DTYPES:
        name = name_of(dtype)
        try:
            some = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([False, True, False]), fill)
            every = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([True, True, True]), fill)
        except RuntimeError:
            found[f"{name}: refused by torch"] = 1
            continue
        found[f"{name}: one key hidden"] = torch.softmax(some, dim=0)[1].item()
        found[f"{name}: all hidden"] = torch.softmax(every, dim=0)[1].item()
    return found


def largest_leak(model: ToyTransformer, tokens: Tensor) -> tuple[float, float]:
    """How much the future reaches the past: (largest change of an earlier logit, largest gradient of a later input).

    For each position i everything after i is replaced by other words; the logits at 0 to i must not move. The gradient
    of logit i with respect to the embeddings after i asks the same without choosing a replacement.
    """
    change = gradient = 0.0
    one, another = encode(["mat", "big"])
    others = torch.where(tokens == one, another, one)  # surely another word at every position
    for i in range(tokens.size(1) - 1):
        later = torch.arange(tokens.size(1), device=tokens.device) > i
        with torch.no_grad():
            before, _ = model(tokens)
            after, _ = model(torch.where(later, others, tokens))
        change = max(change, (before - after)[:, : i + 1].abs().max().item())
        with watch_embedding(model) as embedded:
            logits, _ = model(tokens)
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), embedded[0])
        gradient = max(gradient, slope[:, later].abs().max().item())
    return change, gradient


def print_mask(title: str, mask: Tensor) -> None:
    print(f"   {title}")
    for row in mask:
        print("      " + " ".join("1" if cell else "." for cell in row))


@cli.script
def main(argv: list[str] | None = None) -> str | None:
    parser = cli.parser(__doc__, trains=True)
    parser.add_argument(
        "--prompt", default="the cat", metavar="TEXT", help='what the model continues (default: "the cat")'
    )
    options = cli.parse(parser, argv)
    try:
        prompt = tokenize(options.prompt)
    except ValueError as error:
        parser.error(f"--prompt: {error}")
    causal = load_causal_model(options)
    if options.train_only:
        return None
    print("\n1. Masks: a row for each query, a column for each key, 1 = may attend")
    padding = padding_mask(torch.tensor([6, 4]), 6)[1, 0]  # (2, 1, 1, 6) -> (1, 6)
    print_mask("causal: itself and what came before", causal_mask(6))
    print_mask("padding: a sequence of 4 words in a batch of length 6", padding.expand(6, 6))
    print_mask("causal & padding", causal_mask(6) & padding)
    print(f"\n2. Generation, the likeliest word each time, {causal.label}:")
    for start in (prompt, prompt[:1], []):
        continued = generate(causal.model, start)
        print(f"   {' '.join(start) or '(nothing)'} | {' '.join(continued[len(start) :])}")
    print("\n3. Hidden means -inf before softmax, not 0, a score like any other: exp(0) is 1")
    for scores in ((2, 0, 3), (2, -math.inf, 3), (-2, 0, -3)):
        weights = torch.tensor(scores, dtype=torch.float32).softmax(dim=0)
        print(f"   {f'softmax({list(scores)})':22} = {', '.join(f'{w:.3f}' for w in weights)}")
    findings.record(options, weight_under(-1e9))
    print("\n4. Nothing leaks: replace all words after position i, look up to i")
    tokens = torch.tensor([[START_ID, *encode(options.words)]], device=causal.model.positions.device)
    moved, control = (largest_leak(each.model, tokens)[0] for each in (causal, load_multi_head_model(options)))
    return f"Later words changed, earlier logits move by {moved:g}; without a mask by {control:.1f}"


if __name__ == "__main__":
    cli.run(main)
