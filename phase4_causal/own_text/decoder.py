"""How is a published decoder asked what the small models are asked?

It reads tokens and gives logits and weights, as they do; only its tokens are pieces of words. What
would need another training, with one head or without the division, cannot be asked.

    python phase4_causal/own_text/decoder.py
"""

import torch
from torch import Tensor, nn

from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    SMOLLM2_NEEDS,
    installed,
    load_language_model,
)
from phase4_causal.own_text.characters import CharacterText, load_characters
from phase4_causal.own_text.twice import Reader, read_twice

STRETCHES, STRETCH = 8, 64  # how many, and the tokens of each


def has_smollm2() -> bool:
    """Whether the packages are there that bring SmolLM2."""
    return installed(*SMOLLM2_NEEDS)


def reader_of(model: nn.Module) -> Reader:
    """A decoder whose output matrix is that of its embedding, as `read_twice` asks models."""
    words = model.get_input_embeddings().weight

    def read(tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        output = model(tokens, output_attentions=True)
        return output.last_hidden_state @ words.T, list(output.attentions)

    return read


def answers_of_smollm2(text: CharacterText) -> dict[str, float]:
    """The three numbers of `read_twice`, on stretches of the held-out part.

    Raises ValueError, in one line, if the model is not to be had.
    """
    language_model = load_language_model(SMOLLM2)
    content = text.decode(text.held_out)
    tokens = torch.tensor(language_model.tokenizer(content)["input_ids"])
    if len(tokens) < STRETCH:
        raise ValueError(f"{text.name} has too few tokens for {SMOLLM2}: {len(tokens)}")
    starts = torch.linspace(0, len(tokens) - STRETCH, STRETCHES).long()
    stretches = tokens[starts[:, None] + torch.arange(STRETCH)]  # (STRETCHES, STRETCH)
    return read_twice(reader_of(language_model.model), stretches, "SmolLM2")


def main() -> None:
    if not has_smollm2():
        print("This needs a published model: phase3_visualization/pretrained/ says how to get it.")
        return
    for name, number in answers_of_smollm2(load_characters()).items():
        print(f"   {name}: {number:.2f}")


if __name__ == "__main__":
    main()
