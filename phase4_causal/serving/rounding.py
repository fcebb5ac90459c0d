"""What does a published decoder lose if its cache has few bits?

SmolLM2-135M reads a prompt of 512 tokens exactly. Then keys and values of the prompt are kept in 8,
4 or 2 bits, and the next 128 tokens attend to these. Values are always rounded by word. Keys are
rounded by channel, over 64 tokens, or by word, over its 64 channels: a group has 64 numbers either
way, so both need the same memory. The text is that of window.py, from a place that the seed draws.
"""

from functools import partial

import torch
from torch import Tensor

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase3_visualization.pretrained.language_model import SMOLLM2, load_language_model, refuses
from phase3_visualization.pretrained.next_tokens import excerpt, next_token_losses
from phase4_causal.serving.few_bits import rounded_by_channel, rounded_by_word
from shared.attention_utils import causal_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Run

PROMPT, NEW, GROUP = 512, 128, 64
BITS = (8, 4, 2)
WAYS = {
    "keys by channel": partial(rounded_by_channel, group=GROUP),
    "keys by word": rounded_by_word,
}


class RoundedPrompt:
    """Attention that finds the prompt in few bits, and keeps how far off each layer is by that."""

    def __init__(self, way: str, bits: int) -> None:
        self.way, self.bits = way, bits
        self.errors: list[float] = []  # of the outputs of each layer, relative

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As scaled_dot_product_attention, which the prompt and the weights still come from."""
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        prompt, exact = output.split([PROMPT, NEW], dim=-2)
        old_key, new_key = key.split([PROMPT, NEW], dim=-2)
        old_value, new_value = value.split([PROMPT, NEW], dim=-2)
        kept_key = torch.cat([WAYS[self.way](old_key, self.bits), new_key], dim=-2)
        kept_value = torch.cat([rounded_by_word(old_value, self.bits), new_value], dim=-2)
        new_query = query[..., PROMPT:, :]
        new, _ = scaled_dot_product_attention(new_query, kept_key, kept_value, mask[PROMPT:])
        self.errors.append(((new - exact).norm() / exact.norm()).item())
        return torch.cat([prompt, new], dim=-2), weights


@refuses
def measure(run: Run) -> Numbers:
    """Returns nats a token more than with the exact cache, and a layer's mean error."""
    language_model = load_language_model(SMOLLM2)
    tokens = excerpt(language_model, PROMPT + NEW, torch.Generator().manual_seed(run.seed))
    loss_of = partial(next_token_losses, language_model, tokens, causal_mask(PROMPT + NEW))
    exact = loss_of()[PROMPT:].mean().item()
    found = {"exact, loss": exact}
    for bits in BITS:
        for way in WAYS:
            cache = RoundedPrompt(way, bits)
            loss = loss_of(cache)[PROMPT:].mean().item()
            found[f"{way}, {bits} bits, more nats"] = loss - exact
            found[f"{way}, {bits} bits, error"] = sum(cache.errors) / len(cache.errors)
    return found


CLAIMS = (
    Claim(
        id="few-bits-keys",
        text="In a cache of 2 bits, keys that are rounded by channel do much less harm than keys "
        "that are rounded by word. Channels are rounded over 64 tokens, and values by word. We "
        "asked it of SmolLM2-135M. This is one model, and a seed draws the excerpt that it reads.",
        source="Liu et al. 2024 (KIVI), section 3, who measured larger models",
        rule="keys rounded by word cost 0.2 nats a token or more, and keys rounded by channel "
        "cost half of this or less",
        effect=lambda n: (
            n["keys by channel, 2 bits, more nats"] / n["keys by word, 2 bits, more nats"]
        ),
        at_most=0.5,
        also=lambda n: n["keys by word, 2 bits, more nats"] >= 0.2,
        draws=True,
        oracle={"keys by channel*": 0.3, "*": 2.0},
        null={"*": 1.0},
        explored=10,
    ),
)


main = Experiment(
    measure,
    CLAIMS,
    answer="In 4 bits it loses {n[keys by channel, 4 bits, more nats]:.2f} nats a token, with "
    "keys rounded by channel. In 2 bits it loses {n[keys by channel, 2 bits, more nats]:.2f}, and "
    "{n[keys by word, 2 bits, more nats]:.2f} if keys are rounded by word",
)

if __name__ == "__main__":
    main.run()
