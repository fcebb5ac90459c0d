"""Reading with a key-value cache gives the same logits, in chunks of any size; and when writing needs no mask.

A prompt may be read whole and each new word by itself. The mask must then be shifted: query i of a chunk stands behind
everything in the cache. For a single new word the causal mask hides nothing, since all keys are of its past, so it may
be left out. That does not hold for words that are read together, or read again: then an earlier word would see a later
one and, in a model of two layers or more, pass on what it saw.

    python phase4_causal/writing/cached_or_not.py
"""

import argparse

import torch
from torch import Tensor

from phase4_causal.causal_attention import CausalSelfAttention, load_causal_model
from phase4_causal.key_value_cache import KeyValueCache
from phase4_causal.writing.generate import SAME, Sampling, generation_differences, new_caches, next_logits, twin
from shared import cli
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.toy_language import START_ID, encode
from shared.toy_model import ToyTransformer
from shared.training import Trained


class Unmasked(CausalSelfAttention):
    """CausalSelfAttention that hides nothing: new positions see the cache and each other."""

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.attend(x, mask, cache)


def read_in_chunks(model: ToyTransformer, tokens: Tensor, chunk: int) -> Tensor:
    """Logits (B, T, V) of tokens (B, T), read through caches, `chunk` tokens at a time."""
    caches = new_caches(model, tokens.size(1), tokens.size(0))
    return torch.cat([next_logits(model, part, caches)[0] for part in tokens.split(chunk, dim=1)], dim=1)


@torch.no_grad()
def chunk_differences(model: ToyTransformer, tokens: Tensor) -> dict[str, float]:
    """Largest difference between logits read through a cache and those of one pass, by tokens read at a time."""
    whole, _ = model(tokens)
    sizes = {1, 2, 3, tokens.size(1)}
    return {f"{n} at a time": (read_in_chunks(model, tokens, n) - whole).abs().max().item() for n in sorted(sizes)}


@torch.no_grad()
def without_a_mask(trained: Trained, tokens: Tensor) -> dict[str, float]:
    """Largest difference that leaving out the mask makes to the logits of the next word, at every length of tokens."""
    expected, _ = twin(trained, CausalSelfAttention)(tokens)  # (1, T, V)
    unmasked = twin(trained, Unmasked)
    again = torch.cat([unmasked(tokens[:, :n])[0][:, -1:] for n in range(1, tokens.size(1) + 1)], dim=1)
    pairs = read_in_chunks(unmasked, tokens, 2)[:, 1::2]  # only after the second of a pair a next word is asked for
    return {
        "one new word at a time, cache": (read_in_chunks(unmasked, tokens, 1) - expected).abs().max().item(),
        "two at a time, cache": (pairs - expected[:, 1::2]).abs().max().item(),
        "all words again each time": (again - expected).abs().max().item(),
    }


def record_findings(
    chunks: dict[str, float],
    generation: tuple[float, int, int],
    unmasked: dict[str, float],
    options: argparse.Namespace,
) -> None:
    difference, wrong, total = generation
    one, *others = unmasked.values()
    unit = "largest difference of the logits, float64"
    findings.record(
        "phase4_causal/writing/cached_or_not.py",
        [
            Finding(
                "cache-exact",
                "A key-value cache changes the work and not the result",
                "course notes",
                {f"read {name}": value for name, value in chunks.items()}
                | {"20 drawn sentences": difference, f"different words of {total}": wrong},
                unit + "; number of words",
                "all below 1e-10, and no word different",
                findings.verdict(max(*chunks.values(), difference) < SAME and wrong == 0),
                seeds=[options.seed],
            ),
            Finding(
                "C100",
                "When a model writes it needs no mask, since the future is not there yet",
                "course notes",
                unmasked,
                unit + ", with and without mask, at each word of a sentence",
                "below 1e-10 in all three ways of reading",
                **findings.conditional(
                    max(unmasked.values()) < SAME,
                    one < SAME < min(others),
                    "past keys come from a cache and one word is read at a time; words read together or again would "
                    "see what came after them, and pass it on to the next layer",
                ),
                seeds=[options.seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_causal_model(options)
    exact = twin(trained, CausalSelfAttention)
    tokens = torch.tensor([[START_ID, *encode(options.words)]])
    chunks = chunk_differences(exact, tokens)
    print(
        f"\n1. {tokens.size(1)} tokens through the cache, {trained.label}: largest difference from one pass without it"
    )
    for name, value in chunks.items():
        print(f"   {name:30} {value:.1e}")
    generation = generation_differences(exact, tokens[:, :1], Sampling(), options.seed)
    print("   20 sentences drawn with and without: {:.1e}; {} of {} tokens differ".format(*generation))
    assert max(*chunks.values(), generation[0]) < SAME and generation[1] == 0
    unmasked = without_a_mask(trained, tokens)
    print("\n2. Leaving out the mask while writing: how far the logits of the next word move")
    for name, value in unmasked.items():
        print(f"   {name:30} {value:.1e}")
    record_findings(chunks, generation, unmasked, options)


if __name__ == "__main__":
    cli.run(main)
