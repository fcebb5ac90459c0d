"""Why did the dot product win among the ways to score a key?

Each rule of additive.py, and the scaled dot product with its four projections, learns to look up
facts twice. Once a question is answered by the fact with its own noun, once by the fact with
another noun, so that what a word looks for and what it is found by must differ. Beside the answers
stands the memory that one forward pass over 256 words keeps for the backward pass.
"""

import torch
from torch import Tensor, nn

from phase1_single_head.before.additive import AdditiveAttention, LuongAttention
from phase1_single_head.parts.cross_attention import CrossAttention
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run
from shared.tasks import train_lookup

RULES = {
    "dot": LuongAttention,
    "scaled dot": CrossAttention,
    "general": lambda d_model: LuongAttention(d_model, "general"),
    "concat": lambda d_model: LuongAttention(d_model, "concat"),
    "additive": AdditiveAttention,
}
STEPS, D_MODEL, WORDS = 120, 64, 256


def kept_bytes(module: nn.Module, length: int) -> int:
    """Bytes that one forward pass over `length` positions keeps for the backward pass, without
    weights and input.
    """
    x = torch.randn(1, length, D_MODEL, requires_grad=True)
    given = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = module(
            x, x
        )  # alive until the count: a freed tensor's address would be used again
    assert output.requires_grad
    return sum(size for address, size in kept.items() if address not in given)


def measure(run: Run) -> Numbers:
    """Share of right answers on unseen lists of facts; KiB kept."""
    found = {}
    for rule, make in RULES.items():
        for shift, task in enumerate(("own noun", "another noun")):
            _, scores = train_lookup(make, run.seed, run.steps(STEPS), shift)
            found[f"{rule}, {task}"] = scores["right answers"]
        found[f"{rule}, KiB kept"] = kept_bytes(make(D_MODEL), WORDS) / 1024
    return found


main = Experiment(
    measure,
    answer="Where it must find another noun, the plain dot is {n[dot, another noun]:.0%} right, scaled with "
    "projections {n[scaled dot, another noun]:.0%}, additive {n[additive, another noun]:.0%}",
)

if __name__ == "__main__":
    main.run()
