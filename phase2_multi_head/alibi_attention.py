"""How do you try an attention of your own?

Copy this file, and change the forward. Anything with forward(x, mask=None) -> (output, weights) runs in the toy
transformer. In this one the score of a key is lower the further away it is, and each head has its own slope (ALiBi,
Press et al. 2022). It is trained like the models of the lessons, for about 15 s, and its heads are asked what they do.

    python phase2_multi_head/alibi_attention.py

For pictures hand the trained model to what the other scripts use, such as weights_of and plot_heads. For a claim about
it write the rule first, with numbers of a world where it is right and of one where nothing is there, beside the
function that measures it (shared/evidence/claims.py), and end with findings.record: the report page then has it.
"""

import torch
from torch import Tensor, nn

from phase1_single_head.order.position_encodings import alibi
from phase1_single_head.self_attention import masked_softmax
from phase2_multi_head.multi_head_attention import merge_heads, split_heads
from shared import checkpoints, cli, training
from shared.grammar.scores import best_heads, score_heads

RECIPE = training.Recipe("alibi", "masked word", num_heads=4, num_layers=2, steps=800)


class AlibiAttention(nn.Module):
    """Multi-head attention with a penalty on distance, in a form that sees both sides."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.w_qkv, self.w_o = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (B, T, d_model) -> output (B, T, d_model), weights (B, H, T, T); mask as MultiHeadAttention takes it."""
        query, key, value = (split_heads(part, self.num_heads) for part in self.w_qkv(x).chunk(3, dim=-1))
        scores = query @ key.mT / query.size(-1) ** 0.5 + alibi(x.size(1), self.slopes)  # (B, H, T, T)
        weights = masked_softmax(scores, mask)
        return self.w_o(merge_heads(weights @ value)), weights


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = checkpoints.trained_model(RECIPE, AlibiAttention, options)
    held_out = training.corpus()[1]
    weights, _ = training.attention_on(trained.model, held_out, "masked word")
    found = best_heads(score_heads(weights, held_out))
    for relation, best in found.items():
        print(f"   {relation}: {best.accuracy:.2f} in {best.name}")
    return f"With a penalty on distance, heads find {min(best.accuracy for best in found.values()):.2f} and more"


if __name__ == "__main__":
    cli.run(main)
