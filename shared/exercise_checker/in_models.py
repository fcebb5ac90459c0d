"""What does a model do with the attention that a reader wrote?

The toy model learns with it: its loss and its heads stand beside those with the solution. Four
matrices without biases stand around the function; WAYS says for which exercises that works, and how
each is called. Both have the same first weights and the same batches, so the function alone makes
the difference.

A published model writes with it, in every layer, beside what it writes with its own attention;
IN_LAYERS says for which exercises that works. Such a model has made queries, keys and values, while
the function makes them of x. So they stand side by side in x, and w_q, w_k and w_v are parts of an
identity, each of which picks one of them. What neither model shows, the checker says.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.exercise_checker.check import DONE, NOT_WRITTEN, check, error_in_words, own_copies
from shared.exercise_checker.exercise import Exercise, Function
from shared.grammar import best_reader, roles
from shared.published import LanguageModel, library, load_language_model, our_attention, writer_of
from shared.toy_language import VOCABULARY
from shared.toy_model import MakeAttention
from shared.training.checkpoints import trained_model
from shared.training.objectives import corpus, word_by_word_loss
from shared.training.recipes import LITTLE_DECAY, Recipe, Trained, held_out_loss, train

STEPS = 400
SENTENCES_ASKED = 100  # of those that are held out
PRINTED_WIDTH = 88  # letters of a line
HEADS = 4
HOW_TO_READ = """
With another seed a right function may lose up to 0.05 more or less. Only a function that
sees the word that it is asked for can lose less than the grammar allows.

The role of each head, and how often it is followed;
where there is none, the nearest, and what that needs"""
OutputAndWeights = tuple[Tensor, Tensor]  # (B, T, d_model), (B, H, T, T)
# function, x (B, T, d_model), the four matrices, mask (B, 1, 1, T) -> output and weights
Attend = Callable[[Function, Tensor, Sequence[Tensor], Tensor], OutputAndWeights]


def one_head(function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor) -> OutputAndWeights:
    """A function that knows no batch is called for each sentence."""
    w_q, w_k, w_v, w_o = w
    masks = mask[:, 0].repeat(1, x.size(1), 1)  # (B, 1, T) -> (B, T, T)
    outputs, all_weights = [], []
    for sentence, visible in zip(x, masks, strict=True):
        output, weights = function(sentence, w_q, w_k, w_v, visible)
        outputs.append(output)
        all_weights.append(weights)
    weights = torch.stack(all_weights).unsqueeze(1)  # (B, T, T) -> (B, 1, T, T)
    return torch.stack(outputs) @ w_o, weights


def masked_heads(
    function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor
) -> OutputAndWeights:
    """A function that makes a mask is used in heads of our own; a text has no prefix."""

    def heads(matrix: Tensor) -> Tensor:
        # (B, T, d_model) -> (B, H, T, d_k)
        return (x @ matrix).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    w_q, w_k, w_v, w_o = w
    batch, length, _ = x.shape
    mask = function(0, length, length) & mask  # (T, T) & (B, 1, 1, T) -> (B, 1, T, T)
    # PyTorch's function keeps its weights to itself, but their mean of unit vectors is the weights.
    unit = torch.eye(length, dtype=x.dtype).expand(batch, HEADS, -1, -1)
    weights = F.scaled_dot_product_attention(heads(w_q), heads(w_k), unit, mask)
    output = (weights @ heads(w_v)).transpose(1, 2).flatten(2)  # (B, H, T, d_k) -> (B, T, d_model)
    return output @ w_o, weights


class TrainedAs(NamedTuple):
    """How a function attends in the model, and what the model learns."""

    attend: Attend
    objective: str = "masked word"
    num_heads: int = HEADS


NEXT = "next word, without a mask"  # of the trainer's: the function itself must hide the future
WAYS = {
    "self_attention": TrainedAs(one_head, num_heads=1),
    "multi_head_attention": TrainedAs(
        lambda function, x, w, mask: function(x, *w, HEADS, mask[:, 0, 0])
    ),
    "prefix_mask": TrainedAs(masked_heads, NEXT),
}


class ReadersAttention(nn.Module):
    """Four matrices, and the function of an exercise that attends with them."""

    def __init__(self, way: TrainedAs, function: Function, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.way = way
        self.function = function
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> OutputAndWeights:
        """Returns output (B, T, d_model) and weights (B, H, T, T).

        x: (B, T, d_model); mask: which words are no padding, (B, 1, 1, T). Raises ValueError if the
        function gives another shape, or numbers that are not finite.
        """
        batch, length, _ = x.shape
        if mask is None:
            mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
        w = [layer.weight.T for layer in (self.w_q, self.w_k, self.w_v, self.w_o)]
        output, weights = self.way.attend(self.function, x, w, mask)
        refuse_unless(output, x.shape)
        refuse_unless(weights, (batch, self.way.num_heads, length, length))
        return output, weights


def refuse_unless(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a tensor has this shape, and finite numbers."""
    if tensor.shape != shape:
        raise ValueError(f"it gives shape {tuple(tensor.shape)} instead of {tuple(shape)}")
    if not tensor.isfinite().all():
        raise ValueError("it gives NaN or infinite numbers")


# ---- what it loses and finds


class Loss(NamedTuple):
    """Nats per held-out word: of the model, and of the best that the grammar allows."""

    model: float
    grammar: float


def held_out_losses(trained: Trained) -> dict[str, Loss]:
    """Returns how words were hidden -> the loss. In writing, the last is word by word."""
    _, held_out = corpus()
    if trained.recipe.objective == NEXT:
        grammar = best_reader.next_word_floor(held_out)
        return {
            "all words at once": Loss(held_out_loss(trained), grammar),
            "word by word": Loss(word_by_word_loss(trained.model, held_out), grammar),
        }
    gaps = best_reader.questions(held_out[:SENTENCES_ASKED])
    grammar = best_reader.floor(gaps)
    excess = best_reader.excess_loss(trained.logits, gaps)
    return {"a hidden word": Loss(grammar + excess, grammar)}


def roles_of_heads(trained: Trained, make: MakeAttention) -> list[str]:
    """Returns for each head its role and how often it follows it, or the nearest role."""
    halves = roles.halves_of(trained, make)
    lines = []
    for layer, head in halves.scoring.scores.heads:
        tried = roles.nearest_rule(halves, layer, head)
        rule = tried.worse
        share = f"{rule.name} {rule.share:.2f}"
        lines.append(share if tried.passed else f"no name: {share} of {rule.needed:.2f}")
    return lines


def print_beside(yours: Trained, course: Trained, make_right: MakeAttention) -> None:
    """Prints the losses and the heads of both."""
    guess = math.log(len(VOCABULARY))
    print(
        f"\n{'nats per word':20}{'yours':>10}{'the course':>14}{'grammar':>14}{'blind guess':>14}"
    )
    others = held_out_losses(course)
    for way, loss in held_out_losses(yours).items():
        other = others[way].model
        print(f"{way:20}{loss.model:10.2f}{other:14.2f}{loss.grammar:14.2f}{guess:14.2f}")
    print(HOW_TO_READ)
    own_roles = roles_of_heads(yours, make_right)
    for head, role in enumerate(roles_of_heads(course, make_right)):
        print(f"head {head}    {own_roles[head]:44}{role}")


def train_beside(exercise: Exercise, function: Function) -> None:
    """Trains the toy model with a reader's function and with the solution, and compares them."""
    name = exercise.name
    way = WAYS[name]
    sizes = (way.num_heads, 1, STEPS)  # in one layer
    recipe = Recipe(f"course_{name}", way.objective, *sizes, matrix_decay=LITTLE_DECAY)
    make = partial(ReadersAttention, way, function)
    make_right = partial(ReadersAttention, way, exercise.solution)
    print(f"your {name}: {STEPS} steps of training", flush=True)
    yours = train(replace(recipe, name=f"your {name}"), make)
    print_beside(yours, trained_model(recipe, make_right), make_right)


# ---- a published model writes with it

PROMPT = "When you look at the stars,"
NUM_WRITTEN = 12  # tokens
SAME = 1e-3  # of the largest number: two right ways differ by their rounding


@cache
def parts_of_identity(num_heads: int, d_k: int, d_v: int) -> list[Tensor]:
    """w_q, w_k and w_v, each (H D, H D), for x with a query, a key and a value for each head.

    These three are D = 2 d_k + d_v numbers. Each matrix brings one of them to the front of its
    head, and 0 behind it. So heads are D wide there, and w_q makes up for their division by √D.
    """
    width = 2 * d_k + d_v
    identity = torch.eye(width, dtype=torch.float64)
    matrices = []
    for columns in identity.split([d_k, d_k, d_v], dim=1):
        of_a_head = F.pad(columns, (0, width - columns.size(1)))  # -> (D, D)
        matrices.append(torch.block_diag(*[of_a_head] * num_heads))
    matrices[0] *= math.sqrt(width / d_k)
    return matrices


def head_by_head(function: Function, x: Tensor, sizes: Sequence[int], visible: Tensor) -> Tensor:
    """A function of one head is called for each: x (H, T, D), visible (T_q, T) -> (H, T, D)."""
    mask = F.pad(visible, (0, 0, x.size(1) - len(visible), 0), value=True)  # -> (T, T)
    matrices = parts_of_identity(1, *sizes)
    return torch.stack([function(head, *matrices, mask)[0] for head in x])


def copy_by_copy(function: Function, x: Tensor, sizes: Sequence[int], visible: Tensor) -> Tensor:
    """A function that knows padding, but no mask for each query, gets a copy of x for each query.

    What this query may not see is called padding there. x (H, T, D), visible (T_q, T) -> (H, T_q,
    D).
    """
    num_heads, _, width = x.shape
    copies = x.transpose(0, 1).flatten(1).repeat(len(visible), 1, 1)  # -> (T_q, T, H D)
    w_o = torch.eye(num_heads * width, dtype=x.dtype)
    matrices = parts_of_identity(num_heads, *sizes)
    output, _ = function(copies, *matrices, w_o, num_heads, visible)
    asked = output[:, -len(visible) :].diagonal()  # of copy i query i: -> (H D, T_q)
    return asked.unflatten(0, (num_heads, width)).mT  # -> (H, T_q, D)


IN_LAYERS = {"self_attention": head_by_head, "multi_head_attention": copy_by_copy}


def attend_in_a_layer(
    way: Callable[..., Tensor],
    function: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Of one text: query (1, H, T_q, d_k), key, value (1, H, T, d) -> output (1, H, T_q, d_v).

    Exercises know neither a cap nor sinks. So capped scores are handed over as queries, and an
    identity as keys; and what a sink would take is taken off the output.
    """
    asked, length = query.size(2), key.size(2)
    visible = torch.ones(asked, length, dtype=torch.bool) if mask is None else mask[0, 0]
    scores = query @ key.mT / math.sqrt(query.size(3))
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
        query, key = scores * math.sqrt(length), torch.eye(length).expand(*key.shape[:3], -1)
    query = F.pad(query, (0, 0, length - asked, 0))  # with a cache, only the last words ask
    x = torch.cat([query, key, value], dim=-1)[0].double()  # (H, T, D)
    output = way(function, x, (key.size(3), value.size(3)), visible)
    output = output[None, :, -asked:, : value.size(3)]
    refuse_unless(output, (*scores.shape[:3], value.size(3)))
    if sinks is not None:
        total = scores.masked_fill(~visible, -math.inf).logsumexp(dim=-1, keepdim=True)
        output = output * torch.sigmoid(total - sinks[:, None, None])
    return output.to(value.dtype), None


@torch.no_grad()
def write_beside(published: LanguageModel, exercise: Exercise, function: Function) -> None:
    """A published model writes with its own attention and with a reader's function.

    What it computes of the prompt is compared: logits, or the vectors of an encoder, which writes
    nothing.
    """
    tokenizer, writer = published.tokenizer, writer_of(published)
    model = writer or published.model
    attend = partial(attend_in_a_layer, IN_LAYERS[exercise.name], function)
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    numbers = []
    print(f"{published.name}, with two attentions")
    for whose, attention in (("its own", nullcontext()), ("yours", our_attention(model, attend))):
        with attention:
            numbers.append(model(tokens)[0])
            if writer is not None:  # with a cache each word asks once: plain loops take a minute
                print(f"{whose:9}", end="", flush=True)
                streamer = library().TextStreamer(tokenizer)
                writer.generate(
                    tokens, max_new_tokens=NUM_WRITTEN, do_sample=False, streamer=streamer
                )
    own, yours = numbers
    off, largest = (own - yours).abs().max(), own.abs().max()
    same = "The same" if off < SAME * largest else "Not the same"
    print(f"{same}: a number is off by up to {off:.2g}, and the largest is {largest:.3g}.")


# ---- both


def use_answer(
    chosen: Sequence[Exercise],
    exercises: Sequence[Exercise],
    functions: Mapping[str, Function],
    model: str | None = None,
) -> bool:
    """A model uses the chosen exercise; returns whether the checker finds it right.

    model: the name or folder of a published one; without it the toy model is trained. Raises
    ValueError, in one line, if this cannot be done.
    """
    exercise = chosen[0]
    name = exercise.name
    ways, where = (WAYS, "the toy model") if model is None else (IN_LAYERS, "a published model")
    if len(chosen) > 1 or name not in ways:
        can = " or ".join(each.name for each in exercises if each.name in ways) or "none"
        raise ValueError(f"of this phase's exercises {can} can run in {where}")
    function = functions.get(name)
    verdict = check(exercise, function)
    if verdict.status == NOT_WRITTEN:
        raise ValueError(f"{name}: {verdict.text}")
    use = train_beside if model is None else partial(write_beside, load_language_model(model))

    def on_copies(*inputs: Any) -> Any:
        result = function(*own_copies(inputs))
        if not all(isinstance(part, Tensor) for part in result):
            raise ValueError("it gives no tensor: compute with torch alone, without numpy")
        return result

    try:
        use(exercise, on_copies)
    except OSError:
        raise  # of a disk or a screen
    except (Exception, SystemExit) as error:
        why = f"{error_in_words(error, '')}. The checker: {verdict.text}"
        raise ValueError(f"{name} does not run in {where}: {why}") from None
    print(f"\n{textwrap.fill(f'The checker: {verdict.text}', PRINTED_WIDTH)}")
    return verdict.status == DONE
