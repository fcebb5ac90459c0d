"""What several test files use: sizes, inputs, a module broken on purpose, models and a browser for the pages."""

import inspect
import types

import pytest
import torch
from torch import nn

from phase1_single_head.self_attention import scaled_dot_product_attention
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from phase3_visualization.roles.causal_model import CausalAttention
from shared import training
from shared.training import Recipe

"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked by hand. Sizes are
different primes, so that no two axes can be confused; float64 first, where equal means equal to 12 digits. Checks of
the core take the module under test as an argument, because one test breaks the code in sixteen ways and asks whether
the check that is meant to notice does notice.
"""


B, H, T_Q, T_K, D_K, D_V = 2, 3, 5, 7, 11, 13


close = torch.testing.assert_close


def qkv(seed=0, *, t_q=T_Q, t_k=T_K, dtype=torch.float64, leading=(B, H), d_k=D_K, d_v=D_V):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    return [torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def some_mask(generator, shape):
    """About two thirds visible, and the first query of it sees nothing at all."""
    mask = torch.rand(shape, generator=generator) < 0.67
    mask[..., 0, :] = False
    return mask


def attention(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)


def broken(module, replacements):
    """A copy of the module with each of the replacements made exactly once."""
    source = inspect.getsource(module)
    for old, new in replacements:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
        source = source.replace(old, new)
    copy = types.ModuleType(f"broken_{module.__name__}")
    exec(compile(source, module.__file__, "exec"), copy.__dict__)  # its claims keep their place
    return copy


def torch_single_head(ours):
    """nn.MultiheadAttention with one head, no biases, and the weights of our SelfAttention or CrossAttention."""
    theirs = nn.MultiheadAttention(ours.w_q.in_features, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
    return theirs


def words_of(sentence):
    return sentence.split()


def layer(d_model: int = 33, num_heads: int = 3, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(d_model, num_heads, bias=False).to(dtype)


def needs_browser(test):
    """All of them in one process, since they share one Chromium."""
    return pytest.mark.browser(pytest.mark.xdist_group("browser")(test))


EXPLORER_RECIPES = (
    Recipe("both sides", "masked word", num_heads=4, num_layers=2, steps=0),
    Recipe("causal", "next word", num_heads=4, num_layers=2, steps=0),
    Recipe("small", "masked word", num_heads=3, num_layers=3, steps=0, d_model=21),
    Recipe("small causal", "next word", num_heads=5, num_layers=1, steps=0, d_model=15),
)


def sharp_model(recipe):
    """Random weights, but large: no zero bias, words that outweigh positions, attention that decides."""
    make_attention = CausalAttention if recipe.objective == "next word" else MultiHeadAttention
    trained = training.untrained(recipe, make_attention)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            if "norm.weight" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            if name == "embedding.weight":
                parameter.mul_(4)
            if "w_q.weight" in name or "w_k.weight" in name:
                parameter.mul_(5)
    trained.model.eval()
    return trained


def open_watched(browser, address, errors, **context):
    """A new tab; whatever it complains about, and whatever it asks for beside its own file, lands in errors."""
    page = browser.new_page(**context)
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith(address.split("#")[0]) else errors.append(request.url)
    )
    page.goto(address)
    return page


def change(before, after):
    old, new = f"{before:.2f}", f"{after:.2f}"
    return new if old == new else f"{old} → {new}"
