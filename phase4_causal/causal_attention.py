"""Causal self-attention: every word sees itself and what came before, so that the next word must be predicted.

It is phase 2's module with a mask. Run it to see the mask, why hidden scores are -inf and not 0, the proof that nothing
leaks from the future, and a trained model writing sentences:

    python phase4_causal/causal_attention.py
    python phase4_causal/causal_attention.py --prompt "every small girl"
"""

import argparse
import math

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, merge_heads, split_heads
from phase4_causal.key_value_cache import KeyValueCache
from shared import cli
from shared.attention_utils import causal_mask, padding_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import END_ID, MAX_LENGTH, START_ID, decode, encode, tokenize
from shared.toy_model import ToyTransformer
from shared.training import CAUSAL_RECIPE, Trained

RECIPE = CAUSAL_RECIPE
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


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
        query, key, value = (split_heads(w(x), self.num_heads) for w in (self.w_q, self.w_k, self.w_v))  # of x alone
        key, value = cache.append(key, value)  # (B, H, T, d_k) -> (B, H, T_k, d_k): the past comes from the cache
        heads, weights = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        return self.w_o(merge_heads(heads)), weights  # (B, H, T, d_k) -> (B, T, d_model)


def load_causal_model(options: argparse.Namespace, seed: int | None = None) -> Trained:
    """Two layers of four causal heads, trained to predict the next word."""
    return cli.trained_model(RECIPE, CausalSelfAttention, options, seed)


@torch.no_grad()
def generate(model: ToyTransformer, prompt: list[str], limit: int = MAX_LENGTH) -> list[str]:
    """Continue the prompt with the likeliest word, one at a time, until <end> or `limit` words; returns all words.

    The plainest way: everything is computed again for each word. generate.py draws words and keeps a cache.
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


def largest_leak(model: ToyTransformer, tokens: Tensor) -> tuple[float, float]:
    """How much the future reaches the past: (largest change of an earlier logit, largest gradient of a later input).

    For each position i everything after i is replaced by other words; the logits at 0 to i must not move. The gradient
    of logit i with respect to the embeddings after i asks the same without choosing a replacement.
    """
    change = gradient = 0.0
    one, another = encode(["mat", "big"])
    others = torch.where(tokens == one, another, one)  # surely another word at every position
    embedded: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    for i in range(tokens.size(1) - 1):
        later = torch.arange(tokens.size(1), device=tokens.device) > i
        with torch.no_grad():
            before, _ = model(tokens)
            after, _ = model(torch.where(later, others, tokens))
        change = max(change, (before - after)[:, : i + 1].abs().max().item())
        embedded.clear()
        logits, _ = model(tokens)
        (slope,) = torch.autograd.grad(logits[:, i].square().sum(), embedded[0])
        gradient = max(gradient, slope[:, later].abs().max().item())
    hook.remove()
    return change, gradient


def print_mask(title: str, mask: Tensor) -> None:
    print(f"   {title}")
    for row in mask:
        print("      " + " ".join("1" if cell else "." for cell in row))


def show_masks() -> None:
    print("\n1. Masks: a row for each query, a column for each key, 1 = may attend")
    lengths = torch.tensor([6, 4])
    print_mask("causal: itself and what came before", causal_mask(6))
    print_mask("padding: a sequence of 4 words in a batch of length 6", padding_mask(lengths, 6)[1, 0].expand(6, 6))
    print_mask("causal & padding", (causal_mask(6) & padding_mask(lengths, 6))[1, 0])


def show_minus_infinity() -> dict[str, Tensor]:
    """The same three scores, the second one hidden in two ways -> name -> weights."""
    print("\n2. Hidden means -inf before softmax, not 0: exp(0) is 1, a score like any other")
    weights = {}
    for scores in ([2.0, 0.0, 3.0], [2.0, -math.inf, 3.0], [-2.0, 0.0, -3.0]):
        weights[str(scores)] = torch.softmax(torch.tensor(scores), dim=0)
        print(f"   softmax({scores}) = {[round(w, 3) for w in weights[str(scores)].tolist()]}")
    print("   The last line is worse: among negative scores a hidden key at 0 gets most of the weight.")
    return weights


def show_leaks(causal: Trained, bidirectional: Trained, words: list[str]) -> dict[str, float]:
    """Run the leak test on a causal model and, as its control, on one without a mask -> what each lets through."""
    print("\n3. Nothing leaks: replace everything after position i and compare all logits up to i")
    tokens = torch.tensor([[START_ID, *encode(words)]], device=causal.model.positions.device)
    leaks = {}
    for name, trained in (("causal", causal), ("without mask", bidirectional)):
        change, gradient = largest_leak(trained.model, tokens)
        leaks |= {f"{name}: largest change": change, f"{name}: largest gradient": gradient}
        print(f"   {name:12}  earlier logits change by {change:.2g}, gradients from later words reach {gradient:.2g}")
    assert leaks["causal: largest change"] == leaks["causal: largest gradient"] == 0.0
    return leaks


def hidden_weight(fill: float) -> dict[str, float]:
    """Filling hidden scores with `fill`: weight on a hidden key, and on hidden keys when all are hidden, by dtype."""
    outcome = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        try:
            some = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([False, True, False]), fill)
            every = torch.zeros(3, dtype=dtype).masked_fill(torch.tensor([True, True, True]), fill)
        except RuntimeError:
            outcome[f"{name}: refused by torch"] = 1
            continue
        outcome[f"{name}: one key hidden"] = torch.softmax(some, dim=0)[1].item()
        outcome[f"{name}: all hidden"] = torch.softmax(every, dim=0)[1].item()
    return outcome


def our_hidden_weight() -> dict[str, float]:
    """The same two cases through scaled_dot_product_attention."""
    outcome = {}
    for dtype in DTYPES:
        query, key = torch.zeros(2, 1, dtype=dtype), torch.zeros(3, 1, dtype=dtype)
        mask = torch.tensor([[True, False, True], [False, False, False]])
        _, weights = scaled_dot_product_attention(query, key, key, mask)
        outcome[f"{str(dtype).removeprefix('torch.')}: largest hidden weight"] = weights[~mask].abs().max().item()
    return outcome


def record_findings(
    softmax: dict[str, Tensor], leaks: dict[str, float], seed: int, options: argparse.Namespace
) -> None:
    zero, minus_inf, negative = softmax.values()
    filled, ours = hidden_weight(-1e9), our_hidden_weight()
    undefined = int(torch.full((3,), -math.inf).softmax(dim=0).isnan().all())
    findings.record(
        "phase4_causal/causal_attention.py",
        [
            Finding(
                "C001",
                "softmax([2, 0, 3]) = [0.24, 0.03, 0.73]",
                "course notes",
                {"softmax([2, 0, 3])": [round(w, 4) for w in zero.tolist()]},
                "weights",
                "all three agree to 0.005",
                findings.verdict(bool(((zero - torch.tensor([0.24, 0.03, 0.73])).abs() < 0.005).all())),
            ),
            Finding(
                "C002",
                "A key that is hidden with the score 0 still contributes",
                "course notes",
                {"beside scores 2 and 3": zero[1].item(), "beside scores -2 and -3": negative[1].item()},
                "weight of the hidden key",
                "more than 0.01",
                findings.verdict(min(zero[1].item(), negative[1].item()) > 0.01),
                control=f"with -inf: {minus_inf[1].item():g}",
            ),
            Finding(
                "C003",
                "softmax([2, -inf, 3]) = [0.27, 0.00, 0.73]",
                "course notes",
                {"softmax([2, -inf, 3])": [round(w, 4) for w in minus_inf.tolist()]},
                "weights",
                "all three agree to 0.005",
                findings.verdict(bool(((minus_inf - torch.tensor([0.27, 0.0, 0.73])).abs() < 0.005).all())),
            ),
            Finding(
                "C004",
                "A score of -inf becomes a weight of exactly 0",
                "course notes",
                ours | {"plain softmax, all keys hidden, is NaN": undefined},
                "weight (NaN: 1 = yes)",
                "exactly 0 in every dtype",
                **findings.conditional(
                    not undefined and max(ours.values()) == 0,
                    max(ours.values()) == 0,
                    "the query may see some key; a row without any is NaN unless it is set to 0, as it is here",
                ),
            ),
            Finding(
                "C005",
                "In practice -1e9 is close enough to -inf",
                "course notes",
                filled,
                "weight of a hidden key (refused: 1 = yes)",
                "0 in every dtype, also when every key is hidden",
                **findings.conditional(
                    max(filled.values()) == 0,
                    max(value for name, value in filled.items() if "one key" in name) == 0,
                    "the dtype can hold it (not float16) and no row hides all keys: it would see all",
                ),
                control="-inf with rows that see nothing set to 0: exactly 0 in every dtype",
            ),
            Finding(
                "C099",
                "With a causal mask each position depends on the past alone",
                "course notes",
                leaks,
                "largest absolute change of an earlier logit, and gradient from a later word",
                "both exactly 0 for the causal model",
                findings.verdict(leaks["causal: largest change"] == leaks["causal: largest gradient"] == 0.0),
                control="the model without a mask: the same test must find a leak",
                seeds=[seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
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
        return
    show_masks()
    softmax = show_minus_infinity()
    leaks = show_leaks(causal, load_multi_head_model(options), options.words)
    print(f"\n4. Generation, the likeliest word each time, {causal.label}:")
    for start in (prompt, prompt[:1], []):
        continued = generate(causal.model, start)
        print(f"   {' '.join(start) or '(nothing)'} | {' '.join(continued[len(start) :])}")
    record_findings(softmax, leaks, causal.recipe.seed, options)


if __name__ == "__main__":
    cli.run(main)
