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

    python phase1_single_head/before/scoring.py

Writes scoring_rules.png to visualizations/plots/phase1/.
"""

import statistics
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase1_single_head.parts.cross_attention import STEPS, CrossAttention, train_lookup
from phase1_single_head.self_attention import check_mask, masked_softmax
from shared import cli, training
from shared.evidence import findings
from shared.evidence.claims import EXPERIMENT, IDENTITY, PROBE, Claim, Measured, Numbers, measures
from shared.measure import median_ratio, paired_times
from shared.visualization_utils import HEAD_COLORS, QUIET, headline, save_plot

METHODS = ("dot", "general", "concat")


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
LENGTHS, LONG, D_MODEL, ROUNDS = (16, 32, 64, 128, 256), (64, 128, 256), 64, 5


@measures(
    Claim(
        id="I185",
        text="Concat and additive scores are the same function",
        kind=IDENTITY,
        source="definitions of Luong et al. 2015 and Bahdanau et al. 2014",
        rule="below 1e-12",
        holds=lambda n: n["largest difference"] < 1e-12,
        unit="outputs with W cut into W_q and W_k, float64",
    )
)
@torch.no_grad()
def concat_is_additive() -> dict[str, float]:
    """Largest difference of output between concat and additive attention with W cut into W_q and W_k."""
    torch.manual_seed(0)
    concat, additive = LuongAttention(11, "concat").double(), AdditiveAttention(11).double()
    additive.w_q.weight.copy_(concat.w.weight[:, :11])
    additive.w_k.weight.copy_(concat.w.weight[:, 11:])
    additive.w_q.bias.copy_(concat.w.bias)
    additive.v.weight.copy_(concat.v.weight)
    query, memory = torch.randn(2, 5, 11).double(), torch.randn(2, 7, 11).double()
    return {"largest difference": (concat(query, memory)[0] - additive(query, memory)[0]).abs().max().item()}


@measures(
    Claim(
        id="C024",
        text="The dot product measures how similar query and key are",
        kind=IDENTITY,
        rule="the key in the same direction scores highest",
        holds=lambda n: n["same direction, length 1"] > n["60° apart, length 4"],
        only_if=lambda n: n["same direction, length 1"] > n["60° apart, length 1"],
        condition="the keys have comparable lengths: q · k = |q| |k| cos",
        unit="score of a query of length 1",
    )
)
def scores_of_known_keys() -> dict[str, float]:
    """The query (1, 0) and keys whose directions and lengths are known."""
    query, near, apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5 * 3**0.5]], dtype=torch.float64)
    keys = {"same direction, length 1": near, "60° apart, length 4": 4 * apart, "60° apart, length 1": apart}
    return {name: (query @ key).item() for name, key in keys.items()}


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@measures(
    Claim(
        id="C063",
        text="Additive attention has more parameters than dot-product attention",
        kind=IDENTITY,
        rule="at least 10 % more",
        holds=lambda n: n["additive"] >= 1.1 * n["dot product with W_q and W_k"],
        only_if=lambda n: n["additive"] > n["plain dot product"],
        condition="the dot product is meant without projections; with them the two differ by 2 d_model",
        unit="parameters of the score, d_model = 512",
    )
)
def parameters_of_scores() -> dict[str, int]:
    plain, additive = parameters(LuongAttention(512)), parameters(AdditiveAttention(512))
    return {"additive": additive, "dot product with W_q and W_k": 2 * 512 * 512, "plain dot product": plain}


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
def time_ratios(modules: dict[str, nn.Module], length: int) -> dict[str, float]:
    """Time of one forward pass over that of scaled dot-product attention: median of interleaved pairs."""
    x = torch.randn(1, length, D_MODEL)
    times = paired_times({name: partial(module, x, x) for name, module in modules.items()}, rounds=ROUNDS)
    return {name: median_ratio(times, name, SCALED) for name in modules}


def as_good(numbers: Numbers, rule: str, other: str) -> bool:
    """Within 0.02 of the other rule on both tasks, with every seed."""
    return all(
        a >= b - 0.02
        for task in TASKS
        for a, b in zip(numbers[f"{rule}, {task}"], numbers[f"{other}, {task}"], strict=True)
    )


def at_least_twice(numbers: Numbers, what: str) -> bool:
    return all(numbers[f"{what}, additive"][LENGTHS.index(length)] >= 2 for length in LONG)


def answers(**shares: float) -> dict[str, list[float]]:
    """Made numbers: the same share of right answers on both tasks."""
    return {f"{rule}, {task}": [share] for rule, share in shares.items() for task in TASKS}


@measures(
    Claim(
        id="C173",
        text="Luong's simpler scores often do as well as Bahdanau's",
        kind=EXPERIMENT,
        rule="dot and general both within 0.02 of additive on both tasks",
        holds=lambda n: as_good(n, "dot", "additive") and as_good(n, "general", "additive"),
        only_if=lambda n: as_good(n, "general", "additive"),
        condition="there is a matrix in the score: without one a word is looked for and found by the same vector",
        oracle=answers(dot=1.0, general=1.0, additive=1.0),
        null=answers(dot=0.1, general=0.1, additive=1.0),
        unit="share of right answers on unseen lists",
        shows=tuple(f"*, {task}" for task in TASKS),
    ),
    Claim(
        id="C062",
        text="Additive attention is slower than dot-product attention",
        kind=PROBE,
        rule="at least twice as slow at 64, 128, 256, though the dot product has four projections and additive two",
        holds=lambda n: at_least_twice(n, "time"),
        unit=f"ratio to {SCALED}, forward pass over {LENGTHS} positions, median of {ROUNDS} interleaved pairs",
        shows=("time, additive",),
    ),
    Claim(
        id="C171",
        text="Dot-product attention won because it is faster and smaller, not because it is better",
        kind=PROBE,
        source="Vaswani et al. 2017, section 3.2.1",
        rule="additive takes twice the time and twice the memory at 64, 128 and 256 positions; answers within 0.02",
        holds=lambda n: at_least_twice(n, "time") and at_least_twice(n, "memory") and as_good(n, SCALED, "additive"),
        unit=f"ratio to {SCALED} at {LENGTHS} positions; share of right answers",
        shows=("time, additive", "memory, additive", f"{SCALED}, the*", "additive, the*"),
    ),
)
def compare(seeds: range, steps: int) -> dict[str, list[float]]:
    """Right answers of each rule on both tasks, one for each seed; time and memory at LENGTHS, as ratios to SCALED."""
    right = {
        f"{rule}, {task}": [train_lookup(make, seed, shift=shift, steps=steps).answered for seed in seeds]
        for shift, task in enumerate(TASKS)
        for rule, make in RULES.items()
    }
    torch.manual_seed(seeds[0])
    modules = {rule: make(D_MODEL) for rule, make in RULES.items()}
    ratios = [time_ratios(modules, length) for length in LENGTHS]
    kept = {rule: [kept_bytes(module, length) for length in LENGTHS] for rule, module in modules.items()}
    return (
        right
        | {f"time, {rule}": [ratio[rule] for ratio in ratios] for rule in RULES}
        | {f"KiB, {rule}": [size / 1024 for size in sizes] for rule, sizes in kept.items()}
        | {f"memory, {rule}": [a / b for a, b in zip(kept[rule], kept[SCALED], strict=True)] for rule in RULES}
    )


def draw(found: Measured, steps: int) -> tuple[Figure, str]:
    """Left: right answers of each rule on both tasks. Right: memory kept for the backward pass against length."""
    fig, (left, right_ax) = plt.subplots(1, 2, figsize=(10.6, 4.4), layout="constrained")
    for t, (task, shade) in enumerate(zip(TASKS, (1.0, 0.45), strict=True)):
        for r, rule in enumerate(RULES):
            value = statistics.mean(found[f"{rule}, {task}"])
            left.bar(r + 0.4 * t - 0.2, value, 0.37, color=HEAD_COLORS[r], alpha=shade)
            left.text(r + 0.4 * t - 0.2, value + 0.015, f"{value:.2f}", ha="center", fontsize=8)
    left.set_xticks(range(len(RULES)), RULES)
    left.set(ylim=(0, 1.15), yticks=(0, 0.5, 1), ylabel="answers right")
    left.set_title("full: looks for its own noun · pale: for another", color=QUIET, fontsize=10)
    for r, rule in enumerate(RULES):
        kept = [size / 1024 for size in found[f"KiB, {rule}"]]
        right_ax.plot(LENGTHS, kept, color=HEAD_COLORS[r], marker="o", markersize=4)
        away = (6, {"dot": -7, SCALED: 4}.get(rule, 0))  # in points: their ends lie close together
        style = {"textcoords": "offset points", "color": HEAD_COLORS[r], "va": "center", "fontsize": 9}
        right_ax.annotate(rule, (LENGTHS[-1], kept[-1]), away, **style)
    right_ax.set_xscale("log", base=2)
    right_ax.set_yscale("log")
    right_ax.set_xticks(LENGTHS, LENGTHS)
    right_ax.set_yticks((0.001, 0.01, 0.1, 1, 10), ("0.001", "0.01", "0.1", "1", "10"))
    right_ax.set(xlim=(14, 700), xlabel="length T (queries and keys)", ylabel="MiB kept for the backward pass")
    right_ax.set_title(f"memory, d_model = {D_MODEL}", color=QUIET, fontsize=10)
    for ax in (left, right_ax):
        ax.tick_params(length=0)
    times = found["memory, additive"][-1]
    title = f"Additive attention answers no better than scaled dot-product and keeps {times:.0f} times the memory"
    if not as_good(found, SCALED, "additive"):
        title = f"{steps} steps are too few: the rules do not answer alike yet"
    headline(fig, title, f"trained {steps} steps on the lookup task, 500 lists not trained on; memory: untrained", 12.5)
    return fig, f"{title}: five scoring rules on the same task, and what each keeps in memory."


def show(found: Measured) -> None:
    print(f"\n{'':12}{'answers right':>20}{'parameters':>12}   time ({SCALED} = 1) and KiB kept, by length")
    print(f"{'':12}{'own':>12}{'other':>8}{'':12}" + "".join(f"{length:>14}" for length in LENGTHS))
    for rule, make in RULES.items():
        own, another = (statistics.mean(found[f"{rule}, {task}"]) for task in TASKS)
        pairs = zip(found[f"time, {rule}"], found[f"KiB, {rule}"], strict=True)
        cells = "".join(f"{f'{time:.1f} {kept:,.0f}':>14}" for time, kept in pairs)
        print(f"{rule:12}{own:>12.2f}{another:>8.2f}{parameters(make(D_MODEL)):>12,}{cells}")


def main(argv: list[str] | None = None) -> str:
    options = cli.parse(cli.parser(__doc__), argv)
    steps = training.QUICK_STEPS if options.quick else STEPS
    found = compare(cli.seeds(options), steps)
    show(found)
    save_plot(options, "phase1/scoring_rules", *draw(found, steps))
    made = concat_is_additive(), scores_of_known_keys(), parameters_of_scores()
    findings.record(options, found, *made, show_numbers=False)
    dot, additive = (f"{found[f'{rule}, {ANOTHER}'][0]:.0%}" for rule in (SCALED, "additive"))
    times = found["memory, additive"][-1]
    return f"Scaled dot answers {dot} right, additive {additive}, keeping {times:.0f} times the memory"


if __name__ == "__main__":
    cli.run(main)
