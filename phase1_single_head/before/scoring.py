"""Why did the dot product win among the ways to score a key?

    additive     v · tanh(W_q q + W_k k + b)   Bahdanau et al. 2014, where attention began
    dot          q · k                         Luong et al. 2015
    scaled dot   q · k / √d_k                  Vaswani et al. 2017, the transformer
    general      q · W k                       Luong et al. 2015
    concat       v · tanh(W [q; k])            Luong et al. 2015

Concat and additive are the same function: W [q; k] = W_q q + W_k k, with W cut in two. Each rule learns the lookup task
of cross_attention.py twice: once a question is answered by the fact with its own noun, once by the fact with another
noun, so that what a word looks for and what it is found by must differ. Beside the answers stand the parameters, the
time of a forward pass (as a ratio, since times differ from machine to machine) and the memory that it keeps for the
backward pass, as the sequence grows.

"The dot product says how similar two vectors are" is half of it: q · k = |q| |k| cos, so a long key outdoes a near one.

    python phase1_single_head/before/scoring.py

Writes scoring_rules.png to visualizations/plots/phase1/.
"""

from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.parts.cross_attention import STEPS, CrossAttention, train_lookup
from phase1_single_head.self_attention import masked_softmax
from shared import cli, training
from shared.attention_checks import check_mask
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, PROBE, Claim, Measured, Numbers, measures
from shared.measure import paired_times, ratio_quartiles
from shared.visualization_utils import BLUE, INK, ORANGE, headline, label_ends, save_plot

METHODS = ("dot", "general", "concat")
NETWORKS = ("concat", "additive")  # rules that make a vector of each pair


def check_query_and_memory(query: Tensor, memory: Tensor, d_model: int, d_memory: int) -> None:
    for name, tensor, size in (("query", query, d_model), ("memory", memory, d_memory)):
        if tensor.dim() != 3 or tensor.size(-1) != size:
            raise ValueError(f"{name} must have shape (B, T, {size}): got {tuple(tensor.shape)}")
    if query.size(0) != memory.size(0):
        raise ValueError(f"query and memory must have the same batch size: got {query.size(0)} and {memory.size(0)}")


def attend(scores: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (B, T_q, T_k) and memory (B, T_k, d) -> output (B, T_q, d), weights (B, 1, T_q, T_k)."""
    scores = scores.unsqueeze(1)  # (B, T_q, T_k) -> (B, 1, T_q, T_k): one head, so that masks are those of every phase
    if mask is not None:
        check_mask(mask, tuple(scores.shape))
    weights = masked_softmax(scores, mask)
    return (weights @ memory.unsqueeze(1)).squeeze(1), weights  # (B, 1, T_q, d) -> (B, T_q, d)


class AdditiveAttention(nn.Module):
    """Bahdanau's score, v · tanh(W_q q + W_k k + b): a small network looks at both (Bahdanau et al. 2014, A.1.2).

    d_hidden is the size of that network (d_model unless given), d_memory that of the memory, which may differ from the
    query's, as for a bidirectional encoder. One bias is enough, two would only add up; and v has none, because softmax
    does not see a number that is added to all scores.
    """

    def __init__(self, d_model: int, d_hidden: int | None = None, *, d_memory: int | None = None) -> None:
        super().__init__()
        d_hidden = d_model if d_hidden is None else d_hidden
        self.w_q = nn.Linear(d_model, d_hidden)
        self.w_k = nn.Linear(d_model if d_memory is None else d_memory, d_hidden, bias=False)
        self.v = nn.Linear(d_hidden, 1, bias=False)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """W_q q + b (B, T_q, d_hidden) and W_k k (B, T_k, d_hidden) -> scores (B, T_q, T_k), each with each."""
        pairs = query[:, :, None] + key[:, None]  # (B, T_q, 1, d) + (B, 1, T_k, d) -> (B, T_q, T_k, d)
        return self.v(torch.tanh(pairs)).squeeze(-1)  # (B, T_q, T_k, 1) -> (B, T_q, T_k)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_memory) -> output (B, T_q, d_memory), weights (B, 1, T_q, T_k).

        mask: bool, True = may attend: (T_q, T_k), (B, 1, T_q, T_k) or (B, 1, 1, T_k). The memory is both keys and
        values. Raises ValueError for sizes or masks that do not fit.
        """
        check_query_and_memory(query, memory, self.w_q.in_features, self.w_k.in_features)
        return attend(self.score(self.w_q(query), self.w_k(memory)), memory, mask)


class LuongAttention(nn.Module):
    """Luong's three scores: dot q · k, general q · W k, concat v · tanh(W [q; k]) (Luong et al. 2015, section 3.1).

    None of them is scaled. Raises ValueError for any other method.
    """

    def __init__(self, d_model: int, method: str = "dot") -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}: choose from {', '.join(METHODS)}")
        self.d_model, self.method = d_model, method
        if method == "general":
            self.w = nn.Linear(d_model, d_model, bias=False)
        elif method == "concat":
            self.w = nn.Linear(2 * d_model, d_model)
            self.v = nn.Linear(d_model, 1, bias=False)

    def score(self, query: Tensor, memory: Tensor) -> Tensor:
        """(B, T_q, d_model), (B, T_k, d_model) -> scores (B, T_q, T_k)."""
        if self.method == "concat":
            shape = (query.size(0), query.size(1), memory.size(1), self.d_model)
            pairs = torch.cat([query[:, :, None].expand(shape), memory[:, None].expand(shape)], dim=-1)
            return self.v(torch.tanh(self.w(pairs))).squeeze(-1)  # (B, T_q, T_k, 2 d_model) -> (B, T_q, T_k)
        key = self.w(memory) if self.method == "general" else memory
        return query @ key.transpose(-2, -1)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query (B, T_q, d_model), memory (B, T_k, d_model) -> output (B, T_q, d_model), weights (B, 1, T_q, T_k).

        mask, values and errors as in AdditiveAttention.
        """
        check_query_and_memory(query, memory, self.d_model, self.d_model)
        return attend(self.score(query, memory), memory, mask)


SCALED = "scaled dot"
RULES = {
    "dot": LuongAttention,
    SCALED: CrossAttention,  # with its four projections: the transformer's attention
    "general": lambda d_model: LuongAttention(d_model, "general"),
    "concat": lambda d_model: LuongAttention(d_model, "concat"),
    "additive": AdditiveAttention,
}
OWN, ANOTHER = TASKS = ("the fact with its own noun", "the fact with another noun")  # shift 0 and 1 of draw_facts
LENGTHS, D_MODEL, ROUNDS = (16, 32, 64, 128, 256), 64, 5


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def kept_bytes(module: nn.Module, length: int) -> int:
    """Bytes that one forward pass over `length` positions keeps for the backward pass, without weights and input."""
    x = torch.randn(1, length, D_MODEL, requires_grad=True)
    given = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = module(x, x)  # alive until the count: a freed tensor's address would be used again
    assert output.requires_grad
    return sum(size for address, size in kept.items() if address not in given)


@torch.no_grad()
def time_ratios(modules: dict[str, nn.Module], length: int) -> dict[str, list[float]]:
    """Time of one forward pass over that of scaled dot-product attention, quartiles over rounds, for each module."""
    x = torch.randn(1, length, D_MODEL)
    times = paired_times({name: partial(module, x, x) for name, module in modules.items()}, rounds=ROUNDS)
    return {name: ratio_quartiles(times, name, SCALED) for name in modules}


def comparisons_as_good(numbers: Numbers) -> int:
    """In how many of four comparisons, two scores on two tasks, is Luong's within 0.05 of Bahdanau's?"""
    pairs = [
        (numbers[f"{rule}, {task}"], numbers[f"additive, {task}"]) for rule in ("dot", "general") for task in TASKS
    ]
    return sum(luong >= bahdanau - 0.05 for luong, bahdanau in pairs)


def answers(**shares: float) -> dict[str, float]:
    """Made numbers: the same share of right answers on both tasks."""
    return {f"{rule}, {task}": share for rule, share in shares.items() for task in TASKS}


@measures(
    Claim(
        id="C173",
        text="Luong's simpler scores, dot and general, often do as well as Bahdanau's",
        kind=EXPERIMENT,
        source="course notes, 24.3",
        rule="within 0.05 of additive in three or four of four comparisons, and additive right at least 0.9",
        holds=lambda n: comparisons_as_good(n) >= 3 and min(n[f"additive, {task}"] for task in TASKS) >= 0.9,
        oracle=answers(dot=1.0, general=1.0, additive=1.0),
        null=answers(dot=0.1, general=0.1, additive=1.0),
        unit=f"share of right answers on unseen lists after {STEPS} steps",
    )
)
def answers_right(seed: int, steps: int) -> dict[str, float]:
    """Right answers of each rule on both tasks."""
    return {
        f"{rule}, {task}": train_lookup(make, seed, shift=shift, steps=steps).answered
        for shift, task in enumerate(TASKS)
        for rule, make in RULES.items()
    }


QUARTILES = ("lower quartile", "median", "upper quartile")


@measures(
    Claim(
        id="C062",
        text="Dot-product attention is faster than additive attention and takes less memory",
        kind=PROBE,
        source="Vaswani et al. 2017, section 3.2.1",
        rule="none: times differ from machine to machine",
        holds=None,
        unit=f"additive over {SCALED} at {LENGTHS} positions, d_model = {D_MODEL}: time of a forward pass, {ROUNDS} "
        "rounds; memory kept for the backward pass",
        control=f"{SCALED} has four projections here and additive two",
        shows=("time, additive, *", "memory, additive"),
    )
)
def costs(seed: int) -> dict[str, list[float]]:
    """Time and memory of each rule at LENGTHS, as ratios to SCALED, and the memory in KiB."""
    torch.manual_seed(seed)
    modules = {rule: make(D_MODEL) for rule, make in RULES.items()}
    ratios = [time_ratios(modules, length) for length in LENGTHS]
    found = {}
    for rule, module in modules.items():
        for index, quartile in enumerate(QUARTILES):
            found[f"time, {rule}, {quartile}"] = [ratio[rule][index] for ratio in ratios]
        found[f"KiB, {rule}"] = [kept_bytes(module, length) / 1024 for length in LENGTHS]
    for rule in RULES:
        pairs = zip(found[f"KiB, {rule}"], found[f"KiB, {SCALED}"], strict=True)
        found[f"memory, {rule}"] = [own / scaled for own, scaled in pairs]
    return found


def draw(found: Measured) -> tuple[Figure, str]:
    """Memory kept for the backward pass against length: orange, a network for each pair; blue, a dot product."""
    fig, ax = plt.subplots(figsize=(8, 4.8), layout="constrained")
    ends = {}
    for rule in RULES:
        color, kept = ORANGE if rule in NETWORKS else BLUE, found[f"KiB, {rule}"]
        ax.plot(LENGTHS, kept, color=color, marker="o", markersize=5, linewidth=2, clip_on=False)
        ends[rule] = (LENGTHS[-1], kept[-1], color)
    ax.set_xscale("log", base=2)
    ax.set(xlim=(LENGTHS[0] / 1.1, LENGTHS[-1]), xlabel="words (queries and keys)", yscale="log")
    ax.set_xticks(LENGTHS, LENGTHS)
    ax.set_yticks([2**power for power in (0, 5, 10, 15)], ["1 KiB", "32 KiB", "1 MiB", "32 MiB"])
    ax.minorticks_off()
    ax.set_ylabel("kept for the backward pass")
    ax.text(16, 1500, "a network for each pair", color=ORANGE, size=11)
    ax.text(75, 5, "a dot product", color=BLUE, size=11)
    ax.vlines(LENGTHS[-1], *(found[f"KiB, {rule}"][-1] for rule in (SCALED, "additive")), color=INK, linestyle=":")
    ax.text(245, 1500, f"{found['memory, additive'][-1]:.0f} times", ha="right")
    label_ends(ax, ends, size=10)
    title = "A network for each pair of words takes far more memory\nthan a dot product"
    headline(fig, title, f"one forward pass, untrained, d_model = {D_MODEL}")
    return fig, title.replace("\n", " ") + ": memory of five scoring rules against length."


def show(right: Measured, found: Measured) -> None:
    print(f"\n{'':12}{'answers right':>20}{'parameters':>12}   time ({SCALED} = 1) and KiB kept, by length")
    print(f"{'':12}{'own':>12}{'other':>8}{'':12}" + "".join(f"{length:>14}" for length in LENGTHS))
    for rule, make in RULES.items():
        own, another = (right[f"{rule}, {task}"] for task in TASKS)
        pairs = zip(found[f"time, {rule}, median"], found[f"KiB, {rule}"], strict=True)
        cells = "".join(f"{f'{time:.1f} {kept:,.0f}':>14}" for time, kept in pairs)
        print(f"{rule:12}{own:>12.2f}{another:>8.2f}{parameters(make(D_MODEL)):>12,}{cells}")


@cli.script
def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    right, found = [answers_right(seed, steps) for seed in cli.seeds(options)], costs(options.seed)
    show(right[0], found)
    save_plot(options, "phase1/scoring_rules", *draw(found))
    findings.record(options, *right, found, show_numbers=False)
    dot, additive = (f"{right[0][f'{rule}, {ANOTHER}']:.0%}" for rule in (SCALED, "additive"))
    times = found["memory, additive"][-1]
    return f"Scaled dot answers {dot} right, additive {additive}, keeping {times:.0f} times the memory"


if __name__ == "__main__":
    cli.run(main)
